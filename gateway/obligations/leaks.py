"""The leak scan: reservations that nobody settled in time are taken back (OBL-3). Runs in every gateway."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger(__name__)


class Leaks(Protocol):
    """Where obligations are kept."""

    async def take_back(self) -> int:
        """Roll back what leaked; returns how many, once the whole scan is complete."""
        ...


class LeakScan:
    """Decides nothing: when a reservation has leaked is a matter of the database's clock."""

    def __init__(self, book: Leaks, scanned: Callable[[], None], leaked: Callable[[int], None]) -> None:
        self._book = book
        self._scanned = scanned
        self._leaked = leaked

    async def run_once(self) -> int:
        """One scan over every bucket; returns how many were taken back."""
        leaked = await self._book.take_back()
        self._scanned()
        if leaked:
            self._leaked(leaked)
            log.warning("obligations leaked and were rolled back", extra={"leaked": leaked})
        return leaked
