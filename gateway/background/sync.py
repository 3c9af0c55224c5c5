"""Ledger sync (LED-2): changes go to the central ledger in their order, in batches, and never on the request path.

The place in the order of change moves only after the central ledger has acknowledged a batch, so that a crash of either
side repeats a batch and loses none; the central ledger stores a row's version once. Of several replicas one pushes at a
time. An outage of any length only makes the sync lag; retention keeps what was not pushed yet.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from gateway.background.central_client import Reply
from gateway.crash_points import reached
from gateway.protocol.deadlines import iso
from gateway.store.ledger import LedgerQueries, Position
from gateway.store.sync import Lag, Place, SyncStore

log = logging.getLogger(__name__)

BATCH_ROWS = 1000  # some 60 KB compressed; small enough to be repeated without a thought
BATCH_ROWS_MIN = 10  # what a batch that is refused as too large shrinks to
LEASE_MS = 5_000  # a replica that dies while pushing is waited for that long; two that push at once do no harm
PAUSE_MIN_S = 1.0
PAUSE_MAX_S = 60.0  # between tries at a central ledger that is away
PAUSE_REFUSED_S = 300.0  # between tries at one that said no: somebody has to do something first
JITTER = 0.2

WHY = {
    "unauthorized": "the central ledger does not accept the token; check `ledger.token`",
    "forbidden": "the token is not for this service at the central ledger; check its `service`",
    "conflict": "this service's ID belongs to another name at the central ledger; check `service.name`",
    "revoked": "this service was revoked at the central ledger; nothing is pushed any more",
    "refused": "the central ledger refuses what was sent",
}
SOON = {
    "unknown": "the central ledger does not know this service; registering it again",
    "too_large": "the central ledger takes smaller batches; the next one is",
}


class CentralLedger(Protocol):
    """The other side."""

    async def register(
        self, name: str, service_ledger_id: UUID, operator_url: str | None, pull_token: str | None
    ) -> Reply:
        """Tell it who we are."""
        ...

    async def push(self, service_ledger_id: UUID, entries: Sequence[Mapping[str, Any]]) -> Reply:
        """Give it a batch."""
        ...


@dataclass(frozen=True, slots=True)
class Registration:
    """LED-4: what a service says of itself. Without an `operator_url` it cannot be pulled from."""

    name: str
    service_ledger_id: UUID
    operator_url: str | None
    pull_token: str | None


@dataclass(slots=True)
class Synced:
    """What one run did."""

    batches: int = 0
    entries: int = 0


# OBL-4: takes a batch's name and its rows; what it returns is told whether the batch was acknowledged.
Publishing = Callable[[str, int], Awaitable[Callable[[bool], Awaitable[object]]]]


class Sync:
    """Pushes what changed; `measured` is told how far behind the central ledger is."""

    def __init__(
        self,
        store: SyncStore,
        ledger: LedgerQueries,
        central: CentralLedger,
        who: Registration,
        *,
        measured: Callable[[Lag], None],
        publishing: Publishing,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._central = central
        self._who = who
        self._measured = measured
        self._publishing = publishing
        self._clock = clock
        self._registered = False
        self._rows = BATCH_ROWS
        self._failures = 0
        self._resume_at = 0.0
        self._refused = ""

    async def run_once(self) -> Synced:
        """Push until nothing is left, or the central ledger does not take it now. Raises StoreAway."""
        done = Synced()
        lag = await self._lag()
        if self._clock() >= self._resume_at and (lag.behind or not self._registered):
            place = await self._store.take(LEASE_MS)
            if place is not None:
                try:
                    await self._run(place, done)
                finally:
                    await self._store.give_up()
                lag = await self._lag()
        self._measured(lag)
        if done.entries:
            log.info("ledger synced", extra={"batches": done.batches, "entries": done.entries})
        return done

    async def _lag(self) -> Lag:
        """How far behind; a place that nobody has begun, or that a replica without a central forgot, begins now."""
        lag = await self._store.lag()
        if lag is None:
            await self._store.begin()
            lag = await self._store.lag()
        return lag or Lag(0.0, 0)

    async def _run(self, place: Place | None, done: Synced) -> None:
        if not self._registered and not await self._register():
            return
        mine = {"source": self._who.name}
        while place is not None:
            page = await self._ledger.entries(mine, after=place.position.cursor(), limit=self._rows)
            end = Position.of(page.next)
            if page.rows and not await self._push(place, page.rows):
                return
            if end == place.position:
                return
            if page.rows:
                reached("sync.pushed")
                done.batches += 1
                done.entries += len(page.rows)
                await self._store.stamp(page.rows, place.at)  # first: a crash in between repeats both
                reached("sync.stamped")
            place = await self._store.advance(place.position, end, LEASE_MS)

    async def _register(self) -> bool:
        who = self._who
        reply = await self._central.register(who.name, who.service_ledger_id, who.operator_url, who.pull_token)
        self._registered = self._told(reply)
        if self._registered:
            log.info("registered at the central ledger", extra={"service_ledger_id": str(who.service_ledger_id)})
        return self._registered

    async def _push(self, place: Place, rows: Sequence[dict[str, Any]]) -> bool:
        at = iso(place.at)
        batch = [{**row, "sync_timestamp": at} for row in rows]
        settle = await self._publishing(f"{self._who.name}:{place.position.cursor()}", len(batch))
        reply = await self._central.push(self._who.service_ledger_id, batch)
        await settle(reply.word == "done")
        if reply.word == "unknown":  # a central ledger that was set up anew: it has to hear who we are first
            self._registered = False
        if reply.word == "too_large" and len(rows) > BATCH_ROWS_MIN:
            self._rows = max(BATCH_ROWS_MIN, len(rows) // 2)
        return self._told(reply)

    def _told(self, reply: Reply) -> bool:
        """Whether it was acknowledged; if not, when to try again."""
        if reply.word == "done":
            if self._failures or self._refused:
                log.info("the central ledger is back")
            self._failures, self._refused = 0, ""
            return True
        detail = {"status": reply.status, "detail": reply.detail}
        if reply.word in WHY:
            if self._refused != reply.word:
                log.error(WHY[reply.word], extra=detail)
            self._refused = reply.word
            self._registered = False  # whatever was changed on the other side, it begins with who we are
            pause_s = PAUSE_REFUSED_S
        else:
            if not self._failures:
                log.warning(SOON.get(reply.word, "the central ledger is away; entries wait"), extra=detail)
            self._failures += 1
            pause_s = min(PAUSE_MIN_S * 2 ** min(self._failures - 1, 10), PAUSE_MAX_S)
        if reply.word not in ("unknown", "too_large"):
            self._resume_at = self._clock() + pause_s * random.uniform(1 - JITTER, 1 + JITTER)
        return False
