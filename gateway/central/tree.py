"""The call tree: entries in, tree out (COR-1, COR-2, LED-5). Pure: no SQL, no clock, no network.

A call is a pair of correlation IDs with two registrations: its client's and its server's. A call's children are the
calls whose client row names its client ID as parent. What does not fit is noted, never left out: a side that is
missing, a cycle, a parent that nobody registered, an ID that was registered more than once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Entry = dict[str, Any]
Node = dict[str, Any]

CLIENT_ONLY = "client-only"
SERVER_ONLY = "server-only"
CYCLE = "cycle"
REPEATED = "registered-more-than-once"
PHASES_DIFFER = "phases-differ"
AMBIGUOUS = "ambiguous-parent"
MISSING_PARENT = "missing-parent"
UNCONFIRMED = "pair-unconfirmed"  # the client's row does not name the server's ID
TARGET_DIFFERS = "target-differs"  # the server that registered it is not the one that the client called
TOO_DEEP = "too-deep"  # what is below stands beside the roots

DEPTH_MAX = 100  # far above any chain of services; orjson writes no deeper than 254 levels, and a call has two


@dataclass(slots=True)
class Call:
    """The registrations of one pair of IDs."""

    client_id: str
    server_id: str | None
    clients: list[Entry] = field(default_factory=list)
    servers: list[Entry] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def parent_id(self) -> str | None:
        """The call it was made for; None for a root, and where only the server's row is known."""
        if not self.clients or self.clients[0]["parent_reference_id"] == self.client_id:
            return None
        parent: str = self.clients[0]["parent_reference_id"]
        return parent

    @property
    def caller(self) -> str | None:
        """The service that made it."""
        return self.clients[0]["source"] if self.clients else None


def build(root_id: str, entries: Iterable[Entry]) -> list[Node]:
    """The trees below an ID: one root per call that has it, several when several callers chose the same ID.

    What no root leads to stands beside them, and says so if its parent is not there. Each call is told once, but for
    where a cycle closes and where a tree is cut.
    """
    calls = _calls(entries)
    by_id: dict[str, list[Call]] = {}
    for call in calls:
        by_id.setdefault(call.client_id, []).append(call)
    below: dict[int, list[Call]] = {}
    parents: dict[int, int] = {}
    for call in calls:
        parent = _parent(call, by_id)
        if parent is not None:
            below.setdefault(id(parent), []).append(call)
            parents[id(call)] = id(parent)
    shown: set[int] = set()
    roots = [_node(call, below, (), shown) for call in by_id.get(root_id, ())]
    while left := {id(call): call for call in calls if id(call) not in shown}:
        # From the top of what is left; where there is none it is a cycle, which is entered anywhere.
        tops = [call for key, call in left.items() if parents.get(key) not in left] or [next(iter(left.values()))]
        for call in tops:
            if call.parent_id is not None and call.parent_id not in by_id:
                call.notes.append(MISSING_PARENT)
            roots.append(_node(call, below, (), shown))
    return roots


def _calls(entries: Iterable[Entry]) -> list[Call]:
    """Registrations by pair, in order of time."""
    calls: dict[tuple[str, str | None], Call] = {}
    ordered = sorted(entries, key=lambda entry: (entry["phase_1_timestamp"], entry["actor"], entry["entry_id"]))
    for entry in ordered:
        key = (entry["client_correlation_id"], entry["server_correlation_id"])
        call = calls.setdefault(key, Call(*key))
        (call.clients if entry["actor"] == "client" else call.servers).append(entry)
    for unanswered in [call for call in calls.values() if call.server_id is None]:
        # A client that never heard the server's ID: if only one server knows the call, it is that one.
        served = [one for one in calls.values() if one.client_id == unanswered.client_id and one.servers]
        if len(served) == 1 and not served[0].clients:
            served[0].clients = unanswered.clients
            served[0].notes.append(UNCONFIRMED)
            del calls[unanswered.client_id, None]
    return list(calls.values())


def _parent(call: Call, by_id: Mapping[str, Sequence[Call]]) -> Call | None:
    """The call it was made for, and of several with that ID the one that was served by who made it."""
    parent_id, caller = call.parent_id, call.caller
    if not call.clients:  # only the server's row is here: it goes where another registration of the same ID goes
        told = next((one for one in by_id[call.client_id] if one.parent_id is not None), None)
        if told is None:
            return None
        parent_id, caller = told.parent_id, told.caller
    candidates = by_id.get(parent_id, ()) if parent_id is not None else ()
    if not candidates:
        return None
    served = [one for one in candidates if any(server["source"] == caller for server in one.servers)]
    if len(served) != 1 and len(candidates) > 1:
        call.notes.append(AMBIGUOUS)
    return (served or list(candidates))[0]


def _node(call: Call, below: Mapping[int, Sequence[Call]], above: tuple[int, ...], shown: set[int]) -> Node:
    client = call.clients[0] if call.clients else None
    server = call.servers[0] if call.servers else None
    known = server or client
    assert known is not None
    node: Node = {
        "client_correlation_id": call.client_id,
        "server_correlation_id": call.server_id,
        "client": client,
        "server": server,
        "extra": call.clients[1:] + call.servers[1:],
        "state": known["phase"],
        "in_doubt": any(entry["in_doubt"] is not None for entry in (*call.clients, *call.servers)),
        "notes": _notes(call),
        "children": [],
    }
    if id(call) in above:
        node["notes"].append(CYCLE)
    elif len(above) == DEPTH_MAX:
        node["notes"].append(TOO_DEEP)
    else:
        shown.add(id(call))
        path = (*above, id(call))
        node["children"] = [
            _node(child, below, path, shown)
            for child in below.get(id(call), ())
            if id(child) not in shown or id(child) in path
        ]
    return node


def _notes(call: Call) -> list[str]:
    notes = list(dict.fromkeys(call.notes))
    if not call.servers:
        notes.append(CLIENT_ONLY)
    if not call.clients:
        notes.append(SERVER_ONLY)
    if len(call.clients) > 1 or len(call.servers) > 1:
        notes.append(REPEATED)
    if call.clients and call.servers and call.clients[0]["phase"] != call.servers[0]["phase"]:
        notes.append(PHASES_DIFFER)
    if any(client["target"] != server["source"] for client in call.clients for server in call.servers):
        notes.append(TARGET_DIFFERS)
    return notes


def redact(roots: Sequence[Node], service: str) -> list[Node]:
    """The trees as one service may see them: its own registrations in full, of others only that they are there.

    A call in which it has no part keeps its place, without anything said of it, where one of its own stands below.
    """
    return [seen for root in roots if (seen := _redacted(root, service)) is not None]


def _redacted(node: Node, service: str) -> Node | None:
    children = [seen for child in node["children"] if (seen := _redacted(child, service)) is not None]
    sides = (node["client"], node["server"], *node["extra"])
    if not any(side is not None and side["source"] == service for side in sides):
        return {"redacted": True, "children": children} if children else None

    def own(side: Entry | None) -> Entry | None:
        if side is None or side["source"] == service:
            return side
        return {"redacted": True, "actor": side["actor"]}

    mine = next(side for side in sides if side is not None and side["source"] == service)
    return {
        **node,
        "client": own(node["client"]),
        "server": own(node["server"]),
        "extra": [own(side) for side in node["extra"]],
        "state": mine["phase"],
        "in_doubt": mine["in_doubt"] is not None,
        "notes": [note for note in node["notes"] if note != PHASES_DIFFER],
        "children": children,
    }
