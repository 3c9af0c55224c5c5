"""A tracker on a database of the test's own, as a gateway has it."""

from __future__ import annotations

import asyncio

from gateway.obligations import Tracker
from gateway.protocol.obligations import Scan
from gateway.store.obligation_lists import ObligationLists
from gateway.store.obligations import ObligationStore
from gateway.vault import Key, KeyRing

LEAK_TIMEOUT_MS = 30_000


def key_ring() -> KeyRing:
    """The one key of a test."""
    ring = KeyRing([Key("k1", b"1" * 32)])
    ring.bind({"k1": 1})
    return ring


class Desk:
    """Tracker, lists and scan, on connections of their own."""

    def __init__(self, url: str, *, buckets: int = 1, leak_timeout_ms: int = LEAK_TIMEOUT_MS) -> None:
        self.book = ObligationStore(url, buckets=buckets)
        self.lists = ObligationLists(url, buckets=buckets, leak_timeout_ms=leak_timeout_ms)
        self.made = Tracker(self.book, key_ring(), leak_timeout_ms=leak_timeout_ms)

    async def tracker(self) -> Tracker:
        return self.made

    async def last_scan(self) -> Scan:
        return await self.book.last_scan()

    async def close(self) -> None:
        await asyncio.gather(self.book.close(), self.lists.close())
