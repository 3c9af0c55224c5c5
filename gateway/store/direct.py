"""Requests that need no confirmation.

One statement writes intent, `PROCESSING` row, attempt and callback (ACM-1, ACM-2).
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

import asyncpg

from gateway.protocol.identity import IntentKey
from gateway.protocol.intents import Intent
from gateway.protocol.records import Direct
from gateway.store import queries
from gateway.store.batches import Lane
from gateway.store.intents import LANES_MAX, LARGE_BYTES, IntentStore, resolved
from gateway.store.lines import Line
from gateway.store.statements import BatchStatement

SQL = queries.load("direct.sql")
BATCHES = {
    "begin": BatchStatement(SQL["begin"]),
    # The same with two steps more, where the request is kept or its caller asked for a callback.
    "begin_kept": BatchStatement(
        queries.with_step(queries.with_step(SQL["begin"], SQL["begin_paid"]), SQL["begin_promised"])
    ),
}


class DirectStore:
    """The direct way into the same tables as `IntentStore`, whose reads and lines it shares."""

    def __init__(self, store: IntentStore) -> None:
        self._store = store
        count = min(store.buckets, LANES_MAX)
        self._begin = [store.lane("begin", BATCHES["begin"], self._flush) for _ in range(count)]
        self._begin_kept = [store.lane("begin", BATCHES["begin_kept"], self._flush_kept) for _ in range(count)]
        self._begin_large = store.lane("begin", BATCHES["begin_kept"], self._flush_kept)

    async def begin(self, direct: Direct) -> Intent | None:
        """None: begun, and this attempt is the one. Otherwise the intent that consumed this key before (ACM-5)."""
        lane = self._lane(direct)

        async def write() -> Intent | None:
            if await lane.submit(direct) is not None:
                return None
            existing = await self._store.read(direct.key)
            return None if existing is not None and existing.attempt_id == direct.attempt_id else existing

        return await resolved(write)

    def _lane(self, direct: Direct) -> Lane[Direct]:
        if direct.size_bytes > LARGE_BYTES:
            return self._begin_large
        lanes = self._begin_kept if direct.payload_kept or direct.callback is not None else self._begin
        return lanes[direct.key.bucket % len(lanes)]

    async def payload_passed_on(self, key: IntentKey, payload_bytes: int, payload_sha256: bytes) -> None:
        """Size and digest of a payload that was too large to keep."""
        await self._store.aside.fetch(SQL["payload_passed_on"], key.bucket, key.logical, payload_sha256, payload_bytes)

    def _flush(
        self, line: Line, statement: BatchStatement, bucket: int, rows: Sequence[Direct]
    ) -> Awaitable[Sequence[asyncpg.Record]]:
        return statement.fetch(line, bucket, (self._store.service,), [_begun(row) for row in rows])

    def _flush_kept(
        self, line: Line, statement: BatchStatement, bucket: int, rows: Sequence[Direct]
    ) -> Awaitable[Sequence[asyncpg.Record]]:
        columns = [_begun(row) + _paid(row) + _promised(row) for row in rows]
        return statement.fetch(line, bucket, (self._store.service,), columns)


def _begun(row: Direct) -> tuple[object, ...]:
    """The columns of `begin`."""
    intent = row.intent
    return (
        intent.key.logical,
        intent.server_correlation_id,
        intent.client_correlation_id,
        intent.replay_key,
        intent.caller,
        intent.method,
        intent.path,
        intent.query,
        intent.route,
        intent.replay_policy,
        intent.transaction_reference,
        intent.payload_sha256,
        intent.payload_bytes,
        intent.ttl_ms,
        intent.grace_ms,
        intent.horizon_ms,
        row.attempt_id,
        row.holder,
    )


def _paid(row: Direct) -> tuple[object, ...]:
    """Those of its step `begin_paid`."""
    payload = row.intent.payload
    return (payload.key_number, payload.blob) if row.payload_kept else (None, None)


def _promised(row: Direct) -> tuple[object, ...]:
    """Those of its step `begin_promised`."""
    callback = row.callback
    if callback is None:
        return (None, None, None, None, None)
    return (callback.delivery_id, callback.host, callback.lease_ms, callback.url.key_number, callback.url.blob)
