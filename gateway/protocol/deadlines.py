"""TTL, PONR deadline and the private grace window (delta).

Time is passed in; it is always the database's (DESIGN decision 1). Delta never leaves the server (TTL-3).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache

from gateway.protocol.phases import Phase


def granted_ttl_ms(default_ms: int, max_ms: int, requested_ms: int | None) -> int:
    """P1-2: a request may raise the route's TTL up to its maximum, and never shortens it."""
    if requested_ms is None:
        return default_ms
    return max(default_ms, min(requested_ms, max_ms))


def phase_at(stored: Phase, ponr_deadline: datetime, grace_ms: int, now: datetime) -> Phase:
    """TTL-2: what the phase is at `now`, whether or not a sweep has written it yet."""
    if stored is Phase.WAITING_CONFIRM and now >= ponr_deadline:
        stored = Phase.TTL_EXPIRED
    if stored is Phase.TTL_EXPIRED and now >= ponr_deadline + timedelta(milliseconds=grace_ms):
        return Phase.ABANDONED
    return stored


def ttl_left_ms(ponr_deadline: datetime, now: datetime) -> int:
    """P1-5: what is left of a TTL, for an exact retry."""
    return max(0, int((ponr_deadline - now).total_seconds() * 1000))


@lru_cache(maxsize=64)  # a batch of registrations shares its deadline
def iso(moment: datetime) -> str:
    """ISO 8601, UTC, milliseconds, as in `DTT-2PHP-PONR-Deadline`."""
    moment = moment.astimezone(UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"
