"""Rescue.

Intents whose gateway died after the PONR are taken over under a higher fence and held as in doubt (REC-1, REC-2).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from gateway.store.sweeps import Rescued, Sweeps

log = logging.getLogger(__name__)


class Rescuer:
    """A continuous sweep, not a start-up pass: rolling restarts strand nothing."""

    def __init__(self, sweeps: Sweeps, gauge: Callable[[int], None]) -> None:
        self._sweeps = sweeps
        self._gauge = gauge  # told how many intents are in doubt

    async def run_once(self) -> Rescued:
        """Declare lapsed holders dead and take over what they held."""
        done = await self._sweeps.rescue()
        if done.ended:
            log.warning("attempts of lost gateways taken over", extra={"ended": done.ended, "in_doubt": done.in_doubt})
        self._gauge(await self._sweeps.count_in_doubt())
        return done
