"""Retention: each service's entries are kept as long as is said for it, then forgotten in small bites, as the owner.

A month that no service keeps any more is dropped whole. The access log is kept for as long as the longest of them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from gateway.protocol.faults import StoreAway
from gateway.store import queries
from gateway.store.lines import Line

log = logging.getLogger(__name__)

SQL = queries.load("keeping.sql", "gateway.central")
BITE = 2000  # rows per statement and side: keeps locks short
BUDGET_S = 10.0  # for bites in one run; a bite for each service is always had


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
        """Whole months, and bites while there is time; returns how many single entries were forgotten."""
        longest_ms = max(self._default_ms, *self._services_ms.values(), 0)
        for row in await self._owner.fetch(SQL["past"], longest_ms):
            try:
                await self._owner.fetch(SQL["drop_partition"], row["name"], longest_ms)
            except StoreAway:  # somebody reads it for long: it is left for later, and the rest goes on
                log.warning("a month past every retention could not be dropped", extra={"partition": row["name"]})
                continue
            self._dropped()
            log.info("a month past every retention was dropped", extra={"partition": row["name"]})
        forgotten, until_s = 0, time.monotonic() + BUDGET_S
        full = [row["source"] for row in await self._owner.fetch(SQL["sources"])]
        while full:  # each service in turn, those again that had a whole bite
            bites = {source: await self._forget(source) for source in full}
            forgotten += sum(bites.values())
            full = [source for source, bite in bites.items() if bite >= BITE and time.monotonic() < until_s]
        for name in ("forget_pairs", "forget_accesses"):
            while len(await self._owner.fetch(SQL[name], longest_ms, BITE)) >= BITE and time.monotonic() < until_s:
                pass
        await self._owner.fetch(SQL["drop_tallies"], longest_ms)
        if forgotten:
            log.info("entries past their retention forgotten", extra={"forgotten": forgotten})
        return forgotten

    async def _forget(self, source: str) -> int:
        keep_ms = self._services_ms.get(source, self._default_ms)
        [bite] = await self._owner.fetch(SQL["forget"], source, keep_ms, BITE)
        return int(bite["forgotten"])
