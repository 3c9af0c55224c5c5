"""One transaction: both registrations, and its whole story if its gateway can be asked now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.central.page import states, timeline
from gateway.central.page.desk import Desk
from gateway.central.questions import scope_of
from gateway.operator import parameters
from gateway.operator.calls import Call
from gateway.protocol.messages import Answer

if TYPE_CHECKING:
    from gateway.central.endpoints import Sources


async def transaction(desk: Desk, sources: Sources, call: Call) -> Answer:
    """`/transactions/{server id}`"""
    parameters.parse(call.query, takes=())
    server_id = parameters.client_id(call.segments, "server_correlation_id")
    assert server_id is not None, "a segment is never left out"
    found = await sources.puller.intent(server_id, scope_of(call))
    return desk.show(call, "transaction.html", "", **_values(found))


def _values(found: dict[str, Any]) -> dict[str, Any]:
    entries, intent, why = found["entries"], found["intent"], found["why"]
    steps = timeline.of_entries(entries)
    if intent is not None:
        try:
            steps = timeline.of_intent(intent)
        except (KeyError, TypeError):  # it came from outside
            intent, why = None, "its gateway tells it in a form that this release does not know"
    sides = {entry["actor"]: entry for entry in entries}
    return {
        "server_id": found["server_correlation_id"],
        "client": sides.get("client"),
        "server": sides.get("server"),
        "intent": intent,
        "why": why,
        "in_doubt": _doubt(intent, entries),
        "state": states.of_entry(intent or sides.get("server") or sides.get("client")),
        "steps": steps,
    }


def _doubt(intent: dict[str, Any] | None, entries: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Since when, and why if the gateway says so."""
    if intent is not None:
        told: dict[str, Any] | None = intent.get("in_doubt")
        return told
    since = next((entry["in_doubt"] for entry in entries if entry["in_doubt"]), None)
    return None if since is None else {"since": since, "reason": None}
