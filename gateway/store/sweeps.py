"""The background's statements: expiry, rescue and retention, over one bucket at a time, each safe beside its twins."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import asyncpg

from gateway.crash_points import reached
from gateway.store import queries
from gateway.store.client_rows import SQL as CLIENT_ROWS
from gateway.store.lines import Line
from gateway.store.obligations import forget_own

SQL = queries.load("background.sql")
ROWS_MAX = 500  # per statement: keeps locks short and the request path unbothered


@dataclass(frozen=True, slots=True)
class Rescued:
    """What a rescue found: attempts of dead holders, and the intents among them that are now in doubt."""

    ended: int = 0
    in_doubt: int = 0


class Sweeps:
    """Run by every worker of every replica."""

    def __init__(self, url: str, *, buckets: int, lease_ms: int) -> None:
        self.line = Line(url)
        self._buckets = range(buckets)
        self._lease_ms = lease_ms

    async def expire(self) -> int:
        """TTL-2: to TTL_EXPIRED at the deadline."""
        return await self._sweep("expire")

    async def abandon(self) -> int:
        """TTL-2: to ABANDONED at the deadline + delta."""
        return await self._sweep("abandon")

    async def set_aside(self) -> int:
        """Payloads that are no longer the expiry's, out of its way."""
        return await self._sweep("set_aside")

    async def _sweep(self, name: str) -> int:
        total = 0
        for bucket in self._buckets:
            while True:
                swept: int = (await self.line.fetch(SQL[name], bucket, ROWS_MAX))[0]["swept"]
                total += swept
                if swept:
                    reached("sweep." + name)
                if swept < ROWS_MAX:
                    break
        return total

    async def rescue(self) -> Rescued:
        """REC-1: declare lapsed holders dead and take over what they held."""
        if await self._unless_back("declare_dead", self._lease_ms) is None:
            return Rescued()
        dead: list[UUID] = [row["holder"] for row in await self._unless_back("dead_with_work") or ()]
        if not dead:
            return Rescued()
        reached("rescue.declared")
        ended = in_doubt = 0
        for bucket in self._buckets:
            while rows := await self._unless_back("rescue", bucket, dead, ROWS_MAX):
                ended += rows[0]["ended"]
                in_doubt += rows[0]["taken"]
                if rows[0]["ended"] < ROWS_MAX:
                    break
        return Rescued(ended, in_doubt)

    async def count_in_doubt(self) -> int:
        """How many intents are in doubt, counted no further than makes a difference to whoever is alarmed by it."""
        count: int = (await self.line.fetch(SQL["count_in_doubt"]))[0]["in_doubt"]
        return count

    async def _unless_back(self, name: str, *args: object) -> list[asyncpg.Record] | None:
        """DESIGN decision 7: for one lease after an outage, holders with a known outcome finalize, nobody rescues."""
        return await self.line.fetch_unbroken(self._lease_ms / 1000, SQL[name], *args)


class Retention:
    """Forgets what is past its replay horizon. Its line is the owner's (DESIGN decision 11)."""

    def __init__(self, line: Line, *, buckets: int) -> None:
        self._line = line
        self._buckets = range(buckets)

    async def retain(self) -> int:
        """RPL-4: one batch per bucket; the caller comes again soon when a batch was full."""
        total = 0
        for bucket in self._buckets:
            total += (await self._line.fetch(SQL["retain"], bucket, ROWS_MAX))[0]["swept"]
            total += (await self._line.fetch(CLIENT_ROWS["retain"], bucket, ROWS_MAX))[0]["swept"]
        await self._line.fetch(SQL["retire_holders"])
        await forget_own(self._line, buckets=len(self._buckets))
        return total
