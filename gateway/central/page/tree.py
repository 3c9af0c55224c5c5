"""The call tree of a client correlation ID, as a picture and as a list (LED-5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gateway.central import refusals
from gateway.central.page import drawing
from gateway.central.page.desk import Desk
from gateway.central.page.drawing import Branch
from gateway.central.page.forms import filled
from gateway.central.questions import scope_of
from gateway.operator import parameters
from gateway.operator.calls import Call
from gateway.protocol.messages import Answer

if TYPE_CHECKING:
    from gateway.central.endpoints import Sources

LISTED_MAX = 2_000  # calls in the list below the picture
PARAMETER = "client_correlation_id"
NOTES: Mapping[str, str] = {
    "client-only": "no server registration",
    "server-only": "no client registration",
    "cycle": "cycle: leads back to a call above",
    "registered-more-than-once": "registered more than once",
    "phases-differ": "the two sides differ",
    "target-differs": "served by another than was called",
    "ambiguous-parent": "several calls have its parent's ID",
    "pair-unconfirmed": "the client never heard the server's ID",
    "too-deep": "too deep: what is below stands beside the roots",
    "missing-parent": "its parent is not in this ledger",
}


async def look_up(desk: Desk, sources: Sources, call: Call) -> Answer:
    """`/tree`: the form, or the tree of its field."""
    given = filled(call.query, takes=(PARAMETER,))
    client_id = parameters.client_id(given, PARAMETER)
    if client_id is None:
        return desk.show(call, "tree.html", "/tree", client_id=None, found=None)
    return await _shown(desk, sources, call, client_id)


async def tree(desk: Desk, sources: Sources, call: Call) -> Answer:
    """`/tree/{client id}`"""
    parameters.parse(call.query, takes=())
    client_id = parameters.client_id(call.segments, PARAMETER)
    assert client_id is not None, "a segment is never left out"
    return await _shown(desk, sources, call, client_id)


async def _shown(desk: Desk, sources: Sources, call: Call, client_id: str) -> Answer:
    found = await sources.queries.tree(client_id, scope=scope_of(call))
    if found is None:
        raise refusals.tree_unknown()
    roots = branches(found["roots"])
    drawn = drawing.draw(roots)
    return desk.show(
        call,
        "tree.html",
        "/tree",
        client_id=client_id,
        found=found,
        drawing=drawn,
        outline=outline(roots),
        notes=[NOTES.get(note, note) for note in found["notes"]],
        card=drawing,
    )


def branches(nodes: Sequence[Mapping[str, Any]]) -> list[Branch]:
    """The ledger's nodes as what can be drawn. No recursion: a chain may be deep."""
    roots: list[Branch] = []
    waiting = [(node, roots) for node in reversed(nodes)]
    while waiting:
        node, place = waiting.pop()
        branch = Branch(
            client_id=str(node.get("client_correlation_id") or ""),
            client=node.get("client"),
            server=node.get("server"),
            notes=tuple(NOTES.get(note, note) for note in node.get("notes", ())),
        )
        place.append(branch)
        waiting.extend((child, branch.children) for child in reversed(node.get("children", ())))
    return roots


def outline(roots: Sequence[Branch]) -> list[tuple[int, Branch]]:
    """Each call after its caller, with its depth; as many as a page can hold."""
    found: list[tuple[int, Branch]] = []
    waiting = [(0, branch) for branch in reversed(roots)]
    while waiting and len(found) < LISTED_MAX:
        depth, branch = waiting.pop()
        found.append((depth, branch))
        waiting.extend((depth + 1, child) for child in reversed(branch.children))
    return found
