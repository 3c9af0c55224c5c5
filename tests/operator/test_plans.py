"""Every statement of the ledger finds its rows through an index, however early its plan was made (PERFORMANCE 4)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import md5
from typing import Any
from uuid import UUID

import pytest

from gateway.store.ledger import SQL
from gateway.store.lines import connect
from tests.operator.book import Book

ROWS = 5_000
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)

FILL = """
INSERT INTO intents (
    bucket, logical_key, server_correlation_id, client_correlation_id, replay_key, caller, source, method, path, route,
    execution, replay_policy, parent_reference_id, payload_sha256, payload_bytes, ttl_ms, grace_ms, horizon_ms,
    phase_1_timestamp, ponr_deadline, keep_until)
SELECT 0, decode(md5(n::text), 'hex'), md5(n::text)::uuid, n::text, '', '', 'orders', 'POST', '/', '/',
    'sync', 'REJECT', n::text, '', 0, 1, 0, 1,
    now(), now() + interval '1 hour', now()
FROM generate_series(1, $1::integer) AS n"""
FILL_EVENTS = """
INSERT INTO events (bucket, logical_key, code, phase)
SELECT 0, decode(md5(n::text), 'hex'), 'OBL-001', 'WAITING_CONFIRM' FROM generate_series(1, $1::integer) AS n"""
FILL_DOUBTS = """
INSERT INTO in_doubt (bucket, logical_key, since, reason)
SELECT 0, decode(md5(n::text), 'hex'), now(), 'x' FROM generate_series(1, $1::integer / 100) AS n"""

FILL_CALLS = """
INSERT INTO client_entries (
    bucket, logical_key, client_correlation_id, server_correlation_id, source, target, path, parent_reference_id,
    phase_1_timestamp, keep_until)
SELECT 0, decode(md5('c' || n), 'hex'), n::text, n::text, 'orders', 'stock', '/', n::text, now(), now()
FROM generate_series(1, $1::integer) AS n"""

KEY = md5(b"7").digest()
STATEMENTS: dict[str, tuple[object, ...]] = {
    "key_by_server_id": (0, UUID(bytes=KEY)),
    "whole_intents": ([0], [KEY]),
    "scan": (0, 0, 200),
    "latest_changes": ([0], [KEY], 0, 0),
    "entry_rows": ([0], [KEY]),
    "in_doubt": (BEGINNING, b"", 10),
    "keys_by_client_id": ("7", BEGINNING, b"", 10),
    "client_rows": ([0], [md5(b"c7").digest()]),
    "client_keys_by_client_id": ("7", 10),
    "client_keys_by_server_id": ("7", 10),
}
# How many rows a statement may look at: what it was asked for; a scan's 1000 events and a probe for each; the queue
# of those in doubt, whole, to be sorted, and a probe for each.
ROWS_READ_MAX = {"scan": 2_000, "in_doubt": 2 * ROWS // 100}


def rows_read(plan: dict[str, Any]) -> Iterator[tuple[str, str, float]]:
    """(kind of node, table, rows looked at) of every node that reads a table."""
    if "Relation Name" in plan:
        looked_at = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
        yield plan["Node Type"], plan["Relation Name"], looked_at * plan["Actual Loops"]
    for child in plan.get("Plans", []):
        yield from rows_read(child)


@pytest.mark.parametrize("name", STATEMENTS)
@pytest.mark.parametrize("analyzed", [False, True], ids=["made-early", "analyzed"])
async def test_a_statement_reads_no_more_than_it_needs(
    book: Book, fresh_database: str, name: str, analyzed: bool
) -> None:
    """With tables that were empty when the plan was made, and with known ones."""
    reader = await connect(fresh_database)
    try:
        arguments = STATEMENTS[name]
        types = [parameter.name for parameter in (await reader.prepare(SQL[name])).get_parameters()]
        await reader.execute(f"PREPARE pinned AS {SQL[name]}")
        explain = f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE pinned ({', '.join(map(literal, arguments, types))})"
        await reader.fetchval(explain)
        for fill in (FILL, FILL_EVENTS, FILL_DOUBTS, FILL_CALLS):
            await book.owner.execute(fill, ROWS)
        if analyzed:
            await book.owner.execute("ANALYZE")
        plan = json.loads(await reader.fetchval(explain))[0]["Plan"]
    finally:
        await reader.close()
    found = list(rows_read(plan))
    assert sum(rows for *_, rows in found) <= ROWS_READ_MAX.get(name, 10), found


def literal(value: object, kind: str) -> str:
    """An argument as SQL text: EXPLAIN takes no parameters."""
    if isinstance(value, list):
        return f"ARRAY[{', '.join(literal(item, '') for item in value)}]::{kind}"
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'::bytea"
    return f"'{value}'"
