"""Everything in the ledger, newest first, by any of its fields."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

from gateway.central.page import states
from gateway.central.page.desk import Desk
from gateway.central.page.forms import ROWS, filled, pages, utc
from gateway.central.questions import filters_of, page_of, scope_of
from gateway.operator import parameters
from gateway.operator.calls import Call
from gateway.protocol.entries import OUTCOMES
from gateway.protocol.messages import Answer
from gateway.protocol.phases import Phase

if TYPE_CHECKING:
    from gateway.central.endpoints import Sources

FIELDS = ("source", "actor", "phase", "outcome", "from", "to", "endpoint", "q")
PHASES = [(phase.value, states.of_phase(phase).word) for phase in Phase]
ENDED = [(phase.value, states.of_phase(phase).word) for phase in Phase if phase in OUTCOMES]


async def search(desk: Desk, sources: Sources, call: Call) -> Answer:
    """`/search`"""
    given = filled(call.query, takes=(*FIELDS, "after"))
    wanted = filters_of(utc(given, "from", "to"), call)
    found = await page_of(sources.queries.entries(wanted, after=parameters.after(given), limit=ROWS))
    kept = {name: value for name, value in utc(given, "from", "to").items() if name != "after"}
    return desk.show(
        call,
        "search.html",
        "/search",
        rows=found.rows,
        more=pages("/search", given, found.next),
        given=given,
        filtered=bool(kept),
        export=urlencode(kept),
        may_export=call.token is not None and call.token.role == "compliance",
        services=await sources.services.all(scope=scope_of(call)),
        phases=PHASES,
        outcomes=ENDED,
    )
