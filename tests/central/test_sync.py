"""LED-2: batches from gateways, all or nothing, stored once however often they come."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import orjson
import zstandard

from gateway.central.wire import LINES_MAX, PLAIN_BYTES_MAX
from gateway.protocol.deadlines import iso
from gateway.protocol.entries import FIELDS
from tests.central.desk import Desk, now


async def stored(desk: Desk, **query: str) -> list[dict[str, Any]]:
    reply = await desk.ask("/v1/ledger/entries", **query)
    assert reply.status == 200, reply.body
    found: list[dict[str, Any]] = reply.json["entries"]
    return found


async def test_a_batch_is_stored_as_it_was_sent(desk: Desk) -> None:
    """LED-1, LED-2: sixteen fields and the four of the wire; the central's own `sync_timestamp`."""
    sent = desk.entry("orders", callback="pending", in_doubt=iso(now(5)), transaction_reference="ab" * 16)
    reply = await desk.sync("orders", [sent])
    assert (reply.status, reply.json) == (200, {"received": 1, "stored": 1})
    [found] = await stored(desk)
    assert found.pop("sync_timestamp") is not None
    assert found == {name: value for name, value in sent.items() if name != "sync_timestamp"}
    assert list(found)[:15] == [name for name in FIELDS if name != "sync_timestamp"]


async def test_the_same_batch_again_changes_nothing(desk: Desk) -> None:
    """LED-2: exactly once in effect."""
    batch = [desk.entry("orders") for _ in range(20)]
    assert (await desk.sync("orders", batch)).json == {"received": 20, "stored": 20}
    before = await stored(desk)
    assert (await desk.sync("orders", batch)).json == {"received": 20, "stored": 0}
    assert await stored(desk) == before


async def test_a_higher_version_replaces_a_lower_one_and_never_the_other_way(desk: Desk) -> None:
    """LED-2: batches may come late and in any order."""
    early = desk.entry("orders", phase="PROCESSING")
    late = early | {"phase": "COMMITTED", "outcome": "COMMITTED", "version": early["version"] + 1000}
    assert (await desk.sync("orders", [late])).json["stored"] == 1
    assert (await desk.sync("orders", [early])).json["stored"] == 0
    assert [found["phase"] for found in await stored(desk)] == ["COMMITTED"]


async def test_one_batch_may_hold_several_versions_of_a_row(desk: Desk) -> None:
    """LED-2: the highest counts, wherever it stands."""
    first = desk.entry("orders", phase="WAITING_CONFIRM")
    rows = [first | {"version": first["version"] + more, "phase": phase, "outcome": None}
            for more, phase in ((1, "PROCESSING"), (0, "WAITING_CONFIRM"))]  # fmt: skip
    assert (await desk.sync("orders", [*rows, first])).json == {"received": 3, "stored": 1}
    assert [found["phase"] for found in await stored(desk)] == ["PROCESSING"]


async def test_a_line_that_does_not_fit_the_schema_is_named_and_nothing_is_stored(desk: Desk) -> None:
    """LED-1, COR-2: all or nothing."""
    good, bad = desk.entry("orders"), desk.entry("orders", target="x") | {"target": "x"}
    reply = await desk.sync("orders", [good, bad, good])
    assert (reply.status, reply.problem, reply.json["line"]) == (400, "entry-invalid", 2)
    assert "target" in reply.json["detail"]
    assert await stored(desk) == []


async def test_a_missing_member_and_a_line_that_is_no_object_are_named(desk: Desk) -> None:
    """LED-1."""
    short = desk.entry("orders")
    del short["callback"]
    assert (await desk.sync("orders", [short])).json["line"] == 1
    for line in (b"[]\n", b"{\n", b'"x"\n', b'{"a": NaN}\n'):
        reply = await desk.sync("orders", [], data=zstandard.compress(line))
        assert (reply.status, reply.problem) == (400, "entry-invalid")


