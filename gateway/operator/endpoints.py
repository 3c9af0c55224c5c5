"""What can be asked of a gateway, as a table: path, who may, and the function that answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from gateway.operator import in_doubt_endpoints, ledger_endpoints, obligation_endpoints, parameters, refusals
from gateway.operator.access import OPERATORS, READERS
from gateway.operator.calls import Call, Endpoint, json
from gateway.protocol.deliveries import STATES
from gateway.protocol.messages import Answer
from gateway.store.delivery_lists import DeliveryLists
from gateway.store.ledger import BadCursor, LedgerQueries, Page, Position

LIMIT = 100
LIMIT_MAX = 1000
INTENTS_LIMIT_MAX = 100  # whole intents carry all their events: a page of them stays within some megabytes

Readiness = Callable[[], Awaitable[tuple[bool, list[str]]]]  # ready, and if not, why not
MetricsSource = Callable[[], Awaitable[tuple[bytes, str]]]  # the exposition, and its content type


class Feed(Protocol):
    """The events in order of change (LED-6)."""

    def follow(self, after: str | None) -> AsyncIterator[tuple[str, dict[str, Any]] | None]:
        """(cursor, event) from a cursor on, or from now; None when nothing came for a while."""
        ...


@dataclass(frozen=True, slots=True)
class Sources:
    """Where answers come from."""

    ledger: LedgerQueries
    readiness: Readiness
    metrics: MetricsSource
    feed: Callable[[], Feed]
    deliveries: DeliveryLists
    obligations: obligation_endpoints.Desk
    reported: ledger_endpoints.ReportedRows
    verdicts: in_doubt_endpoints.Verdicts
    policy_of: Callable[[str, bytes], str | None]


async def healthz(sources: Sources, call: Call) -> Answer:
    """OPS-1: the process lives."""
    return json({"status": "ok"})


async def readyz(sources: Sources, call: Call) -> Answer:
    """OPS-1: whether new work is taken; if not, why not."""
    ready, reasons = await sources.readiness()
    if not ready:
        raise refusals.not_ready(reasons)
    return json({"ready": True, "reasons": []})


async def metrics(sources: Sources, call: Call) -> Answer:
    """OPS-1."""
    body, content_type = await sources.metrics()
    return Answer(200, [(b"Content-Type", content_type.encode())], body)


async def intent(sources: Sources, call: Call) -> Answer:
    """One intent, whole, by server correlation ID."""
    parameters.parse(call.query, takes=())
    server_id = parameters.path_server_id(call.segments["server_correlation_id"])
    found = await sources.ledger.intent(server_id)
    if found is None:
        raise refusals.intent_unknown()
    return json({**found, "deliveries": await sources.deliveries.of_intent(server_id)})


async def intents(sources: Sources, call: Call) -> Answer:
    """The intents of one client correlation ID, whole; several when several callers used it."""
    given = parameters.parse(call.query, takes=("client_correlation_id", "after", "limit"))
    client_id = parameters.client_id(given, "client_correlation_id")
    if client_id is None:
        raise refusals.parameter_missing("client_correlation_id")
    limit = parameters.limit(given, default=INTENTS_LIMIT_MAX, most=INTENTS_LIMIT_MAX)
    return _items(await _page(sources.ledger.intents(client_id, after=parameters.after(given), limit=limit)))


async def deliveries(sources: Sources, call: Call) -> Answer:
    """ACM-3: callbacks and hooks, in all states or one."""
    given = parameters.parse(call.query, takes=("state", "after", "limit"))
    state: Any = parameters.choice(given, "state", STATES)
    limit = parameters.limit(given, default=LIMIT, most=LIMIT_MAX)
    after = parameters.after(given)
    return _items(await _page(sources.deliveries.deliveries(state=state, after=after, limit=limit)))


async def callback_gap(sources: Sources, call: Call) -> Answer:
    """The callback-gap taxonomy: callbacks that nobody has acknowledged."""
    given = parameters.parse(call.query, takes=("after", "limit"))
    limit = parameters.limit(given, default=LIMIT, most=LIMIT_MAX)
    return _items(await _page(sources.deliveries.callback_gap(after=parameters.after(given), limit=limit)))


async def retry_delivery(sources: Sources, call: Call) -> Answer:
    """ACM-3: send a dead or waiting delivery again, now."""
    parameters.parse(call.query, takes=())
    delivery_id = parameters.path_server_id(call.segments["delivery_id"])
    if await sources.deliveries.retry(delivery_id, by=call.reader):
        found = await sources.deliveries.delivery(delivery_id)
        if found is not None:
            return json(found)
    if await sources.deliveries.delivery(delivery_id) is None:
        raise refusals.delivery_unknown()
    raise refusals.delivery_done()


async def events(sources: Sources, call: Call) -> Answer:
    """LED-6: the head of a stream of server-sent events."""
    given = parameters.parse(call.query, takes=("after",))
    cursor = call.last_event_id or parameters.after(given)
    try:
        Position.of(cursor)
    except BadCursor:
        raise parameters.bad_cursor() from None
    return Answer(200, [(b"Content-Type", b"text/event-stream"), (b"X-Accel-Buffering", b"no")])


async def event_stream(sources: Sources, call: Call) -> AsyncIterator[bytes]:
    """The events themselves; `id` is the cursor that `Last-Event-ID` resumes from."""
    given = parameters.parse(call.query, takes=("after",))
    yield b": following\n\n"
    async for found in sources.feed().follow(call.last_event_id or parameters.after(given)):
        if found is None:
            yield b": still here\n\n"
        else:
            cursor, event = found
            yield b"id: %b\nevent: %b\ndata: %b\n\n" % (cursor.encode(), event["code"].encode(), orjson.dumps(event))


ENDPOINTS: tuple[Endpoint[Sources], ...] = (
    Endpoint("/healthz", healthz, open=True),
    Endpoint("/readyz", readyz, open=True),
    Endpoint("/metrics", metrics, open=True),
    Endpoint("/v1/intents/{server_correlation_id}", intent, roles=READERS),
    Endpoint("/v1/intents", intents, roles=READERS),
    *ledger_endpoints.ENDPOINTS,
    *in_doubt_endpoints.ENDPOINTS,
    Endpoint("/v1/deliveries", deliveries, roles=READERS),
    Endpoint("/v1/deliveries/{delivery_id}/retry", retry_delivery, roles=OPERATORS, methods=("POST",)),
    Endpoint("/v1/callback-gaps", callback_gap, roles=READERS),
    *obligation_endpoints.ENDPOINTS,
    Endpoint("/v1/events", events, roles=READERS, methods=("GET",), stream=event_stream),
)


async def _page(reading: Awaitable[Page]) -> Page:
    try:
        return await reading
    except BadCursor:
        raise parameters.bad_cursor() from None


def _items(page: Page) -> Answer:
    return json({"items": page.rows, "next": page.next})
