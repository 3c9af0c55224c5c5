"""The ledger for whoever has the token: entries of both actors in order of change, and client rows (LED-1, COR-4).

Readers read; `sync` writes client rows of its own service and reads nothing (SEC-5).
"""

from __future__ import annotations

from typing import Any, Protocol

from gateway.operator import parameters, refusals
from gateway.operator.access import READERS, WRITERS
from gateway.operator.calls import Call, Endpoint, json
from gateway.protocol import reports
from gateway.protocol.client_rows import ReportedRow
from gateway.protocol.entries import OUTCOMES
from gateway.protocol.messages import Answer
from gateway.protocol.phases import Phase
from gateway.store.ledger import ACTORS, FILTERS, BadCursor, LedgerQueries

LIMIT = 100
LIMIT_MAX = 1000
REPORT_BYTES_MAX = 32 * 1024  # the longest path and IDs, written with escapes


class ReportedRows(Protocol):
    """Where clients' own reports are kept."""

    @property
    def service(self) -> str:
        """Whose they are."""
        ...

    @property
    def buckets(self) -> int:
        """Of the store."""
        ...

    async def was_called_with(self, client_correlation_id: str) -> bool:
        """COR-2: whether this ID came with a call to this service."""
        ...

    async def report(self, row: ReportedRow) -> bool | None:
        """True: written. False: it was there already. None: it contradicts what was said before."""
        ...


class Sources(Protocol):
    """Where answers come from."""

    @property
    def ledger(self) -> LedgerQueries:
        """The entries."""
        ...

    @property
    def reported(self) -> ReportedRows:
        """Where clients' own reports are kept."""
        ...


async def entries(sources: Sources, call: Call) -> Answer:
    """LED-1, LED-2: entries in order of change."""
    given = parameters.parse(call.query, takes=("after", "limit", *FILTERS))
    filters = {
        "source": parameters.service_name(given, "source"),
        "actor": parameters.choice(given, "actor", ACTORS),
        "phase": parameters.choice(given, "phase", [phase.value for phase in Phase]),
        "outcome": parameters.choice(given, "outcome", [phase.value for phase in OUTCOMES]),
        "client_correlation_id": parameters.client_id(given, "client_correlation_id"),
        "server_correlation_id": parameters.server_id(given, "server_correlation_id"),
    }
    wanted = {field: value for field, value in filters.items() if value is not None}
    limit = parameters.limit(given, default=LIMIT, most=LIMIT_MAX)
    try:
        page = await sources.ledger.entries(wanted, after=parameters.after(given), limit=limit)
    except BadCursor:
        raise parameters.bad_cursor() from None
    return json({"entries": page.rows, "next": page.next})


async def report(sources: Sources, call: Call) -> Answer:
    """COR-4: a client registers its side of a call. The same again is no mistake and changes nothing."""
    parameters.parse(call.query, takes=())
    rows = sources.reported
    assert call.token is not None, "closed to anyone without a token"
    if (call.token.service or call.token.name) != rows.service:
        raise refusals.service_not_allowed()
    given = call.document(takes=reports.TAKES, needs=reports.NEEDS)
    try:
        row = reports.parse(given, service=rows.service, buckets=rows.buckets)
    except reports.BadField as error:
        raise refusals.member_invalid(error.field, error.takes) from None
    if row.parent_reference_id != row.client_correlation_id and not await rows.was_called_with(row.parent_reference_id):
        raise refusals.parent_unknown()
    written = await rows.report(row)
    if written is None:
        raise refusals.entry_conflict()
    said = {"client_correlation_id": row.client_correlation_id, "phase": row.phase.value}
    return json(said, status=201 if written else 200)


ENDPOINTS: tuple[Endpoint[Any], ...] = (
    Endpoint("/v1/ledger/entries", entries, roles=READERS),
    Endpoint("/v1/ledger/entries", report, roles=WRITERS, methods=("POST",), body_max_bytes=REPORT_BYTES_MAX),
)
