"""Asynchronous mode: confirmed work is executed out of band, and survives a restart of the gateway (ASY-1).

The queue is in the store. A worker takes what it can run, at most so many at a time per route; the rest waits for
whoever has room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from gateway.flows.execute import Streamed, execute_claimed
from gateway.flows.ports import Desk, Queue
from gateway.flows.voices import CONFIRMED
from gateway.protocol.faults import StoreAway
from gateway.protocol.identity import IntentKey
from gateway.protocol.records import Taken

RUNNING_PER_ROUTE_MAX = 64  # per worker; an upstream slow enough to need more is better protected by the queue
TAKEN_AT_ONCE_MAX = 32


class QueueRunner:
    """One worker's share of the queue."""

    def __init__(self, desk: Desk, queue: Queue) -> None:
        self._desk = desk
        self._queue = queue
        self._running: dict[bytes, str] = {}  # logical key -> route
        self._offered: Counter[str] = Counter()  # places kept for what is being taken, by route
        self._ended: set[bytes] = set()  # what ended while it is not sure what was begun
        self._uncertain = False
        self._closed = False

    def under(self, desk: Desk) -> None:
        """Go on with a reloaded configuration."""
        self._desk = desk

    def close(self) -> None:
        """Take nothing more: this worker drains, and what waits is for others."""
        self._closed = True

    def offer(self, key: IntentKey, route: str) -> None:
        """Work that was just confirmed here: begin it at once if there is room, else leave it in the queue."""
        if not self._closed and self._in_use()[route] < RUNNING_PER_ROUTE_MAX:
            self._offered[route] += 1
            self._desk.spawn(self._take_offered(key, route), "begin confirmed work")

    async def _take_offered(self, key: IntentKey, route: str) -> None:
        try:
            await self._take(1, key)
        finally:
            self._offered[route] -= 1

    def _in_use(self) -> Counter[str]:
        return Counter(self._running.values()) + self._offered

    async def run_once(self) -> int:
        """Take what waits, as far as there is room; returns how much was taken."""
        if self._closed or not self._desk.queues:
            return 0
        if self._uncertain:
            await self._find_held()
        in_use = self._in_use()
        full = [route for route, count in in_use.items() if count >= RUNNING_PER_ROUTE_MAX]
        rooms = [RUNNING_PER_ROUTE_MAX - count for count in in_use.values() if count < RUNNING_PER_ROUTE_MAX]
        return await self._take(min([TAKEN_AT_ONCE_MAX, *rooms]), None, full)

    async def _take(self, limit: int, key: IntentKey | None, without: Collection[str] = ()) -> int:
        try:
            taken = await self._queue.take(self._desk.lease.holder, limit, key, without)
        except StoreAway:
            self._uncertain = True  # it, or an earlier bucket of it, may have begun what we never heard of
            raise
        for one in taken:
            self._begin(one)
        return len(taken)

    async def _find_held(self) -> None:
        """REC-7: a `take` whose acknowledgement was lost may have begun work that nobody runs."""
        self._ended.clear()
        for one in await self._queue.held(self._desk.lease.holder):
            key = one.claimed.key.logical
            if key not in self._running and key not in self._ended:
                self._begin(one)
        self._uncertain = False

    def _begin(self, one: Taken) -> None:
        claimed = one.claimed
        self._running[claimed.key.logical] = self._desk.route_of(claimed.method, claimed.path).path
        self._desk.spawn(self._run(one), "run confirmed work")

    async def _run(self, one: Taken) -> None:
        claimed = one.claimed
        try:
            result = await execute_claimed(
                self._desk,
                claimed,
                one.server_correlation_id,
                one.client_correlation_id,
                one.credentials or [],
                CONFIRMED,
            )
            if isinstance(result, Streamed):
                result.abort()  # RPL-6: nobody reads it live, and it is too large to keep
        finally:
            self._running.pop(claimed.key.logical, None)
            self._ended.add(claimed.key.logical)
            if not self._uncertain:
                self._ended.clear()
