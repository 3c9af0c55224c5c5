"""Every test of this room runs on asyncio's own loop and on uvloop: their transports write and end differently."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
import uvloop

from tests.ingress.peer import Gateway, Serve, start


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts edges: `await serve(handler, header_timeout_s=…, …)`."""
    gateways: list[Gateway] = []

    async def make(handler: Any = None, **options: Any) -> Gateway:
        gateways.append(await start(handler, **options))
        return gateways[-1]

    yield make
    for gateway in gateways:
        gateway.listener.close()
        for peer in gateway.peers:
            await peer.close()
        await gateway.server.shutdown(5)


@pytest.fixture
async def gateway(serve: Serve) -> Gateway:
    """An edge whose handler notes every request and says its target back."""
    return await serve()
