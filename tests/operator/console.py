"""An operator listener under test and a client of it, well-behaved or not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from aiohttp import ClientSession

from gateway.operator import ENDPOINTS, Access, Listener, Sources
from gateway.store.client_rows import ReportedRows
from gateway.store.delivery_lists import DeliveryLists
from gateway.store.ledger import LedgerQueries
from gateway.store.verdicts import Verdicts
from tests.obligations.desk import Desk

PATIENCE_S = 20  # only a failing test waits this long
ROLES = ("audit", "compliance", "operations", "sync")


@dataclass(frozen=True)
class ConfiguredToken:
    """As the settings hold it."""

    name: str
    role: str
    sha256: str
    service: str | None = None


def secret_of(role: str) -> str:
    """The token of a role: nothing but its digest is known to the listener."""
    return f"the-{role}-canary"


def configured(role: str, *, secret: str | None = None) -> ConfiguredToken:
    value = secret if secret is not None else secret_of(role)
    service = "orders" if role == "sync" else None
    return ConfiguredToken(f"{role}-desk", role, sha256(value.encode()).hexdigest(), service)


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what no event tells."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@dataclass
class Reply:
    """An answer as the client saw it."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def problem(self) -> str:
        """The slug of a problem document; its shape is checked on the way (OPS-3)."""
        assert self.headers["content-type"] == "application/problem+json"
        assert self.json["status"] == self.status
        assert self.json["title"]
        assert self.json["detail"] == self.headers["dtt-2php-message"]
        return str(self.json["type"]).removeprefix("https://2php.dev/problems/")


class NoFeed:
    """A feed in which nothing ever happens."""

    async def follow(self, after: str | None) -> AsyncIterator[tuple[str, dict[str, Any]] | None]:
        yield None


@dataclass
class Console:
    """The listener, what it is told to say, and a client."""

    listener: Listener
    access: Access
    session: ClientSession
    deliveries: DeliveryLists
    obligations: Desk
    reported: ReportedRows
    verdicts: Verdicts
    port: int = 0
    ready: tuple[bool, list[str]] = (True, [])
    metrics: bytes = b"twophp_up 1\n"
    failure: Exception | None = None
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    @classmethod
    async def open(cls, ledger: LedgerQueries, url: str) -> Console:
        async def readiness() -> tuple[bool, list[str]]:
            return console.ready

        async def metrics() -> tuple[bytes, str]:
            if console.failure is not None:
                raise console.failure
            return console.metrics, "text/plain; version=0.0.4; charset=utf-8"

        deliveries = DeliveryLists(url, buckets=1)
        obligations = Desk(url)
        reported = ReportedRows(url, service="orders", buckets=1)
        verdicts = Verdicts(url, service="orders", buckets=1)
        sources = Sources(
            ledger, readiness, metrics, NoFeed, deliveries, obligations, reported, verdicts, lambda method, path: "hold"
        )
        access = Access([configured(role) for role in ROLES])
        listener = Listener(sources, access, ENDPOINTS)
        console = cls(listener, access, ClientSession(), deliveries, obligations, reported, verdicts)
        console.port = await listener.start("127.0.0.1", 0)
        return console

    async def close(self) -> None:
        await self.session.close()
        for writer in self.writers:
            writer.close()
        await self.listener.stop()
        await self.deliveries.close()
        await self.obligations.close()
        await self.reported.close()
        await self.verdicts.close()

    async def ask(
        self,
        path: str,
        *,
        role: str | None = "operations",
        method: str = "GET",
        headers: list[tuple[str, str]] | None = None,
        data: bytes | None = None,
        **query: str,
    ) -> Reply:
        """One request, with a role's token or none."""
        sent = list(headers or [])
        if role is not None:
            sent.append(("Authorization", f"Bearer {secret_of(role)}"))
        url = f"http://127.0.0.1:{self.port}{path}"
        async with asyncio.timeout(PATIENCE_S):
            async with self.session.request(method, url, headers=sent, params=query or None, data=data) as response:
                body = await response.read()
                return Reply(response.status, {k.lower(): v for k, v in response.headers.items()}, body)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A bare connection, for what no proper client sends."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        return reader, writer

    async def send(self, data: bytes) -> Reply:
        """Bytes as they are, and the one answer until the listener closes."""
        reader, writer = await self.connect()
        writer.write(data)
        async with asyncio.timeout(PATIENCE_S):
            head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        return Reply(int(first.split(" ")[1]), headers, body)
