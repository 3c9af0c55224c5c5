"""The queue of asynchronous work: taking a row begins its attempt, in one statement (ASY-1)."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from gateway.protocol.identity import IntentKey
from gateway.protocol.records import Taken
from gateway.store import queries
from gateway.store.claims import taken_of
from gateway.store.lines import Line
from gateway.store.turns import Turns

SQL = queries.load("queue.sql")


class QueueStore:
    """Confirmed work of one service that nobody has begun yet, shared by every worker of every replica."""

    def __init__(self, url: str, *, service: str, buckets: int) -> None:
        self.line = Line(url)
        self._service = service
        self._buckets = range(buckets)
        self._turns = Turns(buckets)

    async def take(
        self, holder: UUID, limit: int, key: IntentKey | None = None, without: Collection[str] = ()
    ) -> list[Taken]:
        """Begin the attempts of one intent, or of the oldest that wait, `limit` at most, on any route but some."""
        taken: list[Taken] = []
        for bucket in self._turns if key is None else (key.bucket,):
            if len(taken) >= limit:
                break
            rows = (
                await self.line.fetch(SQL["take"], bucket, limit - len(taken), holder, list(without), self._service)
                if key is None
                else await self.line.fetch(SQL["take_one"], bucket, key.logical, holder)
            )
            taken += [taken_of(bucket, holder, row) for row in rows]
        return taken

    async def held(self, holder: UUID) -> list[Taken]:
        """What this holder has begun and not ended (REC-7)."""
        return [
            taken_of(bucket, holder, row)
            for bucket in self._buckets
            for row in await self.line.fetch(SQL["held"], bucket, holder)
        ]
