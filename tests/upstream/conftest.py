"""Every test of this room runs on asyncio's own loop and on uvloop: their transports write and close differently."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
import uvloop

from gateway.upstream import Upstream
from tests.upstream.fake import FakeUpstream


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
async def fake() -> AsyncIterator[FakeUpstream]:
    upstream = FakeUpstream()
    await upstream.start()
    yield upstream
    await upstream.stop()


@pytest.fixture
async def connect(fake: FakeUpstream) -> AsyncIterator[Callable[..., Upstream]]:
    """Makes clients of the fake upstream (or of another `url`) and closes them."""
    clients: list[Upstream] = []

    def make(url: str | None = None, **options: Any) -> Upstream:
        client = Upstream(url or fake.url, **{"connect_timeout_s": 5.0, **options})
        clients.append(client)
        return client

    yield make
    for client in clients:
        await client.close()


@pytest.fixture
def client(connect: Callable[..., Upstream]) -> Upstream:
    return connect()
