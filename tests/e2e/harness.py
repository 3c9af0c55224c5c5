"""A whole gateway as its users run it.

`twophp serve` in processes of its own, on a real Postgres, in front of a fake upstream.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import inspect
import json
import os
import signal
import socket
import sys
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import yaml

PATIENCE_S = 30.0  # only a failing test waits this long
KEY = base64.b64encode(b"k" * 32).decode()
TOKENS = {role: f"token-of-{role}" for role in ("audit", "operations", "compliance", "sync")}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Reply:
    """One answer, read whole."""

    status: int
    headers: Any
    body: bytes
    raw_headers: Any = ()

    @property
    def phase(self) -> str | None:
        value: str | None = self.headers.get("DTT-2PHP-Phase-State")
        return value

    @property
    def server_id(self) -> str:
        return str(self.headers["DTT-2PHP-Server-Correlation-ID"])

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def problem(self) -> str:
        """The slug of a problem; its shape is checked on the way (OPS-3)."""
        assert self.headers["Content-Type"] == "application/problem+json", (self.status, self.body)
        document = self.json
        assert document["status"] == self.status
        assert document["title"]
        assert document["detail"] == self.headers["DTT-2PHP-Message"]
        return str(document["type"]).removeprefix("https://2php.dev/problems/")


@dataclass
class Gateway:
    """One `twophp serve`."""

    directory: Path
    upstream_url: str
    store_url: str | None = None  # None: embedded, in the directory
    changes: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    operator_port: int = field(default_factory=free_port)
    process: asyncio.subprocess.Process | None = None
    session: aiohttp.ClientSession | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def operator_url(self) -> str:
        return f"http://127.0.0.1:{self.operator_port}"

    @property
    def config_path(self) -> Path:
        return self.directory / f"gateway-{self.port}.yaml"

    @property
    def log_path(self) -> Path:
        return self.directory / f"gateway-{self.port}.log"

    def config(self) -> dict[str, Any]:
        base: dict[str, Any] = {
            "service": {"name": "orders"},
            "listen": {"host": "127.0.0.1", "port": self.port},
            "operator": {"host": "127.0.0.1", "port": self.operator_port},
            "upstream": {"url": self.upstream_url, "timeout": "10s"},
            "recovery": {"lease": "2s", "interval": "200ms"},
            "tokens": [
                {"name": role, "role": role, "sha256": hashlib.sha256(token.encode()).hexdigest()}
                for role, token in TOKENS.items()
            ],
            "routes": [{"path": "/orders/**"}],
        }
        if self.store_url is None:
            base["store"] = {"url": "embedded", "data_dir": str(self.directory / "store")}
        else:
            base["store"] = {"url": self.store_url}
            base["encryption"] = {"keys": [{"id": "k1", "env": "TWOPHP_TEST_KEY"}]}
        for key, value in self.changes.items():
            base[key] = {**base.get(key, {}), **value} if isinstance(value, dict) else value
        return base

    def write_config(self) -> None:
        self.config_path.write_text(yaml.safe_dump(self.config()))

    async def start(self, *, wait_ready: bool = True) -> None:
        self.write_config()
        with self.log_path.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "gateway", "serve", "-c", str(self.config_path),
                stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "TWOPHP_TEST_KEY": KEY, **self.environment},
            )  # fmt: skip
        if self.session is None:
            connector = aiohttp.TCPConnector(limit=0, force_close=False)
            self.session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        if wait_ready:
            await self.until_ready()

    async def until_ready(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                assert self.process is not None
                assert self.process.returncode is None, self.logs()
                with contextlib.suppress(aiohttp.ClientError):
                    if (await self.operator("GET", "/readyz")).status == 200:
                        return
                await asyncio.sleep(0.02)

    def logs(self) -> str:
        return self.log_path.read_text(errors="replace")

    async def stop(self) -> int:
        """SIGTERM, and wait for the drain."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.terminate()
        async with asyncio.timeout(PATIENCE_S):
            return await self.process.wait()

    async def kill(self) -> None:
        """kill -9 of every process of the gateway; an embedded Postgres stays, as it would."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()

    async def worker_pids(self) -> list[int]:
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in children if b"runtime.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    async def aclose(self) -> None:
        if self.session is not None:
            await self.session.close()
        if self.process is not None and self.process.returncode is None:
            await self.kill()

    # --- as a client

    async def request(
        self, method: str, path: str, *, headers: Any = None, body: Any = None, caller: str | None = "Bearer me"
    ) -> Reply:
        assert self.session is not None
        sent = dict(headers or {})
        if caller is not None:
            sent.setdefault("Authorization", caller)
        async with self.session.request(
            method, self.url + path, headers=sent, data=body, allow_redirects=False
        ) as answer:
            return Reply(answer.status, answer.headers, await answer.read(), answer.raw_headers)

    async def register(
        self,
        client_id: str | None = None,
        *,
        method: str = "POST",
        path: str = "/orders",
        body: Any = b'{"item": "book"}',
        caller: str | None = "Bearer me",
        **headers: str,
    ) -> Reply:
        """Phase 1. Keyword arguments are headers, `_` for `-`."""
        sent = {"DTT-2PHP-Enabled": "true", "Content-Type": "application/json", **_named(headers)}
        if client_id is not None:
            sent["DTT-2PHP-Client-Correlation-ID"] = client_id
        return await self.request(method, path, headers=sent, body=body, caller=caller)

    async def confirm(
        self,
        client_id: str,
        server_id: str,
        *,
        method: str = "POST",
        path: str = "/orders/confirm",
        caller: str | None = "Bearer me",
        **headers: str,
    ) -> Reply:
        """Phase 2."""
        sent = {
            "DTT-2PHP-Enabled": "true",
            "DTT-2PHP-Client-Correlation-ID": client_id,
            "DTT-2PHP-Server-Correlation-ID": server_id,
            **_named(headers),
        }
        return await self.request(method, path, headers=sent, caller=caller)

    async def handshake(self, client_id: str | None = None, **options: Any) -> Reply:
        """Both phases; the answer of the second."""
        client_id = client_id or f"c-{uuid.uuid4()}"
        registered = await self.register(client_id, **options)
        assert registered.status == 200, registered.body
        return await self.confirm(client_id, registered.server_id, path=options.get("path", "/orders") + "/confirm")

    # --- as an operator

    async def operator(
        self, method: str, path: str, *, role: str | None = "operations", data: bytes | None = None
    ) -> Reply:
        assert self.session is not None
        headers = {"Authorization": f"Bearer {TOKENS[role]}"} if role is not None else {}
        async with self.session.request(method, self.operator_url + path, headers=headers, data=data) as answer:
            return Reply(answer.status, answer.headers, await answer.read(), answer.raw_headers)

    async def intent(self, server_id: str) -> Any:
        reply = await self.operator("GET", f"/v1/intents/{server_id}")
        assert reply.status == 200, reply.body
        return reply.json


def _named(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


@contextlib.asynccontextmanager
async def database(url: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """A look into the store that does not ask the gateway."""
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def eventually(check: Any, *, within_s: float = PATIENCE_S) -> Any:
    """Wait until a check, async or not, returns something true."""
    async with asyncio.timeout(within_s):
        while True:
            found = check()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(0.02)
