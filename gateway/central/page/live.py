"""That something has changed, told to a page: no data, so that a page is only ever made by the server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from gateway.central.page.desk import Desk
from gateway.central.questions import scope_of
from gateway.operator import parameters
from gateway.operator.calls import Call
from gateway.protocol.messages import Answer

if TYPE_CHECKING:
    from gateway.central.endpoints import Sources

PAUSE_S = 1.0  # however much happens, a page hears of it once a second
RETRY_MS = 1_000  # before a browser connects again; a refusal then tells it that its session has ended
STILL_S = 5.0  # between two signs of life; also how soon a stream ends whose session has


async def head(desk: Desk, sources: Sources, call: Call) -> Answer:
    """`/live`"""
    parameters.parse(call.query, takes=())
    return Answer(200, [(b"Content-Type", b"text/event-stream"), (b"X-Accel-Buffering", b"no")])


async def changes(desk: Desk, sources: Sources, call: Call) -> AsyncIterator[bytes]:
    """`change` events until the reader leaves or may no longer read."""
    changed = asyncio.Event()

    async def listen() -> None:
        async for found in sources.live.follow(scope_of(call)):
            if found is not None:
                changed.set()

    listening = asyncio.get_running_loop().create_task(listen(), name="page changes")
    listening.add_done_callback(lambda _: changed.set())
    try:
        await asyncio.sleep(0)  # so that it listens before the page hears that it does
        yield b": following\nretry: %d\n\n" % RETRY_MS
        while desk.may_still_read(call) and not listening.done():
            try:
                async with asyncio.timeout(STILL_S):
                    await changed.wait()
            except TimeoutError:
                yield b": still here\n\n"
                continue
            changed.clear()
            yield b"event: change\ndata: 1\n\n"
            await asyncio.sleep(PAUSE_S)
        if listening.done():
            listening.result()  # the ledger's store went away: the browser connects again
    finally:
        listening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait((listening,))
