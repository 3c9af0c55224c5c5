"""A few lines that readers take turns on, so that whoever looks never holds up who writes."""

from __future__ import annotations

import asyncio

import asyncpg

from gateway.protocol.faults import StoreAway
from gateway.store.lines import Line

LINE_WAIT_S = 5.0  # for a free line, before a reader hears that the store is busy


class ReadLines:
    """Statements that only read, each on the first line that is free."""

    def __init__(self, url: str, *, lines: int) -> None:
        self._lines = [Line(url) for _ in range(lines)]
        self._free: asyncio.LifoQueue[Line] = asyncio.LifoQueue()  # last in, first out: idle lines stay unconnected
        for line in self._lines:
            self._free.put_nowait(line)

    async def fetch(self, sql: str, *args: object) -> list[asyncpg.Record]:
        """Run one statement. Raises StoreAway, also when every line is taken for too long."""
        try:
            async with asyncio.timeout(LINE_WAIT_S):
                line = await self._free.get()
        except TimeoutError:
            raise StoreAway("every line for reading is busy") from None
        try:
            return await line.fetch(sql, *args)
        finally:
            self._free.put_nowait(line)

    async def close(self) -> None:
        """Close every line; reads after this find the store away."""
        await asyncio.gather(*(line.close() for line in self._lines))
