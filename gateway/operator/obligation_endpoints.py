"""Obligations for whoever has the token: reserve, commit, roll back, and look (OBL-1 to OBL-4).

`operations` uses them, all readers see them; a payload is shown to `operations` alone, and only while it is Reserved.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol
from uuid import UUID

from gateway.operator import parameters, refusals
from gateway.operator.access import OPERATORS, READERS
from gateway.operator.calls import Call, Endpoint, json
from gateway.protocol.deadlines import iso
from gateway.protocol.messages import Answer
from gateway.protocol.obligations import PAYLOAD_BYTES_MAX, STATES, BadObligation, ObligationError, Scan, Settled
from gateway.protocol.records import Sealed
from gateway.store.ledger import BadCursor, Page

LIMIT = 100
LIMIT_MAX = 1000
BODY_BYTES_MAX = PAYLOAD_BYTES_MAX + 16 * 1024  # flow, key and trace besides, and the same JSON written with spaces

Document = dict[str, Any]


class Tracker(Protocol):
    """Who reserves."""

    async def reserve(self, flow: str, key: str, payload: Any, trace_id: str, *, by: str) -> UUID:
        """Take a slot for a side effect."""
        ...

    async def commit(self, obligation: UUID, trace_id: str | None, *, by: str) -> Settled:
        """Make it permanent."""
        ...

    async def rollback(self, obligation: UUID, trace_id: str | None, *, by: str) -> Settled:
        """Give it back."""
        ...

    def reveal(self, obligation: UUID, payload: Sealed) -> Any:
        """The payload of a reservation that is still open."""
        ...


class Lists(Protocol):
    """Who knows them all."""

    async def obligations(self, *, state: Any, flow: str | None, after: str | None, limit: int) -> Page:
        """Those of one state or flow, or all."""
        ...

    async def obligation(self, wanted: UUID) -> tuple[Document, Sealed | None] | None:
        """One with its events, and its payload while it is Reserved."""
        ...

    async def events(self, *, after: str | None, limit: int) -> Page:
        """Every event, in order of change."""
        ...


class Desk(Protocol):
    """What these endpoints work with."""

    @property
    def lists(self) -> Lists:
        """Who knows them all."""
        ...

    async def tracker(self) -> Tracker:
        """Who reserves; StoreAway until the store has been opened."""
        ...

    async def last_scan(self) -> Scan:
        """OBL-005."""
        ...


class Sources(Protocol):
    """Where answers come from."""

    @property
    def obligations(self) -> Desk:
        """What these endpoints work with."""
        ...


async def reserve(sources: Sources, call: Call) -> Answer:
    """OBL-1."""
    parameters.parse(call.query, takes=())
    given = call.document(takes=("flow", "key", "payload", "trace_id"), needs=("flow", "key", "trace_id"))
    try:
        tracker = await sources.obligations.tracker()
        made = await tracker.reserve(
            given["flow"], given["key"], given.get("payload"), given["trace_id"], by=call.reader
        )
    except BadObligation as error:
        raise refusals.member_invalid(error.member, error.takes) from None
    except ObligationError as error:
        raise refusals.obligation(error) from None
    return json(await _document(sources, call, made), status=201)


async def commit(sources: Sources, call: Call) -> Answer:
    """OBL-1."""
    return await _settle(call, (await sources.obligations.tracker()).commit)


async def rollback(sources: Sources, call: Call) -> Answer:
    """OBL-1: a second time succeeds, changes nothing and says so in `code` (OBL-2)."""
    return await _settle(call, (await sources.obligations.tracker()).rollback)


async def _settle(call: Call, settle: Callable[..., Awaitable[Settled]]) -> Answer:
    parameters.parse(call.query, takes=())
    obligation = _path_id(call)
    trace_id = call.document(takes=("trace_id",)).get("trace_id") if call.body else None
    try:
        settled = await settle(obligation, trace_id, by=call.reader)
    except BadObligation as error:
        raise refusals.member_invalid(error.member, error.takes) from None
    except ObligationError as error:
        raise refusals.obligation(error) from None
    answer = {"id": str(settled.id), "state": settled.state, "changed": settled.code is None}
    return json(answer if settled.code is None else {**answer, "code": settled.code})


async def obligation(sources: Sources, call: Call) -> Answer:
    """One of them, with its events."""
    parameters.parse(call.query, takes=())
    return json(await _document(sources, call, _path_id(call)))


async def obligations(sources: Sources, call: Call) -> Answer:
    """OBL-4: the tracker's and the gateway's own, in the order of reservation, and the last leak scan (OBL-005)."""
    given = parameters.parse(call.query, takes=("state", "flow", "after", "limit"))
    state: Any = parameters.choice(given, "state", STATES)
    flow = parameters.flow(given, "flow")
    limit = parameters.limit(given, default=LIMIT, most=LIMIT_MAX)
    reading = sources.obligations.lists.obligations(state=state, flow=flow, after=parameters.after(given), limit=limit)
    page = await _page(reading)
    return json({"items": page.rows, "next": page.next, "scan": _scan(await sources.obligations.last_scan())})


async def obligation_events(sources: Sources, call: Call) -> Answer:
    """OBL-3: every event, in order of change."""
    given = parameters.parse(call.query, takes=("after", "limit"))
    limit = parameters.limit(given, default=LIMIT, most=LIMIT_MAX)
    page = await _page(sources.obligations.lists.events(after=parameters.after(given), limit=limit))
    return json({"items": page.rows, "next": page.next})


async def _document(sources: Sources, call: Call, wanted: UUID) -> Document:
    found = await sources.obligations.lists.obligation(wanted)
    if found is None:
        raise refusals.obligation(ObligationError("ERR_OBL_NOT_FOUND"))
    document, sealed = found
    if sealed is not None and call.token is not None and call.token.role in OPERATORS:
        document = {**document, "payload": (await sources.obligations.tracker()).reveal(wanted, sealed)}
    return document


async def _page(reading: Awaitable[Page]) -> Page:
    try:
        return await reading
    except BadCursor:
        raise parameters.bad_cursor() from None


def _path_id(call: Call) -> UUID:
    return parameters.path_id(call.segments["obligation_id"], refusals.obligation(ObligationError("ERR_OBL_NOT_FOUND")))


def _scan(scan: Scan) -> Document:
    return {
        "code": "OBL-005",
        "completed_at": None if scan.completed_at is None else iso(scan.completed_at),
        "leaked": scan.leaked,
        "scans_total": scan.scans_total,
        "leaked_total": scan.leaked_total,
    }


ENDPOINTS: tuple[Endpoint[Any], ...] = (
    Endpoint("/v1/obligations", obligations, roles=READERS),
    Endpoint("/v1/obligations", reserve, roles=OPERATORS, methods=("POST",), body_max_bytes=BODY_BYTES_MAX),
    Endpoint("/v1/obligations/{obligation_id}", obligation, roles=READERS),
    Endpoint("/v1/obligations/{obligation_id}/commit", commit, roles=OPERATORS, methods=("POST",), body_max_bytes=4096),
    Endpoint(
        "/v1/obligations/{obligation_id}/rollback", rollback, roles=OPERATORS, methods=("POST",), body_max_bytes=4096
    ),
    Endpoint("/v1/obligation-events", obligation_events, roles=READERS),
)
