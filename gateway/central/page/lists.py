"""What needs somebody: stalled, in doubt, unpaired, and callbacks that nobody acknowledged; oldest or newest first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateway.central.page.desk import Desk
from gateway.central.page.forms import ROWS, filled, pages
from gateway.central.questions import page_of, scope_of
from gateway.operator import parameters
from gateway.operator.calls import Call
from gateway.protocol.messages import Answer
from gateway.store.ledger import Page

if TYPE_CHECKING:
    from gateway.central.endpoints import Sources

SIDES = {"client-only": "Only the client registered", "server-only": "Only the server registered"}
GAPS = {"pending": "Still being tried", "dead": "Given up"}
REASONS = {
    "waiting-past-ttl": "past its TTL",
    "ttl-expired": "expired",
    "processing-too-long": "takes too long",
}


@dataclass(frozen=True, slots=True)
class Words:
    """How a list explains itself."""

    title: str
    about: str
    none: str
    none_about: str


STALLED = Words(
    "Stalled",
    "Intents that do not move on: never confirmed in time, or processing for longer than they should.",
    "Nothing is stalled",
    "Every intent was confirmed in time or is still within its TTL, and nothing has been processing for too long.",
)
IN_DOUBT = Words(
    "In doubt",
    "Sent to a service without an answer: each may have taken effect, and stays so until a probe, a late answer or an "
    "operator settles it (twophp in-doubt resolve, at the gateway).",
    "Nothing is in doubt",
    "Every request that was sent had a known outcome.",
)
UNPAIRED = Words(
    "Unpaired",
    "Every call is registered twice, by its client and by its server. These have only one of the two.",
    "Every call has both registrations",
    "Where one is missing, its service has usually not synced yet: look at Services, and pull.",
)
CALLBACK_GAPS = Words(
    "Callback gaps",
    "Outcomes whose callback nobody has acknowledged.",
    "Every callback was acknowledged",
    "Those that are not show up here while they are tried again, and stay when they were given up.",
)


async def stalled(desk: Desk, sources: Sources, call: Call) -> Answer:
    """`/stalled`"""
    given = filled(call.query, takes=("source", "after"))
    found = await page_of(sources.queries.stalled(**_place(given, call)))
    return await _shown(desk, sources, call, "/stalled", given, found, STALLED)


async def in_doubt(desk: Desk, sources: Sources, call: Call) -> Answer:
    """`/in-doubt`"""
    given = filled(call.query, takes=("source", "after"))
    found = await page_of(sources.queries.in_doubt(**_place(given, call)))
    return await _shown(desk, sources, call, "/in-doubt", given, found, IN_DOUBT)


async def unpaired(desk: Desk, sources: Sources, call: Call) -> Answer:
    """`/unpaired`"""
    given = filled(call.query, takes=("side", "source", "after"))
    side = parameters.choice(given, "side", SIDES) or "client-only"
    found = await page_of(sources.queries.unpaired(side, **_place(given, call)))
    return await _shown(desk, sources, call, "/unpaired", given, found, UNPAIRED, tabs=("side", SIDES, side))


async def callback_gaps(desk: Desk, sources: Sources, call: Call) -> Answer:
    """`/callback-gaps`"""
    given = filled(call.query, takes=("state", "source", "after"))
    state = parameters.choice(given, "state", GAPS) or "pending"
    found = await page_of(sources.queries.callback_gaps(state=state, **_place(given, call)))
    return await _shown(desk, sources, call, "/callback-gaps", given, found, CALLBACK_GAPS, tabs=("state", GAPS, state))


def _place(given: Mapping[str, str], call: Call) -> dict[str, Any]:
    return {
        "source": parameters.service_name(given, "source"),
        "scope": scope_of(call),
        "after": parameters.after(given),
        "limit": ROWS,
    }


async def _shown(
    desk: Desk,
    sources: Sources,
    call: Call,
    here: str,
    given: Mapping[str, str],
    found: Page,
    words: Words,
    *,
    tabs: tuple[str, Mapping[str, str], str] | None = None,
) -> Answer:
    return desk.show(
        call,
        "list.html",
        here,
        rows=found.rows,
        more=pages(here, given, found.next),
        given=given,
        words=words,
        tabs=tabs,
        reasons=REASONS,
        services=await sources.services.all(scope=scope_of(call)),
    )
