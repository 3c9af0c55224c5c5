"""What can be asked of the central ledger (LED-5). Reads only, on lines of its own; every answer takes a bounded amount
of work, so a filter that matches little may give a short page with a cursor to go on from.

`scope` is the one service whose rows a reader may see (SEC-5); None: all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gateway.central import tree
from gateway.central.places import NEWEST, OLDEST, Place
from gateway.central.rows import Columns, Document, age_s, entry_of
from gateway.protocol.deadlines import iso
from gateway.protocol.entries import OUTCOMES
from gateway.protocol.phases import Phase
from gateway.store import queries
from gateway.store.ledger import ACTORS, Page
from gateway.store.reading import ReadLines

SQL = queries.load("queries.sql", "gateway.central")
LINES = 4  # readers at once; more of them take turns
SCAN_MAX = 10_000  # rows that one page of entries may look through, some 50 ms
ROWS_OF_ONE_ID_MAX = 1000  # a correlation ID has two rows and its children; more than this is somebody's constant
TREE_ROWS_MAX = 5000  # a tree past this is cut, and says so
ANCESTORS_MAX = 100
COUNT_MAX = 1000  # past this, how many need a look no longer matters
MINUTES_RANGE_MAX = timedelta(days=2)  # longer ranges are read from the hours
STEPS = 60  # of a summary, about

SIDES = {"client-only": 1, "server-only": 2}
LACKS = {"client-only": "server", "server-only": "client"}
COUNTED = ("stalled", "in_doubt", "client_only", "server_only", "callback_gaps")
OPEN = "open"  # in a summary: neither of the outcomes

Rows = Sequence[Columns]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Which entries; None: any. `since` is included, `until` is not."""

    source: str | None = None
    actor: str | None = None
    phase: str | None = None
    outcome: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    endpoint: str | None = None  # a prefix of `service_endpoint`, or of the path in it
    client_correlation_id: str | None = None
    server_correlation_id: str | None = None
    q: str | None = None  # any correlation ID
    scope: str | None = None

    def accept(self, row: Columns) -> bool:
        """Whether a row of the right service, found by an ID, is also what the other filters ask for."""
        exact = ("actor", "phase", "outcome", "client_correlation_id", "server_correlation_id")
        ids = (row["client_correlation_id"], row["server_correlation_id"], row["parent_reference_id"])
        if self.q is not None and self.q not in ids:
            return False
        if any(getattr(self, name) not in (None, row[name]) for name in exact):
            return False
        if self.endpoint is not None:
            endpoint: str = row["service_endpoint"]
            if not (endpoint.startswith(self.endpoint) or endpoint.partition(":")[2].startswith(self.endpoint)):
                return False
        at = row["phase_1_timestamp"]
        return (self.since is None or at >= self.since) and (self.until is None or at < self.until)


