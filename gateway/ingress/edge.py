"""The edge proper (decision 13): requests in order to the handler, its answers in the same order to the client.

`Edge`, with the byte-level half below it in `connection.py`, is the only use of aiohttp's connection handler. A
connection is one task that takes one request after the other, so pipelined answers cannot overtake. Every failure ends
in a problem document without a word of the input or of a traceback (OPS-3). It must not know what a request means.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any, Final

from aiohttp import web
from aiohttp.http_parser import HttpRequestParser, HttpRequestParserPy
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler

from gateway.ingress import refusals, render
from gateway.ingress.connection import IDLE, READER, Connection, Queued, log
from gateway.ingress.inbound import Inbound
from gateway.ingress.limits import BufferBudget, EdgeLimits
from gateway.ingress.tunnel import ClientGone, Splice
from gateway.protocol import problems
from gateway.protocol.messages import Answer
from gateway.protocol.problems import Problem

Handler = Callable[[Inbound], Awaitable[Answer | None]]

_BURST_MAX: Final = 32  # pipelined requests answered in a row before other connections get their turn
_CANCEL_GRACE_S: Final = 1.0  # for a cancelled handler to clean up
_SWEEP_MAX_S: Final = 1.0  # a timeout of seconds may be late by one; a visit to ten thousand connections takes 2 ms


def require_c_parser() -> None:
    """Refuse to start on aiohttp's Python parser: it is far slower, and none of our checks were made against it."""
    if HttpRequestParser is HttpRequestParserPy:
        raise RuntimeError(
            "aiohttp runs without its C parser. "
            "Install a wheel of aiohttp for this platform, and unset AIOHTTP_NO_EXTENSIONS."
        )


class Edge(Connection):
    """One client connection, from its requests to its answers."""

    __slots__ = ("_server", "buffers")

    def __init__(self, server: EdgeServer, loop: asyncio.AbstractEventLoop, limits: EdgeLimits) -> None:
        super().__init__(server, loop, limits)
        self._server = server
        self.buffers = server.buffers

    # --- requests, in order ---

    async def start(self) -> None:
        """Take requests and answer them until the connection ends. Runs as the connection's one task."""
        queue = self._messages
        handle: Handler = self._server.request_handler  # type: ignore[assignment]
        burst = 0
        keep = True
        while keep:
            if not queue:
                if self._final:
                    break
                await self._next_request()
                burst = 0
            elif burst >= _BURST_MAX:
                await asyncio.sleep(0)
                burst = 0
            burst += 1
            message, payload = self._pop()
            inbound: Inbound | None = None
            answer: Answer | None = None
            try:
                if isinstance(message, Problem):
                    raise message
                inbound = self._inbound = Inbound(self, message, payload)
                answer = await handle(inbound)
            except Problem as problem:
                answer = problems.to_answer(problem)
            except asyncio.CancelledError:
                self.cut()
                raise
            except Exception as error:
                answer = self._failed(error, inbound)
            finally:
                self._inbound = None
                if inbound is not None:
                    inbound.release()
            keep = self._reply(message, payload, inbound, answer)
            if keep and self._paused:
                keep = await self._caught_up()
        if self._linger_timer is None:
            self._leave()

    async def _next_request(self) -> None:
        self._await(IDLE, self._limits.idle_timeout_s)
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
            self._deadline = inf

    def _pop(self) -> Queued:
        """The oldest request; its place in the parser's bounded queue is free again."""
        queued: Queued = self._messages.popleft()
        if self._parser is not None:
            self._parser.message_consumed()
        if self._buffer_paused and len(self._messages) <= self._msg_queue_resume_size and not self._deaf:
            self._resume_reading_if_drained()
        return queued

    def _failed(self, error: Exception, inbound: Inbound | None) -> Answer:
        left = inbound is not None and inbound.client_left
        if isinstance(error, ClientGone) or (left and isinstance(error, ConnectionError)):
            self.cut()  # nobody is left to answer, and nothing of ours went wrong
        else:
            _log_failure(error)
        return problems.to_answer(refusals.internal_error())

    def _reply(self, message: Any, payload: StreamReader, inbound: Inbound | None, answer: Answer | None) -> bool:
        """Write the answer, or see that a streamed one is whole. True if the connection goes on."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return False
        # Ends of our choosing: the client may not know yet, and may still be sending.
        ours = (self._final and not self._messages) or not payload.is_eof()
        if inbound is not None and inbound.started:
            if answer is not None or not inbound.finished:
                self.cut()  # half an answer is out: nothing that could be added would be understood
                return False
            close = ours or inbound.close_after
            ours = ours and self._splice is None
        else:
            if answer is None:
                log.error("a request handler returned no answer")
                answer = problems.to_answer(refusals.internal_error())
            request = None if isinstance(message, Problem) else message
            ours = ours or answer.close
            close = ours or self._server.draining or (request is not None and request.should_close)
            transport.write(_rendered(answer, request, close))
        if ours:
            self._linger()
        return not close

    # --- what an Inbound needs ---

    @property
    def last_answer(self) -> bool:
        """True if no answer will follow the current one on this connection."""
        return self._server.draining or (self._final and not self._messages)

    def await_body(self) -> None:
        """A reader waits for the client's next body bytes: the client's time runs."""
        self._body_deadline = self._loop.time() + self._limits.body_timeout_s

    def await_reader(self) -> None:
        """The client is expected to take something, or to end: its time runs."""
        self._await(READER, self._limits.idle_timeout_s)

    def body_came(self) -> None:
        """The reader has what it waited for, or waits no more."""
        self._body_deadline = inf

    async def writable(self) -> None:
        """Wait until the client has taken enough of what was written; ClientGone if it is not there to take it."""
        self.await_reader()
        try:
            await self._drain_helper()
        except ConnectionError:
            raise ClientGone from None
        finally:
            self._deadline = inf
        if self.transport is None:
            raise ClientGone

    def hand_over(self, splice: Splice) -> None:
        """From now on the bytes are a tunnel's, those first that came behind the upgrade request."""
        self._splice = splice
        tail, self._message_tail = self._message_tail, b""
        if tail:
            splice.receive(tail)
        if self._client_ended:
            splice.ended()
        elif self._buffer_paused:
            self._resume_reading_for_buffer()
        if self._paused:
            splice.pressed(True)

    # --- ends ---

    def close(self) -> None:
        """Take no further request: an idle connection ends now, a busy one after its answer (OPS-1)."""
        if self._waiter is not None and not self._waiter.done() and not self._head_started:
            self._leave()

    async def shutdown(self, timeout: float | None = 15.0) -> None:
        """Wait for the request in progress and for its answer to leave, at most `timeout` seconds; then end it all."""
        self.close()
        try:
            async with asyncio.timeout(timeout):
                if self.task is not None:
                    await asyncio.wait((self.task,))
                if self.transport is not None:
                    self._lost_waiter = self._loop.create_future()
                    await self._lost_waiter
        except TimeoutError:
            if self.task is not None:
                self.task.cancel()
                await asyncio.wait((self.task,), timeout=_CANCEL_GRACE_S)
        self.cut()

    async def _caught_up(self) -> bool:
        try:
            await self.writable()
        except ClientGone:
            return False
        return True


