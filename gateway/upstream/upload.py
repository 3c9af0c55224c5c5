"""A request body that does not go out in one write: from an iterator, in slices, or after a 100 Continue.

It waits for the upstream's buffer (backpressure) and never sends more or less than the headers announce. The clock
runs only while the upstream is to act: a client that is slow to send its body is the edge's to time out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from gateway.upstream.connection import Connection
from gateway.upstream.failure import UpstreamFailure
from gateway.upstream.request import Framing

CONTINUE_WAIT_S = 1.0  # RFC 9110 10.1.1: not indefinitely; what curl waits before it sends the body all the same
SLICE_BYTES = 64 * 1024  # asyncio's high-water mark: a slice fills the buffer once


async def slices(body: bytes) -> AsyncIterator[bytes]:
    """A large buffered body in pieces, so that an early answer can stop it."""
    for start in range(0, len(body), SLICE_BYTES):
        yield body[start : start + SLICE_BYTES]


class Upload:
    """One body on its way. Owns the task that sends it."""

    __slots__ = (
        "_before_send",
        "_body",
        "_connection",
        "_drained",
        "_framing",
        "_full",
        "_go_ahead",
        "_on_failure",
        "_stopped",
        "_task",
        "_timeout_s",
        "answered",
        "finished",
    )

    def __init__(
        self,
        connection: Connection,
        body: AsyncIterator[bytes],
        framing: Framing,
        *,
        timeout_s: float,
        before_send: Callable[[], bool] | None,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.finished = False  # the whole body was handed to the transport
        self.answered = False  # the head of the final answer is here: the deadline is the reader's now
        self._connection = connection
        self._body = body
        self._framing = framing
        self._timeout_s = timeout_s
        self._before_send = before_send
        self._on_failure = on_failure
        self._full = False
        self._stopped = False
        self._drained: asyncio.Future[None] | None = None
        self._go_ahead = connection.loop.create_future() if framing.expects_continue else None
        self._task = connection.loop.create_task(self._run())
        self._task.add_done_callback(self._done)

    @property
    def held(self) -> bool:
        """True while the body waits for a 100 Continue."""
        return self._go_ahead is not None and not self._go_ahead.done()

    def stop(self) -> None:
        """Send no more; the iterator is closed."""
        self._stopped = True
        self._task.cancel()

    def proceed(self) -> None:
        """The upstream wants the body (100 Continue)."""
        if self._go_ahead is not None and not self._go_ahead.done():
            self._go_ahead.set_result(None)

    def pressed(self, full: bool) -> None:
        """The transport's buffer is full, or has room again."""
        self._full = full
        if not full and self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    async def _run(self) -> None:
        try:
            if self._go_ahead is not None:
                await self._wait(self._go_ahead)
            await self._send()
            self.finished = True
            self._arm()
        finally:
            await _close(self._body)

    def _done(self, task: asyncio.Task[None]) -> None:
        """The body's own failure ends the exchange: half a body must never look like a whole one."""
        error: BaseException | None
        if task.cancelled():
            error = UpstreamFailure("reset", sent=True, detail="the source of the body was cancelled")
        else:
            error = task.exception()
        if error is not None and not self._stopped:
            self._on_failure(error)

    async def _wait(self, go_ahead: asyncio.Future[None]) -> None:
        patience = self._connection.loop.call_later(CONTINUE_WAIT_S, self.proceed)
        try:
            await go_ahead
        finally:
            patience.cancel()

    async def _send(self) -> None:
        transport = self._connection.transport
        chunked, length = self._framing.chunked, self._framing.length
        sent_bytes = 0
        self._disarm()
        async for data in self._body:
            if not data:
                continue  # an empty chunk would end a chunked body
            if self._connection.readable():
                # Perhaps a refusal with a reset behind it: writing first would fail, and the answer be lost with it.
                await asyncio.sleep(0)
                await asyncio.sleep(0)  # asyncio runs what was ready, this task too, before what it finds to read
            self._check_right()
            sent_bytes += len(data)
            if chunked:
                transport.writelines((b"%x\r\n" % len(data), data, b"\r\n"))
            elif length is not None and sent_bytes <= length:
                transport.write(data)
            else:
                raise ValueError("the body is longer than its Content-Length")
            if self._full:
                await self._drain()
        if chunked:
            self._check_right()
            transport.write(b"0\r\n\r\n")
        elif sent_bytes != length:
            raise ValueError("the body is shorter than its Content-Length")

    def _check_right(self) -> None:
        """REC-1: a body may take longer than a lease; who lost it sends no further byte."""
        if self._before_send is not None and not self._before_send():
            raise UpstreamFailure("lease", sent=True, detail="the right to send was lost within the body")

    async def _drain(self) -> None:
        self._arm()
        self._drained = self._connection.loop.create_future()
        await self._drained
        self._drained = None
        self._disarm()

    def _arm(self) -> None:
        if not self.answered:
            self._connection.arm(self._timeout_s)

    def _disarm(self) -> None:
        if not self.answered:
            self._connection.disarm()


async def _close(body: AsyncIterator[bytes]) -> None:
    aclose = getattr(body, "aclose", None)
    if aclose is not None:
        await aclose()
