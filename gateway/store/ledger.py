"""The ledger as it is read: single intents, entries in order of change, and what is in doubt.

Reads only, on lines of its own, so that whoever looks never holds up who writes. Every page does a bounded amount of
work: a filter that matches little gives a short page and a cursor to go on from. Phases are those of the moment of
reading (TTL-2).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg

from gateway.protocol.faults import StoreAway
from gateway.protocol.identity import LOGICAL_KEY_BYTES, bucket_of
from gateway.store import ledger_rows, queries
from gateway.store.ledger_rows import Document
from gateway.store.lines import Line

SQL = queries.load("ledger.sql")
LINES = 2  # a slow page beside a quick look-up; more readers than that take turns
LINE_WAIT_S = 5.0  # for a free line, before a reader hears that the store is busy
SCANS_MAX = 10  # of 1000 events each: what one page of entries may look through, some 100 ms
CHANGES_MIN = 200  # per scan, so that a small page with a filter still makes headway
KEYS_MAX = 1000  # intents looked up one by one for an entries filter; more are found by scanning

ACTORS = ("client", "server")
FILTERS = ("source", "actor", "phase", "outcome", "client_correlation_id", "server_correlation_id")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_POSITION = struct.Struct(">cQq")
_MOMENT = struct.Struct(f">cq{LOGICAL_KEY_BYTES}s")


class BadCursor(ValueError):
    """A cursor that no page of ours ended with."""


class Position(NamedTuple):
    """A place in the order of change."""

    xid: int
    id: int

    def cursor(self) -> str:
        """As the opaque text that a client hands back."""
        return _text(_POSITION.pack(b"p", *self))

    @classmethod
    def of(cls, cursor: str | None) -> Position:
        """The place that a cursor means; without one, the beginning."""
        return cls(0, 0) if cursor is None else cls(*_unpack(_POSITION, b"p", cursor))


class Moment(NamedTuple):
    """A place in a list ordered by time, then by key."""

    at: datetime
    logical_key: bytes

    def cursor(self) -> str:
        """As the opaque text that a client hands back."""
        return _text(_MOMENT.pack(b"m", (self.at - _EPOCH) // _MICROSECOND, self.logical_key))

    @classmethod
    def of(cls, cursor: str | None) -> Moment:
        """The place that a cursor means; without one, the beginning."""
        if cursor is None:
            return cls(_EPOCH, b"")
        microseconds, logical_key = _unpack(_MOMENT, b"m", cursor)
        try:
            return cls(_EPOCH + microseconds * _MICROSECOND, logical_key)
        except OverflowError:
            raise BadCursor from None


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows, and the cursor that continues after them (None: a list that has ended)."""

    rows: list[Document]
    next: str | None


