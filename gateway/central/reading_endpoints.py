"""Reading the central ledger (LED-5): every answer within what the reader's token may see (SEC-5)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from gateway.central import refusals
from gateway.central.queries import SIDES
from gateway.central.questions import FILTERS, filters_of, limit, moment, page_of, scope_of
from gateway.operator import parameters
from gateway.operator import refusals as common
from gateway.operator.access import READERS
from gateway.operator.calls import Call, Endpoint, json
from gateway.protocol.messages import Answer

if TYPE_CHECKING:
    from gateway.central.endpoints import Sources

SUMMARY_DAYS_MAX = 92
AN_HOUR = timedelta(hours=1)
AUDITORS = frozenset({"audit", "compliance"})


async def services(sources: Sources, call: Call) -> Answer:
    """LED-4: who registers here, and how long ago each was heard of."""
    parameters.parse(call.query, takes=())
    return json({"items": await sources.services.all(scope=scope_of(call)), "next": None})


async def entries(sources: Sources, call: Call) -> Answer:
    """Entries, newest first."""
    given = parameters.parse(call.query, takes=(*FILTERS, "after", "limit"))
    wanted = filters_of(given, call)
    page = await page_of(sources.queries.entries(wanted, after=parameters.after(given), limit=limit(given)))
    return json({"entries": page.rows, "next": page.next})


async def initiated(sources: Sources, call: Call) -> Answer:
    """LED-5: everything a service initiated, newest first."""
    given = parameters.parse(call.query, takes=("source", "from", "to", "after", "limit"))
    if parameters.service_name(given, "source") is None:
        raise common.parameter_missing("source")
    wanted = filters_of({**given, "actor": "client"}, call)
    page = await page_of(sources.queries.entries(wanted, after=parameters.after(given), limit=limit(given)))
    return json({"entries": page.rows, "next": page.next})


async def tree(sources: Sources, call: Call) -> Answer:
    """LED-5: the full tree from a root, or from any call in it."""
    parameters.parse(call.query, takes=())
    client_id = parameters.client_id(call.segments, "client_correlation_id")
    assert client_id is not None
    found = await sources.queries.tree(client_id, scope=scope_of(call))
    if found is None:
        raise refusals.tree_unknown()
    return json(found)


async def pair(sources: Sources, call: Call) -> Answer:
    """COR-1: whether both sides registered a call."""
    given = parameters.parse(call.query, takes=("client_correlation_id", "server_correlation_id"))
    client_id = parameters.client_id(given, "client_correlation_id")
    server_id = parameters.client_id(given, "server_correlation_id")
    if client_id is None or server_id is None:
        raise common.parameter_missing("client_correlation_id" if client_id is None else "server_correlation_id")
    return json(await sources.queries.pair(client_id, server_id, scope=scope_of(call)))


async def stalled(sources: Sources, call: Call) -> Answer:
    """LED-5: what should have gone on and did not, with ages."""
    given = parameters.parse(call.query, takes=("source", "after", "limit"))
    page = await page_of(
        sources.queries.stalled(
            source=parameters.service_name(given, "source"),
            scope=scope_of(call),
            after=parameters.after(given),
            limit=limit(given),
        )
    )
    return json({"items": page.rows, "next": page.next})


async def unpaired(sources: Sources, call: Call) -> Answer:
    """LED-5: what lacks its twin."""
    given = parameters.parse(call.query, takes=("side", "source", "after", "limit"))
    side = parameters.choice(given, "side", SIDES)
    if side is None:
        raise common.parameter_missing("side")
    page = await page_of(
        sources.queries.unpaired(
            side,
            source=parameters.service_name(given, "source"),
            scope=scope_of(call),
            after=parameters.after(given),
            limit=limit(given),
        )
    )
    return json({"items": page.rows, "next": page.next})


async def callback_gaps(sources: Sources, call: Call) -> Answer:
    """Callbacks that nobody has acknowledged."""
    given = parameters.parse(call.query, takes=("state", "source", "after", "limit"))
    page = await page_of(
        sources.queries.callback_gaps(
            state=parameters.choice(given, "state", ("pending", "dead")),
            source=parameters.service_name(given, "source"),
            scope=scope_of(call),
            after=parameters.after(given),
            limit=limit(given),
        )
    )
    return json({"items": page.rows, "next": page.next})


async def in_doubt(sources: Sources, call: Call) -> Answer:
    """REC-2 across services."""
    given = parameters.parse(call.query, takes=("source", "after", "limit"))
    page = await page_of(
        sources.queries.in_doubt(
            source=parameters.service_name(given, "source"),
            scope=scope_of(call),
            after=parameters.after(given),
            limit=limit(given),
        )
    )
    return json({"items": page.rows, "next": page.next})


async def summary(sources: Sources, call: Call) -> Answer:
    """Server rows by outcome over time, and how much needs a look now."""
    given = parameters.parse(call.query, takes=("from", "to", "source"))
    until = moment(given, "to") or datetime.now(UTC)  # for display: nothing is decided by it
    since = moment(given, "from") or until - AN_HOUR
    if not timedelta(0) < until - since <= timedelta(days=SUMMARY_DAYS_MAX):
        raise refusals.range_too_long(SUMMARY_DAYS_MAX)
    source = parameters.service_name(given, "source")
    return json(await sources.queries.summary(since, until, source=source, scope=scope_of(call)))


async def transaction(sources: Sources, call: Call) -> Answer:
    """One transaction: its rows, and its gateway's own account of it."""
    parameters.parse(call.query, takes=())
    server_id = parameters.client_id(call.segments, "server_correlation_id")
    assert server_id is not None
    return json(await sources.puller.intent(server_id, scope_of(call)))


async def accesses(sources: Sources, call: Call) -> Answer:
    """SEC-5: who looked at what, newest first."""
    given = parameters.parse(call.query, takes=("after", "limit"))
    if scope_of(call) is not None:
        raise refusals.restricted()
    page = await page_of(sources.trail.read(after=parameters.after(given), limit=limit(given)))
    return json({"items": page.rows, "next": page.next})


ENDPOINTS: tuple[Endpoint[Sources], ...] = (
    Endpoint("/v1/services", services, roles=READERS),
    Endpoint("/v1/ledger/entries", entries, roles=READERS),
    Endpoint("/v1/ledger/initiated", initiated, roles=READERS),
    Endpoint("/v1/ledger/tree/{client_correlation_id}", tree, roles=READERS),
    Endpoint("/v1/ledger/pair", pair, roles=READERS),
    Endpoint("/v1/ledger/stalled", stalled, roles=READERS),
    Endpoint("/v1/ledger/unpaired", unpaired, roles=READERS),
    Endpoint("/v1/ledger/callback-gaps", callback_gaps, roles=READERS),
    Endpoint("/v1/ledger/in-doubt", in_doubt, roles=READERS),
    Endpoint("/v1/ledger/summary", summary, roles=READERS),
    Endpoint("/v1/transactions/{server_correlation_id}", transaction, roles=READERS),
    Endpoint("/v1/access", accesses, roles=AUDITORS),
)
