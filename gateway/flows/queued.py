"""Asynchronous mode: confirmed work is executed out of band, and survives a restart of the gateway (ASY-1).

The queue is in the store. A worker takes what it can run, at most so many at a time per route; the rest waits for
whoever has room.
"""

from __future__ import annotations

import logging
from collections import Counter

from gateway.flows.execute import execute_claimed
from gateway.flows.ports import Desk, Queue
from gateway.flows.sealed import open_message
from gateway.flows.voices import CONFIRMED
from gateway.protocol.faults import StoreAway, StoreLost
from gateway.protocol.identity import IntentKey
from gateway.protocol.messages import Header
from gateway.protocol.records import Taken

log = logging.getLogger(__name__)

RUNNING_PER_ROUTE_MAX = 64  # per worker; an upstream slow enough to need more is better protected by the queue
TAKEN_AT_ONCE_MAX = 32


class QueueRunner:
    """One worker's share of the queue."""

    def __init__(self, desk: Desk, queue: Queue) -> None:
        self._desk = desk
        self._queue = queue
        self._running: dict[bytes, str] = {}  # logical key -> route
        self._uncertain = False

    def under(self, desk: Desk) -> None:
        """Go on with a reloaded configuration."""
        self._desk = desk

    def offer(self, key: IntentKey, route: str) -> None:
        """Work that was just confirmed here: begin it at once if there is room, else leave it in the queue."""
        if Counter(self._running.values())[route] < RUNNING_PER_ROUTE_MAX:
            self._desk.spawn(self._take(1, key), "begin confirmed work")

    async def run_once(self) -> int:
        """Take what waits, as far as there is room; returns how much was taken."""
        if self._uncertain:
            await self._find_held()
        counts = Counter(self._running.values())
        room = RUNNING_PER_ROUTE_MAX - max(counts.values(), default=0)
        return await self._take(min(room, TAKEN_AT_ONCE_MAX), None) if room > 0 else 0

    async def _take(self, limit: int, key: IntentKey | None) -> int:
        try:
            taken = await self._queue.take(self._desk.lease.holder, limit, key)
        except StoreLost:
            self._uncertain = True
            raise
        for one in taken:
            self._begin(one)
        return len(taken)

    async def _find_held(self) -> None:
        """REC-7: a `take` whose acknowledgement was lost may have begun work that nobody runs."""
        for one in await self._queue.held(self._desk.lease.holder):
            if one.claimed.key.logical not in self._running:
                self._begin(one)
        self._uncertain = False

    def _begin(self, one: Taken) -> None:
        claimed = one.claimed
        self._running[claimed.key.logical] = self._desk.route_of(claimed.method, claimed.path).path
        self._desk.spawn(self._run(one), "run confirmed work")

    async def _run(self, one: Taken) -> None:
        desk, claimed = self._desk, one.claimed
        try:
            result = await execute_claimed(
                desk,
                claimed,
                one.server_correlation_id,
                one.client_correlation_id,
                self._credentials(one),
                CONFIRMED,
            )
            abort = getattr(result, "abort", None)
            if abort is not None:
                abort()  # RPL-6: nobody reads it live, and it is too large to keep
        except StoreAway:
            log.warning("confirmed work waits: the store is away")
        finally:
            self._running.pop(claimed.key.logical, None)

    def _credentials(self, one: Taken) -> list[Header]:
        if one.credentials is None:
            return []
        headers, _ = open_message(self._desk.vault, b"credentials", one.claimed.key, one.credentials)
        return headers
