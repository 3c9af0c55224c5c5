"""Entries as they arrive, for whoever watches (LED-6). In this process and from now on: nothing is kept for those who
were not looking. A follower that does not keep up is told how much it missed; it never holds up an ingest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

WAITING_MAX = 500  # entries that wait for one follower
QUIET_S = 10.0  # without news, a follower hears that the stream still lives

Document = dict[str, Any]


class _Follower:
    def __init__(self, scope: str | None) -> None:
        self.scope = scope
        self.waiting: asyncio.Queue[Document] = asyncio.Queue(WAITING_MAX)
        self.skipped = 0
        self.news = asyncio.Event()


class Live:
    """All who watch."""

    def __init__(self) -> None:
        self._followers: set[_Follower] = set()

    @property
    def followed(self) -> bool:
        """Whether anybody watches."""
        return bool(self._followers)

    @property
    def followers(self) -> int:
        """How many watch."""
        return len(self._followers)

    def publish(self, source: str, entry: Document) -> None:
        """A new or changed entry."""
        for follower in self._followers:
            if follower.scope not in (None, source):
                continue
            try:
                follower.waiting.put_nowait(entry)
            except asyncio.QueueFull:
                follower.skipped += 1
            follower.news.set()

    def skip(self, source: str, entries: int) -> None:
        """Entries that are not told one by one."""
        for follower in self._followers:
            if follower.scope in (None, source):
                follower.skipped += entries
                follower.news.set()

    async def follow(self, scope: str | None) -> AsyncIterator[tuple[str, Document] | None]:
        """("entry", the entry), ("skipped", {"skipped": how many}); None when nothing came for a while."""
        follower = _Follower(scope)
        self._followers.add(follower)
        try:
            while True:
                while not follower.waiting.empty():
                    yield "entry", follower.waiting.get_nowait()
                if follower.skipped:
                    skipped, follower.skipped = follower.skipped, 0
                    yield "skipped", {"skipped": skipped}
                    continue
                follower.news.clear()
                try:
                    async with asyncio.timeout(QUIET_S):
                        await follower.news.wait()
                except TimeoutError:
                    yield None
        finally:
            self._followers.discard(follower)
