"""What can be asked of the central ledger, as a table: path, who may, and the function that answers (SEC-5)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import orjson

from gateway.central import export, reading_endpoints, writing_endpoints
from gateway.central.ingest import Ingest
from gateway.central.live import Live
from gateway.central.pull import Puller
from gateway.central.queries import CentralQueries
from gateway.central.questions import scope_of
from gateway.central.services import Services
from gateway.central.trail import Trail
from gateway.operator import parameters, refusals
from gateway.operator.access import READERS, Access
from gateway.operator.calls import Call, Endpoint, json
from gateway.operator.endpoints import MetricsSource, Readiness
from gateway.protocol.messages import Answer


@dataclass(frozen=True, slots=True)
class Sources:
    """Where answers come from."""

    queries: CentralQueries
    services: Services
    ingest: Ingest
    puller: Puller
    live: Live
    trail: Trail
    access: Access
    readiness: Readiness
    metrics: MetricsSource


async def healthz(sources: Sources, call: Call) -> Answer:
    """OPS-1: the process lives."""
    return json({"status": "ok"})


async def readyz(sources: Sources, call: Call) -> Answer:
    """OPS-1: whether entries are taken and answers given; if not, why not."""
    ready, reasons = await sources.readiness()
    if not ready:
        raise refusals.not_ready(reasons)
    return json({"ready": True, "reasons": []})


async def metrics(sources: Sources, call: Call) -> Answer:
    """OPS-1."""
    body, content_type = await sources.metrics()
    return Answer(200, [(b"Content-Type", content_type.encode())], body)


async def events(sources: Sources, call: Call) -> Answer:
    """LED-6: the head of a stream of server-sent events."""
    parameters.parse(call.query, takes=())
    return Answer(200, [(b"Content-Type", b"text/event-stream"), (b"X-Accel-Buffering", b"no")])


async def event_stream(sources: Sources, call: Call) -> AsyncIterator[bytes]:
    """Entries as they are stored, for as long as the token counts."""
    yield b": following\n\n"
    async for found in sources.live.follow(scope_of(call)):
        if call.token is None or not sources.access.holds(call.token):
            return
        if found is None:
            yield b": still here\n\n"
        else:
            event, document = found
            yield b"event: %b\ndata: %b\n\n" % (event.encode(), orjson.dumps(document))


ENDPOINTS: tuple[Endpoint[Sources], ...] = (
    Endpoint("/healthz", healthz, open=True),
    Endpoint("/readyz", readyz, open=True),
    Endpoint("/metrics", metrics, open=True),
    *reading_endpoints.ENDPOINTS,
    *writing_endpoints.ENDPOINTS,
    *export.ENDPOINTS,
    Endpoint("/v1/events", events, roles=READERS, methods=("GET",), stream=event_stream),
)
