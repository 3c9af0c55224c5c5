"""PERFORMANCE 4: every statement of the tracker finds its rows through an index, however early its plan was made."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.store.lines import connect
from gateway.store.obligations import SQL
from tests.obligations.conftest import Clock
from tests.store.plans import plan_of

ROWS = 5_000
SMALL = {"holders", "schema_migrations", "leak_scans"}  # a handful of rows, read as a whole
FILL = """
INSERT INTO obligations (
    bucket, id, flow, key, trace_id, reserved_by, own, reserved_at, payload_sha256, payload_bytes, state, leaks_at,
    settled_at, sealed_with, sealed)
SELECT 0, md5(n::text)::uuid, 'flow-' || n % 10, n::text, 't', 'ops', n % 2 = 0, now() - n * interval '1 second', '', 1,
    CASE n % 3 WHEN 0 THEN 'Reserved' ELSE 'Committed' END, now(), CASE n % 3 WHEN 0 THEN NULL ELSE now() END,
    CASE n % 3 WHEN 0 THEN 1 END, CASE n % 3 WHEN 0 THEN ''::bytea END
FROM generate_series(1, $1::integer) AS n"""
FILL_EVENTS = """
INSERT INTO obligation_events (bucket, obligation, code)
SELECT 0, md5(n::text)::uuid, 'OBL-001' FROM generate_series(1, $1::integer) AS n"""


def reads(plan: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(table, how it is read) of every node that reads one."""
    if "Relation Name" in plan and plan["Node Type"] != "ModifyTable":
        how = plan.get("Index Cond") or plan["Node Type"]
        yield plan["Relation Name"], re.sub(r"\bbucket = \$?\w+", "", how)
    for child in plan.get("Plans", []):
        yield from reads(child)


@pytest.mark.parametrize("name", SQL)
async def test_a_statement_finds_its_rows_through_an_index(fresh_database: str, clock: Clock, name: str) -> None:
    await clock.connection.execute(FILL.replace("$1", str(ROWS)))
    await clock.connection.execute(FILL_EVENTS.replace("$1", str(ROWS)))
    connection = await connect(fresh_database, role=None)
    try:
        for table, how in reads(await plan_of(connection, SQL[name])):
            assert table in SMALL or re.search(r"\w+ (=|<|<=|>) ", how) or "ROW" in how, (table, how)
    finally:
        await connection.close()
