"""LED-4: registration, and what ends it; COR-4: clients that register themselves."""

from __future__ import annotations

from uuid import uuid4

import pytest

from gateway.central.services import IN_USE, Services
from gateway.central.wire import row_of
from gateway.protocol.problems import Problem
from gateway.store.opening import open_ring
from gateway.vault import Key, KeysRefused
from tests.central.desk import KEY, Desk, token


async def test_a_service_keeps_the_id_it_brings_and_gets_one_if_it_has_none(desk: Desk) -> None:
    """LED-4."""
    brought = str(uuid4())
    reply = await desk.post("/v1/services", {"name": "orders", "service_ledger_id": brought}, as_="orders-sync")
    assert (reply.status, reply.json) == (200, {"service_ledger_id": brought})
    again = await desk.post("/v1/services", {"name": "orders", "service_ledger_id": brought}, as_="orders-sync")
    assert again.json == {"service_ledger_id": brought}
    first = await desk.post("/v1/services", {"name": "billing"}, as_="billing-sync")
    assert first.json == {"service_ledger_id": str(desk.services["billing"])}


async def test_an_id_of_another_name_and_a_name_of_another_token_are_refused(desk: Desk) -> None:
    """LED-4, SEC-5: nobody registers, or writes, for another service."""
    id_ = str(desk.services["orders"])
    taken = await desk.post("/v1/services", {"name": "billing", "service_ledger_id": id_}, as_="billing-sync")
    assert (taken.status, taken.problem) == (409, "service-ledger-id-taken")
    forged = await desk.post("/v1/services", {"name": "orders", "service_ledger_id": id_}, as_="billing-sync")
    assert (forged.status, forged.problem) == (403, "other-service")
    pushed = await desk.sync("orders", [desk.entry("orders")], as_="billing-sync")
    assert (pushed.status, pushed.problem) == (403, "other-service")
    posted = await desk.post("/v1/ledger/entries", desk.entry("orders", actor="client", target="x"), as_="billing-sync")
    assert (posted.status, posted.problem) == (403, "other-service")
    unknown = await desk.sync("orders", [desk.entry("orders")], service_ledger_id=uuid4())
    assert (unknown.status, unknown.problem) == (404, "service-unknown")
    assert (await desk.ask("/v1/ledger/entries")).json["entries"] == []


@pytest.mark.parametrize(
    ("members", "name"),
    [
        ({"operator_url": "ftp://x"}, "operator_url"),
        ({"operator_url": "http://user:pw@x"}, "operator_url"),
        ({"operator_url": "http://x/path"}, "operator_url"),
        ({"operator_url": "http://"}, "operator_url"),
        ({"operator_url": 7}, "operator_url"),
        ({"pull_token": "two words"}, "pull_token"),
        ({"pull_token": ""}, "pull_token"),
        ({"service_ledger_id": "7"}, "service_ledger_id"),
    ],
)
async def test_what_cannot_be_registered_is_named(desk: Desk, members: dict[str, object], name: str) -> None:
    """LED-4, OPS-3."""
    reply = await desk.post("/v1/services", {"name": "orders", **members}, as_="orders-sync")
    assert reply.status == 400
    assert name in reply.json["detail"]


async def test_revoking_works_at_once_and_a_new_id_is_no_way_back(desk: Desk) -> None:
    """LED-4: sync, registration, pull and clients' rows of that service are refused from the next request on."""
    id_ = desk.services["orders"]
    revoked = await desk.ask(f"/v1/services/{id_}/revoke", method="POST")
    assert (revoked.status, revoked.json["revoked_at"] is None) == (200, False)
    assert (await desk.sync("orders", [desk.entry("orders")])).status == 410
    for members in ({}, {"service_ledger_id": str(id_)}, {"service_ledger_id": str(uuid4())}):
        reply = await desk.post("/v1/services", {"name": "orders", **members}, as_="orders-sync")
        assert (reply.status, reply.problem) == (410, "service-revoked")
    row = desk.entry("orders", actor="client", target="x")
    assert (await desk.post("/v1/ledger/entries", row, as_="orders-sync")).status == 410
    assert (await desk.ask(f"/v1/services/{id_}/pull", method="POST")).status == 410
    assert (await desk.sync("billing", [desk.entry("billing")])).status == 200
    assert (await desk.ask(f"/v1/services/{id_}/restore", method="POST")).json["revoked_at"] is None
    assert (await desk.sync("orders", [desk.entry("orders")])).status == 200


