"""The events as a feed (LED-6): a catch-up query in order of change, and LISTEN to know when to ask it again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import orjson

from gateway.protocol.deadlines import iso
from gateway.protocol.faults import StoreAway
from gateway.store import queries
from gateway.store.errors import as_store_error
from gateway.store.ledger import Position
from gateway.store.lines import Line, connect
from gateway.store.pulse import CHANNEL

SQL = queries.load("feed.sql")
LOOK_AGAIN_S = 2.0  # a lost notification costs a follower no more than this

Document = dict[str, Any]


class Feed:
    """One follower's way through the events."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._line = Line(url)
        self._news = asyncio.Event()

    async def follow(self, after: str | None) -> AsyncIterator[tuple[str, Document] | None]:
        """(cursor, event), from a cursor on or from now; None when nothing came for a while. Raises StoreAway."""
        async with self._listening():
            place = Position.of(after) if after is not None else await self._now()
            while True:
                self._news.clear()
                rows = await self._line.fetch(SQL["after"], place.xid, place.id)
                for row in rows:
                    place = Position(row["xid"], row["id"])
                    if row["source"] is not None:  # else retention was quicker
                        yield place.cursor(), _event(row)
                if rows:
                    continue
                try:
                    await asyncio.wait_for(self._news.wait(), LOOK_AGAIN_S)
                except TimeoutError:
                    yield None

    async def _now(self) -> Position:
        xid: int = (await self._line.fetch(SQL["now"]))[0]["xid"]
        return Position(xid - 1, 2**63 - 1)

    @contextlib.asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        try:
            connection = await connect(self._url, pinned=False)
        except Exception as error:
            store_error = as_store_error(error)
            if store_error is None:
                raise
            raise StoreAway(str(store_error)) from error
        try:
            await connection.add_listener(CHANNEL, lambda *_: self._news.set())
            yield
        finally:
            await connection.close(timeout=1)
            await self._line.close()


def _event(row: asyncpg.Record) -> Document:
    return {
        "at": iso(row["at"]),
        "code": row["code"],
        "phase": row["phase"],
        "detail": None if row["detail"] is None else orjson.loads(row["detail"]),
        "actor": "server" if row["target"] is None else "client",
        "server_correlation_id": row["server_correlation_id"],
        "client_correlation_id": row["client_correlation_id"],
        "source": row["source"],
        "target": row["target"],
        "method": row["method"],
        "path": row["path"].decode("latin-1"),
    }