class EdgeServer(web.Server):
    """Makes an `Edge` for every connection of a worker, and looks after their time. Give it to `loop.create_server`."""

    def __init__(
        self,
        handler: Handler,
        *,
        buffers: BufferBudget,
        limits: EdgeLimits | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(handler, loop=loop, handler_cancellation=False)  # type: ignore[arg-type]
        self.limits = limits or EdgeLimits()
        self.buffers = buffers
        self.draining = False
        shortest_s = min(self.limits.header_timeout_s, self.limits.body_timeout_s, self.limits.idle_timeout_s)
        self._sweep_every_s = min(_SWEEP_MAX_S, shortest_s / 8)
        self._sweep_timer: asyncio.TimerHandle | None = None

    def __call__(self) -> Edge:
        return Edge(self, self._loop, self.limits)

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if self._sweep_timer is None:
            self._sweep_timer = self._loop.call_later(self._sweep_every_s, self._sweep)

    def drain(self) -> None:
        """OPS-1: idle connections end now, others with the answer to the request in progress."""
        self.draining = True
        for connection in self.connections:
            connection.close()

    async def shutdown(self, timeout: float | None = None) -> None:
        """Drain, wait for what is in progress at most `timeout` seconds, then end what is left."""
        self.drain()
        await super().shutdown(timeout)

    def _sweep(self) -> None:
        self._sweep_timer = None
        now = self._loop.time()
        connections = self.connections
        for connection in connections:
            connection.look_at_clock(now)  # type: ignore[attr-defined]
        if connections:
            self._sweep_timer = self._loop.call_later(self._sweep_every_s, self._sweep)


def _rendered(answer: Answer, request: Any, close: bool) -> bytes:
    head_only = request is not None and request.method == "HEAD"
    http_1_0 = request is not None and request.version == (1, 0)
    try:
        return render.answer_bytes(answer, head_only=head_only, close=close, http_1_0=http_1_0)
    except ValueError as error:
        _log_failure(error)
        failed = problems.to_answer(refusals.internal_error())
        return render.answer_bytes(failed, head_only=head_only, close=close, http_1_0=http_1_0)


def _log_failure(error: Exception) -> None:
    """Where it failed, not with what: the text of an exception may hold a header or a piece of a body."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    log.error("a request handler failed with %s\n%s", type(error).__name__, frames)
