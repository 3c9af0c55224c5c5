"""This worker's lease (REC-1): while it is renewed, every attempt this process holds is its own.

The database's clock decides when a lease has run out; this process only knows, conservatively, until when it surely has
not.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from uuid import UUID, uuid4

from gateway.protocol.faults import StoreAway
from gateway.store import queries
from gateway.store.lines import Line

SQL = queries.load("background.sql")
log = logging.getLogger(__name__)


class Lease:
    """The name and lease of one worker process."""

    def __init__(self, line: Line, lease_ms: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._line = line
        self._lease_ms = lease_ms
        self._clock = clock
        self._changing = asyncio.Lock()  # two who find the lease lost must not take two names
        self._sure_until = 0.0
        self.holder: UUID = uuid4()

    def surely_held(self, holder: UUID | None = None) -> bool:
        """Whether no rescuer can have taken over yet: asked right before a first byte is sent.

        `holder` is the name an attempt was begun under: what an older name of this worker held is somebody else's.
        """
        return (holder is None or holder == self.holder) and self._clock() < self._sure_until

    async def enter(self) -> None:
        """Take a name; done at start, and again after having been declared dead."""
        async with self._changing:
            await self._enter()

    async def renew(self, holder: UUID | None = None) -> bool:
        """Keep the lease; False when a rescuer has declared this worker dead, which then goes on under a new name.

        With `holder`, also False when that is no longer this worker's name.
        """
        async with self._changing:
            if holder is not None and holder != self.holder:
                return False
            asked_at = self._clock()
            if await self._line.fetch(SQL["renew"], self.holder, self._lease_ms):
                self._sure_until = asked_at + self._lease_ms / 1000
                return True
            self._sure_until = 0.0
            log.warning("lease lost; going on under a new name", extra={"holder": str(self.holder)})
            await self._enter()
            return False

    async def _enter(self) -> None:
        holder = uuid4()
        asked_at = self._clock()
        await self._line.fetch(SQL["enter"], holder, self._lease_ms)
        self.holder = holder
        self._sure_until = asked_at + self._lease_ms / 1000

    async def hand_back(self) -> None:
        """At the end of a drain: what is still held is for others, at once."""
        self._sure_until = 0.0
        try:
            await self._line.fetch(SQL["hand_back"], self.holder)
        except StoreAway:
            log.warning("lease not handed back: the store is away; it runs out by itself")
