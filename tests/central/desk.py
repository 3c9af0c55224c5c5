"""A central ledger under test: its sources on a real Postgres, its listener on a real port, and a client of it."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import orjson
import zstandard
from aiohttp import ClientSession

from gateway.central.endpoints import ENDPOINTS, Sources
from gateway.central.ingest import Ingest
from gateway.central.keeping import Keeper
from gateway.central.live import Live
from gateway.central.pull import Puller
from gateway.central.queries import CentralQueries
from gateway.central.services import IN_USE, Services
from gateway.central.trail import Trail
from gateway.operator import Access, Listener
from gateway.operator.access import Gate
from gateway.operator.calls import Endpoint
from gateway.protocol.deadlines import iso
from gateway.protocol.entries import outcome_of
from gateway.protocol.phases import Phase
from gateway.store.lines import Line
from gateway.store.opening import open_ring
from gateway.vault import Key
from tests.operator.console import ConfiguredToken, Reply

PATIENCE_S = 20  # only a failing test waits this long
KEY = Key("k1", b"k" * 32)
READERS = ("audit", "compliance", "operations")
CONFIRMED = ("COMMITTED", "FAILED", "PROCESSING")
_versions = itertools.count(1)


def token(name: str, role: str, service: str | None = None) -> ConfiguredToken:
    """A token whose value is `the-<name>-canary`."""
    return ConfiguredToken(name, role, sha256(value_of(name).encode()).hexdigest(), service)


def value_of(name: str) -> str:
    """What the holder of a token presents."""
    return f"the-{name}-canary"


def now(ago_s: float = 0) -> datetime:
    """The present, or some seconds before it, to the millisecond."""
    moment = datetime.now(UTC) - timedelta(seconds=ago_s)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def entry(
    service: str,
    service_ledger_id: UUID | str,
    *,
    client_id: str | None = None,
    server_id: str | None = "",
    actor: str = "server",
    target: str | None = None,
    parent: str | None = None,
    phase: str = "COMMITTED",
    at: datetime | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """An entry as a gateway sends it. Without IDs, it has new ones of its own."""
    client_id = client_id or f"c-{uuid4()}"
    server_id = str(uuid4()) if server_id == "" else server_id
    at = at or now()
    made = {
        "client_correlation_id": client_id,
        "server_correlation_id": server_id,
        "service_ledger_id": str(service_ledger_id),
        "service_endpoint": f"{service if actor == 'server' else target}:/things",
        "actor": actor,
        "source": service,
        "target": target if actor == "client" else None,
        "parent_reference_id": parent or client_id,
        "phase": phase,
        "phase_1_timestamp": iso(at),
        "phase_2_timestamp": iso(at + timedelta(milliseconds=20)) if phase in CONFIRMED else None,
        "ttl_ms": 30_000,
        "outcome": outcome_of(Phase(phase)),
        "payload_ref": f"intent:{server_id}" if actor == "server" else None,
        "sync_timestamp": None,
        "transaction_reference": None,
        "entry_id": server_id if actor == "server" else client_id,
        "version": next(_versions),
        "in_doubt": None,
        "callback": None,
    }
    return made | changes


def ndjson(entries: Iterable[Any]) -> bytes:
    """A batch, compressed as gateways do."""
    return zstandard.compress(b"".join(orjson.dumps(one) + b"\n" for one in entries))


@dataclass
class Desk:
    """One central ledger in this process."""

    url: str
    sources: Sources
    access: Access
    listener: Listener
    session: ClientSession
    owner: asyncpg.Connection[Any]
    keeper: Keeper
    lines: list[Line | Services]  # what is closed with it
    port: int = 0
    ready: tuple[bool, list[str]] = (True, [])
    services: dict[str, UUID] = field(default_factory=dict)

    @classmethod
    async def open(
        cls,
        url: str,
        tokens: Sequence[ConfiguredToken],
        *,
        gate: Gate | None = None,
        endpoints: Sequence[Endpoint[Any]] = ENDPOINTS,
        access: Access | None = None,
        processing_ms: int = 300_000,
        timeout_s: float = 5.0,
    ) -> Desk:
        """On a database that was made for this test. `gate` and more `endpoints` are for the page."""
        ring = await open_ring(url, url, package="gateway.central", in_use=IN_USE, keys=[KEY])
        access = access or Access(tokens)
        live, trail = Live(), Trail(url)
        queries, services = CentralQueries(url, processing_ms=processing_ms), Services(url, ring)
        ingest = Ingest(url, url, live)
        puller = Puller(queries, services, ingest, timeout_s=timeout_s)

        async def readiness() -> tuple[bool, list[str]]:
            return desk.ready

        async def metrics() -> tuple[bytes, str]:
            return b"twophp_central_stored_total 1\n", "text/plain; version=0.0.4; charset=utf-8"

        sources = Sources(queries, services, ingest, puller, live, trail, access, readiness, metrics)
        listener = Listener(sources, gate or access, endpoints, audit=trail.record)
        owner = Line(url, role=None)
        keeper = Keeper(owner, default_ms=90 * 86_400_000, services_ms={}, dropped=ingest.forget_months)
        desk = cls(url, sources, access, listener, ClientSession(), await asyncpg.connect(url), keeper, [owner])
        desk.port = await listener.start("127.0.0.1", 0)
        return desk

    async def close(self) -> None:
        await self.session.close()
        await self.listener.stop()
        sources = self.sources
        for part in (sources.trail, sources.services, sources.queries, sources.ingest, sources.puller, *self.lines):
            await part.close()
        await self.owner.close()

    async def ask(
        self,
        path: str,
        *,
        as_: str | None = "operations",
        method: str = "GET",
        data: bytes | None = None,
        headers: dict[str, str] | None = None,
        **query: str,
    ) -> Reply:
        """One request with somebody's token, or none."""
        sent = dict(headers or {})
        if as_ is not None:
            sent["Authorization"] = f"Bearer {value_of(as_)}"
        url = f"http://127.0.0.1:{self.port}{path}"
        async with asyncio.timeout(PATIENCE_S):
            async with self.session.request(method, url, headers=sent, params=query or None, data=data) as response:
                body = await response.read()
                return Reply(response.status, {k.lower(): v for k, v in response.headers.items()}, body)

    async def post(self, path: str, document: Any, *, as_: str, **query: str) -> Reply:
        """A JSON document."""
        return await self.ask(path, as_=as_, method="POST", data=json.dumps(document).encode(), **query)

    async def register(self, name: str, **members: Any) -> UUID:
        """LED-4, with the token `<name>-sync`."""
        reply = await self.post("/v1/services", {"name": name, **members}, as_=f"{name}-sync")
        assert reply.status == 200, reply.body
        self.services[name] = UUID(reply.json["service_ledger_id"])
        return self.services[name]

    async def sync(self, name: str, entries: Iterable[Any], **changes: Any) -> Reply:
        """LED-2: a batch of a service's, as its gateway sends it."""
        headers = {"Content-Type": "application/x-ndjson", "Content-Encoding": "zstd"} | changes.pop("headers", {})
        id_ = str(changes.pop("service_ledger_id", self.services.get(name)))
        as_ = changes.pop("as_", f"{name}-sync")
        data = changes.pop("data", None) or ndjson(entries)
        assert not changes
        return await self.ask("/v1/sync", as_=as_, method="POST", data=data, headers=headers, service_ledger_id=id_)

    async def give(self, name: str, *entries: dict[str, Any]) -> None:
        """A sync that must work."""
        reply = await self.sync(name, entries)
        assert (reply.status, reply.json["received"]) == (200, len(entries)), reply.body

    def entry(self, name: str, **members: Any) -> dict[str, Any]:
        """An entry of a registered service."""
        return entry(name, self.services[name], **members)
