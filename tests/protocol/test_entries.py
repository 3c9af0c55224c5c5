"""The ledger row (LED-1)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.protocol.entries import FIELDS, outcome_of, trace_id
from gateway.protocol.phases import Phase


def test_an_entry_has_the_sixteen_fields_of_the_draft() -> None:
    """LED-1."""
    assert len(FIELDS) == len(set(FIELDS)) == 16


@pytest.mark.parametrize(
    ("phase", "outcome"),
    [
        (Phase.WAITING_CONFIRM, None),
        (Phase.PROCESSING, None),
        (Phase.COMMITTED, "COMMITTED"),
        (Phase.FAILED, "FAILED"),
        (Phase.TTL_EXPIRED, "TTL_EXPIRED"),
        (Phase.ABANDONED, "ABANDONED"),
    ],
)
def test_an_outcome_is_told_once_there_is_one(phase: Phase, outcome: str | None) -> None:
    """LED-1."""
    assert outcome_of(phase) == outcome


@pytest.mark.parametrize(
    ("traceparent", "found"),
    [
        (b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "4bf92f3577b34da6a3ce929d0e0e4736"),
        (None, None),
        (b"", None),
        (b"00-xyz-1-01", None),
        (b"00-00000000000000000000000000000000-00f067aa0ba902b7-01", None),
        (b"00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", None),
    ],
)
def test_a_transaction_reference_is_a_well_formed_trace_id(traceparent: bytes | None, found: str | None) -> None:
    """LED-1."""
    assert trace_id(traceparent) == found


def test_every_statement_that_changes_a_phase_says_where_it_came_from() -> None:
    """FSM-1: the database's CHECK of legal edges rests on it."""
    folder = Path(__file__).parents[2] / "gateway" / "store" / "sql"
    updates = [
        update
        for file in folder.glob("*.sql")
        for update in re.findall(r"UPDATE intents\b.*?(?:WHERE|RETURNING)", file.read_text(), re.S)
        if re.search(r"\bphase\s*=", update.split("WHERE")[0])
    ]
    assert len(updates) >= 4
    # RPL-3: what is confirmed late has expired, whether or not a sweep has written it.
    expired = "came_from = CASE i.phase WHEN 'WAITING_CONFIRM' THEN 'TTL_EXPIRED' ELSE i.phase END"
    assert all("came_from = i.phase" in update or expired in update for update in updates)
