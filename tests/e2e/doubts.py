"""Upstreams that leave doubts behind, and what becomes of them, for tests of recovery."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

from tests.e2e.conftest import CREATED
from tests.e2e.harness import Gateway, eventually
from tests.upstream.fake import FakeUpstream, Seen, Wire

QUICK = {"lease": "2s", "interval": "100ms", "backoff": "50ms"}

Step = Callable[[Wire], Awaitable[None]]


async def drop(wire: Wire) -> None:
    """The request was received, and the connection is lost."""
    wire.close()


async def reset(wire: Wire) -> None:
    wire.reset()


async def silence(wire: Wire) -> None:
    await wire.until_peer_closes()


async def created(wire: Wire) -> None:
    await wire.send(CREATED)


def answering(status: int, body: bytes = b"no") -> Step:
    async def answer(wire: Wire) -> None:
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        await wire.send(head.encode() + body)

    return answer


def in_turn(upstream: FakeUpstream, *steps: Step) -> None:
    """The n-th request gets the n-th step, the last one ever after."""

    async def script(wire: Wire) -> None:
        while True:
            await wire.request()
            await steps[min(len(upstream.requests), len(steps)) - 1](wire)

    upstream.script = script


def header(seen: Seen, name: str) -> str | None:
    found = re.search(rb"\r\n" + name.encode() + rb": ([^\r]*)\r\n", seen.head, re.IGNORECASE)
    return None if found is None else found[1].decode()


async def in_phase(gateway: Gateway, server_id: str, phase: str) -> Any:
    """The intent, once it has come into a phase."""

    async def there() -> Any:
        intent = await gateway.intent(server_id)
        return intent if intent["phase"] == phase else None

    return await eventually(there)


async def held(gateway: Gateway, server_id: str) -> Any:
    """The intent, once it waits for a verdict."""

    async def there() -> Any:
        intent = await gateway.intent(server_id)
        doubt = intent["in_doubt"]
        return intent if doubt is not None and doubt["next_at"] is None else None

    return await eventually(there)
