"""Obligations of a gateway, put together: tracker, lists and leak scan, under the configuration of the moment."""

from __future__ import annotations

import asyncio

from gateway.obligations import LeakScan, Tracker
from gateway.protocol.faults import StoreAway
from gateway.protocol.obligations import Scan
from gateway.settings import Settings
from gateway.store.obligation_lists import ObligationLists
from gateway.store.obligations import ObligationStore
from gateway.store.opening import Opened
from gateway.telemetry.metrics import Metrics

OPENING_WAIT_S = 5.0  # for who asks right after a start, before hearing that the store is away


class Tracking:
    """What the operator listener and the background do with obligations."""

    def __init__(self, settings: Settings, store_url: str) -> None:
        store = settings.store
        self.book = ObligationStore(store_url, buckets=store.buckets)
        self._scan_book = ObligationStore(store_url, buckets=store.buckets)  # a long scan holds up nobody's commit
        self.lists = ObligationLists(
            store_url, buckets=store.buckets, leak_timeout_ms=settings.obligations.leak_timeout_ms
        )
        self._tracker: Tracker | None = None
        self._opened = asyncio.Event()

    def use(self, settings: Settings, opened: Opened) -> Tracker:
        """From now on, reserve with these settings' keys and timeout."""
        self._tracker = Tracker(self.book, opened.ring, leak_timeout_ms=settings.obligations.leak_timeout_ms)
        self._opened.set()
        return self._tracker

    async def tracker(self) -> Tracker:
        """Who reserves. Right after a start, the keys may take a moment more than the listener."""
        try:
            async with asyncio.timeout(OPENING_WAIT_S):
                await self._opened.wait()
        except TimeoutError:
            raise StoreAway("the store has not been opened yet") from None
        assert self._tracker is not None
        return self._tracker

    def scan(self, metrics: Metrics) -> LeakScan:
        """The leak scan (OBL-3)."""
        return LeakScan(self._scan_book, metrics.obligation_scans.inc, metrics.obligations_leaked.inc)

    async def last_scan(self) -> Scan:
        """OBL-005."""
        return await self.book.last_scan()

    async def close(self) -> None:
        """Let go of the store."""
        await asyncio.gather(self.book.close(), self._scan_book.close(), self.lists.close())
