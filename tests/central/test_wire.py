"""LED-1, COR-2: what an entry on the wire must look like, field by field; pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from gateway.central.wire import BadEntry, entry_key, row_of
from tests.central.desk import entry

ID = str(uuid4())


def read(document: Any) -> Any:
    return row_of(document, service_ledger_id=ID, source="orders")


def test_an_entry_of_each_side_is_read() -> None:
    """LED-1: server rows and client rows, with what each may leave empty."""
    server = read(entry("orders", ID, phase_1_timestamp="2026-05-01T10:00:00.250+02:00"))
    assert server.phase_1_timestamp == datetime(2026, 5, 1, 8, 0, 0, 250_000, tzinfo=UTC)
    waiting = entry("orders", ID, actor="client", target="b", server_id=None, phase="WAITING_CONFIRM", ttl_ms=None)
    assert read(waiting).server_correlation_id is None
    child = read(entry("orders", ID, actor="client", target="b", parent="the-call-it-was-made-for"))
    assert child.parent_reference_id == "the-call-it-was-made-for"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"target": "x"}, "target"),
        ({"parent_reference_id": "another"}, "parent_reference_id"),
        ({"actor": "both"}, "actor"),
        ({"actor": "client", "target": None}, "target"),
        ({"source": "billing"}, "source"),
        ({"service_ledger_id": str(uuid4())}, "service_ledger_id"),
        ({"client_correlation_id": "two words"}, "client_correlation_id"),
        ({"client_correlation_id": 7}, "client_correlation_id"),
        ({"server_correlation_id": None}, "server_correlation_id"),
        ({"phase": "DONE"}, "phase"),
        ({"phase": ["COMMITTED"]}, "phase"),
        ({"outcome": "FAILED"}, "outcome"),
        ({"outcome": None}, "outcome"),
        ({"version": 0}, "version"),
        ({"version": True}, "version"),
        ({"version": 2**63}, "version"),
        ({"ttl_ms": None}, "ttl_ms"),
        ({"ttl_ms": 1.5}, "ttl_ms"),
        ({"ttl_ms": 10**12}, "ttl_ms"),
        ({"phase_1_timestamp": "yesterday"}, "phase_1_timestamp"),
        ({"phase_1_timestamp": "2026-01-01T00:00:00"}, "phase_1_timestamp"),
        ({"phase_1_timestamp": None}, "phase_1_timestamp"),
        ({"phase_2_timestamp": 5}, "phase_2_timestamp"),
        ({"in_doubt": "x"}, "in_doubt"),
        ({"callback": "lost"}, "callback"),
        ({"service_endpoint": "a\x00b"}, "service_endpoint"),
        ({"service_endpoint": ""}, "service_endpoint"),
        ({"payload_ref": "a b"}, "payload_ref"),
        ({"transaction_reference": ""}, "transaction_reference"),
        ({"entry_id": ""}, "entry_id"),
        ({"surplus": 1}, "members"),
    ],
)
def test_what_does_not_fit_is_refused_by_field(change: dict[str, Any], field: str) -> None:
    """LED-1, COR-2: and never by value."""
    with pytest.raises(BadEntry) as refused:
        read(entry("orders", ID) | change)
    assert field in str(refused.value)
    assert "yesterday" not in str(refused.value)


def test_a_key_tells_services_sides_and_entries_apart() -> None:
    """SEC-5: nobody's row can take another service's place."""
    keys = {
        entry_key(service, actor, id_) for service in ("s1", "s2") for actor in ("client", "server") for id_ in "ab"
    }
    assert len(keys) == 8
