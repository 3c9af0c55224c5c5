"""The rows that serve as obligations, as documents of `/v1/obligations` (OBL-4). Pure: rows in, documents out."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import asyncpg
import orjson

from gateway.protocol.deadlines import iso
from gateway.protocol.deliveries import State as DeliveryState
from gateway.protocol.obligations import FENCING, MIGRATION, QUARANTINE, State

Document = dict[str, Any]
DELIVERY_STATES: dict[State, DeliveryState] = {"Reserved": "pending", "Committed": "delivered", "RolledBack": "dead"}
_OBLIGATION_STATES: dict[str, State] = {named: state for state, named in DELIVERY_STATES.items()}


def _document(
    *,
    id: str,
    flow: str,
    key: str,
    state: State,
    reserved_at: datetime,
    settled_at: datetime | None,
    origin: str = "gateway",
    trace_id: str | None = None,
    leaks_at: datetime | None = None,
    leaked: bool = False,
    reserved_by: str | None = None,
    payload_sha256: bytes | None = None,
    payload_bytes: int | None = None,
) -> Document:
    return {
        "id": id,
        "flow": flow,
        "key": key,
        "state": state,
        "origin": origin,
        "trace_id": trace_id,
        "reserved_by": reserved_by,
        "reserved_at": iso(reserved_at),
        "leaks_at": None if leaks_at is None else iso(leaks_at),
        "leaked": leaked,
        "settled_at": None if settled_at is None else iso(settled_at),
        "payload_sha256": None if payload_sha256 is None else payload_sha256.hex(),
        "payload_bytes": payload_bytes,
    }


def tracked(row: asyncpg.Record) -> Document:
    """What somebody reserved."""
    return _document(
        id=str(row["id"]),
        flow=row["flow"],
        key=row["key"],
        state=row["state"],
        origin="gateway" if row["own"] else "tracker",
        trace_id=row["trace_id"],
        reserved_by=row["reserved_by"],
        reserved_at=row["reserved_at"],
        leaks_at=row["leaks_at"] if row["state"] == "Reserved" else None,
        leaked=row["leaked"],
        settled_at=row["settled_at"],
        payload_sha256=row["payload_sha256"],
        payload_bytes=row["payload_bytes"],
    )


def delivery(row: asyncpg.Record, leak_timeout: timedelta) -> Document:
    """A callback or a hook: promised, acknowledged, or given up."""
    return _document(
        id=str(row["id"]),
        flow=row["kind"],
        key=f"{row['server_correlation_id']}/{row['event']}",
        state=_OBLIGATION_STATES[row["state"]],
        trace_id=row["client_correlation_id"],
        reserved_at=row["created_at"],
        leaks_at=None if row["next_at"] is None else row["next_at"] + leak_timeout,
        settled_at=row["settled_at"],
    )


def lease(row: asyncpg.Record, leak_timeout: timedelta) -> Document:
    """A worker's name: held, handed back at the end of a drain, or lost."""
    state: State = "Reserved" if not row["dead"] else "Committed" if row["handed_back"] else "RolledBack"
    return _document(
        id=str(row["id"]),
        flow=FENCING,
        key=str(row["id"]),
        state=state,
        reserved_at=row["started_at"],
        leaks_at=row["lease_until"] + leak_timeout if state == "Reserved" else None,
        settled_at=None if state == "Reserved" else row["lease_until"],
        leaked=state == "RolledBack",
    )


def doubt(row: asyncpg.Record) -> Document:
    """An unknown outcome: its move into quarantine is complete, and a verdict ends it."""
    return _document(
        id=str(row["server_correlation_id"]),
        flow=QUARANTINE,
        key=str(row["server_correlation_id"]),
        state="Committed",
        trace_id=row["client_correlation_id"],
        reserved_at=row["since"],
        settled_at=row["since"],
    )


def poison(row: asyncpg.Record) -> Document:
    """A delivery that was given up: it stays until somebody sends it again."""
    return _document(
        id=str(row["id"]),
        flow=QUARANTINE,
        key=f"delivery/{row['id']}",
        state="Committed",
        trace_id=row["client_correlation_id"],
        reserved_at=row["created_at"],
        settled_at=row["settled_at"],
    )


def schema_step(row: asyncpg.Record) -> Document:
    """A migration, whole or not at all."""
    return _document(
        id=f"{row['version']:04}",
        flow=MIGRATION,
        key=row["name"],
        state="Committed",
        reserved_at=row["applied_at"],
        settled_at=row["applied_at"],
    )


def event(row: asyncpg.Record) -> Document:
    """What happened to one."""
    return {
        "at": iso(row["at"]),
        "code": row["code"],
        "trace_id": row.get("trace_id"),
        "by": row.get("by"),
        "detail": None if row["detail"] is None else orjson.loads(row["detail"]),
    }
