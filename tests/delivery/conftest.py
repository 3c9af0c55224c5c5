"""Every test of this room runs on asyncio's own loop and on uvloop: their transports write and close differently."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
import uvloop

from gateway.delivery.guard import AddressGuard
from gateway.delivery.sender import Sender
from tests.delivery.receiver import Receiver

LOOPBACK = ["127.0.0.0/8", "::1/128"]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
def open_guard() -> AddressGuard:
    """Lets a test call its own receivers, by address."""
    return AddressGuard(allow_http=True, allow_networks=LOOPBACK)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    started = await Receiver().start()
    yield started
    await started.stop()


@pytest.fixture
async def make_sender(open_guard: AddressGuard) -> AsyncIterator[Callable[..., Sender]]:
    """Makes senders and closes them."""
    senders: list[Sender] = []

    def make(guard: AddressGuard = open_guard, **options: Any) -> Sender:
        sender = Sender(guard, **{"timeout_s": 5.0, **options})
        senders.append(sender)
        return sender

    yield make
    for sender in senders:
        await sender.close()


@pytest.fixture
async def sender(make_sender: Callable[..., Sender]) -> Sender:
    return make_sender()
