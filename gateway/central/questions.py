"""What readers may ask with: query parameters of the central ledger's lists, each checked, or the 400."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from datetime import datetime

from gateway.central.queries import Filters
from gateway.operator import parameters, refusals
from gateway.operator.calls import Call
from gateway.protocol.entries import OUTCOMES
from gateway.protocol.phases import Phase
from gateway.store.ledger import ACTORS, BadCursor, Page

LIMIT = 100
LIMIT_MAX = 1000
ENDPOINT_CHARACTERS_MAX = 2048

FILTERS = (
    "source",
    "actor",
    "phase",
    "outcome",
    "from",
    "to",
    "endpoint",
    "client_correlation_id",
    "server_correlation_id",
    "q",
)


def scope_of(call: Call) -> str | None:
    """The one service whose rows a reader may see; None: all of them (SEC-5)."""
    return None if call.token is None else call.token.service


def filters_of(given: Mapping[str, str], call: Call) -> Filters:
    """Which entries a reader wants, within what it may see."""
    return Filters(
        source=parameters.service_name(given, "source"),
        actor=parameters.choice(given, "actor", ACTORS),
        phase=parameters.choice(given, "phase", [phase.value for phase in Phase]),
        outcome=parameters.choice(given, "outcome", [phase.value for phase in OUTCOMES]),
        since=moment(given, "from"),
        until=moment(given, "to"),
        endpoint=endpoint(given),
        client_correlation_id=parameters.client_id(given, "client_correlation_id"),
        server_correlation_id=parameters.client_id(given, "server_correlation_id"),
        q=parameters.client_id(given, "q"),
        scope=scope_of(call),
    )


def limit(given: Mapping[str, str]) -> int:
    """How many rows a page has."""
    return parameters.limit(given, default=LIMIT, most=LIMIT_MAX)


def moment(given: Mapping[str, str], name: str) -> datetime | None:
    """A time with its offset."""
    value = given.get(name)
    if not value:
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None or not 1 < found.year < 9999:
        raise refusals.parameter_invalid(name, "a time in ISO 8601 with its offset, such as 2030-01-31T12:00:00Z")
    return found


def endpoint(given: Mapping[str, str]) -> str | None:
    """The beginning of a service endpoint, or of the path in it."""
    value = given.get("endpoint") or None
    if value is not None and (len(value) > ENDPOINT_CHARACTERS_MAX or "\0" in value):
        raise refusals.parameter_invalid("endpoint", "the beginning of a service's endpoint, or of its path")
    return value


async def page_of(reading: Awaitable[Page]) -> Page:
    """A page of rows, or the 400 for a cursor that was not one of ours."""
    try:
        return await reading
    except BadCursor:
        raise parameters.bad_cursor() from None
