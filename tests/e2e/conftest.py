"""A gateway in front of a fake upstream, on a database of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import Gateway
from tests.upstream.fake import FakeUpstream

MakeGateway = Callable[..., Awaitable[Gateway]]

CREATED = (
    b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nLocation: /orders/17\r\nX-Upstream: yes\r\n"
    b"Content-Length: 12\r\n\r\n"
    b'{"id": "17"}'
)


@pytest.fixture
async def upstream() -> AsyncIterator[FakeUpstream]:
    """Answers every request with 201 and remembers it."""
    fake = FakeUpstream()
    await fake.start()
    fake.answer(CREATED)
    yield fake
    await fake.stop()


@pytest.fixture
async def make_gateway(tmp_path: Path, upstream: FakeUpstream, fresh_database: str) -> AsyncIterator[MakeGateway]:
    """Makes gateways on this test's database; keyword arguments change the configuration."""
    made: list[Gateway] = []

    async def make(*, start: bool = True, **changes: Any) -> Gateway:
        gateway = Gateway(tmp_path, upstream.url, fresh_database, changes)
        made.append(gateway)
        if start:
            await gateway.start()
        return gateway

    yield make
    for gateway in made:
        await gateway.aclose()


@pytest.fixture
async def gateway(make_gateway: MakeGateway) -> Gateway:
    """A gateway with the default configuration of these tests."""
    return await make_gateway()
