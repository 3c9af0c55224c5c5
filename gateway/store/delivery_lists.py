"""Deliveries as operators see them: lists, the callback gap, and sending one again.

Never shows a URL: it is sealed, and may be a caller's secret. Documents are those of `/v1/deliveries`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg

from gateway.protocol.deadlines import iso
from gateway.protocol.deliveries import State
from gateway.protocol.identity import bucket_of
from gateway.store.deliveries import SQL
from gateway.store.ledger import Moment, Page
from gateway.store.lines import Line

Document = dict[str, Any]
NIL = UUID(int=0)


class DeliveryLists:
    """For the operator listener and the command line. Every method may raise StoreAway; a bad cursor is a BadCursor."""

    def __init__(self, url: str, *, buckets: int) -> None:
        self._buckets = buckets
        self._line = Line(url)

    async def close(self) -> None:
        """Close the line."""
        await self._line.close()

    async def deliveries(self, *, state: State | None, after: str | None, limit: int) -> Page:
        """All of them, or those in one state, the first promised first."""
        if state in (None, "delivered"):
            return _page(await self._line.fetch(SQL["list"], *_place(after), limit + 1, state), limit)
        return _page(await self._line.fetch(SQL["open"], *_place(after), limit + 1, state, None), limit)

    async def callback_gap(self, *, after: str | None, limit: int) -> Page:
        """Callbacks that nobody has acknowledged: still being tried (`pending`), or given up (`dead`)."""
        return _page(await self._line.fetch(SQL["open"], *_place(after), limit + 1, None, "callback"), limit)

    async def of_intent(self, server_correlation_id: UUID) -> list[Document]:
        """Every delivery of one intent."""
        bucket = bucket_of(server_correlation_id, buckets=self._buckets)
        return [document(row) for row in await self._line.fetch(SQL["of_intent"], bucket, server_correlation_id)]

    async def delivery(self, delivery_id: UUID) -> Document | None:
        """One of them."""
        rows = await self._line.fetch(SQL["one"], delivery_id)
        return document(rows[0]) if rows else None

    async def retry(self, delivery_id: UUID, *, by: str) -> bool:
        """Send one again, now; False when there is none that could be: unknown, or delivered."""
        return bool(await self._line.fetch(SQL["retry"], delivery_id, by))


def document(row: asyncpg.Record) -> Document:
    """One delivery."""
    return {
        "id": str(row["id"]),
        "kind": row["kind"],
        "event": row["event"],
        "state": row["state"],
        "acknowledged": row["state"] == "delivered",
        "attempts": row["attempts"],
        "created_at": iso(row["created_at"]),
        "next_at": _iso(row["next_at"]),
        "settled_at": _iso(row["settled_at"]),
        "last_status": row["last_status"],
        "last_error": row["last_error"],
        "server_correlation_id": str(row["server_correlation_id"]),
        "client_correlation_id": row["client_correlation_id"],
        "phase": row["phase"],
    }


def _place(after: str | None) -> tuple[datetime, UUID]:
    moment = Moment.of(after)
    return moment.at, UUID(bytes=moment.logical_key) if moment.logical_key else NIL


def _page(rows: Sequence[asyncpg.Record], limit: int) -> Page:
    more = len(rows) > limit
    last = rows[limit - 1] if more else None
    after = None if last is None else Moment(last["created_at"], last["id"].bytes).cursor()
    return Page([document(row) for row in rows[:limit]], after)


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else iso(moment)
