"""The ledger's rows as the documents that readers see: entries of both actors, whole intents, what is in doubt."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import orjson

from gateway.protocol.deadlines import iso, phase_at
from gateway.protocol.entries import entry, outcome_of, payload_ref, service_endpoint
from gateway.protocol.phases import Phase

Document = dict[str, Any]


def fields(row: asyncpg.Record) -> Document:
    """LED-1: the sixteen fields of a server's row."""
    phase = phase_at(Phase(row["phase"]), row["ponr_deadline"], row["grace_ms"], row["read_at"])
    server_id = str(row["server_correlation_id"])
    return entry(
        {
            "client_correlation_id": row["client_correlation_id"],
            "server_correlation_id": server_id,
            "service_ledger_id": _str(row["service_ledger_id"]),
            "service_endpoint": service_endpoint(row["source"], row["path"]),
            "actor": "server",
            "source": row["source"],
            "target": None,
            "parent_reference_id": row["parent_reference_id"],
            "phase": phase.value,
            "phase_1_timestamp": iso(row["phase_1_timestamp"]),
            "phase_2_timestamp": _iso(row["phase_2_timestamp"]),
            "ttl_ms": row["ttl_ms"],
            "outcome": outcome_of(phase),
            "payload_ref": payload_ref(server_id),
            "sync_timestamp": _iso(row["sync_timestamp"]),
            "transaction_reference": row["transaction_reference"],
        }
    )


def server_entry(row: asyncpg.Record) -> Document:
    """An intent's entry: the sixteen fields, and what sync needs besides."""
    return {
        **fields(row),
        "entry_id": str(row["server_correlation_id"]),
        "version": row["version"],
        "in_doubt": _iso(row["since"]),
        "callback": row["callback"],
    }


def client_entry(row: asyncpg.Record) -> Document:
    """COR-1: the entry of a call that this service made."""
    phase = Phase(row["phase"])
    server_id = row["server_correlation_id"]
    sixteen = entry(
        {
            "client_correlation_id": row["client_correlation_id"],
            "server_correlation_id": server_id,
            "service_ledger_id": _str(row["service_ledger_id"]),
            "service_endpoint": service_endpoint(row["target"], row["path"]),
            "actor": "client",
            "source": row["source"],
            "target": row["target"],
            "parent_reference_id": row["parent_reference_id"],
            "phase": phase.value,
            "phase_1_timestamp": iso(row["phase_1_timestamp"]),
            "phase_2_timestamp": _iso(row["phase_2_timestamp"]),
            "ttl_ms": row["ttl_ms"],
            "outcome": outcome_of(phase),
            "payload_ref": None if server_id is None else payload_ref(server_id),
            "sync_timestamp": _iso(row["sync_timestamp"]),
            "transaction_reference": row["transaction_reference"],
        }
    )
    return {
        **sixteen,
        "entry_id": row["client_correlation_id"],
        "version": row["version"],
        "in_doubt": _iso(row["in_doubt_since"]),
        "callback": None,
    }


def intent(row: asyncpg.Record) -> Document:
    """One intent, whole."""
    known = None if row["since"] is None else _doubt(row)
    response = None
    if row["status"] is not None:
        digest = row["body_sha256"]
        response = {
            "status": row["status"],
            "bytes": row["body_bytes"],
            "sha256": None if digest is None else digest.hex(),
            "kept": row["kept"],
        }
    return {
        **fields(row),
        "caller": row["caller"].hex(),
        "payload_sha256": None if row["payload_sha256"] is None else row["payload_sha256"].hex(),
        "in_doubt": known,
        "settled_at": _iso(row["settled_at"]),
        "settled_by": row["settled_by"],
        "verify_failed": row["verify_failed"] is True,
        "response": response,
        "deliveries": [],
        "attempts": [_attempt(*attempt) for attempt in row["attempts"]],
        "events": [_event(*event) for event in row["events"]],
    }


def _attempt(
    attempt_id: UUID,
    number: int,
    fence: int,
    started_at: datetime,
    sent: bool | None,
    ended_at: datetime | None,
    status: int | None,
    error: str | None,
) -> Document:
    return {
        "attempt_id": str(attempt_id),
        "number": number,
        "fence": fence,
        "started_at": iso(started_at),
        "sent": sent,
        "ended_at": _iso(ended_at),
        "status": status,
        "error": error,
    }


def _event(at: datetime, code: str, phase: str | None, detail: str | None) -> Document:
    return {"at": iso(at), "code": code, "phase": phase, "detail": None if detail is None else orjson.loads(detail)}


def doubt(row: asyncpg.Record) -> Document:
    """REC-2: one that waits for a verdict."""
    return {
        "server_correlation_id": str(row["server_correlation_id"]),
        "client_correlation_id": row["client_correlation_id"],
        **_doubt(row),
        "method": row["method"],
        "path": row["path"].decode("latin-1"),
        "attempts": row["attempts"],
    }


def _doubt(row: asyncpg.Record) -> Document:
    """Since when and why; when it is looked at next, or why it waits for a verdict; and how often was asked in vain."""
    return {
        "since": iso(row["since"]),
        "reason": row["reason"],
        "next_at": _iso(row["next_at"]),
        "held": row["held"],
        "asked": row["asked"],
    }


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else iso(moment)


def _str(value: object) -> str | None:
    return None if value is None else str(value)
