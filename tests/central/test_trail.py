"""SEC-5: every access to the central ledger is itself recorded, before it is answered."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.central.desk import Desk


async def accesses(desk: Desk) -> list[tuple[Any, ...]]:
    rows = await desk.owner.fetch(
        "SELECT name, role, method, path, target, service, status FROM access_log ORDER BY id"
    )
    return [tuple(row) for row in rows]


async def test_reads_writes_and_refusals_are_recorded_by_who_and_what(desk: Desk) -> None:
    """SEC-5: by token name, role, path and IDs in it; never with a token or a query."""
    await desk.owner.execute("TRUNCATE access_log")
    await desk.ask("/v1/ledger/tree/some-call", as_="orders-audit")
    await desk.ask("/v1/ledger/entries?q=the-query-canary", as_="audit")
    await desk.sync("orders", [desk.entry("orders")])
    await desk.ask("/v1/ledger/export?format=csv", as_="audit")
    await desk.ask("/v1/ledger/stalled", as_="nobody-known")
    await desk.ask("/healthz", as_=None)
    tree = "/v1/ledger/tree/{client_correlation_id}"
    assert await accesses(desk) == [
        ("orders-audit", "audit", "GET", tree, "some-call", "orders", 404),
        ("audit", "audit", "GET", "/v1/ledger/entries", None, None, 200),
        ("orders-sync", "sync", "POST", "/v1/sync", None, "orders", 200),
        ("audit", "audit", "GET", "/v1/ledger/export", None, None, 403),
    ]


async def test_what_cannot_be_recorded_is_not_answered(desk: Desk) -> None:
    """SEC-5: no look at the ledger without a trace."""
    await desk.give("orders", desk.entry("orders"))
    await desk.owner.execute("REVOKE INSERT ON access_log FROM twophp_request")
    reply = await desk.ask("/v1/ledger/entries", as_="audit")
    assert (reply.status, reply.problem) == (503, "access-not-recorded")
    assert b"client_correlation_id" not in reply.body
    assert (await desk.ask("/healthz", as_=None)).status == 200
    await desk.owner.execute("GRANT INSERT ON access_log TO twophp_request")
    assert (await desk.ask("/v1/ledger/entries", as_="audit")).status == 200


async def test_the_trail_cannot_be_rewritten_by_whoever_serves_requests(desk: Desk) -> None:
    """SEC-5: insert-only; entries cannot be forgotten by it either."""
    rights = {
        (table, right): await desk.owner.fetchval("SELECT has_table_privilege('twophp_request', $1, $2)", table, right)
        for table in ("access_log", "entries")
        for right in ("UPDATE", "DELETE", "TRUNCATE")
    }
    assert not any(rights.values())


async def test_many_accesses_at_once_are_each_recorded_once(desk: Desk) -> None:
    """SEC-5: batched, none lost."""
    await desk.owner.execute("TRUNCATE access_log")
    replies = await asyncio.gather(*(desk.ask("/v1/ledger/stalled", as_="audit") for _ in range(60)))
    assert {reply.status for reply in replies} == {200}
    assert len(await accesses(desk)) == 60


async def test_the_trail_is_read_newest_first(desk: Desk) -> None:
    """SEC-5: by auditors; reading it leaves its own trace."""
    await desk.ask("/v1/ledger/stalled", as_="operations")
    first = (await desk.ask("/v1/access", as_="audit", limit="1")).json
    assert (first["items"][0]["name"], first["items"][0]["path"]) == ("operations", "/v1/ledger/stalled")
    rest = (await desk.ask("/v1/access", as_="compliance", after=first["next"])).json
    assert [item["path"] for item in rest["items"]] == ["/v1/services"] * 3
    assert (await desk.ask("/v1/access", as_="audit", after="x")).status == 400
