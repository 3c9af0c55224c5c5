"""Many entries at once, made by Postgres itself: the draft's fan-out (A; B1, B2, B3; C1, D1, E1), again and again."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from uuid import UUID

import asyncpg

ROWS_PER_TREE = 14
SERVICES = ("client", "a", "b1", "b2", "b3", "c1", "d1", "e1")
CALLS = ((0, 1, None), (1, 2, 0), (1, 3, 0), (1, 4, 0), (2, 5, 1), (3, 6, 2), (4, 7, 3))  # caller, called, parent call
CHUNK_TREES = 20_000

_INDEX = re.compile(r"^CREATE INDEX (entries_\w+) ON entries .*?;$", re.M | re.S)


def _ids(tree: int, call: int) -> tuple[str, str, str]:
    """The root's client ID, the call's own, and its server's ID."""
    return _id(f"{tree}-0-c"), _id(f"{tree}-{call}-c"), _id(f"{tree}-{call}-s")


def _id(text: str) -> str:
    return str(UUID(hashlib.md5(text.encode()).hexdigest()))


trees = SimpleNamespace(ids=_ids)


def _service_id(number: int) -> str:
    return _id(f"service-{number}")


_ROWS = """
WITH calls (k, caller, called, parent) AS (VALUES {calls}),
rows AS (
    SELECT t, k, side, caller, called, parent,
        md5(t || '-' || k || '-c')::uuid::text AS client_id, md5(t || '-' || k || '-s')::uuid::text AS server_id,
        $3::timestamptz + t * $4::interval + k * interval '3 milliseconds' AS at,
        ('x' || substr(md5(t || '/' || k), 1, 7))::bit(28)::int AS luck
    FROM generate_series($1::bigint, $2::bigint) AS t, calls, (VALUES ('client'), ('server')) AS sides (side)
),
shaped AS (
    SELECT r.*, CASE side WHEN 'client' THEN caller ELSE called END AS writer,
        CASE WHEN luck % 1000 < 3 THEN 'WAITING_CONFIRM' WHEN luck % 1000 < 5 THEN 'PROCESSING'
            WHEN luck % 1000 < 25 THEN 'FAILED' WHEN luck % 1000 < 35 THEN 'ABANDONED' ELSE 'COMMITTED' END AS phase
    FROM rows r
    WHERE NOT (side = 'server' AND luck % 100 = 50) AND NOT (side = 'client' AND luck % 100 = 60)
)
INSERT INTO entries (phase_1_timestamp, entry_key, service_ledger_id, actor, entry_id, version, client_correlation_id,
    server_correlation_id, service_endpoint, source, target, parent_reference_id, phase, phase_2_timestamp, ttl_ms,
    outcome, payload_ref, transaction_reference, in_doubt, callback, sync_timestamp)
SELECT at, substring(sha256(convert_to(md5('service-' || writer)::uuid::text || chr(10) || side || chr(10)
        || CASE side WHEN 'client' THEN client_id ELSE server_id END, 'UTF8')) FROM 1 FOR 16),
    md5('service-' || writer)::uuid, side, CASE side WHEN 'client' THEN client_id ELSE server_id END, t * 100 + k + 1,
    client_id, server_id,
    ($5::text[])[called + 1] || ':/' || ($5::text[])[called + 1] || '/' || t % 1000, ($5::text[])[writer + 1],
    CASE side WHEN 'client' THEN ($5::text[])[called + 1] END,
    CASE WHEN side = 'server' OR parent IS NULL THEN client_id ELSE md5(t || '-' || parent || '-c')::uuid::text END,
    phase, CASE WHEN phase IN ('COMMITTED', 'FAILED', 'PROCESSING') THEN at + interval '20 milliseconds' END, 30000,
    CASE WHEN phase IN ('COMMITTED', 'FAILED', 'ABANDONED') THEN phase END,
    CASE side WHEN 'server' THEN 'intent:' || server_id END,
    md5(t::text), CASE WHEN phase = 'PROCESSING' AND luck % 2 = 0 THEN at + interval '1 second' END,
    CASE WHEN side = 'server' AND luck % 5 = 0 THEN
        CASE WHEN luck % 2000 = 0 THEN 'dead' WHEN luck % 2000 = 5 THEN 'pending' ELSE 'delivered' END END,
    at + interval '5 seconds'
FROM shaped
"""

_UNPAIRED = """
INSERT INTO pairs (pair, sides, source, phase_1_timestamp, entry_key)
SELECT pair_of(e.client_correlation_id, e.server_correlation_id), CASE e.actor WHEN 'client' THEN 1 ELSE 2 END,
    e.source, e.phase_1_timestamp, e.entry_key
FROM entries e
WHERE NOT EXISTS (SELECT FROM entries o WHERE o.server_correlation_id = e.server_correlation_id AND o.actor <> e.actor)
"""


async def load(connection: asyncpg.Connection[asyncpg.Record], *, trees_: int, days: int, schema: str) -> int:
    """Fill an empty central ledger; indexes are made at the end, from the schema's own text."""
    indexes = {match[1]: match[0] for match in _INDEX.finditer(schema)}
    assert len(indexes) >= 7
    start = datetime.now(UTC).replace(microsecond=0) - timedelta(days=days)
    month = start.date().replace(day=1)
    while month <= (datetime.now(UTC) + timedelta(days=31)).date():
        await connection.fetchval("SELECT make_partition($1)", month)
        month = (month + timedelta(days=32)).replace(day=1)
    for name in indexes:
        await connection.execute(f"DROP INDEX {name}")
    calls = ", ".join(
        f"({k}, {caller}, {called}, {'NULL::int' if parent is None else parent})"
        for k, (caller, called, parent) in enumerate(CALLS)
    )
    step = timedelta(days=days) / trees_
    for first in range(0, trees_, CHUNK_TREES):
        last = min(first + CHUNK_TREES, trees_) - 1
        await connection.execute(_ROWS.format(calls=calls), first, last, start, step, list(SERVICES), timeout=600)
    for statement in indexes.values():
        await connection.execute(statement, timeout=3600)
    await connection.execute("ANALYZE", timeout=3600)
    await connection.execute(_UNPAIRED, timeout=3600)
    for number, name in enumerate(SERVICES):
        await connection.execute(
            "INSERT INTO services (service_ledger_id, name) VALUES ($1, $2)", UUID(_service_id(number)), name
        )
    await connection.execute(
        "INSERT INTO touched SELECT 'minute', minute"
        " FROM generate_series(date_trunc('minute', $1::timestamptz), now(), '1 minute') minute",
        start,
    )
    await connection.execute("CREATE TABLE bench_facts AS SELECT $1::bigint AS trees".replace("$1", str(trees_)))
    await connection.execute("VACUUM ANALYZE", timeout=3600)
    rows: int = await connection.fetchval("SELECT count(*) FROM entries", timeout=3600)
    return rows
