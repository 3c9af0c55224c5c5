"""The request path's statements: register, claim, settle, doubt and the reads beside them.

A commit whose acknowledgement was lost is resolved here (REC-7): the same conditional write goes out again, which waits
for the lost one if it still runs, and then the row itself tells whose it is. Every write may be repeated by its caller,
too, with the same result. Only when the store stays away does the caller hear `StoreAway`, and `StoreLost` if something
may have been written.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeVar
from uuid import UUID

import asyncpg
import orjson

from gateway.protocol.faults import StoreAway, StoreLost
from gateway.protocol.identity import IntentKey, bucket_of
from gateway.protocol.intents import Intent
from gateway.protocol.phases import Phase
from gateway.protocol.records import Claim, Claimed, Doubt, NewIntent, Registered, Sealed, Settlement, StoredResponse
from gateway.store import queries
from gateway.store.batches import Lane, Row
from gateway.store.claims import claimed_of
from gateway.store.lines import Line
from gateway.store.statements import BatchStatement

SQL = queries.load("intents.sql")
BATCHES = {
    name: BatchStatement(SQL[name])
    for name in (
        "register",
        "claim",
        "own_claim",
        "settle",
        "doubt",
        "read_by_key",
        "read_by_server_id",
        "read_response",
    )
}
# The same statement with a step more, for what not every row needs: the others do not pay for it.
BATCHES["settle_kept"] = BatchStatement(queries.with_step(SQL["settle"], SQL["settle_erased"]))
BATCHES["settle_to_verify"] = BatchStatement(queries.with_step(BATCHES["settle_kept"].many, SQL["settle_to_verify"]))
RESOLVE_FOR_S = 3.0  # how long a lost commit is chased before its caller hears 503; a failover usually takes less
RESOLVE_PAUSE_S = 0.05
LARGE_BYTES = 256 * 1024  # payloads above this travel alone, on a line of their own: they must not hold up small ones
LANES_MAX = 4  # with several buckets, lanes of one kind that flush side by side

T = TypeVar("T")
FlushObserver = Callable[[str, int, float], None]
Flush = Callable[[Line, BatchStatement, int, Sequence[Row]], Awaitable[Sequence[asyncpg.Record]]]


@dataclass(frozen=True, slots=True)
class _ByKey:
    key: IntentKey
    size_bytes: int = 64


@dataclass(frozen=True, slots=True)
class _ByServerId:
    key: IntentKey  # `logical` holds the server correlation ID's bytes
    size_bytes: int = 64


class IntentStore:
    """Intents, payloads, attempts and responses in Postgres."""

    def __init__(
        self, url: str, *, service: str, buckets: int, observe: FlushObserver, on_lost: Callable[[], None] | None = None
    ) -> None:
        self.service = service
        self.buckets = buckets
        self._observe = observe
        self._url = url
        self._on_lost = on_lost
        self._lines: list[Line] = []
        count = min(buckets, LANES_MAX)
        self._register = [self.lane("register", BATCHES["register"], self._flush_register) for _ in range(count)]
        self._register_large = self.lane("register", BATCHES["register"], self._flush_register)
        self._claim = [self.lane("claim", BATCHES["claim"], self._flush_claim) for _ in range(count)]
        self._own_claim = self.lane("own_claim", BATCHES["own_claim"], self._flush_own_claim)
        self._settle = [self.lane("settle", BATCHES["settle"], self._flush_settle) for _ in range(count)]
        self._settle_kept = [self.lane("settle", BATCHES["settle_kept"], self._flush_settle) for _ in range(count)]
        self._settle_large = self.lane("settle", BATCHES["settle_kept"], self._flush_settle)
        self._settle_to_verify = self.lane("settle", BATCHES["settle_to_verify"], self._flush_settle)
        self._doubt = self.lane("doubt", BATCHES["doubt"], self._flush_doubt)
        self._read = self.lane("read_by_key", BATCHES["read_by_key"], self._flush_by_key)
        self._read_server_id = self.lane("read_by_server_id", BATCHES["read_by_server_id"], self._flush_by_server_id)
        self._response = self.lane("read_response", BATCHES["read_response"], self._flush_by_key)
        self.aside = Line(url, on_lost=on_lost)  # what is rare and needs no batch
        self._lines.append(self.aside)

    def lane(self, name: str, statement: BatchStatement, flush: Flush[Row]) -> Lane[Row]:
        """A lane for one kind of statement, on a line of its own."""
        line = self.line()

        async def run(bucket: int, rows: Sequence[Row]) -> Mapping[bytes, asyncpg.Record]:
            started = time.perf_counter()
            records = await flush(line, statement, bucket, rows)
            self._observe(name, len(rows), time.perf_counter() - started)
            return {record[0] if type(record[0]) is bytes else record[0].bytes: record for record in records}

        return Lane(run)

    def line(self) -> Line:
        """A line that is closed with the store; it connects when it is first used."""
        line = Line(self._url, on_lost=self._on_lost)
        self._lines.append(line)
        return line

    async def close(self) -> None:
        """Close every line."""
        await asyncio.gather(*(line.close() for line in self._lines))

    # --- Phase 1

    async def register(self, new: NewIntent) -> Registered | Intent | None:
        """Registered now, or the intent that consumed this key before, or None when too many are pending (P1-8)."""

        async def write() -> Registered | Intent | None:
            lane = (
                self._register_large
                if new.size_bytes > LARGE_BYTES
                else self._register[new.key.bucket % len(self._register)]
            )
            row = await lane.submit(new)
            if row is not None:
                return Registered(new.server_correlation_id, row["phase_1_timestamp"], row["ponr_deadline"])
            existing = await self.read(new.key)
            if existing is not None and existing.server_correlation_id == new.server_correlation_id:
                return Registered(new.server_correlation_id, existing.phase_1_timestamp, existing.ponr_deadline)
            return existing

        return await resolved(write)

    def _flush_register(
        self, line: Line, statement: BatchStatement, bucket: int, rows: Sequence[NewIntent]
    ) -> Awaitable[Sequence[asyncpg.Record]]:
        groups: dict[int, list[int]] = {}  # pending_of -> [position in the arrays, limit, rows]
        group_of: list[int] = []
        for row in rows:
            group = groups.setdefault(_pending_of(row.caller, row.route), [len(groups) + 1, row.max_pending, 0])
            group[2] += 1
            group_of.append(group[0])
        shared = (
            list(groups),
            [group[1] for group in groups.values()],
            [group[2] for group in groups.values()],
            self.service,
        )
        columns = [
            (
                r.key.logical,
                r.server_correlation_id,
                r.client_correlation_id,
                r.replay_key,
                r.caller,
                r.method,
                r.path,
                r.query,
                r.route,
                r.execution,
                r.replay_policy,
                r.transaction_reference,
                r.payload_sha256,
                r.payload_bytes,
                r.ttl_ms,
                r.grace_ms,
                r.horizon_ms,
                r.payload.blob,
                r.payload.key_number,
                group,
            )
            for r, group in zip(rows, group_of, strict=True)
        ]
        return statement.fetch(line, bucket, shared, columns)

    async def pending(self, caller: bytes, route: str, limit: int) -> int:
        """P1-8: how many unconfirmed intents a caller has on a route, counted no further than the limit."""
        rows = await self.aside.fetch(SQL["pending"], _pending_of(caller, route), limit)
        count: int = rows[0]["pending"]
        return count

    # --- Phase 2

    async def claim(self, claim: Claim) -> Claimed | None:
        """P2-2: cross the PONR, or None when this confirmation may not (and the row tells why).

        REC-7: asked again with the same attempt, it finds what that attempt has claimed, unless it was taken over.
        """

        async def write() -> Claimed | None:
            row = await self._claim[claim.key.bucket % len(self._claim)].submit(claim)
            if row is None:
                row = await self._own_claim.submit(claim)
            if row is None:
                return None
            return claimed_of(claim.key, claim.attempt_id, claim.holder, row)

        return await resolved(write)

    def _flush_claim(
        self, line: Line, statement: BatchStatement, bucket: int, rows: Sequence[Claim]
    ) -> Awaitable[Sequence[asyncpg.Record]]:
        columns = [
            (
                r.key.logical,
                r.server_correlation_id,
                r.path,
                r.attempt_id,
                r.holder,
                r.credentials.blob if r.credentials else None,
                r.credentials.key_number if r.credentials else None,
            )
            for r in rows
        ]
        return statement.fetch(line, bucket, (), columns)

    def _flush_own_claim(
        self, line: Line, statement: BatchStatement, bucket: int, rows: Sequence[Claim]
    ) -> Awaitable[Sequence[asyncpg.Record]]:
        return statement.fetch(line, bucket, (), [(r.key.logical, r.attempt_id, r.holder) for r in rows])

    async def settle(self, settlement: Settlement) -> bool:
        """Write a known outcome; False when a higher fence has taken the intent over.

        A lost acknowledgement is the caller's to chase, for as long as it takes: asked again, it finds its own outcome.
        """
        if settlement.verify is not None:
            lane = self._settle_to_verify
        elif settlement.size_bytes > LARGE_BYTES:
            lane = self._settle_large
        else:
            lanes = self._settle_kept if settlement.payload_kept else self._settle
            lane = lanes[settlement.key.bucket % len(lanes)]
        if await lane.submit(settlement) is not None:
            return True
        intent = await self.read(settlement.key)
        return (
            intent is not None
            and intent.attempt_id == settlement.attempt_id
            and intent.fence == settlement.fence
            and intent.stored_phase is settlement.phase
        )

    def _flush_settle(
        self, line: Line, statement: BatchStatement, bucket: int, rows: Sequence[Settlement]
    ) -> Awaitable[Sequence[asyncpg.Record]]:
        columns = [
            (
                r.key.logical,
                r.fence,
                r.phase.value,
                r.resource_id,
                r.message,
                r.sent,
                *((a.status, r.error, a.body_bytes, a.body_sha256, a.kept) if a else (None, r.error, None, None, None)),
                *((a.sealed.key_number, a.sealed.blob) if a else (None, None)),
                *((r.verify.key_number, r.verify.blob) if r.verify else ()),
            )
            for r in rows
            for a in (r.response,)
        ]
        return statement.fetch(line, bucket, (), columns)

    async def doubt(self, doubt: Doubt) -> bool:
        """REC-2: put an intent in doubt; False when a higher fence has taken it over."""
        return await self._doubt.submit(doubt) is not None

    def _flush_doubt(
        self, line: Line, statement: BatchStatement, bucket: int, rows: Sequence[Doubt]
    ) -> Awaitable[Sequence[asyncpg.Record]]:
        columns = [(r.key.logical, r.fence, r.sent, r.status, r.reason) for r in rows]
        return statement.fetch(line, bucket, (), columns)

    async def streamed(self, key: IntentKey, body_bytes: int, body_sha256: bytes, kept: Sealed | None) -> None:
        """RPL-6: size and digest of an answer that was streamed, and the answer itself if it stayed small."""
        blob, number = (None, None) if kept is None else (kept.blob, kept.key_number)
        await self.aside.fetch(SQL["streamed"], key.bucket, key.logical, body_bytes, body_sha256, blob, number)

    async def note(self, key: IntentKey, code: str, detail: dict[str, Any]) -> None:
        """An audit event that is no transition."""
        await self.aside.fetch(SQL["note"], key.bucket, key.logical, code, orjson.dumps(detail).decode())

    # --- reads

    async def read(self, key: IntentKey) -> Intent | None:
        """What is known of an intent now."""
        row = await self._read.submit(_ByKey(key))
        return None if row is None else _intent(key, row)

    async def read_by_server_id(self, server_correlation_id: UUID) -> Intent | None:
        """The same, by server correlation ID."""
        bucket = bucket_of(server_correlation_id, buckets=self.buckets)
        row = await self._read_server_id.submit(_ByServerId(IntentKey(bucket, server_correlation_id.bytes)))
        return None if row is None else _intent(IntentKey(bucket, row["logical_key"]), row)

    async def response(self, key: IntentKey) -> StoredResponse | None:
        """RPL-1: the stored answer, if upstream gave one."""
        row = await self._response.submit(_ByKey(key))
        if row is None:
            return None
        sealed = Sealed(row["sealed"], row["sealed_with"])
        return StoredResponse(row["status"], row["body_bytes"], row["body_sha256"], row["kept"], sealed)

    def _flush_by_key(
        self, line: Line, statement: BatchStatement, bucket: int, rows: Sequence[_ByKey]
    ) -> Awaitable[Sequence[asyncpg.Record]]:
        return statement.fetch(line, bucket, (), [(r.key.logical,) for r in rows])

    def _flush_by_server_id(
        self, line: Line, statement: BatchStatement, bucket: int, rows: Sequence[_ByServerId]
    ) -> Awaitable[Sequence[asyncpg.Record]]:
        return statement.fetch(line, bucket, (), [(UUID(bytes=r.key.logical),) for r in rows])


async def resolved(write: Callable[[], Awaitable[T]]) -> T:
    """Repeat a conditional write whose acknowledgement was lost, for a bounded time (REC-7)."""
    try:
        return await write()
    except StoreLost:
        give_up = time.monotonic() + RESOLVE_FOR_S
    while True:
        await asyncio.sleep(RESOLVE_PAUSE_S)
        try:
            return await write()
        except StoreAway as error:
            if time.monotonic() >= give_up:
                raise StoreLost("the store stayed away; what it was asked for may have been done") from error


def _pending_of(caller: bytes, route: str) -> int:
    """P1-8 counts per caller and route; 63 bits of a hash name the pair in the index."""
    return int.from_bytes(blake2b(caller + b"\0" + route.encode(), digest_size=8).digest(), "big") >> 1


def _intent(key: IntentKey, row: asyncpg.Record) -> Intent:
    return Intent(
        key=key,
        server_correlation_id=row["server_correlation_id"],
        client_correlation_id=row["client_correlation_id"],
        replay_key=row["replay_key"],
        caller=row["caller"],
        method=row["method"],
        path=row["path"],
        query=row["query"],
        execution=row["execution"],
        replay_policy=row["replay_policy"],
        ttl_ms=row["ttl_ms"],
        grace_ms=row["grace_ms"],
        stored_phase=Phase(row["phase"]),
        phase_1_timestamp=row["phase_1_timestamp"],
        ponr_deadline=row["ponr_deadline"],
        fence=row["fence"],
        attempt_id=row["attempt_id"],
        resource_id=row["resource_id"],
        message=row["message"],
        in_doubt=row["in_doubt"],
        read_at=row["read_at"],
    )
