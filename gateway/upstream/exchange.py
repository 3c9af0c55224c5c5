"""One request and its answer on one connection.

The small case is one write, one future and one read of the socket: no task, no timer of its own. Whoever opens an
exchange ends it: reads it to its end, which gives the connection back by itself, or aborts it. It never sends
anything twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from gateway.upstream.connection import Connection
from gateway.upstream.failure import UpstreamFailure
from gateway.upstream.request import Framing
from gateway.upstream.response import FramingError, Response
from gateway.upstream.tunnel import Tunnel
from gateway.upstream.upload import SLICE_BYTES, Upload, slices

BUFFER_BYTES_MAX = 256 * 1024  # unread body bytes before the socket is left alone; one read of it may come on top


class Exchange(Response):
    """The answer, and the way to read its body.

    `status`, `reason`, `headers` and `version` are the upstream's own. `complete` is True once the whole body has
    arrived; `read` then returns without waiting. `content_length`, `chunked` and `until_close` tell how the body was
    framed. `upgraded` is True for a 101: then `tunnel()` is the connection.
    """

    __slots__ = ("_connection", "_failure", "_on_continue", "_read_timeout_s", "_upload", "_waiter", "_wanted_bytes")

    def __init__(
        self,
        connection: Connection,
        *,
        head_only: bool,
        upgrade_asked: bool,
        read_timeout_s: float,
        on_continue: Callable[[], None] | None,
    ) -> None:
        super().__init__(head_only=head_only, upgrade_asked=upgrade_asked)
        self._connection: Connection | None = connection
        self._read_timeout_s = read_timeout_s
        self._on_continue = on_continue
        self._upload: Upload | None = None
        self._failure: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._wanted_bytes = 0  # how much body wakes the waiter; 0: the head alone does

    def begin(
        self,
        head: bytes,
        body: bytes | AsyncIterator[bytes] | None,
        framing: Framing,
        *,
        timeout_s: float,
        before_send: Callable[[], bool] | None = None,
    ) -> asyncio.Future[None]:
        """Send the request; the future is done when the head of the final answer is here.

        `before_send` is asked before every write but the first, which is its caller's to ask about.
        """
        connection = self._connection
        assert connection is not None
        connection.sink = self
        connection.arm(timeout_s)
        self._waiter = waiter = connection.loop.create_future()
        if body is None:
            connection.transport.write(head)
            return waiter
        if isinstance(body, bytes):
            if len(body) <= SLICE_BYTES:  # `Expect` or not: its client did not wait for a 100 either
                connection.transport.write(head + body)
                return waiter
            body = slices(body)
        self._upload = Upload(
            connection, body, framing, timeout_s=timeout_s, before_send=before_send, on_failure=self._fail
        )
        connection.transport.write(head)
        return waiter

    async def read(self, limit: int, *, within_s: float | None = None) -> tuple[bytes, bool]:
        """Up to `limit` bytes of the body, and True if the body ended within them.

        Never reads on past the limit: what is beyond stays with the upstream and comes by iteration. With `within_s`
        the wait is bounded, and what arrived until then is returned. A body cut before its end is an UpstreamFailure.
        """
        if not self.complete:
            if self._failure is not None:
                raise self._failure
            if self.buffered_bytes <= limit:
                await self._wait(limit + 1, within_s)
        data = self.take(limit)
        return data, self.complete and not self.buffered_bytes

    def __aiter__(self) -> Exchange:
        return self

    async def __anext__(self) -> bytes:
        """The next body bytes as they come; the socket is read no further ahead than one buffer."""
        if not self.buffered_bytes and not self.complete:
            if self._failure is not None:
                raise self._failure
            await self._wait(1, None)
        if not self.buffered_bytes:
            raise StopAsyncIteration
        data = self.take(self.buffered_bytes)
        if self._connection is not None:
            self._connection.resume_reading()
        return data

    def abort(self) -> None:
        """Close the connection unless the answer is complete. Safe at any time, any number of times."""
        if self._connection is not None:
            self._fail(UpstreamFailure("reset", sent=True, detail="the gateway gave the exchange up"))

    def tunnel(self) -> Tunnel:
        """The raw connection after a 101; the exchange is over with it."""
        if self._failure is not None:
            raise self._failure
        connection = self._connection
        if not self.upgraded or connection is None:
            raise RuntimeError("only an upgraded exchange has a tunnel, and only one")
        self._connection = None
        return Tunnel(connection, self.leftover)

    async def _wait(self, wanted_bytes: int, within_s: float | None) -> None:
        """Wait until `wanted_bytes` are buffered, the body is complete, or `within_s` has passed."""
        connection = self._connection
        if connection is None or self._waiter is not None or self.upgraded:
            raise RuntimeError("an exchange has one reader, and none after an upgrade")
        loop = connection.loop
        self._waiter = waiter = loop.create_future()
        self._wanted_bytes = wanted_bytes
        connection.arm(self._read_timeout_s)
        connection.resume_reading()
        patience = None if within_s is None else loop.call_later(within_s, self._wake)
        try:
            await waiter
        except BaseException:
            self._waiter = None
            self.abort()
            raise
        finally:
            self._wanted_bytes = 1
            if patience is not None:
                patience.cancel()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if self._connection is not None:
            self._connection.disarm()  # the clock of the body runs only while somebody waits for it
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # The connection's sink.

    def receive(self, data: bytes) -> None:
        try:
            self.feed(data)
        except FramingError as error:
            self._fail(UpstreamFailure("protocol", sent=True, detail=str(error)))
            return
        if self.complete:
            self._finish()
            if self._waiter is not None:
                self._wake()
        elif self.status:
            self._go_on()
        elif self.continued:
            self._relay_continue()

    def ended(self) -> bool:
        if self.end():
            self._finish()
            if self._waiter is not None:
                self._wake()
        else:
            self._fail(UpstreamFailure("reset", sent=True, detail=self._cut("closed the connection")))
        return False

    def lost(self, error: Exception | None) -> None:
        detail = self._cut(f"lost the connection ({error})" if error else "lost the connection")
        self._fail(UpstreamFailure("reset", sent=True, detail=detail))

    def expired(self) -> None:
        detail = "no further bytes of the answer in time" if self.status else "no answer in time"
        self._fail(UpstreamFailure("timeout", sent=True, detail=detail))

    def pressed(self, full: bool) -> None:
        if self._upload is not None:
            self._upload.pressed(full)

    def _go_on(self) -> None:
        """The head is here, the body is not complete."""
        connection = self._connection
        assert connection is not None
        if self.upgraded:
            if self._upload is not None and not self._upload.finished:
                self._fail(UpstreamFailure("protocol", sent=True, detail="101 before the end of the request's body"))
                return
            connection.pause_reading()
            connection.leave_pool()  # a tunnel may live for days: it must not hold a place of the pool
        elif self._upload is not None:
            self._steer_upload(self._upload)
        if self._waiter is not None and self.buffered_bytes < self._wanted_bytes:
            connection.arm(self._read_timeout_s)
            return
        if self.buffered_bytes >= BUFFER_BYTES_MAX:
            connection.pause_reading()
        if self._waiter is not None:
            self._wake()

    def _steer_upload(self, upload: Upload) -> None:
        """A final answer while the body is still going out. One that is no refusal may well stream along with it."""
        upload.answered = True
        if self.continued:
            upload.proceed()
        if self.status >= 400 or upload.held:
            upload.stop()  # refused, or answered without asking for the body: nobody wants the rest

    def _relay_continue(self) -> None:
        if self._upload is not None:
            self._upload.proceed()
        on_continue, self._on_continue = self._on_continue, None
        if on_continue is not None:
            on_continue()

    def _finish(self) -> None:
        """The answer is complete: the connection goes back to the pool, or is closed."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        upload, self._upload = self._upload, None
        sent = upload is None or upload.finished
        if upload is not None and not sent:
            upload.stop()
        if sent and self.reusable and not connection.transport.get_write_buffer_size():
            connection.release(self.keep_for_s)
        else:
            connection.close()

    def _fail(self, error: BaseException) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._failure = error
        self._parser = None
        connection.sink = None
        connection.abort()
        upload, self._upload = self._upload, None
        if upload is not None:
            upload.stop()
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    def _cut(self, what: str) -> str:
        return f"the upstream {what} {'within' if self.status else 'before'} its answer"
