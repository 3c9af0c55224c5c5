"""A client, a gateway and an upstream, with a tap on either side; and what is asked of every exchange between them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import asyncpg

from tests.e2e.corpus.comparison import (
    Content,
    assert_same_answer,
    assert_same_course,
    assert_same_request,
    body_of,
    is_mutation,
    pairs,
)
from tests.e2e.corpus.tap import Exchange, Tap
from tests.e2e.harness import PATIENCE_S, Gateway, eventually
from tests.postgres import database_url

HIDDEN = b"/hidden"
ROUTES = [
    {"path": "/hidden/**", "mode": "transparent", "reveal_id": False},
    {"path": "/**", "mode": "transparent", "oversize": "stream"},
]
ORIGIN = "http://app.test"  # may use 2PHP from a browser: that changes nothing for who does not
IN_DOUBT_STATUSES = (502, 504)
RECORDED = """
    SELECT i.method, i.path, i.query, i.phase::text, i.payload_sha256, d.reason, r.status, r.body_bytes, r.body_sha256
    FROM intents i LEFT JOIN responses r USING (bucket, logical_key) LEFT JOIN in_doubt d USING (bucket, logical_key)
    WHERE i.server_correlation_id = $1
"""

Client = Callable[[str], Awaitable[Any]]


class Upstream(Protocol):
    """A real server whose state can be set back to its beginning."""

    port: int

    def reset(self) -> None:
        """Forget everything."""
        ...


@dataclass
class Run:
    """One run of a client: what passed on its side, what passed on the upstream's, what the client made of it."""

    front: list[Exchange]
    back: list[Exchange]
    result: Any

    @property
    def methods(self) -> set[str]:
        return {exchange.request.method for exchange in self.front}


@dataclass
class World:
    """`front` is what clients connect to, `back` is what the gateway takes for its upstream."""

    upstream: Upstream
    gateway: Gateway
    front: Tap
    back: Tap
    store: asyncpg.Connection[asyncpg.Record] = field(repr=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.front.port}"

    async def same(self, client: Client, *, varying: Sequence[bytes] = (), content: Content = body_of) -> Run:
        """Run a client with the upstream itself and through the gateway: nobody may notice (TRN-2).

        `varying` are patterns of what differs between any two runs, `content` tells what bodies say that do so. Within
        the run through the gateway, what goes in and what comes out is compared as it is.
        """
        before = await self._intents()
        direct, through = await self.twice(client)
        assert_same_course(direct.front, through.front, varying, content=content)
        for sent, seen in pairs(through.front, through.back):
            assert_same_request(sent, seen)
            revealed = is_mutation(sent) and not sent.request.target.startswith(HIDDEN)
            assert_same_answer(seen, sent, revealed=revealed)
        mutations = [exchange for exchange in through.back if is_mutation(exchange)]
        assert await self._intents() == before + len(mutations)
        for exchange in mutations:
            await self._assert_recorded(exchange)
        return through

    async def twice(self, client: Client) -> tuple[Run, Run]:
        """Two runs that came to the same result: directly, and through the gateway."""
        direct = await self._run(client, self.back.port)
        through = await self._run(client, self.gateway.port)
        assert through.result == direct.result
        assert direct.front, "the client made no request"
        return direct, through

    async def _run(self, client: Client, port: int) -> Run:
        self.upstream.reset()
        self.front.target = port
        async with asyncio.timeout(PATIENCE_S):
            result = await client(self.url)
        return Run(await self.front.settled(), await self.back.settled(), result)

    async def _intents(self) -> int:
        return int(await self.store.fetchval("SELECT count(*) FROM intents"))

    async def _assert_recorded(self, exchange: Exchange) -> None:
        """TRN-2, RPL-6: the ledger has the request, its outcome, and the answer that was given."""
        request, answer = exchange.request, exchange.whole
        row = await eventually(lambda: self._recorded_whole(exchange))
        path, mark, query = request.target.partition(b"?")
        assert (row["method"], row["path"]) == (request.method, path)
        assert row["query"] == (query if mark else None)
        assert row["payload_sha256"] == hashlib.sha256(request.body).digest(), exchange.line
        if answer.status in IN_DOUBT_STATUSES:
            assert (row["phase"], row["reason"] is not None) == ("PROCESSING", True), exchange.line
            return
        phase = "COMMITTED" if answer.status < 400 else "FAILED"
        assert (row["phase"], row["status"], row["body_bytes"]) == (phase, answer.status, len(answer.body))
        assert row["body_sha256"] == hashlib.sha256(answer.body).digest(), exchange.line

    async def recorded(self, exchange: Exchange) -> asyncpg.Record:
        """What the store has of a request that the upstream saw."""
        server_id = exchange.request.header(b"dtt-2php-server-correlation-id")
        assert server_id is not None
        row = await self.store.fetchrow(RECORDED, server_id.decode())
        assert row is not None, server_id
        return row

    async def _recorded_whole(self, exchange: Exchange) -> asyncpg.Record | None:
        """Size and digest of what was passed on as it came are written after its end."""
        row = await self.recorded(exchange)
        unanswered = row["status"] is None
        return row if row["payload_sha256"] is not None and (unanswered or row["body_bytes"] is not None) else None


@contextlib.asynccontextmanager
async def world(upstream: Upstream, directory: Path, server_url: str, template: str) -> AsyncIterator[World]:
    """A gateway of its own before an upstream that runs; its log must show no failure of ours at the end."""
    name = f"twophp_test_{os.getpid()}_{directory.name}".replace("-", "_")
    admin = await asyncpg.connect(server_url)
    await admin.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    front, back = Tap(), Tap()
    await front.start()
    await back.start()
    back.target = upstream.port
    store_url = database_url(server_url, name)
    changes = {"routes": ROUTES, "cors": {"origins": [ORIGIN]}}
    gateway = Gateway(directory, f"http://127.0.0.1:{back.port}", store_url, changes)
    try:
        await gateway.start()
        store = await asyncpg.connect(store_url)
        yield World(upstream, gateway, front, back, store)
        await store.close()
        assert "handler failed" not in gateway.logs(), gateway.logs()
        assert "Traceback" not in gateway.logs(), gateway.logs()
    finally:
        await gateway.aclose()
        await front.stop()
        await back.stop()
        await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
        await admin.close()


async def run(*command: str | Path, stdin: bytes = b"", env: dict[str, str] | None = None, **options: Any) -> bytes:
    """A program's output; it must succeed."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=None if env is None else {**os.environ, **env},
        **options,
    )
    try:
        output, _ = await process.communicate(stdin)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, (command, process.returncode, output)
    return output
