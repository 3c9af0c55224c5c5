"""The statements that move deliveries: claim what is due, record what attempts came to (ACM-3).

Reading and re-driving them is in `delivery_lists`. A delivery is made by the statement that makes its ledger row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import asyncpg

from gateway.protocol.deliveries import DueDelivery, Outcome, State, Subject
from gateway.protocol.identity import IntentKey
from gateway.protocol.records import Sealed
from gateway.store import queries
from gateway.store.batches import Lane
from gateway.store.intents import resolved
from gateway.store.lines import Line

SQL = queries.load("deliveries.sql")


@dataclass(frozen=True, slots=True)
class _ById:
    """An outcome on its way into a batch, which holds each delivery once."""

    key: IntentKey  # `logical` holds the delivery's ID
    outcome: Outcome
    size_bytes: int = 256


class DeliveryStore:
    """Used by every worker (record) and by the dispatcher of every gateway (claim and record)."""

    def __init__(self, url: str, *, service: str, lease_ms: int) -> None:
        self.lease_ms = lease_ms
        self._service = service
        self._claims = Line(url)
        self._records = Line(url)
        self._lane: Lane[_ById] = Lane(self._flush)

    async def close(self) -> None:
        """Close every line."""
        await asyncio.gather(self._claims.close(), self._records.close())

    async def claim(self, bucket: int, *, limit: int, host_limit: int, rooms: Mapping[int, int]) -> list[DueDelivery]:
        """What is due in one bucket, for one lease: at most `limit`, of each host at most its room.

        `rooms` names the hosts that take less than `host_limit`; those that take nothing are passed over.
        """
        full = [host for host, room in rooms.items() if room <= 0]
        some = {host: room for host, room in rooms.items() if room > 0}
        rows = await self._claims.fetch(
            SQL["claim"], bucket, full, list(some), list(some.values()), host_limit, limit, self.lease_ms, self._service
        )
        return [_due(bucket, row) for row in rows]

    async def record(self, outcome: Outcome) -> State | None:
        """Write down what an attempt came to: the delivery's state now, or None when something newer was recorded."""
        row = _ById(IntentKey(outcome.key.bucket, outcome.id.bytes), outcome)

        async def write() -> State | None:
            found = await self._lane.submit(row)
            return None if found is None else found["state"]

        return await resolved(write)

    async def _flush(self, bucket: int, rows: Sequence[_ById]) -> Mapping[bytes, asyncpg.Record]:
        outcomes = [row.outcome for row in rows]
        recorded = await self._records.fetch(
            SQL["record"],
            bucket,
            [o.key.logical for o in outcomes],
            [o.id for o in outcomes],
            [o.attempts for o in outcomes],
            [o.state for o in outcomes],
            [o.pause_ms for o in outcomes],
            [o.status for o in outcomes],
            [o.error for o in outcomes],
        )
        return {row["id"].bytes: row for row in recorded}


def _due(bucket: int, row: asyncpg.Record) -> DueDelivery:
    return DueDelivery(
        key=IntentKey(bucket, row["logical_key"]),
        id=UUID(bytes=row["id"].bytes),
        kind=row["kind"],
        event=row["event"],
        attempts=row["attempts"],
        created_at=row["created_at"],
        host=row["host"],
        url=Sealed(row["sealed"], row["sealed_with"]),
        subject=Subject(
            server_correlation_id=row["server_correlation_id"],
            client_correlation_id=row["client_correlation_id"],
            caller=row["caller"],
            service=row["source"],
            method=row["method"],
            path=row["path"],
            phase=row["phase"],
            resource_id=row["resource_id"],
            message=row["message"],
            in_doubt=row["in_doubt"],
        ),
    )
