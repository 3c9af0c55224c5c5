"""Requests that need no confirmation.

One statement writes intent, `PROCESSING` row, attempt and callback (ACM-1, ACM-2).
"""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from gateway.protocol.identity import IntentKey
from gateway.protocol.intents import Intent
from gateway.protocol.records import Direct
from gateway.store import queries
from gateway.store.intents import LANES_MAX, LARGE_BYTES, IntentStore, resolved
from gateway.store.lines import Line

SQL = queries.load("direct.sql")


class DirectStore:
    """The direct way into the same tables as `IntentStore`, whose reads and lines it shares."""

    def __init__(self, store: IntentStore) -> None:
        self._store = store
        count = min(store.buckets, LANES_MAX)
        self._begin = [store.lane("begin", SQL["begin"], self._flush) for _ in range(count)]
        self._begin_large = store.lane("begin", SQL["begin"], self._flush)

    async def begin(self, direct: Direct) -> Intent | None:
        """None: begun, and this attempt is the one. Otherwise the intent that consumed this key before (ACM-5)."""

        async def write() -> Intent | None:
            large = direct.size_bytes > LARGE_BYTES
            lane = self._begin_large if large else self._begin[direct.key.bucket % len(self._begin)]
            if await lane.submit(direct) is not None:
                return None
            existing = await self._store.read(direct.key)
            return None if existing is not None and existing.attempt_id == direct.attempt_id else existing

        return await resolved(write)

    async def payload_passed_on(self, key: IntentKey, payload_bytes: int, payload_sha256: bytes) -> None:
        """Size and digest of a payload that was too large to keep."""
        await self._store.aside.fetch(SQL["payload_passed_on"], key.bucket, key.logical, payload_sha256, payload_bytes)

    async def _flush(self, line: Line, sql: str, bucket: int, rows: Sequence[Direct]) -> Sequence[asyncpg.Record]:
        intents = [row.intent for row in rows]
        callbacks = [row.callback for row in rows]
        return await line.fetch(
            sql,
            bucket,
            [i.key.logical for i in intents],
            [i.server_correlation_id for i in intents],
            [i.client_correlation_id for i in intents],
            [i.replay_key for i in intents],
            [i.caller for i in intents],
            [i.method for i in intents],
            [i.path for i in intents],
            [i.query for i in intents],
            [i.route for i in intents],
            [i.replay_policy for i in intents],
            [i.transaction_reference for i in intents],
            [i.payload_sha256 for i in intents],
            [i.payload_bytes for i in intents],
            [i.ttl_ms for i in intents],
            [i.grace_ms for i in intents],
            [i.horizon_ms for i in intents],
            [r.intent.payload.blob if r.payload_kept else None for r in rows],
            [i.payload.key_number for i in intents],
            [r.attempt_id for r in rows],
            [r.holder for r in rows],
            [c.delivery_id if c else None for c in callbacks],
            [c.url.blob if c else None for c in callbacks],
            [c.lease_ms if c else None for c in callbacks],
            [c.host if c else None for c in callbacks],
            self._store.service,
        )
