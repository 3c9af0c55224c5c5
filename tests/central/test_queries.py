"""LED-5: the queries, over HTTP and a real Postgres."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import quote

from yarl import URL

from gateway.protocol.deadlines import iso
from tests.central.desk import Desk, now


async def both(desk: Desk, caller: str, called: str, **members: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A call that both sides registered and synced."""
    server = desk.entry(called, **{k: v for k, v in members.items() if k != "parent"})
    client = desk.entry(
        caller,
        actor="client",
        target=called,
        client_id=server["client_correlation_id"],
        server_id=server["server_correlation_id"],
        **{k: v for k, v in members.items() if k != "client_id"},
    )
    await desk.give(called, server)
    await desk.give(caller, client)
    return client, server


async def follow(desk: Desk, path: str, kind: str = "items", **query: str) -> list[dict[str, Any]]:
    """Every row of a list, page by page."""
    rows: list[dict[str, Any]] = []
    after: dict[str, str] = {}
    while True:
        page = (await desk.ask(path, **query, **after)).json
        rows += page[kind]
        if page["next"] is None:
            return rows
        after = {"after": page["next"]}


async def test_the_full_tree_from_its_root_and_from_within(desk: Desk) -> None:
    """LED-5, COR-2: any call leads down to what it caused and up to where it came from."""
    await both(desk, "billing", "orders", client_id="root")
    await both(desk, "orders", "inventory", client_id="below", parent="root")
    whole = (await desk.ask("/v1/ledger/tree/root")).json
    assert (whole["rows"], whole["ancestors"], whole["notes"], whole["truncated"]) == (4, [], [], False)
    [root] = whole["roots"]
    assert [child["client_correlation_id"] for child in root["children"]] == ["below"]
    part = (await desk.ask("/v1/ledger/tree/below")).json
    assert (part["rows"], part["ancestors"]) == (2, ["root"])
    assert part["roots"][0]["client"]["parent_reference_id"] == "root"


async def test_a_tree_whose_parent_nobody_registered_says_so(desk: Desk) -> None:
    """LED-5."""
    await both(desk, "orders", "inventory", client_id="below", parent="nobody-knows")
    found = (await desk.ask("/v1/ledger/tree/below")).json
    assert (found["notes"], found["ancestors"]) == (["missing-parent"], ["nobody-knows"])
    orphans = (await desk.ask("/v1/ledger/tree/nobody-knows")).json["roots"]
    assert ["missing-parent" in node["notes"] for node in orphans] == [True]


async def test_a_cycle_in_the_rows_ends_in_the_database_too(desk: Desk) -> None:
    """LED-5."""
    await both(desk, "orders", "inventory", client_id="x", parent="y")
    await both(desk, "inventory", "orders", client_id="y", parent="x")
    found = (await desk.ask("/v1/ledger/tree/x")).json
    assert found["rows"] == 4
    assert found["roots"][0]["children"][0]["children"][0]["notes"] == ["cycle"]
    assert found["ancestors"] == ["y"]


async def test_an_unknown_call_is_404_and_an_odd_id_is_data(desk: Desk) -> None:
    """LED-5: IDs may hold anything visible."""
    assert (await desk.ask("/v1/ledger/tree/nothing")).problem == "call-unknown"
    odd = "a/b%<script>'\"&?#"
    await both(desk, "orders", "inventory", client_id=odd)
    connection = await desk.ask("/v1/ledger/entries", client_correlation_id=odd)
    assert len(connection.json["entries"]) == 2
    url = URL(f"http://127.0.0.1:{desk.port}/v1/ledger/tree/{quote(odd, safe='')}", encoded=True)
    async with desk.session.get(url, headers={"Authorization": "Bearer the-audit-canary"}) as response:
        assert (await response.json())["client_correlation_id"] == odd


