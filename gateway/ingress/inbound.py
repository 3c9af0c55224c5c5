"""One request as the handler sees it, and the ways to answer it.

Raw target and headers are kept byte for byte (OPT-2); the body is read whole within limits, or streamed; the answer is
returned as one `Answer`, or streamed through here, or the connection becomes a tunnel. It decides nothing about 2PHP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Final

from aiohttp.http import RawRequestMessage
from aiohttp.streams import StreamReader

from gateway.ingress import render, strict
from gateway.ingress.tunnel import BytePipe, ClientGone, Splice
from gateway.protocol import problems
from gateway.protocol.messages import Headers, first_value

if TYPE_CHECKING:
    from gateway.ingress.edge import Edge

_HTTP_1_0: Final = (1, 0)


class Inbound:
    """A request and its answer.

    `target` is the raw request target in origin form, `path` and `query` its parts (`query` is None without a `?`).
    `raw_headers` keep order and case, without what `strict` neutralised; `headers` is a case-insensitive view of the
    head as it was sent, for look-ups. `peer` is the socket's peer address, `secure` says whether it came over TLS.
    `websocket` is True for a WebSocket upgrade, `speaks_2php` if any DTT-2PHP field is there.
    """

    __slots__ = (
        "_bodiless",
        "_chunked",
        "_continued",
        "_edge",
        "_gone",
        "_held_bytes",
        "_on_client_left",
        "_payload",
        "_remaining_bytes",
        "certificate",
        "client_left",
        "close_after",
        "content_length",
        "expects_continue",
        "finished",
        "has_body",
        "headers",
        "method",
        "path",
        "peer",
        "query",
        "raw_headers",
        "secure",
        "speaks_2php",
        "started",
        "target",
        "version",
        "websocket",
    )

    def __init__(self, edge: Edge, message: RawRequestMessage, payload: StreamReader) -> None:
        target, raw_headers, length, chunked, expects_continue, websocket, speaks_2php = strict.check(
            message.method, message.path.encode("utf-8", "surrogateescape"), message.raw_headers, message.version
        )
        self._edge = edge
        self._payload = payload
        self.method = message.method
        self.target = target
        self.path, mark, query = target.partition(b"?")
        self.query = query if mark else None
        self.raw_headers = raw_headers
        self.headers = message.headers
        self.version = message.version
        self.peer = edge.peer
        self.secure = edge.secure
        self.certificate = edge.certificate
        self.content_length = length
        self.has_body = chunked or bool(length)
        self.expects_continue = expects_continue
        self.websocket = websocket
        self.speaks_2php = speaks_2php
        self.close_after: bool = message.should_close
        self.started = False  # a streamed answer's head has been written
        self.finished = False  # a streamed answer or a tunnel has come to its end
        self.client_left = False
        self._gone: asyncio.Future[None] | None = None
        self._on_client_left: Callable[[], object] | None = None
        self._continued = False
        self._held_bytes = 0
        self._bodiless = False  # the streamed answer ends at its head
        self._chunked = False
        self._remaining_bytes: int | None = None

    # --- the client ---

    @property
    def client_gone(self) -> asyncio.Future[None]:
        """Done once the client has closed its side. Work after the PONR goes on (decision 8), a pass-through ends."""
        if self._gone is None:
            self._gone = asyncio.get_running_loop().create_future()
            if self.client_left:
                self._gone.set_result(None)
        return self._gone

    @property
    def on_client_left(self) -> Callable[[], object] | None:
        """Called once when the client closes its side, at once if it has: `client_gone` for who cannot wait for it."""
        return self._on_client_left

    @on_client_left.setter
    def on_client_left(self, callback: Callable[[], object] | None) -> None:
        self._on_client_left = callback
        if self.client_left and callback is not None:
            callback()

    def client_leaves(self) -> None:
        """The edge's signal behind `client_gone` and `on_client_left`."""
        if self.client_left:
            return  # an end of its sending side was followed by the loss of the connection
        self.client_left = True
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)
        if self._on_client_left is not None:
            self._on_client_left()

    def _transport(self) -> asyncio.Transport:
        """Where to write, while there is somebody to read it. (uvloop refuses writes before it reports the loss.)"""
        transport = self._edge.transport
        if transport is None or transport.is_closing():
            raise ClientGone
        return transport

    # --- the body ---

    @property
    def body_received(self) -> bool:
        """True once the whole body has arrived, read or not."""
        return self._payload.is_eof()

    def send_continue(self) -> None:
        """Tell a client that waits for it to send its body (P1-9). Nothing else ever does."""
        if self.expects_continue and not self._continued and not self.started:
            self._continued = True
            if not self.client_left and not self._payload.is_eof():
                self._transport().write(render.CONTINUE)

    async def read_body(self, limit: int) -> bytes:
        """The whole body, of at most `limit` bytes; the worker's buffer budget is held until the request ends.

        413 past the limit without reading on (P1-7), 408 when the body stops arriving, 400 when its framing breaks, 503
        when the budget is spent. Sends 100 itself if the client waits for it and the head alone is no reason to refuse.
        """
        if not self.has_body:
            return b""
        if self.content_length is not None and self.content_length > limit:
            raise problems.payload_too_large(limit)
        payload = self._payload
        if payload.is_eof():  # the usual small request: all of it came with its head
            body = payload.read_nowait()
            if len(body) > limit:
                raise problems.payload_too_large(limit)
            self._hold(len(body))
            return body
        self._edge.buffers.check(self.content_length or 0)  # a full budget is told before the body is sent
        self.send_continue()
        parts: list[bytes] = []
        received = 0
        while part := await self._next_part():
            received += len(part)
            if received > limit:
                raise problems.payload_too_large(limit)
            self._hold(len(part))
            parts.append(part)
        return b"".join(parts)

    def received(self) -> bytes:
        """The body that has arrived whole, for who passes it on at once: nothing is held, so no budget is asked."""
        assert self._payload.is_eof(), "the body is still arriving"
        return self._payload.read_nowait()

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives. What is not asked for stays in the socket; 100 is the caller's to send."""
        if self.has_body:
            while part := await self._next_part():
                yield part

    async def _next_part(self) -> bytes:
        edge = self._edge
        edge.await_body()
        try:
            return await self._payload.readany()
        finally:
            edge.body_came()

    def _hold(self, count: int) -> None:
        self._edge.buffers.acquire(count)
        self._held_bytes += count

    def release(self) -> None:
        """The request is over: its body no longer counts."""
        if self._held_bytes:
            self._edge.buffers.release(self._held_bytes)
            self._held_bytes = 0

    # --- a streamed answer ---

    async def start(self, status: int, reason: bytes | None, headers: Headers) -> None:
        """Write the head of an answer whose body follows through `write` and `finish`.

        A Content-Length among the headers frames the body; without one it is chunked, or on HTTP/1.0 ends with the
        connection. Answers to HEAD, 204 and 304 have no body: `write` then drops what it is given.
        """
        assert not self.started, "an answer begins once"
        edge = self._edge
        transport = self._transport()
        http_1_0 = self.version == _HTTP_1_0
        length = first_value(headers, b"content-length")
        if self.method == "HEAD" or render.has_no_body(status):
            self._bodiless = True
        elif length is not None:
            self._remaining_bytes = int(length)
        elif http_1_0:
            self.close_after = edge.unframed = True
        else:
            self._chunked = True
        self.close_after = self.close_after or edge.last_answer
        transport.write(
            render.stream_head(
                status, reason, headers, chunked=self._chunked, close=self.close_after, http_1_0=http_1_0
            )
        )
        self.started = True

    async def write(self, chunk: bytes) -> None:
        """Send body bytes and wait while the client does not keep up; ClientGone when it has left."""
        transport = self._transport()
        if self._bodiless or not chunk:
            return
        if self._chunked:
            transport.writelines((b"%x\r\n" % len(chunk), chunk, b"\r\n"))
        else:
            if self._remaining_bytes is not None:
                self._remaining_bytes -= len(chunk)
                if self._remaining_bytes < 0:
                    self.abort()
                    raise ValueError("the body of an answer is longer than its Content-Length")
            transport.write(chunk)
        if self._edge.writing_paused:
            await self._edge.writable()

    async def finish(self) -> None:
        """End the body. One that is shorter than its Content-Length is cut, so that the client sees it."""
        assert self.started, "an answer ends after it began"
        if self._remaining_bytes:
            self.abort()
            raise ValueError("the body of an answer is shorter than its Content-Length")
        transport = self._transport()
        if self._chunked:
            transport.write(b"0\r\n\r\n")
        self.finished = True

    def abort(self) -> None:
        """Cut the connection: the only way to tell a client that an answer which has begun will not be complete."""
        self._edge.cut()

    # --- an upgraded connection ---

    async def tunnel(self, status: int, reason: bytes | None, headers: Headers, pipe: BytePipe) -> None:
        """Pass the upstream's 101 on and then bytes both ways, with backpressure, until both sides have ended."""
        try:
            transport = self._transport()
            self.started = True
            transport.write(render.switch_head(status, reason, headers))
            splice = Splice(pipe, transport, self._edge.await_reader)
            self._edge.hand_over(splice)
            await splice.run()
        except BaseException:
            pipe.abort()
            raise
        self.finished = True
