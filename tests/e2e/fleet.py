"""Several services, each an unmodified application behind its own gateway, and one central ledger.

The applications know nothing of 2PHP: they copy the `baggage` header to their outgoing calls, as tracing libraries do,
and make those through the egress ports of their gateways. All databases are on the test run's one Postgres server.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import yaml
from aiohttp import web

from tests.e2e.harness import KEY, PATIENCE_S, TOKENS, Gateway, Reply, free_port
from tests.postgres import database_url

_numbers = itertools.count(1)


@contextlib.asynccontextmanager
async def own_database(postgres_url: str, template: str | None = None) -> AsyncIterator[str]:
    """A database of one process's own; from a migrated template, or empty."""
    name = f"twophp_test_{os.getpid()}_fleet_{next(_numbers)}"
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute(f"CREATE DATABASE {name}" + (f" TEMPLATE {template}" if template else ""))
        yield database_url(postgres_url, name)
        await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        await connection.close()


def sync_token(service: str) -> str:
    return f"sync-token-of-{service}"


@dataclass
class Central:
    """One `twophp central`."""

    directory: Path
    store_url: str
    services: tuple[str, ...]
    port: int = field(default_factory=free_port)
    process: asyncio.subprocess.Process | None = None
    session: aiohttp.ClientSession | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log_path(self) -> Path:
        return self.directory / f"central-{self.port}.log"

    def _config(self) -> dict[str, Any]:
        tokens = [{"name": role, "role": role, "sha256": _digest(TOKENS[role])} for role in ("audit", "operations")]
        tokens += [
            {"name": f"{name}-sync", "role": "sync", "service": name, "sha256": _digest(sync_token(name))}
            for name in self.services
        ]
        return {
            "listen": {"host": "127.0.0.1", "port": self.port},
            "store": {"url": self.store_url},
            "encryption": {"keys": [{"id": "k1", "env": "TWOPHP_TEST_KEY"}]},
            "tokens": tokens,
        }

    async def start(self) -> None:
        path = self.directory / f"central-{self.port}.yaml"
        path.write_text(yaml.safe_dump(self._config()))
        with self.log_path.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "gateway", "central", "-c", str(path),
                stdout=log, stderr=log, start_new_session=True, env={**os.environ, "TWOPHP_TEST_KEY": KEY},
            )  # fmt: skip
        if self.session is None:
            self.session = aiohttp.ClientSession()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                assert self.process.returncode is None, self.log_path.read_text()
                with contextlib.suppress(aiohttp.ClientError):
                    if (await self.ask("GET", "/readyz")).status == 200:
                        return
                await asyncio.sleep(0.05)

    async def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()

    async def aclose(self) -> None:
        if self.session is not None:
            await self.session.close()
        if self.process is not None and self.process.returncode is None:
            await self.kill()

    async def ask(self, method: str, path: str, *, token: str = TOKENS["operations"], json: Any = None) -> Reply:
        assert self.session is not None
        headers = {"Authorization": f"Bearer {token}"}
        async with self.session.request(method, self.url + path, headers=headers, json=json) as answer:
            return Reply(answer.status, answer.headers, await answer.read())

    async def entries(self, **query: str) -> list[dict[str, Any]]:
        """Everything it holds, page after page."""
        return await walk(lambda path: self.ask("GET", path), "/v1/ledger/entries", **query)


async def walk(ask: Any, path: str, **query: str) -> list[dict[str, Any]]:
    """Every entry of a list, whoever serves it: to the end that a null or an unmoved cursor marks."""
    found: list[dict[str, Any]] = []
    parts = [f"{name}={value}" for name, value in query.items()] + ["limit=500"]
    after = ""
    while True:
        reply = await ask(f"{path}?{'&'.join(parts)}" + (f"&after={after}" if after else ""))
        assert reply.status == 200, reply.body
        page = reply.json
        found += page["entries"]
        if page["next"] is None or page["next"] == after:
            return found
        after = page["next"]


def comparable(entries: list[dict[str, Any]]) -> dict[tuple[str, str, str], dict[str, Any]]:
    """By identity, without what each ledger says of itself; an entry that came twice is a failure."""
    keyed = {(entry["source"], entry["actor"], entry["entry_id"]): dict(entry) for entry in entries}
    assert len(keyed) == len(entries), "an entry twice"
    for entry in keyed.values():
        del entry["sync_timestamp"]
    return keyed


@dataclass
class Application:
    """A tiny service: does its work by asking others to do theirs."""

    name: str
    peers: list[str] = field(default_factory=list)  # egress ports of its own gateway
    worked: int = 0
    url: str = ""

    async def start(self) -> None:
        application = web.Application()
        application.router.add_post("/work", self._work)
        self._runner = web.AppRunner(application)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self._session = aiohttp.ClientSession()

    async def stop(self) -> None:
        await self._session.close()
        await self._runner.cleanup()

    async def _work(self, request: web.Request) -> web.Response:
        self.worked += 1
        copied = {name: request.headers[name] for name in ("baggage", "Authorization")}
        body = await request.read()
        replies = await asyncio.gather(*(self._ask(url, copied, body) for url in self.peers))
        return web.json_response({"service": self.name, "asked": replies}, status=201)

    async def _ask(self, url: str, headers: dict[str, str], body: bytes) -> Any:
        async with self._session.post(url + "/work", headers=headers, data=body) as answer:
            return [answer.status, await answer.json()]


def gateway_of(
    directory: Path, application: Application, store_url: str, central: Central, egress: dict[str, tuple[int, str]]
) -> Gateway:
    """An application's gateway; `egress` is called service -> (port, its gateway's URL)."""
    gateway = Gateway(directory, application.url, store_url, environment={"SYNC_TOKEN": sync_token(application.name)})
    gateway.changes = {
        "service": {"name": application.name},
        "routes": [{"path": "/work"}],
        "ledger": {
            "central": central.url,
            "interval": "100ms",
            "token": {"env": "SYNC_TOKEN"},
            "operator_url": gateway.operator_url,
        },
        "egress": [
            {"listen": f"127.0.0.1:{port}", "target": target, "url": url} for target, (port, url) in egress.items()
        ],
    }
    return gateway


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
