"""Rows of the central ledger as entries: the wire's own form, whoever asks."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol

from gateway.protocol.deadlines import iso
from gateway.protocol.entries import FIELDS, SYNC_FIELDS

WIRE_FIELDS = (*FIELDS, *SYNC_FIELDS)
TIMES = ("phase_1_timestamp", "phase_2_timestamp", "sync_timestamp", "in_doubt")

Document = dict[str, Any]


class Columns(Protocol):
    """A row of the store, or something that reads like one."""

    def __getitem__(self, name: str, /) -> Any:
        """The value of a column."""
        ...


def entry_of(row: Columns) -> Document:
    """The sixteen fields and the four of the wire."""
    found = {name: row[name] for name in WIRE_FIELDS}
    for name in TIMES:
        if found[name] is not None:
            found[name] = iso(found[name])
    found["service_ledger_id"] = str(found["service_ledger_id"])
    return found


def age_s(since: datetime, now: datetime) -> int:
    """Whole seconds; never negative, whatever the clocks of two machines say."""
    return max(0, int((now - since).total_seconds()))
