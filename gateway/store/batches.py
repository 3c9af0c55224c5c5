"""Batched writes without waiting (DESIGN decision 4).

Rows of one kind that arrive while a flush is in flight go out as the next statement; an idle lane flushes at once, so
there is no timer and no added latency. A batch names one bucket, holds each key once, is sorted by key (two replicas'
batches in different orders would deadlock) and is bounded in rows and bytes. One bad row never fails its neighbours. A
row that cannot be sent in time hears that the store is away.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import asyncpg

from gateway.protocol.faults import StoreAway, StoreLost
from gateway.protocol.identity import IntentKey
from gateway.store.errors import BadRow, StoreConflict, is_bad_data

ROWS_MAX = 256  # larger batches lengthen the tail, not the throughput
BYTES_MAX = 4 * 1024 * 1024
TRIES_MAX = 5  # at a batch that deadlocks or fails to serialize; each is a fresh transaction
WAITING_MAX = 20_000  # rows queued in one lane: past this the store cannot keep up and says so instead of growing
WAIT_MAX_S = 10.0  # as long as one statement may take; a row that has waited so long unsent is better tried again later


class Keyed(Protocol):
    """A row of a batch."""

    @property
    def key(self) -> IntentKey:
        """Its intent."""
        ...

    @property
    def size_bytes(self) -> int:
        """About how much it adds to a statement."""
        ...


Row = TypeVar("Row", bound=Keyed)
Flush = Callable[[int, Sequence[Row]], Awaitable[Mapping[bytes, asyncpg.Record]]]


class _Waiting(NamedTuple, Generic[Row]):
    row: Row
    future: asyncio.Future[asyncpg.Record | None]
    since: float

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Lane(Generic[Row]):
    """The queue of one kind of statement. A row's result is what the statement returned for its key, or None."""

    def __init__(self, flush: Flush[Row]) -> None:
        self._flush = flush
        self._waiting: dict[int, deque[_Waiting[Row]]] = {}
        self._count = 0
        self._worker: asyncio.Task[None] | None = None

    async def submit(self, row: Row) -> asyncpg.Record | None:
        """Carry out one row with whatever else is waiting."""
        if self._count >= WAITING_MAX:
            raise StoreAway("too many writes are waiting")
        loop = asyncio.get_running_loop()
        waiting = _Waiting(row, loop.create_future(), loop.time())
        self._waiting.setdefault(row.key.bucket, deque()).append(waiting)
        self._count += 1
        if self._worker is None:
            self._worker = loop.create_task(self._work())
        return await waiting.future

    async def _work(self) -> None:
        """Flush until nothing waits; the next row starts a new worker."""
        batch: list[_Waiting[Row]] = []
        try:
            while self._waiting:
                gathered = -1
                while gathered != self._count:  # while every turn of the loop brings more: no timer, larger batches
                    gathered = self._count
                    await asyncio.sleep(0)
                bucket = next(iter(self._waiting))
                batch = self._take(bucket)
                await self._settle(bucket, batch)
        finally:
            self._worker = None
            self._give_up(batch)

    def _give_up(self, sent: Sequence[_Waiting[Row]]) -> None:
        """A worker cancelled at the end of the process leaves nobody waiting; after any other, nobody waits."""
        for waiting in sent:
            waiting.fail(StoreLost("the store was given up under a statement"))
        for queue in self._waiting.values():
            for waiting in queue:
                waiting.fail(StoreAway("the store was given up"))
        self._waiting.clear()
        self._count = 0

    def _take(self, bucket: int) -> list[_Waiting[Row]]:
        """The next batch of a bucket, sorted by key."""
        queue = self._waiting.pop(bucket)
        batch: dict[bytes, _Waiting[Row]] = {}
        later: deque[_Waiting[Row]] = deque()
        size = 0
        too_old = asyncio.get_running_loop().time() - WAIT_MAX_S
        while queue:
            waiting = queue.popleft()
            row = waiting.row
            if waiting.future.done():  # its caller gave up before it was sent
                self._count -= 1
            elif waiting.since < too_old:
                waiting.fail(StoreAway("the store did not keep up"))
                self._count -= 1
            elif row.key.logical in batch:
                later.append(waiting)
            elif batch and (len(batch) >= ROWS_MAX or size + row.size_bytes > BYTES_MAX):
                queue.appendleft(waiting)
                break
            else:
                batch[row.key.logical] = waiting
                size += row.size_bytes
        later.extend(queue)
        if later:
            self._waiting[bucket] = later  # re-inserted last: other buckets come first
        self._count -= len(batch)
        return [batch[key] for key in sorted(batch)]

    async def _settle(self, bucket: int, batch: Sequence[_Waiting[Row]]) -> None:
        """Carry out a batch and tell every row what became of it."""
        if not batch:
            return
        try:
            results = await self._attempt(bucket, [waiting.row for waiting in batch])
        except Exception as error:
            if is_bad_data(error) and len(batch) > 1:
                middle = len(batch) // 2
                await self._settle(bucket, batch[:middle])
                await self._settle(bucket, batch[middle:])
                return
            outcome = BadRow(str(error)) if is_bad_data(error) else error
            for waiting in batch:
                waiting.fail(outcome)
            return
        for waiting in batch:
            if not waiting.future.done():
                waiting.future.set_result(results.get(waiting.row.key.logical))

    async def _attempt(self, bucket: int, rows: Sequence[Row]) -> Mapping[bytes, asyncpg.Record]:
        for _ in range(TRIES_MAX - 1):
            try:
                return await self._flush(bucket, rows)
            except StoreConflict:
                continue
        return await self._flush(bucket, rows)
