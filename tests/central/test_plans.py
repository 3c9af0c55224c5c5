"""Plans: every question is answered through an index, in an empty ledger as in a full one (LED-5)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from gateway.central import queries
from gateway.store.lines import connect
from tests.central.desk import Desk, now

# What must be found by: an index condition on one of these, or the order of the index itself.
INDEXED = {
    "of_client_id": ("parent_reference_id", "client_correlation_id"),
    "of_server_id": ("server_correlation_id",),
    "of_any_id": ("parent_reference_id", "client_correlation_id", "server_correlation_id"),
    "tree": ("parent_reference_id", "client_correlation_id"),
    "ancestors": ("parent_reference_id", "client_correlation_id"),
    "recent": ("phase_1_timestamp",),
    "recent_of_source": ("source",),
    "stalled": ("phase_1_timestamp",),
    "in_doubt": ("in_doubt",),
    "callback_gaps": ("phase_1_timestamp",),
    "of_transaction": ("server_correlation_id",),
    "unpaired": ("sides", "entry_key"),
    "unpaired_of_source": ("source", "entry_key"),
    "summary": ("grain",),
}


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


@pytest.mark.parametrize("filled", [False, True], ids=["empty", "filled"])
async def test_no_question_walks_the_entries(desk: Desk, filled: bool) -> None:
    """LED-5: no sequential scan of entries, pairs or tallies, on lines as readers use them."""
    assert INDEXED.keys() == queries.SQL.keys() - {"overview"}  # that one counts up to a bound, by partial indexes
    if filled:
        await desk.give("orders", *(desk.entry("orders", at=now(n)) for n in range(3000)))
        await desk.owner.execute("ANALYZE")
    connection = await connect(desk.url)
    try:
        for name, columns in INDEXED.items():
            sql = queries.SQL[name]
            nulls = ", ".join(["NULL"] * max(int(number) for number in re.findall(r"\$(\d+)", sql)))
            await connection.execute(f"PREPARE asked AS {sql}")
            [[text]] = await connection.fetch(f"EXPLAIN (FORMAT JSON) EXECUTE asked({nulls})")
            await connection.execute("DEALLOCATE asked")
            [found] = orjson.loads(text)
            for node in nodes(found["Plan"]):
                assert node["Node Type"] != "Seq Scan", (name, node)
                if node["Node Type"] in ("Index Scan", "Index Only Scan"):
                    condition = node.get("Index Cond", "") + node["Index Name"]
                    assert any(column in condition for column in columns), (name, node)
    finally:
        await connection.close()
