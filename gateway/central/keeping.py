"""Retention: each service's entries are kept as long as is said for it, then forgotten in small bites, as the owner.

A month that no service keeps any more is dropped whole. The access log is kept for as long as the longest of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from gateway.store import queries
from gateway.store.lines import Line

log = logging.getLogger(__name__)

SQL = queries.load("keeping.sql", "gateway.central")
BITE = 2000  # rows per statement and side: keeps locks short


class Keeper:
    """The only one who deletes entries."""

    def __init__(
        self, owner: Line, *, default_ms: int, services_ms: Mapping[str, int], dropped: Callable[[], None]
    ) -> None:
        self._owner = owner
        self._dropped = dropped
        self.use(default_ms=default_ms, services_ms=services_ms)

    def use(self, *, default_ms: int, services_ms: Mapping[str, int]) -> None:
        """Of a reloaded configuration."""
        self._default_ms = default_ms
        self._services_ms = dict(services_ms)

    async def run_once(self) -> int:
        """One bite per service, and whole months; returns how many single entries were forgotten."""
        longest_ms = max(self._default_ms, *self._services_ms.values(), 0)
        for row in await self._owner.fetch(SQL["past"], longest_ms):
            await self._owner.fetch(SQL["drop_partition"], row["name"], longest_ms)
            self._dropped()
            log.info("a month past every retention was dropped", extra={"partition": row["name"]})
        forgotten = 0
        for row in await self._owner.fetch(SQL["sources"]):
            keep_ms = self._services_ms.get(row["source"], self._default_ms)
            [bite] = await self._owner.fetch(SQL["forget"], row["source"], keep_ms, BITE)
            forgotten += bite["forgotten"]
        await self._owner.fetch(SQL["forget_pairs"], longest_ms, BITE)
        await self._owner.fetch(SQL["drop_tallies"], longest_ms)
        await self._owner.fetch(SQL["forget_accesses"], longest_ms, BITE)
        if forgotten:
            log.info("entries past their retention forgotten", extra={"forgotten": forgotten})
        return forgotten
