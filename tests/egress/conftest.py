"""An egress port on a real store, an application that calls through it, and a called service that does as told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import pytest
from aiohttp import ClientSession, web

from gateway.egress import Callee, EgressHandler
from gateway.ingress import BufferBudget, EdgeServer
from gateway.runtime.tasks import Tasks
from gateway.store.client_rows import ClientRows
from gateway.upstream import Upstream
from tests.operator.console import Reply

SERVER_ID = "0b9e3a3c-9d0f-4f7e-8a56-3d3b1d3f0a11"
TIMEOUT_S = 1.0
PATIENCE_S = 20

Script = Callable[[web.Request], Awaitable[web.StreamResponse] | web.StreamResponse]


@dataclass
class Seen:
    """A request as the called service got it, and the client's row as it was in the store at that moment."""

    method: str
    path: str
    headers: Any
    body: bytes
    row: asyncpg.Record | None


@dataclass
class Target:
    """Answers with its scripts, one after the other; the last one again and again."""

    owner: asyncpg.Connection[Any]
    scripts: list[Script] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    url: str = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        rows = await self.owner.fetch(
            "SELECT *, phase::text AS state FROM client_entries ORDER BY phase_1_timestamp DESC"
        )
        body = await request.read()
        self.seen.append(Seen(request.method, request.raw_path, request.headers, body, rows[0] if rows else None))
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        answer = script(request)
        return answer if isinstance(answer, web.StreamResponse) else await answer

    async def row(self) -> asyncpg.Record:
        """The one client row."""
        (found,) = await self.owner.fetch("SELECT *, phase::text AS state FROM client_entries")
        return found


def registered(phase: str = "WAITING_CONFIRM", confirm: str = "/things/confirm") -> Script:
    """Phase 1 is answered."""
    return lambda request: web.json_response(
        {"confirm": confirm},
        headers={
            "DTT-2PHP-Server-Correlation-ID": SERVER_ID,
            "DTT-2PHP-Phase-State": phase,
            "DTT-2PHP-TTL": "30000",
            "Cache-Control": "no-store",
        },
    )


def settled(
    phase: str = "COMMITTED", status: int = 200, upstream_status: int | None = 201, body: bytes = b'{"id": 7}'
) -> Script:
    """Phase 2 is answered with an outcome."""
    headers = {"DTT-2PHP-Server-Correlation-ID": SERVER_ID, "DTT-2PHP-Phase-State": phase, "X-Own": "yes"}
    if upstream_status is not None:
        headers["DTT-2PHP-Upstream-Status"] = str(upstream_status)
    return lambda request: web.Response(status=status, body=body, headers=headers, content_type="application/json")


def running(poll: str | None = f"/things/{SERVER_ID}") -> Script:
    """Phase 2 is answered with 202."""
    headers = {"DTT-2PHP-Server-Correlation-ID": SERVER_ID, "DTT-2PHP-Phase-State": "PROCESSING"}
    if poll is not None:
        headers["Location"] = poll
    return lambda request: web.json_response({}, status=202, headers=headers)


def refusal(status: int) -> Script:
    """A gateway says no."""
    return lambda request: web.json_response(
        {"title": "no"}, status=status, headers={"DTT-2PHP-Message": "no"}, content_type="application/problem+json"
    )


def plain(status: int = 201, body: bytes = b"done") -> Script:
    """A service that has never heard of 2PHP."""
    return lambda request: web.Response(status=status, body=body, headers={"X-Own": "yes"})


def cut(request: web.Request) -> web.StreamResponse:
    """No answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@dataclass
class Application:
    """Makes plain requests through the egress port."""

    session: ClientSession
    port: int
    tasks: Tasks
    handler: EgressHandler

    async def call(
        self, path: str = "/things", *, method: str = "POST", body: bytes | None = b'{"a": 1}', **headers: str
    ) -> Reply:
        """Keyword arguments are headers, `_` for `-`."""
        sent = {"Authorization": "Bearer app", **{name.replace("_", "-"): value for name, value in headers.items()}}
        async with asyncio.timeout(PATIENCE_S):
            async with self.session.request(
                method, f"http://127.0.0.1:{self.port}{path}", data=body, headers=sent, allow_redirects=False
            ) as answer:
                told = {name.lower(): value for name, value in answer.headers.items()}
                return Reply(answer.status, told, await answer.read())


class Counts:
    """Nobody looks at them here."""

    def request(self, mode: str, status: int, seconds: float) -> None:
        pass

    def refusal(self, slug: str) -> None:
        pass


@pytest.fixture
async def target(fresh_database: str) -> AsyncIterator[Target]:
    owner = await asyncpg.connect(fresh_database)
    target = Target(owner)
    application = web.Application(client_max_size=64 << 20)
    application.router.add_route("*", "/{path:.*}", target.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    target.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield target
    await runner.cleanup()
    await owner.close()


@pytest.fixture
async def application(fresh_database: str, target: Target) -> AsyncIterator[Application]:
    tasks = Tasks()
    rows = ClientRows(fresh_database, service="orders")
    upstream = Upstream(target.url, connect_timeout_s=TIMEOUT_S)
    callee = Callee(
        service=b"orders",
        target="stock",
        buckets=1,
        upstream=upstream,
        rows=rows,
        spawn=tasks.spawn,
        timeout_s=TIMEOUT_S,
        read_timeout_s=TIMEOUT_S,
    )
    handler = EgressHandler(callee, Counts())
    server = EdgeServer(handler, buffers=BufferBudget(64 << 20))
    listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    session = ClientSession()
    yield Application(session, listener.sockets[0].getsockname()[1], tasks, handler)
    await session.close()
    listener.close()
    await server.shutdown(5)
    await tasks.drain(1)
    await upstream.close()
    await rows.close()
