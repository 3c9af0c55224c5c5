"""TTL and deadline rules (P1-2, P1-5, TTL-2)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from gateway.protocol.deadlines import granted_ttl_ms, iso, phase_at, ttl_left_ms
from gateway.protocol.phases import Phase

DEADLINE = datetime(2026, 6, 18, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("requested", "granted"),
    [
        (None, 30_000),
        (1, 30_000),
        (29_999, 30_000),
        (45_000, 45_000),
        (60_000, 60_000),
        (60_001, 60_000),
        (10**12, 60_000),
    ],
)
def test_a_requested_ttl_raises_up_to_the_maximum_and_never_shortens(requested: int | None, granted: int) -> None:
    """P1-2."""
    assert granted_ttl_ms(30_000, 60_000, requested) == granted


@pytest.mark.parametrize(
    ("stored", "after_ms", "seen"),
    [
        (Phase.WAITING_CONFIRM, -1, Phase.WAITING_CONFIRM),
        (Phase.WAITING_CONFIRM, 0, Phase.TTL_EXPIRED),
        (Phase.WAITING_CONFIRM, 4999, Phase.TTL_EXPIRED),
        (Phase.WAITING_CONFIRM, 5000, Phase.ABANDONED),
        (Phase.TTL_EXPIRED, 4999, Phase.TTL_EXPIRED),
        (Phase.TTL_EXPIRED, 5000, Phase.ABANDONED),
        (Phase.PROCESSING, 10**9, Phase.PROCESSING),
        (Phase.COMMITTED, 10**9, Phase.COMMITTED),
        (Phase.FAILED, 10**9, Phase.FAILED),
        (Phase.ABANDONED, 10**9, Phase.ABANDONED),
    ],
)
def test_the_phase_is_right_between_sweeps(stored: Phase, after_ms: int, seen: Phase) -> None:
    """TTL-2."""
    assert phase_at(stored, DEADLINE, 5000, DEADLINE + timedelta(milliseconds=after_ms)) is seen


def test_what_is_left_of_a_ttl_never_goes_below_zero() -> None:
    """P1-5."""
    assert ttl_left_ms(DEADLINE, DEADLINE - timedelta(milliseconds=1500)) == 1500
    assert ttl_left_ms(DEADLINE, DEADLINE + timedelta(seconds=1)) == 0


def test_a_deadline_is_iso_8601_in_utc_with_milliseconds() -> None:
    """P1-4."""
    moment = datetime(2026, 6, 18, 14, 0, 0, 7999, tzinfo=timezone(timedelta(hours=2)))
    assert iso(moment) == "2026-06-18T12:00:00.007Z"
