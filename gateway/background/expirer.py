"""Expiry.

Unconfirmed intents become TTL_EXPIRED at their deadline and ABANDONED, payload erased, after delta (TTL-2).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from gateway.store.sweeps import Sweeps

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Expired:
    """What one sweep did."""

    expired: int
    abandoned: int


class Expirer:
    """Writes what is already true: a state read between sweeps is right without it."""

    def __init__(self, sweeps: Sweeps, count: Callable[[int], None]) -> None:
        self._sweeps = sweeps
        self._count = count

    async def run_once(self) -> Expired:
        """One sweep over every bucket."""
        done = Expired(await self._sweeps.expire(), await self._sweeps.abandon())
        await self._sweeps.set_aside()
        if done.expired:
            self._count(done.expired)
        if done.expired or done.abandoned:
            log.info("intents expired", extra={"expired": done.expired, "abandoned": done.abandoned})
        return done
