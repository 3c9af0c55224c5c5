"""COR-1: both sides of a call, and what lacks its twin."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.central.wire import entry_key
from tests.central.desk import Desk, now


def call(desk: Desk, client_id: str, **members: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The two rows of a call from orders to inventory."""
    server = desk.entry("inventory", client_id=client_id, **members)
    server_id = server["server_correlation_id"]
    client = desk.entry(
        "orders", actor="client", target="inventory", client_id=client_id, server_id=server_id, **members
    )
    return client, server


async def unpaired(desk: Desk, side: str, **query: Any) -> list[str]:
    reply = await desk.ask("/v1/ledger/unpaired", side=side, **query)
    assert reply.status == 200, reply.body
    return [row["client_correlation_id"] for row in reply.json["items"]]


async def test_a_registration_waits_for_its_twin_whichever_comes_first(desk: Desk) -> None:
    """COR-1: listed while it is alone, and no longer."""
    (client_1, server_1), (client_2, server_2) = call(desk, "one", at=now(5)), call(desk, "two", at=now(4))
    await desk.give("orders", client_1)
    await desk.give("inventory", server_2)
    assert (await unpaired(desk, "client-only"), await unpaired(desk, "server-only")) == (["one"], ["two"])
    [lonely] = (await desk.ask("/v1/ledger/unpaired", side="client-only")).json["items"]
    assert (lonely["lacks"], lonely["target"]) == ("server", "inventory")
    await desk.give("inventory", server_1)
    await desk.give("orders", client_2)
    assert (await unpaired(desk, "client-only"), await unpaired(desk, "server-only")) == ([], [])
    assert await desk.owner.fetchval("SELECT count(*) FROM pairs") == 0


async def test_a_later_version_of_a_paired_row_does_not_make_it_lonely_again(desk: Desk) -> None:
    """COR-1."""
    client, server = call(desk, "one")
    await desk.give("orders", client)
    await desk.give("inventory", server)
    await desk.give("orders", client | {"version": client["version"] + 100})
    await desk.give("inventory", server)
    assert (await unpaired(desk, "client-only"), await unpaired(desk, "server-only")) == ([], [])


async def test_a_client_learns_the_servers_id_later(desk: Desk) -> None:
    """COR-1: lonely under no ID at first, then paired under the right one."""
    client, server = call(desk, "one")
    early = client | {"server_correlation_id": None, "phase": "WAITING_CONFIRM", "outcome": None, "ttl_ms": None}
    late = client | {"version": client["version"] + 100}
    await desk.give("orders", early)
    await desk.give("inventory", server)
    assert (await unpaired(desk, "client-only"), await unpaired(desk, "server-only")) == (["one"], ["one"])
    await desk.give("orders", late)
    assert (await unpaired(desk, "client-only"), await unpaired(desk, "server-only")) == ([], [])


async def test_two_sides_that_arrive_at_the_same_moment_find_each_other(desk: Desk) -> None:
    """COR-1: neither transaction sees the other's row, and still nobody stays lonely."""
    calls = [call(desk, f"c{n}") for n in range(300)]
    for start in range(0, 300, 50):
        batch = calls[start : start + 50]
        replies = await asyncio.gather(
            desk.sync("orders", [client for client, _ in batch]),
            desk.sync("inventory", [server for _, server in reversed(batch)]),
        )
        assert [reply.status for reply in replies] == [200, 200]
    assert (await unpaired(desk, "client-only"), await unpaired(desk, "server-only")) == ([], [])


async def test_pairs_left_over_by_a_crash_are_tidied_and_never_listed(desk: Desk) -> None:
    """COR-1: an ingest that died between storing a twin and removing the mark."""
    client, server = call(desk, "one")
    await desk.give("orders", client)
    await desk.owner.execute("UPDATE pairs SET sides = 3")
    assert await unpaired(desk, "client-only") == []
    await desk.sources.ingest.tidy()
    assert await desk.owner.fetchval("SELECT count(*) FROM pairs") == 0
    await desk.give("inventory", server)


async def test_the_lists_are_paged_newest_first_and_by_service(desk: Desk) -> None:
    """LED-5: keyset paging."""
    for n in range(5):
        await desk.give("orders", call(desk, f"c{n}", at=now(50 - n))[0])
    await desk.give("billing", desk.entry("billing", actor="client", target="x", client_id="other", at=now(1)))
    first = (await desk.ask("/v1/ledger/unpaired", side="client-only", limit="4", source="orders")).json
    rest = (await desk.ask("/v1/ledger/unpaired", side="client-only", source="orders", after=first["next"])).json
    assert [row["client_correlation_id"] for row in first["items"] + rest["items"]] == ["c4", "c3", "c2", "c1", "c0"]
    assert rest["next"] is None
    assert (await unpaired(desk, "client-only"))[0] == "other"


async def test_a_pair_is_confirmed_by_both_rows(desk: Desk) -> None:
    """LED-5: confirm dual registration."""
    client, server = call(desk, "one")
    ids = {name: client[name] for name in ("client_correlation_id", "server_correlation_id")}
    await desk.give("orders", client)
    found = (await desk.ask("/v1/ledger/pair", **ids)).json
    assert (found["confirmed"], found["server"]) == (False, None)
    await desk.give("inventory", server)
    found = (await desk.ask("/v1/ledger/pair", **ids)).json
    assert (found["confirmed"], found["client"]["source"], found["server"]["source"]) == (True, "orders", "inventory")
    seen = (await desk.ask("/v1/ledger/pair", as_="orders-audit", **ids)).json
    assert (seen["confirmed"], seen["server"]) == (True, {"redacted": True, "actor": "server"})
    assert (await desk.ask("/v1/ledger/pair", as_="billing-audit", **ids)).json["client"] is None


async def test_two_rows_of_one_pair_in_one_batch_wait_as_one_that_is_there(desk: Desk) -> None:
    """COR-1, LED-5: time and key of the same row, so that the list leads to it."""
    id_ = str(desk.services["orders"])
    low, *_, high = sorted((f"e{n}" for n in range(20)), key=lambda one: entry_key(id_, "client", one))
    ids = {"actor": "client", "target": "x", "client_id": "dup", "server_id": "s-dup"}
    older, newer = (desk.entry("orders", **ids, entry_id=one, at=now(ago)) for one, ago in ((high, 10), (low, 5)))
    await desk.give("orders", older, newer)
    assert await unpaired(desk, "client-only") == ["dup"]


async def test_a_row_forgotten_meanwhile_does_not_end_the_list(desk: Desk) -> None:
    """LED-5: the cursor comes from the list of pairs."""
    for n in range(3):
        await desk.give("orders", call(desk, f"c{n}", at=now(50 - n))[0])
    await desk.owner.execute("DELETE FROM entries WHERE client_correlation_id = 'c2'")
    first = (await desk.ask("/v1/ledger/unpaired", side="client-only", limit="1")).json
    assert (first["items"], first["next"] is None) == ([], False)
    assert await unpaired(desk, "client-only", after=first["next"]) == ["c1", "c0"]


async def test_a_further_client_of_a_complete_pair_lacks_nothing(desk: Desk) -> None:
    """COR-1: its server is there."""
    client, server = call(desk, "one")
    await desk.give("inventory", server)
    await desk.give("orders", client)
    ids = {"client_id": "one", "server_id": server["server_correlation_id"]}
    await desk.give("billing", desk.entry("billing", actor="client", target="inventory", **ids))
    assert await unpaired(desk, "client-only") == []
