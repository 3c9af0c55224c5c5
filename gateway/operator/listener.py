"""The listener: sockets, tokens and answers around a table of endpoints.

Every request ends in an answer of ours within bounded time, and every one is logged: by token name, role, path template
and status, never with the token or anything else the caller sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from ssl import SSLContext
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler
from multidict import CIMultiDict

from gateway.operator import refusals
from gateway.operator.access import Gate, Token, require
from gateway.operator.calls import Call, Endpoint, refusing_other_methods, unknown_paths
from gateway.protocol.faults import StoreAway
from gateway.protocol.messages import Answer
from gateway.protocol.problems import Problem, to_answer

log = logging.getLogger(__name__)

HEAD_TIMEOUT_S = 20.0  # for the next whole request head, from the connection's start or the last answer
ANSWER_TIMEOUT_S = 25.0  # to make an answer: above the store's own 10 s for one statement
TAKE_TIMEOUT_S = 20.0  # for a client to take the answer; a page of 1000 entries has about 700 KB
STOP_TIMEOUT_S = 5.0  # for answers in progress when the listener stops
HEADER_BYTES_MAX = 8 * 1024  # of the request line, and of each header
HEADERS_MAX = 64
FOLLOWERS_MAX = 64  # streams of events at once; each holds two connections to the store
LINGER_S = 1.0  # for the rest of a body that was refused

# What aiohttp says of broken requests: of no use to operators, and it quotes them.
_SILENT = logging.Logger("gateway.operator.silent", level=logging.CRITICAL + 1)

_ALWAYS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Server": "twophp",
}


class Listener:
    """Serves a table of endpoints on a port of its own, to those whom the gate knows."""

    def __init__(self, sources: Any, gate: Gate, endpoints: Sequence[Endpoint[Any]]) -> None:
        self._sources = sources
        self._gate = gate
        self._endpoints = endpoints
        self._unknown = unknown_paths()
        self._followers = 0
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int, ssl: SSLContext | None = None) -> int:
        """Listen; returns the port, which the system picks when asked for 0."""
        assert self._runner is None, "already started"
        runner = web.AppRunner(
            self._application(),
            handle_signals=False,
            shutdown_timeout=STOP_TIMEOUT_S,
            keepalive_timeout=HEAD_TIMEOUT_S,
            max_line_size=HEADER_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
            max_headers=HEADERS_MAX,
            lingering_time=LINGER_S,
            access_log=None,
            logger=_SILENT,
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port, ssl_context=ssl).start()
        except BaseException:
            await runner.cleanup()
            raise
        self._runner = runner
        bound: int = runner.addresses[0][1]
        return bound

    async def stop(self) -> None:
        """Stop listening; answers in progress have a moment to finish."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def _application(self) -> web.Application:
        application = web.Application(middlewares=[self._without_path], client_max_size=0)
        by_path: dict[str, list[Endpoint[Any]]] = {}
        for endpoint in self._endpoints:
            by_path.setdefault(endpoint.path, []).append(endpoint)
        for path, endpoints in by_path.items():
            resource = application.router.add_resource(path)
            for endpoint in endpoints:
                for method in endpoint.methods:
                    resource.add_route(method, partial(self._serve, endpoint), expect_handler=_refuse_expectation)
            other = partial(self._serve, refusing_other_methods(endpoints))
            resource.add_route("*", other, expect_handler=_refuse_expectation)
        for endpoint in self._unknown:
            rest = partial(self._serve, endpoint)
            application.router.add_route("*", endpoint.path, rest, expect_handler=_refuse_expectation)
        return application

    @web.middleware
    async def _without_path(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """`OPTIONS *` and the like have no path that a route could match."""
        if request.match_info.http_exception is not None:
            return await self._serve(self._unknown[-1], request)
        return await handler(request)

    async def _serve(self, endpoint: Endpoint[Any], request: web.Request) -> web.StreamResponse:
        """Answer one request, see that the client takes the answer, and log the access."""
        token: Token | None = None
        call = Call(request.rel_url.raw_query_string, dict(request.match_info), request.headers)
        try:
            if not endpoint.open:
                token = self._gate.identify(request.headers)
                require(token, endpoint.roles)
                call = replace(call, token=token)
            if request.body_exists:
                call = replace(call, body=await _body(request, endpoint.body_max_bytes))
            if endpoint.stream is not None and self._followers >= FOLLOWERS_MAX:
                raise refusals.too_many_followers(FOLLOWERS_MAX)
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                answer = await endpoint.answer(self._sources, call)
        except Problem as problem:
            answer = to_answer(problem)
        except StoreAway:
            answer = to_answer(refusals.store_away())
        except TimeoutError:
            answer = to_answer(refusals.too_slow())
        except Exception:
            log.exception("an operator request failed")
            answer = to_answer(refusals.internal_error())
        _log_access(endpoint, token, answer.status)
        if endpoint.stream is not None and answer.status == 200:
            self._followers += 1
            try:
                return await _stream(request, answer, endpoint.stream(self._sources, call))
            finally:
                self._followers -= 1
        return await _deliver(request, answer)


async def _body(request: web.Request, max_bytes: int) -> bytes:
    """The request's body, bounded in size and time; read only for those who may send one."""
    if not max_bytes:
        raise refusals.body_not_expected()
    body = bytearray()
    try:
        async with asyncio.timeout(TAKE_TIMEOUT_S):
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > max_bytes:
                    raise refusals.body_too_large(max_bytes)
    except TimeoutError:
        raise refusals.body_too_slow() from None
    return bytes(body)


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


async def _deliver(request: web.Request, answer: Answer) -> web.Response:
    """Write the whole answer here, where its time can be bounded: a client that does not take it is cut off."""
    response = _response(answer)
    transport = request.transport
    if transport is not None:
        transport.set_write_buffer_limits(0)  # so that `drain` waits for the last byte
    try:
        async with asyncio.timeout(TAKE_TIMEOUT_S):
            await response.prepare(request)
            await response.write_eof()
            await request.writer.drain()
    except (TimeoutError, ConnectionError):
        if transport is not None:
            transport.abort()
    return response


async def _stream(request: web.Request, answer: Answer, chunks: AsyncIterator[bytes]) -> web.StreamResponse:
    """Write a stream until its reader leaves or does not keep up, or the store goes away: it resumes where it was."""
    headers = CIMultiDict((name.decode("latin-1"), value.decode("latin-1")) for name, value in answer.headers)
    headers.update(_ALWAYS)
    response = web.StreamResponse(status=answer.status, headers=headers)
    response.force_close()
    transport = request.transport
    try:
        async with contextlib.aclosing(chunks) as parts:  # type: ignore[type-var]
            await response.prepare(request)
            async for part in parts:
                async with asyncio.timeout(TAKE_TIMEOUT_S):
                    await response.write(part)
            await response.write_eof()
    except (TimeoutError, ConnectionError, StoreAway):
        if transport is not None:
            transport.abort()
    return response


def _response(answer: Answer) -> web.Response:
    headers: CIMultiDict[str] = CIMultiDict(
        (name.decode("latin-1"), value.decode("latin-1")) for name, value in answer.headers
    )
    headers.update(_ALWAYS)
    response = web.Response(status=answer.status, body=answer.body, headers=headers)
    if answer.close:
        response.force_close()
    return response


async def _refuse_expectation(request: web.Request) -> web.Response:
    """aiohttp asks this before anything else sees the request."""
    return _response(to_answer(refusals.expectation_not_met()))
