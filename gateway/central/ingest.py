"""Taking entries in: a batch is one statement, all of it or nothing, stored once however often it comes (LED-2).

Knows the store and the schema of time; who may write what is decided before (see `endpoints`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

from gateway.central import refusals
from gateway.central.live import Live
from gateway.central.rows import entry_of
from gateway.central.wire import Row, rows_of
from gateway.protocol.faults import StoreAway
from gateway.store import queries
from gateway.store.errors import StoreConflict
from gateway.store.lines import Line

log = logging.getLogger(__name__)

SQL = queries.load("ingest.sql", "gateway.central")
BATCHES = 4  # in memory at once, from the plain text on; more of them wait for their turn
MINUTES_MAX = 10_000  # counted in one statement, whatever is asked for
LINES = 2  # one batch is decoded while another is stored
TRIES = 3  # of a batch that met another one's rows in another order
AT_ONCE = 250  # lines decoded before readers get their turn: about 5 ms
LIVE_MAX = 100  # entries of one batch that followers see; the rest is told as a number
BACK = timedelta(days=400)  # months that get a partition: a year and some back …
AHEAD = timedelta(days=62)  # … and the next two. Other times are odd, and stored as such


class Ingest:
    """The only one who writes entries."""

    def __init__(
        self, url: str, owner_url: str, live: Live, count: Callable[[int, int], None] = lambda received, stored: None
    ) -> None:
        self._lines: asyncio.LifoQueue[Line] = asyncio.LifoQueue()
        self._all = [Line(url) for _ in range(LINES)]
        for line in self._all:
            self._lines.put_nowait(line)
        self._owner = Line(owner_url, role=None, pinned=False)
        self._live = live
        self._count = count
        self._months: set[date] = set()
        self._minutes = MINUTES_MAX
        self.turns = asyncio.Semaphore(BATCHES)

    async def close(self) -> None:
        """Let go of the store."""
        await asyncio.gather(*(line.close() for line in (*self._all, self._owner)))

    async def decode(self, lines: Sequence[bytes], *, service_ledger_id: UUID, source: str) -> list[Row]:
        """Every line as a row, or the 400 that names the first bad one; readers get their turn in between."""
        rows: list[Row] = []
        for row in rows_of(lines, service_ledger_id=str(service_ledger_id), source=source):
            rows.append(row)
            if len(rows) % AT_ONCE == 0:
                await asyncio.sleep(0)
        return rows

    async def store(self, service_ledger_id: UUID, rows: Sequence[Row], *, pulled: bool = False) -> int:
        """A batch of one service's rows; returns how many are new or were raised. 410 once it is revoked."""
        latest: dict[tuple[datetime, bytes], Row] = {}
        for row in rows:
            known = latest.get(row[:2])
            if known is None or row.version > known.version:
                latest[row[:2]] = row
        if not latest:
            if not pulled:
                await self._owner.fetch(SQL["met"], service_ledger_id)
            return 0
        batch = [latest[key] for key in sorted(latest)]  # two batches in different order would deadlock
        await self._partitions({row.phase_1_timestamp for row in batch})
        columns = list(zip(*batch, strict=True))
        found = await self._store(service_ledger_id, columns, pulled)
        if not found["met"]:
            raise refusals.service_revoked()
        self._count(len(rows), found["stored"])
        if found["keys"] is not None:
            self._tell(service_ledger_id, batch, set(found["keys"]))
        return int(found["stored"])

    async def _store(self, service_ledger_id: UUID, columns: Sequence[Sequence[Any]], pulled: bool) -> Any:
        line = await self._lines.get()
        try:
            found = await self._tried(line, service_ledger_id, *columns, self._live.followed, pulled)
            if found["complete"]:
                await line.fetch(SQL["forget_complete"], found["complete"])
            return found
        finally:
            self._lines.put_nowait(line)

    async def _tried(self, line: Line, *args: object) -> Any:
        for _ in range(TRIES - 1):
            try:
                return (await line.fetch(SQL["store"], *args))[0]
            except StoreConflict:
                continue  # rolled back because of somebody else's batch: the same one may run again at once
        return (await line.fetch(SQL["store"], *args))[0]

    async def require_unmoved(self, service_ledger_id: UUID, rows: Sequence[Row]) -> None:
        """COR-4: the 409 if one of the rows is known, here or in the same batch, with another Phase 1 time."""
        times: dict[bytes, datetime] = {}
        if any(times.setdefault(row.entry_key, row.phase_1_timestamp) != row.phase_1_timestamp for row in rows):
            raise refusals.entry_moved()
        columns = [(row.actor, row.entry_id, row.phase_1_timestamp, row.client_correlation_id) for row in rows]
        line = await self._lines.get()
        try:
            moved = await line.fetch(SQL["moved"], service_ledger_id, *zip(*columns, strict=True))
        finally:
            self._lines.put_nowait(line)
        if moved:
            raise refusals.entry_moved()

    async def prepare(self) -> None:
        """The partitions of this month and the next ones, before anybody needs them."""
        now = datetime.now(UTC)
        await self._partitions(now + timedelta(days=days) for days in (0, 31, 62))

    async def count_tallies(self, minutes: int) -> int:
        """Bring the tallies up to date, some minutes at a time; returns how many were counted."""
        minutes = min(minutes, self._minutes)
        try:
            counted: int = (await self._owner.fetch(SQL["count_minutes"], minutes))[0]["minutes"]
            await self._owner.fetch(SQL["count_hours"], minutes)
        except StoreAway:
            self._minutes = max(1, minutes // 2)  # perhaps too much for one statement: the next one does less
            raise
        self._minutes = 2 * minutes
        return counted

    async def tidy(self) -> None:
        """Pairs whose ingest died before it could remove them."""
        await self._owner.fetch(SQL["tidy_complete"])

    async def _partitions(self, moments: Iterable[datetime]) -> None:
        """See that the months of some moments have a partition, within reason."""
        now = datetime.now(UTC)
        months = {moment.astimezone(UTC).date().replace(day=1) for moment in moments if -BACK < moment - now < AHEAD}
        for month in sorted(months - self._months):
            try:
                await self._owner.fetch(SQL["make_partition"], month)
            except StoreAway:
                raise
            except Exception:
                # It goes to the odd ones, and moves when the partition can be made.
                log.exception("a partition could not be made", extra={"month": month.isoformat()})
            self._months.add(month)

    def forget_months(self) -> None:
        """Partitions were dropped: look again before relying on one."""
        self._months.clear()

    def _tell(self, service_ledger_id: UUID, batch: Sequence[Row], keys: set[bytes]) -> None:
        stored = [row for row in batch if row.entry_key in keys]
        now = datetime.now(UTC)
        for row in stored[-LIVE_MAX:]:
            fields = {**row._asdict(), "service_ledger_id": service_ledger_id, "sync_timestamp": now}
            self._live.publish(row.source, entry_of(fields))
        if len(stored) > LIVE_MAX:
            self._live.skip(stored[0].source, len(stored) - LIVE_MAX)