async def test_everything_a_service_initiated_newest_first(desk: Desk) -> None:
    """LED-5."""
    for ago in (30, 20, 10):
        await both(desk, "orders", "inventory", client_id=f"made-{ago}", at=now(ago))
    await both(desk, "billing", "orders")
    found = await follow(desk, "/v1/ledger/initiated", "entries", source="orders", limit="2")
    assert [row["client_correlation_id"] for row in found] == ["made-10", "made-20", "made-30"]
    assert {row["actor"] for row in found} == {"client"}
    assert (await desk.ask("/v1/ledger/initiated")).problem == "parameter-missing"


async def test_stalled_transactions_with_ages(desk: Desk) -> None:
    """LED-5: WAITING_CONFIRM past its TTL, TTL_EXPIRED, PROCESSING too long; nothing else."""
    rows = {
        "waits": desk.entry("orders", phase="WAITING_CONFIRM", at=now(100)),
        "expired": desk.entry("orders", phase="TTL_EXPIRED", at=now(90)),
        "hangs": desk.entry("orders", phase="PROCESSING", at=now(400)),
        "may wait": desk.entry("orders", phase="WAITING_CONFIRM", at=now(5)),
        "works": desk.entry("orders", phase="PROCESSING", at=now(60)),
        "done": desk.entry("orders", at=now(500)),
        "gone": desk.entry("orders", phase="ABANDONED", at=now(500)),
    }
    await desk.give("orders", *rows.values())
    found = await follow(desk, "/v1/ledger/stalled", limit="2")
    ids = [rows[name]["entry_id"] for name in ("hangs", "waits", "expired")]
    assert [row["entry_id"] for row in found] == ids
    assert [row["reason"] for row in found] == ["processing-too-long", "waiting-past-ttl", "ttl-expired"]
    assert 399 <= found[0]["age_s"] <= 460
    assert 69 <= found[1]["age_s"] <= 130
    settled = rows["hangs"] | {"phase": "COMMITTED", "outcome": "COMMITTED", "version": rows["hangs"]["version"] + 100}
    await desk.give("orders", settled)
    assert [row["reason"] for row in await follow(desk, "/v1/ledger/stalled")] == ["waiting-past-ttl", "ttl-expired"]


async def test_in_doubt_and_callback_gaps_across_services(desk: Desk) -> None:
    """REC-2, ACM-3: what waits for somebody, oldest first."""
    await desk.give("orders", desk.entry("orders", phase="PROCESSING", in_doubt=iso(now(50)), at=now(60)))
    await desk.give("billing", desk.entry("billing", phase="PROCESSING", in_doubt=iso(now(90)), at=now(95)))
    states = ("pending", "dead", "delivered")
    await desk.give("billing", *(desk.entry("billing", callback=one, at=now(30 - n)) for n, one in enumerate(states)))
    doubts = await follow(desk, "/v1/ledger/in-doubt", limit="1")
    assert [row["source"] for row in doubts] == ["billing", "orders"]
    assert 89 <= doubts[0]["age_s"] <= 150
    assert [row["callback"] for row in await follow(desk, "/v1/ledger/callback-gaps")] == ["pending", "dead"]
    assert [row["callback"] for row in await follow(desk, "/v1/ledger/callback-gaps", state="dead")] == ["dead"]


async def test_filters_and_pages_of_entries(desk: Desk) -> None:
    """LED-5: each filter alone and together; a page never repeats or skips a row."""
    rows = [
        desk.entry("orders", at=now(100 - n), service_endpoint=f"orders:/{'a' if n % 2 else 'b'}/{n}",
                   phase="FAILED" if n % 10 == 0 else "COMMITTED")
        for n in range(60)
    ]  # fmt: skip
    await desk.give("orders", *rows)
    await desk.give("billing", desk.entry("billing", at=now(1)))
    ids = [row["entry_id"] for row in reversed(rows)]

    async def found(**query: str) -> list[str]:
        return [row["entry_id"] for row in await follow(desk, "/v1/ledger/entries", "entries", **query)]

    assert (await found(limit="7"))[1:] == ids
    assert await found(source="orders", limit="7") == ids
    assert await found(outcome="FAILED", limit="4") == [
        row["entry_id"] for row in reversed(rows) if row["phase"] == "FAILED"
    ]
    assert await found(source="orders", phase="FAILED", endpoint="/b") == await found(outcome="FAILED")
    assert await found(endpoint="orders:/a") == [
        i for i, row in zip(ids, reversed(rows), strict=True) if "/a/" in row["service_endpoint"]
    ]
    assert await found(actor="client") == []
    since, until = rows[20]["phase_1_timestamp"], rows[30]["phase_1_timestamp"]
    assert await found(**{"from": since, "to": until, "limit": "3"}) == ids[30:40][-10:]
    assert await found(q=rows[5]["server_correlation_id"]) == [rows[5]["entry_id"]]
    assert await found(q=rows[5]["client_correlation_id"], source="billing") == []


