"""A client, a gateway and an upstream, with a tap on either side; and what is asked of every exchange between them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import asyncpg

from tests.e2e.corpus.comparison import (
    assert_same_answer,
    assert_same_course,
    assert_same_request,
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
IN_DOUBT_STATUSES = (502, 504)

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

    async def same(self, client: Client, *, varying: Iterable[bytes] = (), interim: bool = True) -> Run:
        """Run a client with the upstream itself and through the gateway: nobody may notice (TRN-2).

        `varying` are patterns of what differs between any two runs. `interim` is False where the upstream refuses an
        upload at its head: the gateway has asked for the body by then.
        """
        before = await self._intents()
        direct = await self._run(client, self.back.port)
        through = await self._run(client, self.gateway.port)
        assert through.result == direct.result
        assert direct.front, "the client made no request"
        assert_same_course(direct.front, through.front, list(varying), interim=interim)
        for sent, seen in pairs(through.front, through.back):
            assert_same_request(sent, seen)
            revealed = is_mutation(sent) and not sent.request.target.startswith(HIDDEN)
            assert_same_answer(seen, sent, revealed=revealed)
        mutations = [exchange for exchange in through.back if is_mutation(exchange)]
        assert await self._intents() == before + len(mutations)
        for exchange in mutations:
            await self._assert_recorded(exchange)
        return through

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
        server_id = request.header(b"dtt-2php-server-correlation-id")
        assert server_id is not None
        intent = await eventually(lambda: self._recorded_whole(server_id.decode()))
        assert intent["payload_sha256"] == hashlib.sha256(request.body).hexdigest(), exchange.line
        if answer.status in IN_DOUBT_STATUSES:
            assert (intent["phase"], intent["in_doubt"] is not None) == ("PROCESSING", True), exchange.line
            return
        phase = "COMMITTED" if answer.status < 400 else "FAILED"
        response = intent["response"]
        assert (intent["phase"], response["status"]) == (phase, answer.status), exchange.line
        assert (response["bytes"], response["sha256"]) == (len(answer.body), hashlib.sha256(answer.body).hexdigest())

    async def _recorded_whole(self, server_id: str) -> Any:
        """Size and digest of what was passed on as it came are written after its end."""
        intent = await self.gateway.intent(server_id)
        response = intent["response"]
        whole = intent["payload_sha256"] is not None and (response is None or response["bytes"] is not None)
        return intent if whole else None


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
    gateway = Gateway(directory, f"http://127.0.0.1:{back.port}", store_url, {"routes": ROUTES})
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
