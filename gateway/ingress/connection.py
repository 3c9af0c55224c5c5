"""The bytes and the time of one client connection: the lower half of the edge (decision 13).

aiohttp's parser and flow control are kept; its timers and its error handling are replaced. Complete heads are queued
for the upper half (`edge.py`), in order. Deadlines are plain numbers that one sweep per worker looks at, so a request
costs no timer. It must not know what a request means, nor write an answer.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from math import inf
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from aiohttp.web_protocol import RequestHandler

from gateway.ingress import refusals
from gateway.ingress.inbound import Inbound
from gateway.ingress.limits import EdgeLimits
from gateway.ingress.tunnel import Splice
from gateway.ingress.wire import ChunkedWatch, head_bytes
from gateway.protocol.problems import Problem

# aiohttp's names that nobody promised us. A test fails when one is gone; pyproject pins aiohttp below its next minor.
AIOHTTP_PRIVATE: Final = (
    "_buffer_paused",
    "_drain_helper",
    "_loop",
    "_max_msg_queue_size",
    "_message_tail",
    "_messages",
    "_msg_queue_resume_size",
    "_parser",
    "_pause_reading_for_buffer",
    "_pause_transport_reading",
    "_paused",
    "_read_bufsize",
    "_reading_paused",
    "_resume_reading_for_buffer",
    "_resume_reading_if_drained",
    "_resume_transport_reading",
    "_task_handler",
    "_upgraded",
    "_waiter",
)
TOO_MANY_HEADERS: Final = "Too many headers received"  # the parser has no type for it; a test pins the text

# Method, spaces and version: a target that leaves them no room cannot fit the head, whatever follows.
_REQUEST_LINE_REST_BYTES: Final = 16
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER for no time: the close is a reset

# What a connection's deadline is for. A body has its own: it may be read while its answer is being written.
IDLE: Final = "the next request"
READER: Final = "the client to take what was sent"

Queued = tuple[Any, StreamReader]  # a RawRequestMessage, or the Problem that stands for one, and its payload

log = logging.getLogger("gateway.ingress")


class Connection(RequestHandler):
    """A socket, a parser, and the requests that came out of it."""

    __slots__ = (
        "_awaited",
        "_body",
        "_body_deadline",
        "_client_ended",
        "_deadline",
        "_deaf",
        "_discarded_bytes",
        "_final",
        "_head_bytes",
        "_head_started",
        "_inbound",
        "_limits",
        "_linger_timer",
        "_lost_waiter",
        "_splice",
        "_watch",
        "certificate",
        "peer",
        "secure",
        "task",
        "unframed",
    )

    def __init__(self, server: web.Server, loop: asyncio.AbstractEventLoop, limits: EdgeLimits) -> None:
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=0,  # aiohttp's own timer stays off
            access_log=None,  # type: ignore[arg-type]
            logger=log,
            max_line_size=limits.max_header_bytes - _REQUEST_LINE_REST_BYTES,
            max_field_size=limits.max_header_bytes,
            max_headers=limits.max_headers,
            read_bufsize=limits.read_buffer_bytes,
            auto_decompress=False,
        )
        self._limits = limits
        self.peer = ""
        self.secure = False
        self.certificate: bytes | None = None  # the client's, as the handshake accepted it; read once a connection
        self.task: asyncio.Task[None] | None = None
        self._inbound: Inbound | None = None  # the request being handled
        self._body: StreamReader | None = None  # of the newest request, while it is still arriving
        self._watch: ChunkedWatch | None = None  # over that body, if it is chunked
        self._splice: Splice | None = None  # set once the connection is a tunnel
        self._head_bytes = 0  # of a head that is not complete
        self._head_started = 0.0  # when its first byte came; 0: there is none
        self._deadline = inf
        self._awaited = IDLE
        self._body_deadline = inf
        self._deaf = False  # input is no longer parsed
        self._final = False  # no request will be taken after those queued
        self._client_ended = False
        self.unframed = False  # nothing but the end of the connection ends the answer in progress
        self._discarded_bytes = 0
        self._linger_timer: asyncio.TimerHandle | None = None
        self._lost_waiter: asyncio.Future[None] | None = None

    # --- the socket ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if isinstance(peer, tuple) else ""
        tls = transport.get_extra_info("ssl_object")
        self.secure = tls is not None
        if tls is not None:
            self.certificate = tls.getpeercert(binary_form=True)
        super().connection_made(transport)
        self.task = self._task_handler

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)  # wakes whoever waits for a request or for room to write; cancels no handler
        self._deaf = self._final = True
        self._deadline = self._body_deadline = inf
        self._head_started = 0.0
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        if self._lost_waiter is not None and not self._lost_waiter.done():
            self._lost_waiter.set_result(None)
        self._client_left()
        if self._splice is not None:
            self._splice.lost()

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more, but may still read: what was asked is answered. A pass-through hears of it."""
        if self._splice is not None:
            return self._splice.ended() and not self.secure
        self._client_ended = self._deaf = self._final = True
        self._head_started = 0.0
        self._client_left()
        return (self._inbound is not None or bool(self._messages)) and not self.secure

    def _client_left(self) -> None:
        if self._body is not None and not self._body.is_eof():
            self._body.set_exception(refusals.incomplete_body())
        if self._inbound is not None:
            self._inbound.client_leaves()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._splice is not None:
            self._splice.pressed(True)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._splice is not None:
            self._splice.pressed(False)

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Called for every body that is read; a body that never paused anything has nothing to resume."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    # --- bytes in ---

    def data_received(self, data: bytes) -> None:
        if self._splice is not None:
            self._splice.receive(data)
            return
        if self._deaf:
            self._discard(len(data))
            return
        if self._upgraded:
            self._keep_for_tunnel(data)
            return
        try:
            messages, self._upgraded, tail = self._parser.feed_data(data)  # type: ignore[union-attr]
        except Exception as error:  # not only the parser's own errors: building its URL object raises ValueError
            self._unreadable(error)
            return
        if messages:
            self._message_tail = tail
            self._take(messages, data)
        elif self._body is not None:
            self._body_grew(self._body, data)
        elif data:
            self._head_grew(data)

    def _take(self, messages: list[Queued], data: bytes) -> None:
        """Queue the requests whose heads are complete."""
        limit = self._limits.max_header_bytes
        fed_bytes = self._head_bytes + len(data)
        self._head_bytes = 0
        self._head_started = 0.0
        wire_bytes = fed_bytes
        if self._body is not None:
            self._body = None
            wire_bytes = 0  # how much of this was the body's is not known; no request is blamed for it
            if self._watch is not None:
                self._stop_listening()  # what came behind a chunked body may carry its trailers: see wire.py
                return
        queue = self._messages
        for message, payload in messages:
            if fed_bytes > limit and head_bytes(message) > limit:
                self._refuse(refusals.header_too_large(limit))
                return
            queue.append((message, payload))
            if message.chunked:
                self._watch_chunked(messages, payload, wire_bytes, data)
            elif not payload.is_eof():
                self._body = payload
            if message.upgrade:
                self._final = True
                if not self._upgraded:
                    self._stop_listening()  # the parser drops what follows an upgrade it does not know
            if self._deaf:
                break
        self._wake()
        if len(queue) >= self._max_msg_queue_size and not self._buffer_paused:
            self._pause_reading_for_buffer()

    def _watch_chunked(self, messages: list[Queued], payload: StreamReader, wire_bytes: int, data: bytes) -> None:
        """The newest request is chunked: begin to watch its body, or judge it if it is complete already."""
        wire_bytes -= sum(head_bytes(message) for message, _ in messages)
        wire_bytes -= sum(other.total_bytes for _, other in messages if other is not payload)
        watch = ChunkedWatch(wire_bytes, data)
        if watch.overspent(payload.total_bytes) and not self._reading_paused:
            self._messages.pop()
            self._refuse(refusals.chunk_overhead())
        elif not payload.is_eof():
            self._body, self._watch = payload, watch
        elif payload is not messages[-1][1] or not watch.ended_plainly:
            self._stop_listening()

    def _body_grew(self, body: StreamReader, data: bytes) -> None:
        watch = self._watch
        if watch is not None:
            watch.saw(data)
            # While the parser is held back, bytes that it has not read yet are no overhead.
            if watch.overspent(body.total_bytes) and not self._reading_paused:
                body.set_exception(refusals.chunk_overhead())
                self._stop_listening()
                return
        if body.is_eof():
            self._body = self._watch = None
            if watch is not None and not watch.ended_plainly:
                self._stop_listening()

    def _head_grew(self, data: bytes) -> None:
        self._head_bytes += len(data)
        if self._head_bytes > self._limits.max_header_bytes:
            self._refuse(refusals.header_too_large(self._limits.max_header_bytes))
        elif not self._head_started and data.strip(b"\r\n"):  # empty lines before a request line are not its beginning
            self._head_started = self._loop.time()
            if self._awaited is IDLE:
                self._deadline = inf

    def _keep_for_tunnel(self, data: bytes) -> None:
        """Bytes behind an upgrade request that is not answered yet."""
        self._message_tail += data
        if len(self._message_tail) >= self._read_bufsize and not self._buffer_paused:
            self._pause_reading_for_buffer()

    def _unreadable(self, error: Exception) -> None:
        """The parser gave up: on the body of the newest request, or on what should be the next."""
        body = self._body
        limits = self._limits
        if body is not None and not body.is_eof():
            body.set_exception(refusals.malformed_body())
            self._stop_listening()
        elif isinstance(error, LineTooLong):
            in_target = error.args[1] == self.max_line_size
            too_large = refusals.target_too_long if in_target else refusals.header_too_large
            self._refuse(too_large(limits.max_header_bytes))
        elif getattr(error, "message", None) == TOO_MANY_HEADERS:
            self._refuse(refusals.too_many_headers(limits.max_headers))
        else:
            self._refuse(refusals.malformed_request())

    def _refuse(self, problem: Problem) -> None:
        """Answer input that is no request, after the requests before it, and take none after it."""
        self._messages.append((problem, EMPTY_PAYLOAD))  # type: ignore[arg-type]
        self._stop_listening()
        self._wake()

    def _stop_listening(self) -> None:
        self._deaf = self._final = True
        self._head_started = 0.0
        self._pause_transport_reading()  # until the last answer is out: what comes then is discarded

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # --- time ---

    def look_at_clock(self, now: float) -> None:
        """The sweep's visit: act on a deadline that has passed."""
        if now >= self._deadline:
            self._deadline = inf
            if self._awaited is IDLE:
                if not self._messages:  # a request that came at the last moment is taken
                    self._leave()
            else:
                self.cut()
        elif now >= self._body_deadline:
            self._body_deadline = inf
            if self._body is not None:
                self._body.set_exception(refusals.body_timeout())
                self._stop_listening()
        elif self._head_started and now - self._head_started >= self._limits.header_timeout_s:
            if self._buffer_paused:
                self._head_started = now  # it is us who do not read
            else:
                self._refuse(refusals.header_timeout())

    def _await(self, what: str, seconds: float) -> None:
        self._awaited = what
        self._deadline = self._loop.time() + seconds

    # --- ends ---

    def cut(self) -> None:
        """End the connection at once; the client sees that what it got is not whole."""
        if self.transport is not None:
            if self.unframed:  # an orderly end would be the end of the answer
                self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.transport.abort()

    def _leave(self) -> None:
        """Close once what was written is sent, or after a while in which the client takes none of it."""
        if self.transport is not None:
            self._await(READER, self._limits.idle_timeout_s)
            self.transport.close()

    def _linger(self) -> None:
        """P1-9: the client may still be sending; closed at once, it would never read the answer."""
        transport = self.transport
        self._deaf = self._final = True
        if transport is None or self._client_ended:
            return
        if transport.can_write_eof():
            transport.write_eof()
        self._linger_timer = self._loop.call_later(self._limits.linger_s, self._leave)
        self._resume_transport_reading()

    def _discard(self, count: int) -> None:
        self._discarded_bytes += count
        if self._linger_timer is None:
            self._pause_transport_reading()  # a body's flow control had it resumed; the last answer is not out yet
        elif self._discarded_bytes > self._limits.linger_bytes:
            self._leave()
