"""The call tree, from rows alone: nothing is hidden, whatever the rows say (COR-1, COR-2, LED-5)."""

from __future__ import annotations

import random
from typing import Any

import orjson

from gateway.central import tree
from gateway.central.tree import build, redact
from tests.central.desk import entry, now

IDS = {name: f"00000000-0000-4000-8000-00000000000{index}" for index, name in enumerate(["client", *"abcd"])}


def call(caller: str, called: str, id_: str, parent: str | None = None, **members: Any) -> list[dict[str, Any]]:
    """Both registrations of one call."""
    ids = {"client_id": id_, "server_id": f"s-{id_}"}
    return [
        entry(caller, IDS.get(caller, "x"), actor="client", target=called, parent=parent, **ids, **members),
        entry(called, IDS.get(called, "y"), **ids, **members),
    ]


def shape(nodes: list[dict[str, Any]]) -> dict[str, Any]:
    return {node["client_correlation_id"]: shape(node["children"]) for node in nodes}


def test_the_drafts_fan_out_is_rebuilt_with_both_registrations_of_each_call() -> None:
    """COR-3: fourteen rows, seven calls, in whatever order the rows come."""
    calls = [("client", "a", "1", None), ("a", "b1", "2", "1"), ("a", "b2", "3", "1"), ("a", "b3", "4", "1"),
             ("b1", "c1", "5", "2"), ("b2", "d1", "6", "3"), ("b3", "e1", "7", "4")]  # fmt: skip
    rows = [row for one in calls for row in call(*one)]
    random.Random(5).shuffle(rows)
    roots = build("1", rows)
    assert shape(roots) == {"1": {"2": {"5": {}}, "3": {"6": {}}, "4": {"7": {}}}}
    stack, seen = list(roots), 0
    while stack:
        node = stack.pop()
        assert node["notes"] == []
        assert (node["client"]["actor"], node["server"]["actor"]) == ("client", "server")
        assert node["client"]["target"] == node["server"]["source"]
        seen += 2
        stack += node["children"]
    assert seen == len(rows) == 14


def test_a_side_that_is_missing_is_noted() -> None:
    """COR-1."""
    root, below = call("client", "a", "1"), call("a", "b", "2", "1")
    [node] = build("1", [root[0], *below])
    assert (node["server"], node["notes"]) == (None, [tree.CLIENT_ONLY])
    [node] = build("1", [root[1], *below])
    assert (node["client"], node["notes"]) == (None, [tree.SERVER_ONLY])
    assert shape([node]) == {"1": {"2": {}}}


def test_a_cycle_is_shown_once_around_and_named() -> None:
    """LED-5: A calls B, B calls A for the same call again."""
    rows = call("a", "b", "1", "2") + call("b", "a", "2", "1")
    [root] = build("1", rows)
    assert shape([root]) == {"1": {"2": {"1": {}}}}
    assert root["children"][0]["children"][0]["notes"] == [tree.CYCLE]


def test_a_call_that_names_itself_through_others_ends() -> None:
    """LED-5: a cycle that the root only leads to."""
    rows = call("client", "a", "1") + call("a", "b", "2", "1") + call("b", "a", "2", "2")
    roots = build("1", rows)
    assert orjson.dumps(roots)  # finite


def test_children_of_a_root_that_nobody_registered_are_shown_and_noted() -> None:
    """LED-5: missing parents are annotated, never hidden."""
    roots = build("1", call("a", "b", "2", "1") + call("a", "c", "3", "1"))
    assert shape(roots) == {"2": {}, "3": {}}
    assert all(tree.MISSING_PARENT in node["notes"] for node in roots)


def test_several_callers_with_the_same_id_are_several_roots() -> None:
    """LED-5: client IDs are only their caller's own. Children go where they were made."""
    one, other = call("client", "a", "1"), call("d", "b", "1")
    for row in other:
        row["server_correlation_id"] = "s-other"
    other[1]["entry_id"] = "s-other"
    roots = build("1", [*one, *other, *call("b", "c", "2", "1")])
    assert [(root["server"]["source"], list(shape(root["children"]))) for root in roots] == [("a", []), ("b", ["2"])]


def test_a_call_registered_more_than_once_keeps_every_row() -> None:
    """COR-1: exactly two rows; more are shown and noted."""
    rows = [*call("client", "a", "1"), call("client", "b", "1")[1]]
    [root] = build("1", rows)
    assert tree.REPEATED in root["notes"]
    assert len(root["extra"]) == 1


def test_a_client_that_never_heard_the_servers_id_stands_beside_the_server() -> None:
    """COR-1: not confirmed, and not hidden."""
    client, server = call("client", "a", "1")
    client["server_correlation_id"] = None
    [root] = build("1", [client, server])
    assert root["client"] is not None
    assert root["server"] is not None
    assert root["notes"] == [tree.UNCONFIRMED]


def test_a_server_row_below_without_its_clients_stands_beside_its_namesake() -> None:
    """LED-5: a second server registered the same child call."""
    rows = call("client", "a", "1") + call("a", "b", "2", "1")
    stray = call("a", "c", "2", "1")[1] | {"server_correlation_id": "s-stray", "entry_id": "s-stray"}
    [root] = build("1", [*rows, stray])
    assert [child["server_correlation_id"] for child in root["children"]] == ["s-2", "s-stray"]


def test_sides_that_disagree_are_noted() -> None:
    """COR-1."""
    client, server = call("client", "a", "1")
    client |= {"phase": "PROCESSING", "outcome": None}
    [root] = build("1", [client, server])
    assert (root["state"], root["notes"]) == ("COMMITTED", [tree.PHASES_DIFFER])


def test_a_chain_too_deep_to_write_is_cut_and_what_is_below_is_shown_beside() -> None:
    """LED-5: bounded, and still complete."""
    rows = call("a", "a", "0") + [row for n in range(1, 300) for row in call("a", "a", str(n), str(n - 1))]
    roots = build("0", rows)
    assert orjson.dumps(roots)
    found: set[str] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        found.add(node["client_correlation_id"])
        stack += node["children"]
    assert found == {str(n) for n in range(300)}


def test_a_service_sees_its_own_rows_and_of_others_only_that_they_are() -> None:
    """SEC-5: restricted to `b`, in client -> a -> b -> c and a -> d."""
    rows = call("client", "a", "1") + call("a", "b", "2", "1") + call("b", "c", "3", "2") + call("a", "d", "4", "1")
    [root] = redact(build("1", rows), "b")
    assert root == {"redacted": True, "children": root["children"]}
    [middle] = root["children"]
    assert (middle["client"], middle["server"]["source"]) == ({"redacted": True, "actor": "client"}, "b")
    [leaf] = middle["children"]
    assert (leaf["client"]["source"], leaf["server"]) == ("b", {"redacted": True, "actor": "server"})
    assert redact(build("4", call("a", "d", "4", "1")), "b") == []
    said = orjson.dumps([root]).decode()
    assert '"source":"a"' not in said
    assert '"4"' not in said


def test_what_hangs_on_a_cycle_is_told_once_wherever_the_cycle_is_entered() -> None:
    """LED-5: here the call below it is older than all of the cycle."""
    rows = call("a", "b", "3", "1", at=now(60)) + call("a", "b", "1", "2") + call("b", "a", "2", "1")
    roots = build("elsewhere", rows)
    told, stack = [], list(roots)
    while stack:
        told.append(stack.pop())
        stack += told[-1]["children"]
    assert sorted(node["client_correlation_id"] for node in told if tree.CYCLE not in node["notes"]) == ["1", "2", "3"]
    assert not any(tree.MISSING_PARENT in node["notes"] for node in told)
