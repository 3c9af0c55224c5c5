"""Obligations as operators see them: those of the tracker and the gateway's own, in one list (OBL-3, OBL-4).

The gateway's own side effects have rows already, and those rows serve: a delivery, a worker's lease, an intent in
doubt, a schema step each read as an obligation here, and nothing is written for it. Intents are in the ledger's own
lists. Payloads are never in a list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from gateway.protocol.deadlines import iso
from gateway.protocol.identity import bucket_of
from gateway.protocol.obligations import CALLBACK, COMPENSATION, FENCING, MIGRATION, QUARANTINE, State
from gateway.protocol.records import Sealed
from gateway.store import obligation_documents as documents
from gateway.store.deliveries import SQL as DELIVERIES
from gateway.store.ledger import SQL as LEDGER
from gateway.store.ledger import Moment, Page, Position
from gateway.store.lines import Line
from gateway.store.obligations import SQL

LOOK_MIN = 200  # deliveries looked through for a page with a filter, so that it makes headway


@dataclass(frozen=True, slots=True)
class _Found:
    """What one kind of row has after a place: documents in order, and how far was looked (None: to the end)."""

    rows: list[tuple[Moment, documents.Document]]
    reached: Moment | None


class ObligationLists:
    """For the operator listener. Every method may raise StoreAway; a bad cursor is a BadCursor."""

    def __init__(self, url: str, *, buckets: int, leak_timeout_ms: int) -> None:
        self._line = Line(url)
        self._buckets = buckets
        self._leak_timeout = timedelta(milliseconds=leak_timeout_ms)

    async def close(self) -> None:
        """Close the line."""
        await self._line.close()

    async def obligations(self, *, state: State | None, flow: str | None, after: str | None, limit: int) -> Page:
        """All of them, or those of one state or flow, in the order of reservation."""
        place = Moment.of(after)
        found = [await self._tracked(place, state, flow, limit)]
        if flow in (None, CALLBACK, COMPENSATION):
            found.append(await self._deliveries(place, state, flow, limit))
        if flow in (None, FENCING):
            found.append(await self._leases(place, state, limit))
        if flow in (None, QUARANTINE) and state in (None, "Committed"):
            found.append(await self._in_doubt(place, limit))
        if flow == QUARANTINE and state in (None, "Committed"):  # among all, a dead delivery is there as what it was
            found.append(await self._poison(place, limit))
        if flow in (None, MIGRATION) and state in (None, "Committed"):
            found.append(await self._schema_steps(place))
        return _merged(found, limit)

    async def obligation(self, wanted: UUID) -> tuple[documents.Document, Sealed | None] | None:
        """One of them with its events, and its payload while it is Reserved."""
        rows = await self._line.fetch(SQL["one"], bucket_of(wanted, buckets=self._buckets), wanted)
        if rows:
            row = rows[0]
            sealed = None if row["sealed"] is None else Sealed(row["sealed"], row["sealed_with"])
            return {**documents.tracked(row), "events": await self._events(wanted)}, sealed
        rows = await self._line.fetch(DELIVERIES["one"], wanted)
        if rows:
            # Its promise was written with the ledger row it speaks of, so the row itself is the first event.
            first = {"at": iso(rows[0]["created_at"]), "code": "OBL-001", "trace_id": None, "by": None, "detail": None}
            events = [documents.event(row) for row in await self._line.fetch(SQL["events_of_delivery"], wanted)]
            return {**documents.delivery(rows[0], self._leak_timeout), "events": [first, *events]}, None
        rows = await self._line.fetch(SQL["lease"], wanted)
        if rows:
            return {**documents.lease(rows[0], self._leak_timeout), "events": await self._events(wanted)}, None
        return None

    async def events(self, *, after: str | None, limit: int) -> Page:
        """OBL-3: every event in order of change; `next` can always be continued from."""
        place = Position.of(after)
        rows = await self._line.fetch(SQL["events_after"], *place, limit)
        if rows:
            place = Position(rows[-1]["xid"], rows[-1]["id"])
        found = [{"obligation": _str(row["obligation"]), **documents.event(row)} for row in rows]
        return Page(found, place.cursor())

    # --- the rows that serve as obligations

    async def _tracked(self, place: Moment, state: State | None, flow: str | None, limit: int) -> _Found:
        after = (place.at, _uuid(place), limit)
        if flow is not None:
            rows = await self._line.fetch(SQL["of_flow"], *after, flow, state)
        elif state is not None:
            rows = await self._line.fetch(SQL["in_state"], *after, state)
        else:
            rows = await self._line.fetch(SQL["all"], *after)
        return _found([(Moment(row["reserved_at"], row["id"].bytes), documents.tracked(row)) for row in rows], limit)

    async def _deliveries(self, place: Moment, state: State | None, flow: str | None, limit: int) -> _Found:
        look = max(limit, LOOK_MIN)
        named = None if state is None else documents.DELIVERY_STATES[state]
        if named in (None, "delivered"):
            rows = await self._line.fetch(DELIVERIES["list"], place.at, _uuid(place), look, named)
        else:
            rows = await self._line.fetch(DELIVERIES["open"], place.at, _uuid(place), look, named, flow)
        found = _found(
            [(Moment(row["created_at"], row["id"].bytes), documents.delivery(row, self._leak_timeout)) for row in rows],
            look,
        )
        return _Found([each for each in found.rows if flow in (None, each[1]["flow"])], found.reached)

    async def _leases(self, place: Moment, state: State | None, limit: int) -> _Found:
        rows = await self._line.fetch(SQL["leases"], place.at, _uuid(place), limit)
        found = _found(
            [(Moment(row["started_at"], row["id"].bytes), documents.lease(row, self._leak_timeout)) for row in rows],
            limit,
        )
        return _Found([each for each in found.rows if state in (None, each[1]["state"])], found.reached)

    async def _in_doubt(self, place: Moment, limit: int) -> _Found:
        rows = await self._line.fetch(LEDGER["in_doubt"], place.at, place.logical_key, limit)
        return _found([(Moment(row["since"], row["logical_key"]), documents.doubt(row)) for row in rows], limit)

    async def _poison(self, place: Moment, limit: int) -> _Found:
        rows = await self._line.fetch(DELIVERIES["open"], place.at, _uuid(place), limit, "dead", None)
        return _found([(Moment(row["created_at"], row["id"].bytes), documents.poison(row)) for row in rows], limit)

    async def _schema_steps(self, place: Moment) -> _Found:
        rows = await self._line.fetch(SQL["schema_steps"], place.at)
        steps = [
            (Moment(row["applied_at"], UUID(int=row["version"]).bytes), documents.schema_step(row)) for row in rows
        ]
        return _Found([step for step in steps if step[0] > place], None)

    async def _events(self, obligation: UUID) -> list[documents.Document]:
        return [documents.event(row) for row in await self._line.fetch(SQL["events_of"], obligation)]


def _merged(found: Sequence[_Found], limit: int) -> Page:
    """One page of several ordered lists: nothing beyond where the shortest look ended."""
    reached = [each.reached for each in found if each.reached is not None]
    end = min(reached, default=None)
    rows = sorted(_within(found, end), key=lambda row: row[0])
    if len(rows) > limit:
        end = rows[limit - 1][0]
    return Page([document for _, document in rows[:limit]], None if end is None else end.cursor())


def _within(found: Sequence[_Found], end: Moment | None) -> Iterator[tuple[Moment, documents.Document]]:
    for each in found:
        yield from (row for row in each.rows if end is None or row[0] <= end)


def _found(rows: list[tuple[Moment, documents.Document]], limit: int) -> _Found:
    return _Found(rows, rows[-1][0] if len(rows) == limit else None)


def _uuid(place: Moment) -> UUID:
    return UUID(bytes=place.logical_key) if place.logical_key else UUID(int=0)


def _str(value: object) -> str | None:
    return None if value is None else str(value)
