"""Retention: settled intents past their replay horizon are forgotten, in small bites, as the owner (RPL-4, REP-6)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from gateway.store.sweeps import Retention

log = logging.getLogger(__name__)


class Retainer:
    """The only one who deletes intents."""

    def __init__(self, retention: Retention, count: Callable[[int], None]) -> None:
        self._retention = retention
        self._count = count

    async def run_once(self) -> int:
        """One bite per bucket."""
        forgotten = await self._retention.retain()
        if forgotten:
            self._count(forgotten)
            log.info("intents past their replay horizon forgotten", extra={"forgotten": forgotten})
        return forgotten
