"""Wakes whoever follows the events by NOTIFY: at most one per flush, and never on the request path.

A notification carries nothing and may be lost: readers ask the order of change for what is new, and look again by
themselves after a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from gateway.protocol.faults import StoreAway
from gateway.store.lines import Line

log = logging.getLogger(__name__)

CHANNEL = "twophp_events"
REST_S = 0.05  # between two notifications: a follower is never more than this behind, whatever the load


class Pulse:
    """One worker's notifications."""

    def __init__(self, url: str, spawn: Callable[[Coroutine[Any, Any, Any], str], Any]) -> None:
        self.line = Line(url)
        self._spawn = spawn
        self._beating = False
        self._again = False

    def beat(self) -> None:
        """Something was written."""
        if self._beating:
            self._again = True
            return
        self._beating = True
        self._spawn(self._notify(), "notify followers")

    async def _notify(self) -> None:
        try:
            self._again = True
            while self._again:
                self._again = False
                await self.line.fetch(f"NOTIFY {CHANNEL}")
                await asyncio.sleep(REST_S)
        except StoreAway:
            log.debug("followers not notified: the store is away")
        finally:
            self._beating = False