class CentralQueries:
    """Reads for auditors, operators, the page and the command line. Every method may raise StoreAway."""

    def __init__(self, url: str, *, processing_ms: int) -> None:
        self._lines = ReadLines(url, lines=LINES)
        self._processing_ms = processing_ms  # when a transaction has been PROCESSING for too long

    async def close(self) -> None:
        """Let go of the store."""
        await self._lines.close()

    def use(self, *, processing_ms: int) -> None:
        """Of a reloaded configuration."""
        self._processing_ms = processing_ms

    # --- lists of entries

    async def entries(self, wanted: Filters, *, after: str | None, limit: int) -> Page:
        """Entries, newest first."""
        place = Place.of(after, NEWEST)
        if wanted.q or wanted.client_correlation_id or wanted.server_correlation_id:
            return await self._by_id(wanted, place, limit)
        if wanted.until is not None and wanted.until < place.at:
            place = Place(wanted.until, b"")
        source = wanted.source if wanted.scope is None else wanted.scope
        if wanted.source not in (None, source):
            return Page([], None)  # a service that this reader may not see
        since = wanted.since or OLDEST.at
        scan = SCAN_MAX if _looks_through(wanted) else limit + 1
        rest = (wanted.phase, wanted.outcome, wanted.endpoint, since, limit + 1)
        if source is None:
            rows = await self._fetch("recent", *place, scan, wanted.actor, *rest)
        else:
            sides = list(ACTORS) if wanted.actor is None else [wanted.actor]
            rows = await self._fetch("recent_of_source", *place, scan, sides, *rest, source)
        found = sorted((row for row in rows if not row["reached"]), key=_place, reverse=True)
        if len(found) > limit:
            return _page(found, limit, entry_of, _place)
        reached = next((_place(row).cursor() for row in rows if row["reached"]), None)
        return Page([entry_of(row) for row in found], reached)

    async def _by_id(self, wanted: Filters, place: Place, limit: int) -> Page:
        if wanted.scope is not None and wanted.source not in (None, wanted.scope):
            return Page([], None)
        rest = (*place, wanted.scope or wanted.source, ROWS_OF_ONE_ID_MAX)
        if wanted.server_correlation_id is not None:
            rows = await self._fetch("of_server_id", wanted.server_correlation_id, *rest)
        elif wanted.client_correlation_id is not None:
            rows = await self._fetch("of_client_id", wanted.client_correlation_id, *rest)
        else:
            rows = await self._fetch("of_any_id", wanted.q, *rest)
        found = [row for row in rows if wanted.accept(row)]
        if len(found) <= limit and len(rows) == ROWS_OF_ONE_ID_MAX:  # there may be more below the last one looked at
            return Page([entry_of(row) for row in found], _place(rows[-1]).cursor())
        return _page(found, limit, entry_of, _place)

    async def of_transaction(self, server_id: str, *, scope: str | None) -> list[Document]:
        """The registrations of one server correlation ID: servers', then clients', up to a bound."""
        rows = await self._fetch("of_transaction", server_id, None, scope, ROWS_OF_ONE_ID_MAX)
        return [entry_of(row) for row in rows]

    # --- LED-5

    async def tree(self, client_id: str, *, scope: str | None) -> Document | None:
        """The whole tree below a call; None if nobody registered it, or nobody whose rows the reader may see."""
        rows = await self._fetch("tree", client_id, TREE_ROWS_MAX + 1)
        truncated = len(rows) > TREE_ROWS_MAX
        roots = tree.build(client_id, [entry_of(row) for row in rows[:TREE_ROWS_MAX]])
        if scope is not None:
            roots = tree.redact(roots, scope)
        if not roots:
            return None
        above = await self._fetch("ancestors", client_id, ANCESTORS_MAX)
        notes = [tree.MISSING_PARENT] if any(not row["known"] for row in above) else []
        return {
            "client_correlation_id": client_id,
            "ancestors": [row["id"] for row in above] if scope is None else [],
            "notes": notes,
            "rows": min(len(rows), TREE_ROWS_MAX) if scope is None else None,
            "truncated": truncated,
            "roots": roots,
        }

    async def pair(self, client_id: str, server_id: str, *, scope: str | None) -> Document:
        """COR-1: both registrations of one call. Of another service's, a restricted reader hears only that it is."""
        rows = await self._fetch("of_transaction", server_id, client_id, None, ROWS_OF_ONE_ID_MAX)
        found = [entry_of(row) for row in rows]
        if scope is not None and not any(entry["source"] == scope for entry in found):
            found = []
        clients = [entry for entry in found if entry["actor"] == "client"]
        servers = [entry for entry in found if entry["actor"] == "server"]

        def seen(entry: Document) -> Document:
            return entry if scope in (None, entry["source"]) else {"redacted": True, "actor": entry["actor"]}

        return {
            "client": seen(clients[0]) if clients else None,
            "server": seen(servers[0]) if servers else None,
            "extra": [seen(entry) for entry in (*clients[1:], *servers[1:])],
            # By the one who was called: anybody can write a server row of an ID that it has heard of.
            "confirmed": len(clients) == len(servers) == 1 and clients[0]["target"] == servers[0]["source"],
        }

    async def unpaired(
        self, side: str, *, source: str | None, scope: str | None, after: str | None, limit: int
    ) -> Page:
        """COR-1: registrations that lack their twin, newest first."""
        if scope is not None and source not in (None, scope):
            return Page([], None)
        place, only = Place.of(after, NEWEST), scope or source
        name, more = ("unpaired", ()) if only is None else ("unpaired_of_source", (only,))
        rows = await self._fetch(name, *place, SIDES[side], limit + 1, *more)
        found = [{**entry_of(row), "lacks": LACKS[side]} for row in rows[:limit] if row["entry_id"] is not None]
        last = rows[limit - 1] if len(rows) > limit else None
        return Page(found, None if last is None else Place(last["place_at"], last["place_key"]).cursor())

    async def stalled(self, *, source: str | None, scope: str | None, after: str | None, limit: int) -> Page:
        """WAITING_CONFIRM past its TTL, TTL_EXPIRED, PROCESSING for too long; oldest first, with ages."""
        if scope is not None and source not in (None, scope):
            return Page([], None)
        place = Place.of(after, OLDEST)
        rows = await self._fetch("stalled", *place, self._processing_ms, scope or source, limit + 1)
        return _page(rows, limit, _stalled, _place)

    async def in_doubt(self, *, source: str | None, scope: str | None, after: str | None, limit: int) -> Page:
        """REC-2: outcomes nobody knows, oldest first."""
        if scope is not None and source not in (None, scope):
            return Page([], None)
        rows = await self._fetch("in_doubt", *Place.of(after, OLDEST), scope or source, limit + 1)
        return _page(
            rows,
            limit,
            lambda row: {**entry_of(row), "age_s": age_s(row["in_doubt"], row["read_at"])},
            lambda row: Place(row["in_doubt"], row["entry_key"]),
        )

    async def callback_gaps(
        self, *, state: str | None, source: str | None, scope: str | None, after: str | None, limit: int
    ) -> Page:
        """Callbacks that nobody has acknowledged, oldest first."""
        if scope is not None and source not in (None, scope):
            return Page([], None)
        rows = await self._fetch("callback_gaps", *Place.of(after, OLDEST), scope or source, state, limit + 1)
        return _page(rows, limit, entry_of, _place)

    # --- figures

    async def overview(self, *, source: str | None, scope: str | None) -> Document:
        """How much needs a look, each counted up to a bound."""
        if scope is not None and source not in (None, scope):
            return {**dict.fromkeys(COUNTED, 0), "capped_at": COUNT_MAX}
        [row] = await self._fetch("overview", scope or source, COUNT_MAX, self._processing_ms)
        return {**{name: row[name] for name in COUNTED}, "capped_at": COUNT_MAX}

    async def summary(self, since: datetime, until: datetime, *, source: str | None, scope: str | None) -> Document:
        """Server rows by outcome over time, in about sixty steps."""
        step_s = step_of(until - since)
        grain = "minute" if until - since <= MINUTES_RANGE_MAX else "hour"
        start = datetime.fromtimestamp(since.timestamp() // step_s * step_s, UTC)
        counts: dict[datetime, dict[str, int]] = {}
        if scope is None or source in (None, scope):
            for row in await self._fetch("summary", grain, start, until, step_s, scope or source):
                name = row["phase"] if row["phase"] in OUTCOMES else OPEN
                bucket = counts.setdefault(row["at"], {})
                bucket[name] = bucket.get(name, 0) + row["rows"]
        names = (*sorted(outcome.value for outcome in OUTCOMES), OPEN)
        buckets = []
        at = start
        while at < until:
            found = counts.get(at, {})
            buckets.append({"at": iso(at), "counts": {name: found.get(name, 0) for name in names}})
            at += timedelta(seconds=step_s)
        return {
            "from": iso(start),
            "to": iso(until),
            "step_s": step_s,
            "buckets": buckets,
            "now": await self.overview(source=source, scope=scope),
        }

    async def _fetch(self, name: str, *args: object) -> Rows:
        return await self._lines.fetch(SQL[name], *args)


def step_of(length: timedelta) -> int:
    """The seconds of one step of a summary: whole minutes, or whole hours where only hours are read."""
    unit = 60 if length <= MINUTES_RANGE_MAX else 3600
    return max(1, round(length.total_seconds() / STEPS / unit)) * unit


def _looks_through(wanted: Filters) -> bool:
    """Whether there is a filter that no index answers."""
    of_one_side = wanted.actor is not None and wanted.source is None and wanted.scope is None
    return of_one_side or any((wanted.phase, wanted.outcome, wanted.endpoint))


def _stalled(row: Columns) -> Document:
    phase, began = row["phase"], row["phase_1_timestamp"]
    if phase == Phase.PROCESSING:
        reason, age = "processing-too-long", age_s(row["phase_2_timestamp"] or began, row["read_at"])
    else:
        reason = "ttl-expired" if phase == Phase.TTL_EXPIRED else "waiting-past-ttl"
        # Subtracted, not added to a time: no TTL leads past the end of the calendar.
        age = max(0, age_s(began, row["read_at"]) - (row["ttl_ms"] or 0) // 1000)
    return {**entry_of(row), "reason": reason, "age_s": age}


def _place(row: Columns) -> Place:
    return Place(row["phase_1_timestamp"], row["entry_key"])


def _page(
    rows: Rows,
    limit: int,
    document: Callable[[Columns], Document],
    place: Callable[[Columns], Place],
) -> Page:
    """At most `limit` rows as documents; there is a next page when one more was found."""
    more = place(rows[limit - 1]).cursor() if len(rows) > limit else None
    return Page([document(row) for row in rows[:limit]], more)
