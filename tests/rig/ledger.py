"""The ledger as a witness: read from Postgres itself, never through the gateway under test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg

from tests.rig.records import Row

ROWS_AT_ONCE = 2000

ROWS = """
SELECT i.server_correlation_id::text AS server_id, i.client_correlation_id AS client_id, i.path, i.phase::text AS phase,
    d.reason AS in_doubt, i.payload_sha256, i.phase_1_timestamp, i.ponr_deadline, i.phase_2_timestamp, i.settled_at,
    a.ids AS attempts, a.held OR q.logical_key IS NOT NULL AS running, e.phases, e.expired_at, y.deliveries
FROM intents i
LEFT JOIN in_doubt d USING (bucket, logical_key)
LEFT JOIN queue q USING (bucket, logical_key)
CROSS JOIN LATERAL (
    SELECT array_agg(attempt_id::text) AS ids, coalesce(bool_or(holder IS NOT NULL), false) AS held
    FROM attempts WHERE bucket = i.bucket AND logical_key = i.logical_key) AS a
CROSS JOIN LATERAL (
    SELECT array_agg(phase::text ORDER BY id) FILTER (WHERE phase IS NOT NULL) AS phases,
        min(at) FILTER (WHERE phase = 'TTL_EXPIRED') AS expired_at
    FROM events WHERE bucket = i.bucket AND logical_key = i.logical_key) AS e
CROSS JOIN LATERAL (
    SELECT array_agg(id::text || ' ' || state) FILTER (WHERE kind = 'callback') AS deliveries
    FROM deliveries WHERE bucket = i.bucket AND logical_key = i.logical_key) AS y
"""

# What stands between the ledger and rest, given the routes whose doubts are settled without a human.
UNREST = """
SELECT (SELECT count(*) FROM attempts WHERE holder IS NOT NULL) AS held,
    (SELECT count(*) FROM queue) AS queued,
    (SELECT count(*) FROM in_doubt d JOIN intents i USING (bucket, logical_key)
        WHERE convert_from(i.path, 'UTF8') ~ $1) AS in_doubt,
    (SELECT count(*) FROM deliveries WHERE state = 'pending') AS undelivered,
    (SELECT count(*) FROM payloads p JOIN intents i USING (bucket, logical_key)
        WHERE i.phase = 'WAITING_CONFIRM' AND p.ponr_deadline < now() - interval '2 seconds') AS unswept
"""

# Everything that is kept as text about intents, for a look for what must not be there.
TEXTS = """
SELECT row_to_json(i)::text FROM (SELECT client_correlation_id, route, message, resource_id FROM intents) AS i
UNION ALL SELECT detail::text FROM events WHERE detail IS NOT NULL
UNION ALL SELECT error FROM attempts WHERE error IS NOT NULL
UNION ALL SELECT reason FROM in_doubt
UNION ALL SELECT last_error FROM deliveries WHERE last_error IS NOT NULL
"""


async def rows(connection: asyncpg.Connection[Any]) -> AsyncIterator[Row]:
    """Every intent, a part at a time."""
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        async for record in connection.cursor(ROWS, prefetch=ROWS_AT_ONCE):
            yield Row(
                number=int(record["path"].rsplit(b"/", 1)[1], 16),
                server_id=record["server_id"],
                client_id=record["client_id"],
                phase=record["phase"],
                in_doubt=record["in_doubt"],
                body_sha256=record["payload_sha256"],
                attempts=frozenset(record["attempts"] or ()),
                running=record["running"],
                phases=tuple(record["phases"] or ()),
                phase_1_at=record["phase_1_timestamp"],
                deadline=record["ponr_deadline"],
                phase_2_at=record["phase_2_timestamp"],
                settled_at=record["settled_at"],
                expired_at=record["expired_at"],
                deliveries=tuple(tuple(text.split(" ")) for text in record["deliveries"] or ()),
            )


async def unrest(connection: asyncpg.Connection[Any], healing: str) -> dict[str, int]:
    """What is not at rest yet; empty once all of it is. `healing`: a pattern of paths that heal by themselves."""
    (record,) = await connection.fetch(UNREST, healing)
    return {name: count for name, count in record.items() if count}


async def texts(connection: asyncpg.Connection[Any]) -> AsyncIterator[str]:
    """What the ledger says in words."""
    async with connection.transaction(readonly=True):
        async for record in connection.cursor(TEXTS, prefetch=ROWS_AT_ONCE):
            yield record[0]
