"""The ledger row: the sixteen fields of the draft's schema table (LED-1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.protocol.phases import Phase

FIELDS = (
    "client_correlation_id",
    "server_correlation_id",
    "service_ledger_id",
    "service_endpoint",
    "actor",
    "source",
    "target",
    "parent_reference_id",
    "phase",
    "phase_1_timestamp",
    "phase_2_timestamp",
    "ttl_ms",
    "outcome",
    "payload_ref",
    "sync_timestamp",
    "transaction_reference",
)

# What a row carries besides, between a gateway and the central ledger (LED-2).
SYNC_FIELDS = ("entry_id", "version", "in_doubt", "callback")

ENDPOINT_CHARACTERS_MAX = 8192  # what the central ledger takes; a path beyond it is told by its beginning

OUTCOMES = frozenset({Phase.COMMITTED, Phase.FAILED, Phase.ABANDONED, Phase.TTL_EXPIRED})


def outcome_of(phase: Phase) -> str | None:
    """The entry's `outcome`: null while it is open. FAILED joins the draft's three."""
    return phase.value if phase in OUTCOMES else None


def service_endpoint(service: str, path: bytes) -> str:
    """`<service>:<path>`, as much of it as any ledger takes."""
    return f"{service}:{path.decode('latin-1')}"[:ENDPOINT_CHARACTERS_MAX]


def payload_ref(server_correlation_id: object) -> str:
    """A reference to the payload, never the payload (SEC-4)."""
    return f"intent:{server_correlation_id}"


def trace_id(traceparent: bytes | None) -> str | None:
    """`transaction_reference`: the trace id of a well-formed W3C `traceparent`."""
    if traceparent is None:
        return None
    parts = traceparent.decode("latin-1").strip().split("-")
    if len(parts) < 4 or len(parts[1]) != 32 or set(parts[1]) <= {"0"}:
        return None
    return parts[1] if all(c in "0123456789abcdef" for c in parts[1]) else None


def entry(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Exactly the sixteen, in the draft's order."""
    return {name: fields[name] for name in FIELDS}