async def test_a_batch_that_was_let_in_before_the_revocation_is_not_stored_after_it(desk: Desk) -> None:
    """LED-4: the guard is in the statement that stores."""
    id_ = desk.services["orders"]
    row = row_of(desk.entry("orders"), service_ledger_id=str(id_), source="orders")
    await desk.sources.services.revoke(id_)
    with pytest.raises(Problem, match="service-revoked"):
        await desk.sources.ingest.store(id_, [row])
    assert await desk.owner.fetchval("SELECT count(*) FROM entries") == 0


async def test_removing_a_token_works_at_once(desk: Desk) -> None:
    """LED-4, SEC-5: as a reload does it."""
    assert (await desk.sync("orders", [desk.entry("orders")])).status == 200
    desk.access.replace_tokens([token("audit", "audit")])
    assert (await desk.sync("orders", [desk.entry("orders")])).status == 401
    assert (await desk.ask("/v1/services", as_="audit")).status == 200


async def test_the_pull_token_is_sealed_and_never_shown(desk: Desk) -> None:
    """SEC-4: not in the store, not in an answer."""
    await desk.register("orders", operator_url="http://127.0.0.1:1", pull_token="the-pull-canary")
    shown = await desk.ask("/v1/services")
    assert b"canary" not in shown.body
    sealed = await desk.owner.fetchval("SELECT pull_token FROM services WHERE pull_token IS NOT NULL")
    assert b"canary" not in sealed
    services = {service["name"]: service["can_pull"] for service in shown.json["items"]}
    assert services == {"billing": False, "inventory": False, "orders": True}


async def test_a_client_registers_its_own_rows(desk: Desk) -> None:
    """COR-4: one, or a list; again with a higher version; seen like any other."""
    row = desk.entry("orders", actor="client", target="inventory", phase="PROCESSING")
    assert (await desk.post("/v1/ledger/entries", row, as_="orders-sync")).json == {"received": 1, "stored": 1}
    settled = row | {"phase": "COMMITTED", "outcome": "COMMITTED", "version": row["version"] + 10}
    other = desk.entry("orders", actor="client", target="inventory", parent=row["client_correlation_id"])
    reply = await desk.post("/v1/ledger/entries", [settled, other], as_="orders-sync")
    assert reply.json == {"received": 2, "stored": 2}
    tree = (await desk.ask(f"/v1/ledger/tree/{row['client_correlation_id']}")).json
    [child] = tree["roots"][0]["children"]
    assert child["client_correlation_id"] == other["client_correlation_id"]


async def test_a_clients_row_that_breaks_the_rules_is_refused(desk: Desk) -> None:
    """COR-2, COR-4: no server rows, no target missing, no time that changes; nothing is stored."""
    good = desk.entry("orders", actor="client", target="inventory")
    for bad in (desk.entry("orders"), good | {"target": None}, good | {"source": "billing"}, 7, {}):
        reply = await desk.post("/v1/ledger/entries", [good, bad], as_="orders-sync")
        assert reply.status == 400
        assert reply.json["line"] == 2
    assert (await desk.post("/v1/ledger/entries", [], as_="orders-sync")).status == 413
    await desk.post("/v1/ledger/entries", good, as_="orders-sync")
    moved = good | {"phase_1_timestamp": "2026-01-01T00:00:00.000Z", "version": good["version"] + 5}
    assert (await desk.post("/v1/ledger/entries", moved, as_="orders-sync")).problem == "entry-moved"
    assert await desk.owner.fetchval("SELECT count(*) FROM entries") == 1


async def test_a_rotation_reaches_the_pull_tokens(desk: Desk) -> None:
    """DESIGN decision 12: sealed anew under the newest key, after which the old one can go, and not before."""
    new = Key("k2", b"n" * 32)

    async def restarted_with(*keys: Key) -> Services:
        ring = await open_ring(desk.url, desk.url, package="gateway.central", in_use=IN_USE, keys=keys)
        desk.lines.append(services := Services(desk.url, ring))
        return services

    id_ = await desk.register("orders", operator_url="http://127.0.0.1:1", pull_token="the-pull-canary")
    services = await restarted_with(new, KEY)
    assert (await services.one(id_)).pull_token == "the-pull-canary"
    with pytest.raises(KeysRefused):
        await restarted_with(new)
    assert [await services.reseal() for _ in range(2)] == [1, 0]
    services = await restarted_with(new)
    assert (await services.one(id_)).pull_token == "the-pull-canary"
