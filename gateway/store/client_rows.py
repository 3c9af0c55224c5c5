"""Client rows (COR-4): written by the egress side of a gateway, and by clients that register their calls themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import asyncpg

from gateway.protocol.client_rows import FOLLOWS, SETTLED, ClientMove, ClientRow, NewClientRow, ReportedRow
from gateway.protocol.phases import Phase
from gateway.store import queries
from gateway.store.batches import Lane
from gateway.store.intents import resolved
from gateway.store.lines import Line

SQL = queries.load("client_rows.sql")


class ClientRows:
    """The egress side's writes, batched. Every method may raise StoreAway."""

    def __init__(self, url: str, *, service: str) -> None:
        self._service = service
        self._opens = Line(url)
        self._moves = Line(url)
        self._reads = Line(url)
        self._open: Lane[NewClientRow] = Lane(self._flush_open)
        self._move: Lane[ClientMove] = Lane(self._flush_move)

    async def close(self) -> None:
        """Close every line."""
        await asyncio.gather(self._opens.close(), self._moves.close(), self._reads.close())

    async def open(self, new: NewClientRow) -> ClientRow | None:
        """None: registered now. Otherwise the call that had this ID before, perhaps an earlier try of the same."""

        async def write() -> ClientRow | None:
            if await self._open.submit(new) is not None:
                return None
            rows = await self._reads.fetch(SQL["read"], new.key.bucket, new.key.logical)
            if not rows:  # forgotten in this very moment
                return None
            row = rows[0]
            return ClientRow(row["target"], row["method"], row["path"], Phase(row["phase"]))

        return await resolved(write)

    async def move(self, move: ClientMove) -> bool:
        """Write what was learnt; False when the row knew as much or more."""

        async def write() -> bool:
            return await self._move.submit(move) is not None

        return await resolved(write)

    async def _flush_open(self, bucket: int, rows: Sequence[NewClientRow]) -> Mapping[bytes, asyncpg.Record]:
        opened = await self._opens.fetch(
            SQL["open"],
            bucket,
            [row.key.logical for row in rows],
            [row.client_correlation_id for row in rows],
            [row.target for row in rows],
            [row.method for row in rows],
            [row.path for row in rows],
            [row.parent_reference_id for row in rows],
            [row.transaction_reference for row in rows],
            self._service,
        )
        return {row["logical_key"]: row for row in opened}

    async def _flush_move(self, bucket: int, rows: Sequence[ClientMove]) -> Mapping[bytes, asyncpg.Record]:
        moved = await self._moves.fetch(
            SQL["move"],
            bucket,
            [row.key.logical for row in rows],
            [None if row.phase is None else row.phase.value for row in rows],
            [row.server_correlation_id for row in rows],
            [row.ttl_ms for row in rows],
            [row.in_doubt for row in rows],
        )
        return {row["logical_key"]: row for row in moved}


class ReportedRows:
    """Rows that clients register themselves, one at a time. Every method may raise StoreAway."""

    def __init__(self, url: str, *, service: str, buckets: int) -> None:
        self.service = service
        self.buckets = buckets
        self._line = Line(url)

    async def close(self) -> None:
        """Close the line."""
        await self._line.close()

    async def was_called_with(self, client_correlation_id: str) -> bool:
        """COR-2: whether this ID came with a call to this service."""
        found: bool = (await self._line.fetch(SQL["called_with"], client_correlation_id, self.service))[0]["known"]
        return found

    async def report(self, row: ReportedRow) -> bool | None:
        """True: written. False: it was there already, as it is. None: it contradicts what was said before."""

        async def write() -> bool | None:
            before = [phase.value for phase, after in FOLLOWS.items() if row.phase in after]
            said = (row.server_correlation_id, self.service, row.target, row.path, row.parent_reference_id)
            times = (row.phase.value, row.phase_1_timestamp, row.phase_2_timestamp, row.ttl_ms)
            key = (row.key.bucket, row.key.logical)
            written = await self._line.fetch(
                SQL["report"],
                *key,
                row.client_correlation_id,
                *said,
                row.transaction_reference,
                *times,
                row.phase in SETTLED,
                before,
            )
            if written[0]["changed"]:
                return True
            same = await self._line.fetch(
                SQL["reported"],
                *key,
                row.server_correlation_id,
                row.target,
                row.path,
                row.parent_reference_id,
                row.transaction_reference,
                *times,
            )
            return False if same[0]["same"] else None

        return await resolved(write)
