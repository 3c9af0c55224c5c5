"""COR-3: the draft's fan-out, run for real: seven services with a gateway each, and one central ledger."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.fleet import Application, Central, comparable, gateway_of, own_database, sync_token, walk
from tests.e2e.harness import Gateway, eventually, free_port

CALLS = {"A": ["B1", "B2", "B3"], "B1": ["C1"], "B2": ["D1"], "B3": ["E1"], "C1": [], "D1": [], "E1": []}
ROOT = "client-corr-id1"


@dataclass
class Fleet:
    """All of it."""

    central: Central
    gateways: dict[str, Gateway]
    applications: dict[str, Application]

    async def fan_out(self, root: str) -> None:
        """A client asks A for its work, and registers its own side of that at the central ledger (COR-4)."""
        front = self.gateways["A"]
        registered = await front.register(root, path="/work")
        assert registered.status == 200, registered.body
        done = await front.confirm(root, registered.server_id, path="/work/confirm")
        assert (done.status, done.phase) == (200, "COMMITTED"), done.body
        intent = await front.intent(registered.server_id)
        token = sync_token("client")
        said = await self.central.ask("POST", "/v1/services", token=token, json={"name": "client"})
        row = {
            "client_correlation_id": root,
            "server_correlation_id": registered.server_id,
            "service_ledger_id": said.json["service_ledger_id"],
            "service_endpoint": "A:/work",
            "actor": "client",
            "source": "client",
            "target": "A",
            "parent_reference_id": root,
            "phase": "COMMITTED",
            "phase_1_timestamp": intent["phase_1_timestamp"],
            "phase_2_timestamp": intent["phase_2_timestamp"],
            "ttl_ms": intent["ttl_ms"],
            "outcome": "COMMITTED",
            "payload_ref": None,
            "sync_timestamp": None,
            "transaction_reference": None,
            "entry_id": root,
            "version": 1,
            "in_doubt": None,
            "callback": None,
        }
        told = await self.central.ask("POST", "/v1/ledger/entries", token=token, json=row)
        assert told.status == 200, told.body

    async def tree(self, root: str) -> Any:
        found = await self.central.ask("GET", f"/v1/ledger/tree/{root}")
        return found.json if found.status == 200 else None

    async def whole_tree(self, root: str) -> Any:
        """The tree, once all fourteen rows are in and nothing about them is to be remarked."""

        async def complete() -> Any:
            found = await self.tree(root)
            if found is None or found["rows"] != 14:
                return None
            return found if all(node["notes"] == [] for node in nodes(found["roots"][0])) else None

        return await eventually(complete)


@pytest.fixture
async def fleet(tmp_path: Path, postgres_url: str, template_database: str) -> AsyncIterator[Fleet]:
    async with contextlib.AsyncExitStack() as stack:
        central = Central(tmp_path, await stack.enter_async_context(own_database(postgres_url)), (*CALLS, "client"))
        stack.push_async_callback(central.aclose)
        applications: dict[str, Application] = {}
        gateways: dict[str, Gateway] = {}
        for name in reversed(CALLS):  # the called before their callers
            application = applications[name] = Application(name)
            await application.start()
            stack.push_async_callback(application.stop)
            egress = {target: (free_port(), gateways[target].url) for target in CALLS[name]}
            application.peers = [f"http://127.0.0.1:{port}" for port, _ in egress.values()]
            database = await stack.enter_async_context(own_database(postgres_url, template_database))
            gateways[name] = gateway_of(tmp_path, application, database, central, egress)
            stack.push_async_callback(gateways[name].aclose)
        await central.start()
        for gateway in gateways.values():  # one after the other: together they would keep each other waiting
            await gateway.start()
        yield Fleet(central, gateways, applications)


def shape(node: dict[str, Any]) -> Any:
    """service -> those it called."""
    return {node["server"]["source"]: [shape(child) for child in node["children"]]}


def nodes(node: dict[str, Any]) -> list[dict[str, Any]]:
    return [node, *(below for child in node["children"] for below in nodes(child))]


def by_name(found: Any) -> Any:
    """Siblings in any order."""
    return {name: sorted((by_name(child) for child in children), key=str) for name, children in found.items()}


EXPECTED = {"A": [{"B1": [{"C1": []}]}, {"B2": [{"D1": []}]}, {"B3": [{"E1": []}]}]}


@pytest.mark.slow
async def test_the_drafts_fan_out_gives_fourteen_rows_and_its_tree(fleet: Fleet) -> None:
    """COR-1, COR-2, COR-3, COR-4, LED-1 .. LED-4; then one service's sync stops, and a pull makes the tree whole."""
    await fleet.fan_out(ROOT)
    assert {name: app.worked for name, app in fleet.applications.items()} == dict.fromkeys(CALLS, 1)

    # COR-3: fourteen rows, and the tree rebuilt from the root.
    tree = await fleet.whole_tree(ROOT)
    (root,) = tree["roots"]
    assert by_name(shape(root)) == EXPECTED
    for node in nodes(root):
        client, server = node["client"], node["server"]
        # COR-1: the same pair of IDs on both sides.
        for field in ("client_correlation_id", "server_correlation_id"):
            assert client[field] == server[field] == node[field]
        assert (client["actor"], server["actor"]) == ("client", "server")
        assert (client["phase"], server["phase"]) == ("COMMITTED", "COMMITTED")
        # LED-1: the target on client rows alone; the endpoint names it.
        assert (client["target"], server["target"]) == (server["source"], None)
        assert client["service_endpoint"] == server["service_endpoint"] == f"{server['source']}:/work"
        # COR-2: a server row's parent is the ID it was called with; a client row's, the ID its service was called with.
        assert server["parent_reference_id"] == server["client_correlation_id"]
        for child in node["children"]:
            assert child["client"]["source"] == server["source"]
            assert child["client"]["parent_reference_id"] == node["client_correlation_id"]
        pair = await fleet.central.ask(
            "GET",
            f"/v1/ledger/pair?client_correlation_id={node['client_correlation_id']}"
            f"&server_correlation_id={node['server_correlation_id']}",
        )
        assert pair.json["confirmed"] is True
    assert root["client"]["parent_reference_id"] == root["client_correlation_id"] == ROOT

    # LED-2: central = local, for each of the seven.
    for name, gateway in fleet.gateways.items():
        local = await walk(lambda path, gateway=gateway: gateway.operator("GET", path), "/v1/ledger/entries")
        assert comparable(await fleet.central.entries(source=name)) == comparable(local)

    # B2 stops syncing: its two rows are missing, and what they would have been paired with says so.
    quiet = fleet.gateways["B2"]
    quiet.changes["ledger"] = {**quiet.changes["ledger"], "interval": "1h"}
    quiet.write_config()
    assert quiet.process is not None
    quiet.process.send_signal(signal.SIGHUP)
    await eventually(lambda: quiet.logs().count("registered at the central ledger") == 2)
    await fleet.fan_out("second-root")

    async def but_two() -> Any:
        found = await fleet.tree("second-root")
        return found if found is not None and found["rows"] >= 11 else None

    partial = await eventually(but_two)
    sides = {node["client"]["target"]: node for node in nodes(partial["roots"][0]) if node["client"] is not None}
    assert sides["B2"]["server"] is None
    assert "client-only" in sides["B2"]["notes"]
    assert "D1" not in sides

    async def lacking_client() -> Any:
        items = (await fleet.central.ask("GET", "/v1/ledger/unpaired?side=server-only")).json["items"]
        return [item for item in items if item["source"] == "D1"]

    assert len(await eventually(lacking_client)) == 1

    # LED-3: asked for now, with the service's own credentials.
    services = (await fleet.central.ask("GET", "/v1/services")).json["items"]
    (service,) = [item for item in services if item["name"] == "B2"]
    pulled = await fleet.central.ask("POST", f"/v1/services/{service['service_ledger_id']}/pull")
    assert pulled.status == 200, pulled.body
    assert pulled.json["stored"] == 2
    whole = await fleet.whole_tree("second-root")
    assert by_name(shape(whole["roots"][0])) == EXPECTED
