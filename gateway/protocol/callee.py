"""What a called service's answers mean to the caller's side of the handshake (COR-4).

A service that does not speak 2PHP takes Phase 1 for a plain request and has executed it by the time it answers: an
answer without any DTT-2PHP field is the outcome itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import orjson

from gateway.protocol.headers import PREFIX
from gateway.protocol.messages import Headers, first_value
from gateway.protocol.phases import Phase

DOUBTFUL_STATUSES = frozenset({502, 504})  # of a plain service: it may have taken effect, and nobody knows

_SERVER_ID = re.compile(rb"[\x21-\x7e]{1,128}")  # a UUID from us, anything opaque from others
_WHOLE_NUMBER = re.compile(rb"[1-9][0-9]{0,14}")
_STATUS = re.compile(rb"[1-5][0-9]{2}")
_PHASES = {phase.value.encode(): phase for phase in Phase}


@dataclass(frozen=True, slots=True)
class Plain:
    """No 2PHP: it was executed. `phase` None: perhaps."""

    phase: Phase | None


@dataclass(frozen=True, slots=True)
class Registered:
    """Phase 1 is durable over there."""

    server_correlation_id: str
    phase: Phase
    ttl_ms: int | None
    confirm: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """It said no. `later`: it may say yes to the same request in a moment."""

    later: bool = False


@dataclass(frozen=True, slots=True)
class Over:
    """The outcome is known. `status` is what the service behind answered, where one did."""

    phase: Phase
    status: int | None


@dataclass(frozen=True, slots=True)
class Running:
    """Not yet; its outcome can be asked for there (None: by confirming again)."""

    poll: bytes | None


def of_phase_1(status: int, headers: Headers, body: bytes, path: bytes) -> Plain | Registered | Refused:
    """What the answer to Phase 1 means. `path` is that of the request."""
    phase = _phase(headers)
    server_id = first_value(headers, b"dtt-2php-server-correlation-id")
    if phase is not None and server_id is not None and _SERVER_ID.fullmatch(server_id) and status == 200:
        ttl = first_value(headers, b"dtt-2php-ttl") or b""
        ttl_ms = int(ttl) if _WHOLE_NUMBER.fullmatch(ttl) else None
        return Registered(server_id.decode(), phase, ttl_ms, _confirm_path(body, path))
    if any(name[: len(PREFIX)].lower() == PREFIX for name, _ in headers):
        return Refused()
    if status in DOUBTFUL_STATUSES:
        return Plain(None)
    return Plain(Phase.COMMITTED if status < 400 else Phase.FAILED)


def of_phase_2(status: int, headers: Headers) -> Over | Running | Refused:
    """What the answer to a confirmation or a poll means."""
    phase = _phase(headers)
    if phase in (Phase.COMMITTED, Phase.FAILED):
        told = first_value(headers, b"dtt-2php-upstream-status") or b""
        return Over(phase, int(told) if _STATUS.fullmatch(told) else None)
    if phase in (Phase.TTL_EXPIRED, Phase.ABANDONED):
        return Over(Phase.TTL_EXPIRED, None)
    if phase in (Phase.PROCESSING, Phase.WAITING_CONFIRM):
        return Running(_own_path(first_value(headers, b"location")))
    return Refused(later=status >= 500 or status in (408, 429))


def _phase(headers: Headers) -> Phase | None:
    return _PHASES.get((first_value(headers, b"dtt-2php-phase-state") or b"").strip())


def _confirm_path(body: bytes, path: bytes) -> bytes:
    """Where to confirm: as the answer says, or the draft's way."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = None
    said = document.get("confirm") if isinstance(document, dict) else None
    found = _own_path(said.encode("latin-1", "replace")) if isinstance(said, str) else None
    return found or (b"" if path == b"/" else path) + b"/confirm"


def _own_path(target: bytes | None) -> bytes | None:
    """A path of the called service itself, never another host's."""
    if target is None or not target.startswith(b"/") or target.startswith(b"//"):
        return None
    return target if all(0x21 <= byte <= 0x7E for byte in target) else None
