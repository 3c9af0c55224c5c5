"""FSM-1: the state machine is the draft's, and no other edge exists."""

from __future__ import annotations

import pytest

from gateway.protocol.phases import TERMINAL, TRANSITIONS, IllegalMove, Move, Phase, advance

EDGES = {
    ("WAITING_CONFIRM", "PROCESSING"),
    ("WAITING_CONFIRM", "TTL_EXPIRED"),
    ("TTL_EXPIRED", "PROCESSING"),
    ("TTL_EXPIRED", "ABANDONED"),
    ("PROCESSING", "COMMITTED"),
    ("PROCESSING", "FAILED"),
}


def test_the_edges_are_exactly_those_of_the_draft() -> None:
    """FSM-1."""
    assert {(phase.value, target.value) for phase, moves in TRANSITIONS.items() for target in moves.values()} == EDGES


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("move", list(Move))
def test_a_move_leads_along_an_edge_or_is_illegal(phase: Phase, move: Move) -> None:
    """FSM-1."""
    if move in TRANSITIONS[phase]:
        assert (phase.value, advance(phase, move).value) in EDGES
    else:
        with pytest.raises(IllegalMove):
            advance(phase, move)


def test_nothing_leaves_a_terminal_phase() -> None:
    """FSM-1: an acknowledged outcome never changes."""
    assert {Phase.COMMITTED, Phase.FAILED, Phase.ABANDONED} == TERMINAL


def test_every_phase_has_its_moves_told() -> None:
    assert set(TRANSITIONS) == set(Phase)
