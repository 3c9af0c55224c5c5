"""SEC-5: who may ask the central ledger what: role × endpoint, every cell; and readers restricted to one service."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest

from gateway.central.endpoints import ENDPOINTS
from tests.central.desk import Desk, now, value_of

READING = {"audit", "compliance", "operations"}
NAMES = {"audit": "audit", "compliance": "compliance", "operations": "operations", "sync": "orders-sync"}

# Every endpoint has its line here: one that is added without is found by the first test.
TABLE: dict[tuple[str, str], set[str]] = {
    ("GET", "/v1/services"): READING,
    ("POST", "/v1/services"): {"sync"},
    ("POST", "/v1/services/{service_ledger_id}/pull"): {"operations"},
    ("POST", "/v1/services/{service_ledger_id}/revoke"): {"operations"},
    ("POST", "/v1/services/{service_ledger_id}/restore"): {"operations"},
    ("POST", "/v1/sync"): {"sync"},
    ("POST", "/v1/ledger/entries"): {"sync"},
    ("GET", "/v1/ledger/entries"): READING,
    ("GET", "/v1/ledger/initiated"): READING,
    ("GET", "/v1/ledger/tree/{client_correlation_id}"): READING,
    ("GET", "/v1/ledger/pair"): READING,
    ("GET", "/v1/ledger/stalled"): READING,
    ("GET", "/v1/ledger/unpaired"): READING,
    ("GET", "/v1/ledger/callback-gaps"): READING,
    ("GET", "/v1/ledger/in-doubt"): READING,
    ("GET", "/v1/ledger/summary"): READING,
    ("GET", "/v1/ledger/export"): {"compliance"},
    ("GET", "/v1/transactions/{server_correlation_id}"): READING,
    ("GET", "/v1/events"): READING,
    ("GET", "/v1/access"): {"audit", "compliance"},
}
OPEN = {("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/metrics")}
QUERIES = {
    "/v1/ledger/initiated": "?source=orders",
    "/v1/ledger/pair": "?client_correlation_id=x&server_correlation_id=y",
    "/v1/ledger/unpaired": "?side=client-only",
    "/v1/ledger/export": "?format=csv",
}


def test_every_endpoint_has_its_line_in_the_table() -> None:
    """SEC-5: and says the same."""
    found = {(endpoint.methods[0], endpoint.path): endpoint for endpoint in ENDPOINTS}
    assert found.keys() == TABLE.keys() | OPEN
    assert {key for key, endpoint in found.items() if endpoint.open} == OPEN
    assert {key: set(endpoint.roles) for key, endpoint in found.items() if not endpoint.open} == TABLE


async def ask(desk: Desk, method: str, path: str, as_: str | None) -> int:
    """The status of a request that the endpoint can answer."""
    target = path.replace("{service_ledger_id}", str(desk.services["orders"])) + QUERIES.get(path, "")
    target = target.replace("{client_correlation_id}", "nothing").replace("{server_correlation_id}", "nothing")
    data: bytes | None = None
    headers: dict[str, str] = {}
    if path == "/v1/services" and method == "POST":
        data = json.dumps({"name": "orders"}).encode()
    if path == "/v1/sync":
        target += f"?service_ledger_id={desk.services['orders']}"
        headers["Content-Type"] = "application/x-ndjson"
    if path == "/v1/ledger/entries" and method == "POST":
        data = json.dumps(desk.entry("orders", actor="client", target="x")).encode()
    if path == "/v1/events" and as_ is not None:
        url = f"http://127.0.0.1:{desk.port}{target}"
        async with desk.session.get(url, headers={"Authorization": f"Bearer {value_of(as_)}"}) as response:
            return response.status
    return (await desk.ask(target, as_=as_, method=method, data=data, headers=headers)).status


# What an allowed request gets in a ledger that is empty: no such call, nothing to pull from.
ALLOWED = {
    "/v1/ledger/tree/{client_correlation_id}": 404,
    "/v1/transactions/{server_correlation_id}": 404,
    "/v1/services/{service_ledger_id}/pull": 409,
}


@pytest.mark.parametrize("role", ["audit", "compliance", "operations", "sync"])
async def test_each_role_gets_exactly_what_the_table_grants(desk: Desk, role: str) -> None:
    """SEC-5: role × endpoint."""
    for (method, path), roles in TABLE.items():
        status = await ask(desk, method, path, NAMES[role])
        assert status == (ALLOWED.get(path, 200) if role in roles else 403), (method, path)
        if path.endswith("/revoke") and role in roles:
            await ask(desk, method, path.replace("revoke", "restore"), NAMES[role])


async def test_without_a_token_nothing_is_told(desk: Desk) -> None:
    """SEC-5: deny by default."""
    for method, path in TABLE:
        assert await ask(desk, method, path, None) == 401, (method, path)
    for _, path in OPEN:
        assert (await desk.ask(path, as_=None)).status == 200
    desk.access.replace_tokens([])
    for method, path in TABLE:
        assert await ask(desk, method, path, "audit") == 401, (method, path)


async def two_services(desk: Desk) -> dict[str, Any]:
    """billing -> orders -> inventory, with something of each service in every list."""
    rows: dict[str, Any] = {}
    for service in ("billing", "orders", "inventory"):
        lonely = desk.entry(
            service, phase="PROCESSING", at=now(1000), in_doubt="2026-01-01T00:00:00.000Z", callback="dead"
        )
        calls = desk.entry(service, actor="client", target="x", at=now(900))
        await desk.give(service, lonely, calls)
        rows[service] = [lonely, calls]
    server = desk.entry("orders", client_id="root")
    below = desk.entry("inventory", client_id="below")
    to_inventory = {"target": "inventory", "server_id": below["server_correlation_id"], "parent": "root"}
    await desk.give("orders", server, desk.entry("orders", actor="client", client_id="below", **to_inventory))
    await desk.give("inventory", below)
    to_orders = {"target": "orders", "server_id": server["server_correlation_id"]}
    await desk.give("billing", desk.entry("billing", actor="client", client_id="root", **to_orders))
    rows["server_id"] = below["server_correlation_id"]
    return rows


LISTS = [
    "/v1/ledger/entries",
    "/v1/ledger/entries?q=root",
    "/v1/ledger/entries?client_correlation_id=below",
    "/v1/ledger/entries?outcome=COMMITTED",
    "/v1/ledger/entries?source=inventory",
    "/v1/ledger/initiated?source=orders",
    "/v1/ledger/initiated?source=inventory",
    "/v1/ledger/stalled",
    "/v1/ledger/stalled?source=billing",
    "/v1/ledger/in-doubt",
    "/v1/ledger/in-doubt?source=billing",
    "/v1/ledger/callback-gaps",
    "/v1/ledger/callback-gaps?source=billing",
    "/v1/ledger/unpaired?side=client-only",
    "/v1/ledger/unpaired?side=server-only",
    "/v1/ledger/unpaired?side=server-only&source=billing",
    "/v1/ledger/tree/root",
    "/v1/ledger/tree/below",
    "/v1/services",
]


async def test_a_reader_restricted_to_a_service_sees_no_other_ones_rows(desk: Desk) -> None:
    """SEC-5: in any list, filter, tree or export."""
    rows = await two_services(desk)
    for path in (*LISTS, f"/v1/transactions/{rows['server_id']}"):
        everything = await desk.ask(path, as_="audit")
        assert everything.status == 200, path
        for role in ("audit", "operations", "compliance"):
            reply = await desk.ask(path, as_=f"orders-{role}")
            assert reply.status == 200, path
            assert sources(reply.json) <= {"orders"}, path
    exported = await desk.ask("/v1/ledger/export?format=ndjson", as_="orders-compliance")
    assert {json.loads(line)["source"] for line in exported.body.splitlines()} == {"orders"}
    assert sources((await desk.ask("/v1/ledger/entries", as_="audit")).json) == {"orders", "billing", "inventory"}


def sources(value: Any) -> set[str]:
    """Every `source`, and every name of a service, anywhere in a document."""
    if isinstance(value, list):
        return set().union(*map(sources, value))
    if not isinstance(value, dict):
        return set()
    own = {value[key] for key in ("source", "name") if isinstance(value.get(key), str)}
    return own.union(*(sources(inner) for inner in value.values()))


async def test_a_restricted_reader_learns_nothing_of_calls_it_has_no_part_in(desk: Desk) -> None:
    """SEC-5."""
    rows = await two_services(desk)
    lonely = rows["inventory"][0]
    assert (await desk.ask(f"/v1/ledger/tree/{lonely['client_correlation_id']}", as_="orders-audit")).status == 404
    assert (await desk.ask(f"/v1/transactions/{lonely['entry_id']}", as_="orders-audit")).status == 404
    figures = (await desk.ask("/v1/ledger/summary", as_="orders-audit")).json["now"]
    assert (figures["in_doubt"], figures["callback_gaps"], figures["server_only"]) == (1, 1, 1)
    other = (await desk.ask("/v1/ledger/summary?source=billing", as_="orders-audit")).json["now"]
    assert set(other.values()) == {0, 1000}
    assert (await desk.ask("/v1/access", as_="orders-audit")).status == 403


async def test_a_restricted_operator_acts_on_its_own_service_only(desk: Desk) -> None:
    """SEC-5."""
    for deed in ("pull", "revoke", "restore"):
        path = f"/v1/services/{desk.services['billing']}/{deed}"
        assert (await desk.ask(path, as_="orders-operations", method="POST")).status == 404
    own = f"/v1/services/{desk.services['orders']}/revoke"
    assert (await desk.ask(own, as_="orders-operations", method="POST")).status == 200


async def test_other_methods_and_paths_are_closed_too(desk: Desk) -> None:
    """SEC-5."""
    assert (await desk.ask("/v1/sync", as_=None)).status == 401
    assert (await desk.ask("/v1/ledger/tree/x", as_="orders-sync", method="DELETE")).status == 403
    assert (await desk.ask("/v1/ledger/tree/x", as_="audit", method="DELETE")).status == 405
    assert (await desk.ask(f"/v1/{uuid4()}", as_="audit")).status == 404
