"""Obligations as rules and records: states, codes, what a flow, a key and a trace may look like (OBL-1, OBL-2).

Pure: who keeps them is `store.obligations`, who seals their payloads `obligations.tracker`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Literal
from uuid import UUID

from gateway.protocol.identity import LOGICAL_KEY_BYTES, IntentKey, new_server_correlation_id
from gateway.protocol.records import Sealed

State = Literal["Reserved", "Committed", "RolledBack"]
STATES: tuple[State, ...] = ("Reserved", "Committed", "RolledBack")

ErrorCode = Literal[
    "ERR_OBL_ALREADY_COMMITTED",
    "ERR_OBL_ALREADY_ROLLED_BACK",
    "ERR_OBL_NOT_FOUND",
    "ERR_OBL_LEAK_TIMEOUT",
    "ERR_OBL_DUPLICATE_RESERVE",
]

# OBL-4: the gateway's own side effects. Callbacks and hooks are in the deliveries' rows, leases in the holders',
# quarantine in what is in doubt or dead, schema steps in their own list; batches and revocations are reserved like
# anybody's.
PUBLISH, REVOKE, QUARANTINE, MIGRATION, FENCING = "publish", "revoke", "quarantine", "migration", "fencing"
CALLBACK, COMPENSATION = "callback", "compensation"

PAYLOAD_BYTES_MAX = 64 * 1024  # says what is to be done, it is not the thing itself; a list of reservations stays small

FLOW = re.compile(r"[A-Za-z0-9._-]{1,63}")
TEXT = re.compile(r"[\x20-\x7e]{1,255}")  # of a key and a trace


class ObligationError(Exception):
    """OBL-2: what was asked for cannot be; `code` says why, `obligation` which one is in the way, where one is."""

    expected = True  # an answer, not a failure of ours

    def __init__(self, code: ErrorCode, obligation: UUID | None = None) -> None:
        super().__init__(code)
        self.code: ErrorCode = code
        self.obligation = obligation


class BadObligation(ValueError):
    """A flow, key, trace or payload that nothing is reserved for; `member` and `takes` say what to change."""

    def __init__(self, member: str, takes: str) -> None:
        super().__init__(f"{member} takes {takes}")
        self.member = member
        self.takes = takes


@dataclass(frozen=True, slots=True)
class NewObligation:
    """A reservation to be written."""

    id: UUID
    flow: str
    key: str
    trace_id: str
    reserved_by: str
    own: bool
    leak_after_ms: int
    payload_sha256: bytes
    payload_bytes: int
    payload: Sealed


@dataclass(frozen=True, slots=True)
class Obligation:
    """What is known of one."""

    id: UUID
    flow: str
    key: str
    state: State
    leaked: bool  # taken back by the leak scan
    settled_call: UUID | None


@dataclass(frozen=True, slots=True)
class Settled:
    """What a commit or a rollback came to. `code` is set where nothing had to be changed any more."""

    id: UUID
    state: State
    code: ErrorCode | None = None


@dataclass(frozen=True, slots=True)
class Scan:
    """OBL-005: what the last leak scan found, and all of them together."""

    completed_at: datetime | None
    leaked: int
    scans_total: int
    leaked_total: int


def new_obligation_id(flow: str, key: str) -> UUID:
    """A random ID whose last bits tell the bucket of flow and key, as a server correlation ID does."""
    digest = sha256(b"obligation\0" + flow.encode() + b"\0" + key.encode()).digest()
    return new_server_correlation_id(IntentKey(0, digest[:LOGICAL_KEY_BYTES]))


def check(flow: object, key: object, trace_id: object) -> None:
    """Raise BadObligation for a name that is none."""
    if not isinstance(flow, str) or not FLOW.fullmatch(flow):
        raise BadObligation("flow", "1 to 63 letters, digits, dots, dashes or underscores")
    if not isinstance(key, str) or not TEXT.fullmatch(key):
        raise BadObligation("key", "1 to 255 printable ASCII characters")
    check_trace(trace_id)


def check_trace(trace_id: object) -> None:
    """Raise BadObligation for a trace that is none."""
    if not isinstance(trace_id, str) or not TEXT.fullmatch(trace_id):
        raise BadObligation("trace_id", "1 to 255 printable ASCII characters")


def verdict(found: Obligation | None, wanted: State, call: UUID) -> Settled:
    """OBL-2: what a commit or rollback that changed nothing comes to.

    Settled states are final, so whatever was found is still so. An earlier try of the same call counts as this one.
    """
    if found is None:
        raise ObligationError("ERR_OBL_NOT_FOUND")
    if found.settled_call == call:
        return Settled(found.id, found.state)
    match found.state:
        case "Committed":
            raise ObligationError("ERR_OBL_ALREADY_COMMITTED", found.id)
        case "RolledBack" if wanted == "RolledBack":
            return Settled(found.id, "RolledBack", "ERR_OBL_ALREADY_ROLLED_BACK")
        case "RolledBack" if not found.leaked:
            raise ObligationError("ERR_OBL_ALREADY_ROLLED_BACK", found.id)
        case _:  # taken back by the scan, or waiting for it: a commit past the deadline never succeeds, swept or not
            raise ObligationError("ERR_OBL_LEAK_TIMEOUT", found.id)
