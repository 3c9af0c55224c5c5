"""What a repeated request gets (P1-5, P1-6, P2-1, P2-7, TTL-1, RPL-1, RPL-2, REP-3)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from gateway.protocol import replay
from gateway.protocol.identity import IntentKey
from gateway.protocol.intents import Intent
from gateway.protocol.phases import Phase

DEADLINE = datetime(2026, 6, 18, 12, 0, 0, tzinfo=UTC)
SERVER_ID = UUID("0c9e1a1e-58ab-4c3e-9d0a-1d3a5e0f7abc")


def intent(
    phase: Phase = Phase.WAITING_CONFIRM, *, late_s: float = -1.0, in_doubt: str | None = None, policy: str = "REJECT"
) -> Intent:
    return Intent(
        key=IntentKey(0, b"k" * 16),
        server_correlation_id=SERVER_ID,
        client_correlation_id="c",
        replay_key=b"same",
        caller=b"caller",
        method="POST",
        path=b"/orders",
        query=b"",
        execution="sync",
        replay_policy=policy,
        ttl_ms=30_000,
        grace_ms=5_000,
        stored_phase=phase,
        phase_1_timestamp=DEADLINE - timedelta(seconds=30),
        ponr_deadline=DEADLINE,
        fence=0,
        attempt_id=None,
        resource_id=None,
        message=None,
        in_doubt=in_doubt,
        read_at=DEADLINE + timedelta(seconds=late_s),
    )


def test_a_target_keeps_its_empty_query() -> None:
    """OPT-2."""
    assert intent().target == b"/orders?"


@pytest.mark.parametrize("phase", [Phase.WAITING_CONFIRM, Phase.PROCESSING, Phase.COMMITTED, Phase.FAILED])
def test_an_exact_retry_gets_the_same_registration(phase: Phase) -> None:
    """P1-5: whatever has become of it."""
    assert isinstance(replay.on_register(intent(phase), b"same"), replay.ReturnPrior)


@pytest.mark.parametrize("phase", list(Phase))
def test_another_request_under_the_same_id_is_refused(phase: Phase) -> None:
    """P1-6: before anything else is looked at."""
    decision = replay.on_register(intent(phase, late_s=100), b"other")
    assert isinstance(decision, replay.Refuse)
    assert decision.problem.status == 422


def test_a_retry_after_expiry_is_told_so() -> None:
    """P1-5, TTL-1."""
    decision = replay.on_register(intent(late_s=0), b"same")
    assert isinstance(decision, replay.Refuse)
    assert decision.problem.status == 408


def confirmed(
    found: Intent | None, *, server_id: UUID = SERVER_ID, confirms: tuple[bytes, ...] = (b"/orders",)
) -> object:
    return replay.on_confirm(found, server_id, confirms, "/orders/confirm")


@pytest.mark.parametrize("phase", [Phase.COMMITTED, Phase.FAILED])
@pytest.mark.parametrize("late_s", [-1.0, 1e9])
def test_what_was_executed_is_answered_from_the_store_for_ever(phase: Phase, late_s: float) -> None:
    """RPL-1, RPL-2: never 408, since re-submitting would double the effect."""
    assert isinstance(confirmed(intent(phase, late_s=late_s)), replay.ReturnStored)


def test_what_runs_is_waited_for_and_what_is_in_doubt_is_told() -> None:
    """P2-8, REP-3, REC-6."""
    assert isinstance(confirmed(intent(Phase.PROCESSING, late_s=1e9)), replay.InProgress)
    assert isinstance(confirmed(intent(Phase.PROCESSING, in_doubt="why")), replay.InDoubt)


@pytest.mark.parametrize("phase", [Phase.WAITING_CONFIRM, Phase.TTL_EXPIRED, Phase.ABANDONED])
def test_what_was_never_confirmed_in_time_is_refused(phase: Phase) -> None:
    """TTL-1."""
    decision = confirmed(intent(phase, late_s=0))
    assert isinstance(decision, replay.Refuse)
    problem = decision.problem
    assert (problem.status, problem.detail) == (408, "Request TTL exceeded. Re-submit as new request.")
    assert (b"DTT-2PHP-Phase-State", b"TTL_EXPIRED") in problem.headers


@pytest.mark.parametrize("phase", [Phase.WAITING_CONFIRM, Phase.TTL_EXPIRED, Phase.ABANDONED])
@pytest.mark.parametrize("late_s", [0.0, 4.9, 1e9])
def test_under_reuse_a_late_confirmation_depends_on_its_proof(phase: Phase, late_s: float) -> None:
    """RPL-3, TTL-3: inside delta and after it alike, so that no refusal tells where delta ends."""
    assert isinstance(confirmed(intent(phase, late_s=late_s, policy="REUSE")), replay.Late)


@pytest.mark.parametrize("phase", [Phase.PROCESSING, Phase.COMMITTED, Phase.FAILED])
def test_under_reuse_what_was_confirmed_needs_no_proof(phase: Phase) -> None:
    """SEC-3, RPL-1: a replay of an executed confirmation gets its stored answer."""
    assert not isinstance(confirmed(intent(phase, late_s=1e9, policy="REUSE")), replay.Late | replay.Refuse)


def test_under_reuse_a_retry_of_phase_1_after_expiry_is_told_so_too() -> None:
    """P1-5, TTL-3: nothing tells that there is still a way."""
    late = [replay.on_register(intent(late_s=0, policy=policy), b"same") for policy in ("REJECT", "REUSE")]
    assert all(isinstance(decision, replay.Refuse) and decision.problem.status == 408 for decision in late)


def test_what_still_waits_may_be_tried_again() -> None:
    """P2-2: a write that lost to something that has since gone away."""
    assert isinstance(confirmed(intent()), replay.TryAgain)


@pytest.mark.parametrize(
    ("found", "server_id", "confirms", "status"),
    [
        (None, SERVER_ID, (b"/orders",), 404),
        (intent(), UUID(int=1), (b"/orders",), 404),
        (intent(), SERVER_ID, (b"/other",), 400),
        (intent(Phase.COMMITTED), SERVER_ID, (), 400),
    ],
)
def test_wrong_ids_and_wrong_paths_are_refused(
    found: Intent | None, server_id: UUID, confirms: tuple[bytes, ...], status: int
) -> None:
    """P2-1, P2-7."""
    decision = confirmed(found, server_id=server_id, confirms=confirms)
    assert isinstance(decision, replay.Refuse)
    assert decision.problem.status == status