class LedgerQueries:
    """Reads for operators, auditors and the command line. Every method may raise StoreAway."""

    def __init__(self, url: str, *, buckets: int, lines: int = LINES) -> None:
        self._buckets = buckets
        # Pinned: unpinned plans made while the tables were empty walked the whole of them until the next ANALYZE.
        self._lines = [Line(url) for _ in range(lines)]
        self._free: asyncio.LifoQueue[Line] = asyncio.LifoQueue()  # last in, first out: idle lines stay unconnected
        for line in self._lines:
            self._free.put_nowait(line)

    async def close(self) -> None:
        """Close every line; reads after this find the store away."""
        await asyncio.gather(*(line.close() for line in self._lines))

    # --- single intents

    async def intent(self, server_correlation_id: UUID) -> Document | None:
        """Everything about one intent."""
        bucket = bucket_of(server_correlation_id, buckets=self._buckets)
        found = await self._whole(await self._fetch("key_by_server_id", bucket, server_correlation_id))
        return found[0] if found else None

    async def intents(self, client_correlation_id: str, *, after: str | None, limit: int) -> Page:
        """The intents of all callers that used one client correlation ID, in order of registration."""
        keys = await self._fetch("keys_by_client_id", client_correlation_id, *Moment.of(after), limit + 1)
        return Page(await self._whole(keys[:limit]), _next(keys, limit, "phase_1_timestamp"))

    async def in_doubt(self, *, after: str | None, limit: int) -> Page:
        """REC-2: intents whose outcome nobody knows, oldest first."""
        rows = await self._fetch("in_doubt", *Moment.of(after), limit + 1)
        return Page([ledger_rows.doubt(row) for row in rows[:limit]], _next(rows, limit, "since"))

    # --- entries, in order of change

    async def entries(self, wanted: Mapping[str, str], *, after: str | None, limit: int) -> Page:
        """LED-2: one entry per intent or call in its current state, at its latest change. `wanted` filters by field.

        `next` can always be continued from, also at the end. What changes meanwhile comes again, further on.
        """
        assert wanted.keys() <= set(FILTERS)
        position = Position.of(after)
        keys = await self._keys_wanted(wanted)
        if keys is not None:
            changes = await self._fetch("latest_changes", *_columns(keys), *position)
            end = _place(changes[-1]) if changes else position
            found, position = await self._select(changes, wanted, limit, end)
            return Page(found, position.cursor())
        rows: list[Document] = []
        for _ in range(SCANS_MAX):
            most = max(limit - len(rows), CHANGES_MIN)
            scanned = await self._fetch("scan", *position, most)
            if not scanned:
                break
            *changes, reached = scanned
            # A scan cut short by `most` goes on after its last change, a whole one after the last event it looked at.
            end = _place(changes[-1] if len(changes) == most else reached)
            found, position = await self._select(changes, wanted, limit - len(rows), end)
            rows += found
            if len(rows) == limit:
                break
        return Page(rows, position.cursor())

    async def _keys_wanted(self, wanted: Mapping[str, str]) -> Sequence[asyncpg.Record] | None:
        """The intents and calls that a filter by ID names; None when only a scan can tell."""
        if (server_id := wanted.get("server_correlation_id")) is not None:
            bucket = bucket_of(UUID(server_id), buckets=self._buckets)
            own = await self._fetch("key_by_server_id", bucket, UUID(server_id))
            keys = [*own, *await self._fetch("client_keys_by_server_id", server_id, KEYS_MAX + 1)]
        elif (client_id := wanted.get("client_correlation_id")) is not None:
            own = await self._fetch("keys_by_client_id", client_id, *Moment.of(None), KEYS_MAX + 1)
            keys = [*own, *await self._fetch("client_keys_by_client_id", client_id, KEYS_MAX + 1)]
        else:
            return None
        return keys if len(keys) <= KEYS_MAX else None

    async def _select(
        self, changes: Sequence[asyncpg.Record], wanted: Mapping[str, str], limit: int, end: Position
    ) -> tuple[list[Document], Position]:
        """The wanted entries among some changes, and where to go on: `end`, or after the one that filled the limit."""
        by_key = await self._entries_of(changes)
        found: list[Document] = []
        for change in changes:
            candidate = by_key.get(change["logical_key"])  # None: retention was quicker
            if candidate is None or any(candidate[field] != value for field, value in wanted.items()):
                continue
            found.append(candidate)
            if len(found) == limit:
                return found, _place(change)
        return found, end

    async def _entries_of(self, changes: Sequence[asyncpg.Record]) -> dict[bytes, Document]:
        """Intents first; what is no intent is a call that this service made."""
        if not changes:
            return {}
        read = await self._fetch("entry_rows", *_columns(changes))
        by_key = {row["logical_key"]: ledger_rows.server_entry(row) for row in read}
        others = [change for change in changes if change["logical_key"] not in by_key]
        if others:
            for row in await self._fetch("client_rows", *_columns(others)):
                by_key[row["logical_key"]] = ledger_rows.client_entry(row)
        return by_key

    async def _whole(self, keys: Sequence[asyncpg.Record]) -> list[Document]:
        return [ledger_rows.intent(row) for row in await self._fetch("whole_intents", *_columns(keys))] if keys else []

    async def _fetch(self, name: str, *args: object) -> list[asyncpg.Record]:
        try:
            async with asyncio.timeout(LINE_WAIT_S):
                line = await self._free.get()
        except TimeoutError:
            raise StoreAway("every line for reading the ledger is busy") from None
        try:
            return await line.fetch(SQL[name], *args)
        finally:
            self._free.put_nowait(line)


def _place(change: asyncpg.Record) -> Position:
    return Position(change["xid"], change["id"])


def _columns(keys: Sequence[asyncpg.Record]) -> tuple[list[int], list[bytes]]:
    return [key["bucket"] for key in keys], [key["logical_key"] for key in keys]


# --- cursors


def _next(rows: Sequence[asyncpg.Record], limit: int, moment: str) -> str | None:
    """The cursor after `limit` rows of a list; None when no row was found beyond them."""
    if len(rows) <= limit:
        return None
    last = rows[limit - 1]
    return Moment(last[moment], last["logical_key"]).cursor()


def _text(packed: bytes) -> str:
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def _unpack(shape: struct.Struct, kind: bytes, cursor: str) -> tuple[Any, ...]:
    try:
        packed = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        found, *values = shape.unpack(packed)
    except (ValueError, binascii.Error, struct.error):
        raise BadCursor from None
    if found != kind:
        raise BadCursor
    return tuple(values)
