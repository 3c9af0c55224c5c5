"""The listener: tokens and answers around a table of endpoints, on the same edge as the data port (DESIGN decision 13).

Every request ends in an answer of ours within bounded time, and every one is logged: by token name, role, path template
and status, never with the token or anything else the caller sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from ssl import SSLContext
from typing import Any

from gateway.ingress.edge import EdgeServer
from gateway.ingress.inbound import Inbound
from gateway.ingress.limits import BufferBudget, EdgeLimits
from gateway.operator import refusals
from gateway.operator.access import Gate, Token, require
from gateway.operator.calls import Call, Endpoint
from gateway.operator.routing import Table
from gateway.protocol.faults import StoreAway
from gateway.protocol.messages import Answer, Header, first_value
from gateway.protocol.problems import Problem, to_answer

log = logging.getLogger(__name__)

LIMITS = EdgeLimits(
    header_timeout_s=20.0,
    body_timeout_s=20.0,
    idle_timeout_s=20.0,  # also for a client to take bytes of an answer; a page of 1000 entries has about 700 KB
    max_header_bytes=8 * 1024,
    max_headers=64,
)
ANSWER_TIMEOUT_S = 25.0  # to make an answer: above the store's own 10 s for one statement
STOP_TIMEOUT_S = 5.0  # for answers in progress when the listener stops
FOLLOWERS_MAX = 64  # streams of events at once; each holds two connections to the store
EVENT_STREAM = b"text/event-stream"  # has no end of its own
BUFFERED_BYTES_MAX = 64 * 1024 * 1024  # of bodies, over all connections

_ALWAYS: tuple[Header, ...] = (
    (b"Cache-Control", b"no-store"),
    (b"X-Content-Type-Options", b"nosniff"),
    (b"Server", b"twophp"),
)


# What every answer waits for: a record of who asked (endpoint, call, method, status). StoreAway: there is no answer.
Audit = Callable[[Endpoint[Any], Call, str, int], Awaitable[None]]


class Listener:
    """Serves a table of endpoints on a port of its own, to those whom the gate knows."""

    def __init__(
        self, sources: Any, gate: Gate, endpoints: Sequence[Endpoint[Any]], audit: Audit | None = None
    ) -> None:
        self._sources = sources
        self._gate = gate
        self._audit = audit
        self._table = Table(endpoints)
        self._followers: set[asyncio.Task[None]] = set()
        self._streams = 0  # with those that are about to begin
        self._edge: EdgeServer | None = None
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int, ssl: SSLContext | None = None) -> int:
        """Listen; returns the port, which the system picks when asked for 0."""
        assert self._server is None, "already started"
        self._edge = EdgeServer(self._serve, buffers=BufferBudget(BUFFERED_BYTES_MAX), limits=LIMITS)
        self._server = await asyncio.get_running_loop().create_server(self._edge, host, port, ssl=ssl)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Stop listening; answers in progress have a moment to finish, streams end."""
        server, self._server = self._server, None
        if server is None or self._edge is None:
            return
        server.close()
        for follower in self._followers:
            follower.cancel()
        await self._edge.shutdown(STOP_TIMEOUT_S)

    async def _serve(self, inbound: Inbound) -> Answer | None:
        with contextlib.ExitStack() as places:
            return await self._answer(inbound, places)

    @contextlib.contextmanager
    def _place(self) -> Iterator[None]:
        """A place among the streams, held from the question on; or the 503."""
        if self._streams >= FOLLOWERS_MAX:
            raise refusals.too_many_followers(FOLLOWERS_MAX)
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1

    async def _answer(self, inbound: Inbound, places: contextlib.ExitStack) -> Answer | None:
        """Answer one request, and log the access."""
        endpoint, segments = self._table.find(inbound.method, inbound.path.decode("latin-1"))
        query = (inbound.query or b"").decode("latin-1")
        call = Call(query, segments, inbound.headers, peer=inbound.peer)
        try:
            if not endpoint.open:
                token = self._gate.identify(inbound.headers)
                call = replace(call, token=token)
                require(token, endpoint.roles)
            if "Expect" in inbound.headers and not inbound.expects_continue:
                raise refusals.expectation_not_met()
            if inbound.has_body:
                if not endpoint.body_max_bytes:
                    raise refusals.body_not_expected()
                call = replace(call, body=await inbound.read_body(endpoint.body_max_bytes))
            if endpoint.stream is not None:
                places.enter_context(self._place())
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                answer = await endpoint.answer(self._sources, call)
        except Problem as problem:
            answer = _refusal(endpoint, call, problem)
        except StoreAway:
            answer = _refusal(endpoint, call, refusals.store_away())
        except TimeoutError:
            answer = _refusal(endpoint, call, refusals.too_slow())
        except Exception:
            log.exception("an operator request failed")
            answer = _refusal(endpoint, call, refusals.internal_error())
        if self._audit is not None:
            try:
                await self._audit(endpoint, call, inbound.method, answer.status)
            except StoreAway:
                answer = _refusal(endpoint, call, refusals.access_not_recorded())
            except Exception:
                log.exception("an access could not be recorded")
                answer = _refusal(endpoint, call, refusals.access_not_recorded())
        _log_access(endpoint, call.token, answer.status)
        answer.headers += [header for header in _ALWAYS if first_value(answer.headers, header[0].lower()) is None]
        if endpoint.stream is None or answer.status != 200:
            return answer
        await self._follow(inbound, answer, endpoint.stream(self._sources, call), call.token)
        return None

    def _still(self, inbound: Inbound, token: Token | None) -> bool:
        """Whether what let a stream's reader in, a token or a session, still counts."""
        try:
            return token is None or self._gate.identify(inbound.headers) == token
        except Problem:
            return False

    async def _follow(
        self, inbound: Inbound, answer: Answer, chunks: AsyncIterator[bytes], token: Token | None
    ) -> None:
        """Write a stream until its reader leaves, does not keep up, may no longer read, or the listener stops."""
        writing = _write(inbound, answer, chunks, lambda: self._still(inbound, token))
        follower = asyncio.get_running_loop().create_task(writing, name="event stream")
        self._followers.add(follower)
        inbound.on_client_left = follower.cancel
        try:
            await asyncio.wait((follower,))
        finally:
            inbound.on_client_left = None
            follower.cancel()
            self._followers.discard(follower)
        if follower.cancelled():
            inbound.abort()
        else:
            follower.result()


async def _write(inbound: Inbound, answer: Answer, chunks: AsyncIterator[bytes], still: Callable[[], bool]) -> None:
    inbound.close_after = True
    allowed = True
    async with contextlib.aclosing(chunks) as parts:  # type: ignore[type-var]
        await inbound.start(answer.status, None, answer.headers)
        try:
            async for part in parts:
                if not (allowed := still()):
                    break
                await inbound.write(part)
        except StoreAway:
            inbound.abort()  # its reader resumes where it was
            return
        if allowed or first_value(answer.headers, b"content-type") == EVENT_STREAM:
            await inbound.finish()
        else:
            inbound.abort()  # a file that ends here must not look whole


def _refusal(endpoint: Endpoint[Any], call: Call, problem: Problem) -> Answer:
    return to_answer(problem) if endpoint.refusal is None else endpoint.refusal(call, problem)


def _log_access(endpoint: Endpoint[Any], token: Token | None, status: int) -> None:
    log.log(
        logging.DEBUG if endpoint.open else logging.INFO,  # health and metrics are asked every few seconds by machines
        "operator access",
        extra={
            "reader": None if token is None else token.name,
            "role": None if token is None else token.role,
            "path": endpoint.path,
            "status": status,
        },
    )
