"""Asynchronous mode: confirmed work is executed out of band, and survives a restart of the gateway (ASY-1).

The queue is in the store. A worker takes what it can run, at most so many at a time per route; the rest waits for
whoever has room.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection

from gateway.crash_points import reached
from gateway.flows.execute import Streamed, execute_claimed
from gateway.flows.ports import Desk, Queue
from gateway.flows.voices import CONFIRMED
from gateway.protocol.faults import StoreAway
from gateway.protocol.identity import IntentKey
from gateway.protocol.records import Taken

RUNNING_PER_ROUTE_MAX = 64  # per worker; an upstream slow enough to need more is better protected by the queue
TAKEN_AT_ONCE_MAX = 32
SURE_S = 20.0  # beyond the time a statement may take: what has not come to light by then was never written
LOOK_EVERY_S = 30.0  # without asynchronous routes: a configuration may have lost its last one


class QueueRunner:
    """One worker's share of the queue."""

    def __init__(self, desk: Desk, queue: Queue) -> None:
        self._desk = desk
        self._queue = queue
        self._running: dict[bytes, str] = {}  # logical key -> route
        self._offered: Counter[str] = Counter()  # places kept for what is being taken, by route
        self._ended: set[bytes] = set()  # what ended while it is not sure what was begun
        self._sure_at = 0.0  # until then, what was begun in our name may still come to light
        self._look_at = 0.0  # for what is left of routes that no longer execute asynchronously
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
        now = _now()
        if self._closed or (not self._desk.queues and now < self._look_at):
            return 0
        self._look_at = now + LOOK_EVERY_S
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
            # It, or an earlier bucket of it, may have begun what we never heard of; it may even be under way still.
            self._sure_at = _now() + SURE_S
            raise
        if taken:
            reached("queue.taken")
        for one in taken:
            self._begin(one)
        return len(taken)

    async def _find_held(self) -> None:
        """REC-7: a `take` whose acknowledgement was lost may have begun work that nobody runs.

        What runs, what ended meanwhile, and what ended with an outcome not yet in the store, is not begun again.
        """
        self._ended.clear()
        unwritten = set(self._desk.unwritten)
        try:
            held = await self._queue.held(self._desk.lease.holder)
        except StoreAway:
            self._sure_at = _now() + SURE_S
            raise
        known = self._ended | unwritten | self._desk.unwritten
        for one in held:
            key = one.claimed.key.logical
            if key not in self._running and key not in known:
                self._begin(one)

    @property
    def _uncertain(self) -> bool:
        return _now() < self._sure_at

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


def _now() -> float:
    return asyncio.get_running_loop().time()
