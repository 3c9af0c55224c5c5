"""Who looked at what: every access of a known token is durable before its answer leaves (SEC-5).

Accesses that are answered at the same moment share one statement, so a reader waits for about one commit. What cannot
be recorded is not answered. Requests without a valid token are no accesses: they see nothing, and are in the log alone,
so that nobody can fill the store from outside. Never records what was asked for beyond the path and its IDs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from gateway.central.rows import Document
from gateway.operator.access import Token
from gateway.operator.calls import Call, Endpoint
from gateway.protocol.deadlines import iso
from gateway.protocol.faults import StoreAway
from gateway.store import queries
from gateway.store.ledger import BadCursor, Page
from gateway.store.lines import Line

SQL = queries.load("trail.sql", "gateway.central")
TARGET_CHARACTERS_MAX = 255  # as long as a correlation ID may be
BATCH_MAX = 500
ID_MAX = 2**63 - 1


class Access(NamedTuple):
    """One access."""

    name: str
    role: str
    method: str
    path: str
    target: str | None
    service: str | None
    status: int


_Waiting = tuple[Access, asyncio.Future[None]]


class Trail:
    """The access log."""

    def __init__(self, url: str) -> None:
        self._line = Line(url)
        self._waiting: list[_Waiting] = []
        self._writing = asyncio.Lock()

    async def close(self) -> None:
        """Let go of the store."""
        await self._line.close()

    async def record(self, endpoint: Endpoint[object], call: Call, method: str, status: int) -> None:
        """Returns once the access is durable; raises StoreAway if it cannot be."""
        if endpoint.open or call.token is None:
            return
        target = ",".join(call.segments.values())[:TARGET_CHARACTERS_MAX].replace("\0", "\ufffd") or None
        token: Token = call.token
        access = Access(token.name, token.role, method, endpoint.path, target, token.service, status)
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((access, written))
        async with self._writing:  # whoever comes first writes for all who wait by then
            if not written.done():
                await self._write()
        await written

    async def _write(self) -> None:
        batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
        try:
            await self._insert(batch)
        except StoreAway as error:
            _fail(batch, error)
        except Exception:
            for one in batch:  # what the store refuses of one access must not be held against the others
                try:
                    await self._insert([one])
                except Exception as error:
                    _fail([one], error)
        finally:
            _fail(batch, StoreAway("the writer left"))  # cancelled: whoever is still without an answer

    async def _insert(self, batch: Sequence[_Waiting]) -> None:
        await self._line.fetch(SQL["record"], *zip(*(access for access, _ in batch), strict=True))
        for _, written in batch:
            if not written.done():
                written.set_result(None)

    async def read(self, *, after: str | None, limit: int) -> Page:
        """Accesses, newest first."""
        try:
            before = None if after is None else int(after)
        except ValueError:
            raise BadCursor from None
        if before is not None and not 0 <= before <= ID_MAX:
            raise BadCursor
        rows = await self._line.fetch(SQL["read"], before, limit + 1)
        found: list[Document] = [
            {name: row[name] for name in Access._fields} | {"at": iso(row["at"])} for row in rows[:limit]
        ]
        return Page(found, str(rows[limit - 1]["id"]) if len(rows) > limit else None)


def _fail(batch: Sequence[_Waiting], error: Exception) -> None:
    for _, written in batch:
        if not written.done():
            written.set_exception(error)
            written.exception()  # whoever still waits hears of it; whoever left does not