async def test_a_filter_that_matches_little_gives_short_pages_that_go_on(desk: Desk, monkeypatch: Any) -> None:
    """LED-5: a page does a bounded amount of work, and the end is still found."""
    monkeypatch.setattr("gateway.central.queries.SCAN_MAX", 10)
    rows = [desk.entry("orders", at=now(100 - n), phase="FAILED" if n == 0 else "COMMITTED") for n in range(35)]
    await desk.give("orders", *rows)
    first = (await desk.ask("/v1/ledger/entries", outcome="FAILED")).json
    assert (first["entries"], first["next"] is None) == ([], False)
    found = await follow(desk, "/v1/ledger/entries", "entries", outcome="FAILED")
    assert [row["entry_id"] for row in found] == [rows[0]["entry_id"]]


async def test_what_cannot_be_asked_is_named(desk: Desk) -> None:
    """OPS-3."""
    for path, name in [
        ("/v1/ledger/entries?after=!", "after"),
        ("/v1/ledger/entries?after=AAAA", "after"),
        ("/v1/ledger/entries?from=yesterday", "from"),
        ("/v1/ledger/entries?limit=0", "limit"),
        ("/v1/ledger/entries?phase=DONE", "phase"),
        ("/v1/ledger/unpaired?side=both", "side"),
        ("/v1/ledger/unpaired", "side"),
        ("/v1/ledger/summary?from=2020-01-01T00:00:00Z", "from"),
        ("/v1/ledger/pair?client_correlation_id=x", "server_correlation_id"),
    ]:
        reply = await desk.ask(path)
        assert reply.status == 400, path
        assert name in reply.json["detail"], path


async def test_the_summary_counts_server_rows_by_outcome_over_time(desk: Desk) -> None:
    """LED-5: counted from the rows themselves, also when they change."""
    at = now(600)
    rows = [desk.entry("orders", at=at, phase=phase) for phase in ("COMMITTED", "COMMITTED", "FAILED", "PROCESSING")]
    await desk.give("orders", *rows)
    await desk.give("billing", desk.entry("billing", actor="client", target="orders", at=at))
    while await desk.sources.ingest.count_tallies(100):
        pass

    async def counts(**query: str) -> dict[str, int]:
        found = (await desk.ask("/v1/ledger/summary", **query)).json
        total: dict[str, int] = {}
        for bucket in found["buckets"]:
            for name, rows in bucket["counts"].items():
                total[name] = total.get(name, 0) + rows
        return {name: rows for name, rows in total.items() if rows}

    assert await counts() == {"COMMITTED": 2, "FAILED": 1, "open": 1}
    assert await counts(source="billing") == {}
    settled = rows[3] | {"phase": "FAILED", "outcome": "FAILED", "version": rows[3]["version"] + 100}
    await desk.give("orders", settled)
    while await desk.sources.ingest.count_tallies(100):
        pass
    assert await counts() == {"COMMITTED": 2, "FAILED": 2}
    assert await counts(**{"from": iso(at - timedelta(days=30))}) == {"COMMITTED": 2, "FAILED": 2}
    now_ = (await desk.ask("/v1/ledger/summary")).json["now"]
    assert (now_["server_only"], now_["client_only"], now_["stalled"]) == (4, 1, 0)
