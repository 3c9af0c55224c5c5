"""Entries as a file, for compliance (SEC-5): NDJSON as they are, or CSV for a spreadsheet.

In CSV, a value that a spreadsheet would take for a formula is preceded by an apostrophe: correlation IDs and paths are
chosen by callers. Whoever needs every byte takes NDJSON.
"""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from gateway.central.queries import Filters
from gateway.central.questions import FILTERS, filters_of
from gateway.central.rows import WIRE_FIELDS, Document
from gateway.operator import parameters
from gateway.operator import refusals as common
from gateway.operator.calls import Call, Endpoint
from gateway.protocol.messages import Answer

if TYPE_CHECKING:
    from gateway.central.endpoints import Sources

PAGE_ROWS = 1000
EXPORTERS = frozenset({"compliance"})
TYPES = {"csv": b"text/csv; charset=utf-8", "ndjson": b"application/x-ndjson"}
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


async def head(sources: Sources, call: Call) -> Answer:
    """What the file is; the rows follow."""
    form, _ = _asked(call)
    name = b'attachment; filename="ledger.%b"' % form.encode()
    return Answer(200, [(b"Content-Type", TYPES[form]), (b"Content-Disposition", name)])


async def rows(sources: Sources, call: Call) -> AsyncIterator[bytes]:
    """Page after page, newest first."""
    form, wanted = _asked(call)
    write = _csv if form == "csv" else _ndjson
    if form == "csv":
        yield _lines([WIRE_FIELDS])
    after: str | None = None
    while True:
        page = await sources.queries.entries(wanted, after=after, limit=PAGE_ROWS)
        if page.rows:
            yield write(page.rows)
        if page.next is None:
            return
        after = page.next


def _asked(call: Call) -> tuple[str, Filters]:
    given = parameters.parse(call.query, takes=("format", *FILTERS))
    form = parameters.choice(given, "format", TYPES)
    if form is None:
        raise common.parameter_missing("format")
    return form, filters_of(given, call)


def _ndjson(entries: Sequence[Document]) -> bytes:
    return b"".join(orjson.dumps(entry) + b"\n" for entry in entries)


def _csv(entries: Sequence[Document]) -> bytes:
    return _lines([[_cell(entry[name]) for name in WIRE_FIELDS] for entry in entries])


def _lines(rows_: Sequence[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows_)
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    return "'" + value if isinstance(value, str) and value.startswith(_FORMULA) else value


ENDPOINTS: tuple[Endpoint[Sources], ...] = (
    Endpoint("/v1/ledger/export", head, roles=EXPORTERS, methods=("GET",), stream=rows),
)
