"""Where a service stands with its central ledger (LED-2): a durable place in the order of change, moved only after an
acknowledgement, and held by one replica at a time. Reading the entries is the ledger's (`ledger.LedgerQueries`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from gateway.protocol.identity import bucket_of, client_key
from gateway.store import queries
from gateway.store.ledger import Position
from gateway.store.lines import Line

SQL = queries.load("sync.sql")
SLICES = 10  # statements per batch: short locks, and few rows of one page at a time, so that their updates stay HOT


class Place(NamedTuple):
    """Where to go on, and the store's clock."""

    position: Position
    at: datetime


class Lag(NamedTuple):
    """How far behind a service's central ledger is."""

    seconds: float
    behind: int  # counted up to 10,000


class SyncStore:
    """The place of one service at one central ledger. Every method may raise StoreAway."""

    def __init__(self, url: str, *, service: str, central: str, buckets: int) -> None:
        self.line = Line(url)
        self._service = service.encode()
        self._buckets = buckets
        self._names = _of_service(service)
        self._name = self._names + central
        self._holder = uuid4()

    async def begin(self) -> None:
        """From now on, what is not pushed is kept (see `retain`)."""
        await self.line.fetch(SQL["begin"], self._names, self._name)

    async def take(self, lease_ms: int) -> Place | None:
        """Where to go on; None while another replica pushes."""
        rows = await self.line.fetch(SQL["take"], self._name, self._holder, lease_ms)
        return Place(Position(rows[0]["xid"], rows[0]["id"]), rows[0]["at"]) if rows else None

    async def advance(self, before: Position, after: Position, lease_ms: int) -> Place | None:
        """Everything up to `after` is acknowledged; None when somebody else has taken over."""
        rows = await self.line.fetch(SQL["advance"], self._name, self._holder, *before, *after, lease_ms)
        return Place(after, rows[0]["at"]) if rows else None

    async def give_up(self) -> None:
        """Let another replica push."""
        await self.line.fetch(SQL["give_up"], self._name, self._holder)

    async def lag(self) -> Lag | None:
        """How far behind; None before `begin`."""
        row = (await self.line.fetch(SQL["lag"], self._name))[0]
        return Lag(max(0.0, row["lag_s"]), row["behind"]) if row["begun"] else None

    async def stamp(self, entries: Sequence[Mapping[str, Any]], at: datetime) -> None:
        """LED-1: when these entries were synced."""
        intents: dict[int, list[UUID]] = defaultdict(list)
        calls: dict[int, list[bytes]] = defaultdict(list)
        for entry in entries:
            if entry["actor"] == "server":
                server_id = UUID(entry["entry_id"])
                intents[bucket_of(server_id, buckets=self._buckets)].append(server_id)
            else:
                key = client_key(self._service, entry["entry_id"].encode(), buckets=self._buckets)
                calls[key.bucket].append(key.logical)
        for bucket, ids in intents.items():
            for some in _interleaved(ids):
                await self.line.fetch(SQL["stamp_intents"], bucket, some, at)
        for bucket, keys in calls.items():
            for some in _interleaved(keys):
                await self.line.fetch(SQL["stamp_calls"], bucket, some, at)


async def forget_sync(line: Line, service: str) -> None:
    """Without a central ledger nothing waits to be pushed."""
    await line.fetch(SQL["forget"], _of_service(service))


def _of_service(service: str) -> str:
    return f"sync:{service}:"


def _interleaved(keys: Sequence[Any]) -> list[Sequence[Any]]:
    """Slices in which no two neighbours of the order of change, and so of the table, stand together."""
    count = min(SLICES, -(-len(keys) // SLICES))
    return [keys[start::count] for start in range(count)]