async def test_what_is_too_much_or_not_what_it_says_is_refused(desk: Desk) -> None:
    """LED-2: a small body that becomes a huge one ends at a bound."""
    bomb = zstandard.compress(b"0" * (PLAIN_BYTES_MAX + 1))
    assert len(bomb) < 64_000
    assert (await desk.sync("orders", [], data=bomb)).status == 413
    assert (await desk.sync("orders", [], data=zstandard.compress(b"{}\n" * (LINES_MAX + 1)))).status == 413
    assert (await desk.sync("orders", [], data=b"not zstd")).problem == "body-malformed"
    plain = orjson.dumps(desk.entry("orders"))
    assert (await desk.sync("orders", [], data=plain, headers={"Content-Encoding": "identity"})).json["stored"] == 1
    assert (await desk.sync("orders", [], data=plain, headers={"Content-Encoding": "gzip"})).status == 415
    assert (await desk.sync("orders", [], data=plain, headers={"Content-Type": "text/plain"})).status == 415


async def test_a_truncated_body_stores_nothing(desk: Desk) -> None:
    """LED-2: half a frame is no batch, even where it ends with a whole line."""
    whole = zstandard.compress(b"".join(orjson.dumps(desk.entry("orders")) + b"\n" for _ in range(500)))
    for length in (len(whole) // 2, len(whole) - 1, 20):
        reply = await desk.sync("orders", [], data=whole[:length])
        assert reply.status == 400, length
    assert await stored(desk) == []


async def test_an_entry_with_a_strange_time_does_not_stop_the_others(desk: Desk) -> None:
    """LED-2: a clock that was wrong must not stop a service's sync."""
    times = [datetime(1970, 1, 1, tzinfo=UTC), datetime(2100, 6, 1, tzinfo=UTC), now()]
    batch = [desk.entry("orders", at=at) for at in times]
    assert (await desk.sync("orders", batch)).json == {"received": 3, "stored": 3}
    assert (await desk.sync("orders", batch)).json == {"received": 3, "stored": 0}
    found = await stored(desk)
    assert [one["phase_1_timestamp"] for one in found] == sorted((iso(at) for at in times), reverse=True)
    assert await desk.owner.fetchval("SELECT count(*) FROM entries_odd") == 2


async def test_what_was_odd_moves_to_its_partition_once_there_is_one(desk: Desk) -> None:
    """LED-2: also rows that came before their month."""
    row = desk.entry("orders", at=datetime(2100, 6, 15, tzinfo=UTC))
    await desk.give("orders", row)
    assert await desk.owner.fetchval("SELECT make_partition('2100-06-01')")
    assert await desk.owner.fetchval("SELECT count(*) FROM entries_odd") == 0
    assert await desk.owner.fetchval("SELECT count(*) FROM entries_2100_06") == 1
    raised = row | {"version": row["version"] + 1, "phase": "FAILED", "outcome": "FAILED"}
    assert (await desk.sync("orders", [raised])).json == {"received": 1, "stored": 1}
    assert [found["phase"] for found in await stored(desk)] == ["FAILED"]


async def test_batches_that_meet_are_all_stored_once(desk: Desk) -> None:
    """LED-2: two replicas of a service push the same rows at the same time, in opposite order."""
    rows = [desk.entry("orders") for _ in range(200)]
    replies = await asyncio.gather(*(desk.sync("orders", batch) for batch in (rows, rows[::-1]) * 4))
    assert [reply.status for reply in replies] == [200] * 8
    assert sum(reply.json["stored"] for reply in replies) == 200
    assert len(await stored(desk, limit="1000")) == 200


async def test_an_empty_batch_says_that_the_service_lives(desk: Desk) -> None:
    """LED-2: nothing new is news too."""
    assert (await desk.sync("orders", [])).json == {"received": 0, "stored": 0}
    services = (await desk.ask("/v1/services")).json["items"]
    heard = {service["name"]: service["last_sync_at"] is not None for service in services}
    assert heard == {"orders": True, "inventory": False, "billing": False}
