"""A client's own report of a call it makes (COR-4): the fields of the ledger's schema, checked (LED-1, COR-2)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from gateway.protocol.client_rows import ReportedRow
from gateway.protocol.entries import FIELDS, OUTCOMES, outcome_of
from gateway.protocol.identity import client_key
from gateway.protocol.phases import Phase

TTL_MS_MAX = 10**12  # some thirty years: a unit that was mistaken is found, and the column never overflows
PATH_CHARACTERS_MAX = 8192

NEEDS = ("client_correlation_id", "target", "service_endpoint", "phase", "phase_1_timestamp")
TAKES = FIELDS

_CONFIRMED = frozenset({Phase.PROCESSING, Phase.COMMITTED, Phase.FAILED})
_OPAQUE_ID = re.compile(r"[\x21-\x7e]{1,255}")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,63}")
_PATH = re.compile(rf"/[\x21-\x7e\xa0-\xff]{{0,{PATH_CHARACTERS_MAX}}}")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_TRACE = re.compile(r"[\x21-\x7e]{1,64}")


class BadField(ValueError):
    """A field with a value that it cannot have; `takes` says what it can."""

    def __init__(self, field: str, takes: str) -> None:
        super().__init__(field)
        self.field = field
        self.takes = takes


def parse(given: Mapping[str, Any], *, service: str, buckets: int) -> ReportedRow:
    """A report of a service's, or the BadField that says what is wrong. Its parent is looked up elsewhere."""
    _fixed(given, "actor", "client")
    _fixed(given, "source", service)
    for field in ("service_ledger_id", "payload_ref", "sync_timestamp"):
        if given.get(field) is not None:
            raise BadField(field, "null: the ledger fills it in itself")
    client_id = _text(given, "client_correlation_id", _OPAQUE_ID, "1 to 255 visible ASCII characters without spaces")
    target = _text(given, "target", _NAME, "the name of the called service")
    assert client_id is not None
    assert target is not None
    phase = _phase(given)
    phase_1, phase_2 = _times(given, phase)
    parent = _text(given, "parent_reference_id", _OPAQUE_ID, "a client correlation ID: its own, or the caller's")
    return ReportedRow(
        key=client_key(service.encode(), client_id.encode(), buckets=buckets),
        client_correlation_id=client_id,
        server_correlation_id=_server_id(given, phase),
        target=target,
        path=_path(given, target),
        parent_reference_id=parent or client_id,  # COR-2: a root is its own parent
        transaction_reference=_text(given, "transaction_reference", _TRACE, "up to 64 visible characters, or null"),
        phase=phase,
        phase_1_timestamp=phase_1,
        phase_2_timestamp=phase_2,
        ttl_ms=_ttl_ms(given),
    )


def _fixed(given: Mapping[str, Any], field: str, value: str) -> None:
    if given.get(field) not in (None, value):
        raise BadField(field, f"{value} here, or nothing")


def _text(given: Mapping[str, Any], field: str, shape: re.Pattern[str], takes: str) -> str | None:
    value = given.get(field)
    if value is None:
        return None
    if not isinstance(value, str) or not shape.fullmatch(value):
        raise BadField(field, takes)
    return value


def _phase(given: Mapping[str, Any]) -> Phase:
    value = given.get("phase")
    if value not in [phase.value for phase in Phase]:
        raise BadField("phase", f"one of {', '.join(Phase)}")
    phase = Phase(value)
    if given.get("outcome") not in (None, outcome_of(phase)):
        says = "the phase again" if phase in OUTCOMES else "null while the call is open"
        raise BadField("outcome", f"{says}, or nothing")
    return phase


def _server_id(given: Mapping[str, Any], phase: Phase) -> str | None:
    found = _text(given, "server_correlation_id", _UUID, "the UUID that Phase 1 was answered with")
    if found is None and phase in _CONFIRMED:
        raise BadField("server_correlation_id", f"the UUID that Phase 1 was answered with, in phase {phase}")
    return None if found is None else str(UUID(found))


def _path(given: Mapping[str, Any], target: str) -> bytes:
    """`service_endpoint` names the target and the path; the two say the same service (LED-1)."""
    value = given.get("service_endpoint")
    named, mark, path = value.partition(":") if isinstance(value, str) else ("", "", "")
    if named != target or not mark or not _PATH.fullmatch(path):
        raise BadField("service_endpoint", "the target, a colon and the path that was called")
    return path.encode("latin-1")


def _times(given: Mapping[str, Any], phase: Phase) -> tuple[datetime, datetime | None]:
    first, second = _time(given, "phase_1_timestamp"), _time(given, "phase_2_timestamp")
    assert first is not None
    if second is None and phase is Phase.PROCESSING:
        raise BadField("phase_2_timestamp", "the time of the confirmation, in phase PROCESSING")
    if second is not None and (phase is Phase.WAITING_CONFIRM or second < first):
        raise BadField("phase_2_timestamp", "a time after Phase 1, and null before the confirmation")
    return first, second


def _time(given: Mapping[str, Any], field: str) -> datetime | None:
    value = given.get(field)
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            raise ValueError
        return moment.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        raise BadField(field, "a time as ISO 8601 with its offset, such as 2026-01-31T12:00:00.000Z") from None


def _ttl_ms(given: Mapping[str, Any]) -> int | None:
    value = given.get("ttl_ms")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= TTL_MS_MAX:
        raise BadField("ttl_ms", "a whole number of milliseconds")
    return value
