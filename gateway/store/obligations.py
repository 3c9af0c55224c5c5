"""The statements of the obligation tracker: reserve, commit, rollback, renew, and the leak scan (OBL-1, OBL-3).

Each is one guarded statement with its audit event; whoever loses an acknowledgement asks again under the same name and
hears what became of it (REC-7). What a refusal means is decided by `protocol.obligations`.
"""

from __future__ import annotations

from uuid import UUID

import asyncpg

from gateway.protocol.identity import bucket_of
from gateway.protocol.obligations import NewObligation, Obligation, ObligationError, Scan, State
from gateway.store import queries
from gateway.store.intents import resolved
from gateway.store.lines import Line

SQL = queries.load("obligations.sql")
ROWS_MAX = 500  # of one scan statement: keeps locks short
RESERVE_TRIES = 3  # of a key whose last holder gave it back between two looks
OWN_KEPT_MS = 7 * 24 * 3600 * 1000  # as long as an intent's default replay horizon: they are looked up together

_STATEMENTS: dict[State, str] = {"Committed": "commit", "RolledBack": "rollback"}


class ObligationStore:
    """Shared by every replica. Every method may raise StoreAway."""

    def __init__(self, url: str, *, buckets: int) -> None:
        self.line = Line(url)
        self._buckets = buckets

    async def close(self) -> None:
        """Close the line."""
        await self.line.close()

    async def reserve(self, new: NewObligation) -> None:
        """Write it down, or raise ObligationError where (flow, key) is taken."""
        bucket = bucket_of(new.id, buckets=self._buckets)

        async def write() -> UUID | None:
            """Who has (flow, key) now."""
            for _ in range(RESERVE_TRIES):
                made = await self.line.fetch(
                    SQL["reserve"],
                    bucket,
                    new.id,
                    new.flow,
                    new.key,
                    new.trace_id,
                    new.reserved_by,
                    new.own,
                    new.leak_after_ms,
                    new.payload_sha256,
                    new.payload_bytes,
                    new.payload.key_number,
                    new.payload.blob,
                )
                found = made or await self.line.fetch(SQL["live"], bucket, new.flow, new.key)
                if found:
                    return _uuid(found[0]["id"])
            return None

        holder = await resolved(write)
        if holder != new.id:
            raise ObligationError("ERR_OBL_DUPLICATE_RESERVE", holder)

    async def settle(
        self, obligation: UUID, state: State, *, call: UUID, trace_id: str | None, by: str
    ) -> tuple[bool, Obligation | None]:
        """Commit it or roll it back: whether this call did, and if not, what is there instead."""
        bucket = bucket_of(obligation, buckets=self._buckets)

        async def write() -> tuple[bool, Obligation | None]:
            statement = SQL[_STATEMENTS[state]]
            if await self.line.fetch(statement, bucket, obligation, call, trace_id, by):
                return True, None
            return False, await self.find(obligation)

        return await resolved(write)

    async def renew(self, obligation: UUID, leak_after_ms: int) -> bool:
        """Move the leak of one of the gateway's own on; False where it is not Reserved any more."""
        bucket = bucket_of(obligation, buckets=self._buckets)
        return bool(await self.line.fetch(SQL["renew"], bucket, obligation, leak_after_ms))

    async def find(self, obligation: UUID) -> Obligation | None:
        """What is known of one."""
        rows = await self.line.fetch(SQL["find"], bucket_of(obligation, buckets=self._buckets), obligation)
        return _obligation(rows[0]) if rows else None

    async def take_back(self) -> int:
        """OBL-3: roll back what leaked, in every bucket, and note that the scan is complete (OBL-005)."""
        leaked = 0
        for bucket in range(self._buckets):
            while True:
                found: int = (await self.line.fetch(SQL["leak"], bucket, ROWS_MAX))[0]["leaked"]
                leaked += found
                if found < ROWS_MAX:
                    break
        await self.line.fetch(SQL["scanned"], leaked)
        return leaked

    async def last_scan(self) -> Scan:
        """OBL-005."""
        row = (await self.line.fetch(SQL["last_scan"]))[0]
        return Scan(row["completed_at"], row["leaked"], row["scans_total"], row["leaked_total"])


async def forget_own(owner: Line, *, buckets: int) -> int:
    """Drop the gateway's own that were settled long ago, one bite per bucket. The line is the owner's (REP-6)."""
    total = 0
    for bucket in range(buckets):
        total += (await owner.fetch(SQL["retain"], bucket, OWN_KEPT_MS, ROWS_MAX))[0]["swept"]
    return total


def _obligation(row: asyncpg.Record) -> Obligation:
    return Obligation(
        id=_uuid(row["id"]),
        flow=row["flow"],
        key=row["key"],
        state=row["state"],
        leaked=row["leaked"],
        settled_call=None if row["settled_call"] is None else _uuid(row["settled_call"]),
    )


def _uuid(found: UUID) -> UUID:
    return UUID(bytes=found.bytes)  # asyncpg's own kind compares equal, but only one way round
