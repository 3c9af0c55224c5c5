"""The phase state machine, as data.

        Client POST (Phase 1)
              |
              v                  confirm, before the PONR deadline
        WAITING_CONFIRM --------------------------> PROCESSING --+-- succeed --> COMMITTED
              |                                         ^        |
              | expire, at the PONR deadline            |        +-- fail -----> FAILED
              v                                         |
         TTL_EXPIRED ------- confirm late (REUSE) ------+
              |
              | abandon, at the deadline + delta
              v
          ABANDONED

The draft's section 6, plus the one edge that its REUSE policy implies. A pair that is absent from `TRANSITIONS` is
illegal (FSM-1); the same table is repeated in the database as guards and CHECKs, and a test compares the two.

*In doubt* is not a phase: it is a state of knowledge about an intent that stays `PROCESSING` (REC-2).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Phase(StrEnum):
    """Where an intent stands. The values are those of `DTT-2PHP-Phase-State`."""

    WAITING_CONFIRM = "WAITING_CONFIRM"
    PROCESSING = "PROCESSING"
    COMMITTED = "COMMITTED"
    FAILED = "FAILED"
    TTL_EXPIRED = "TTL_EXPIRED"
    ABANDONED = "ABANDONED"


class Move(StrEnum):
    """What can happen to an intent."""

    CONFIRM = "confirm"
    CONFIRM_LATE = "confirm_late"
    SUCCEED = "succeed"
    FAIL = "fail"
    EXPIRE = "expire"
    ABANDON = "abandon"


TRANSITIONS: Mapping[Phase, Mapping[Move, Phase]] = {
    Phase.WAITING_CONFIRM: {Move.CONFIRM: Phase.PROCESSING, Move.EXPIRE: Phase.TTL_EXPIRED},
    Phase.TTL_EXPIRED: {Move.CONFIRM_LATE: Phase.PROCESSING, Move.ABANDON: Phase.ABANDONED},
    Phase.PROCESSING: {Move.SUCCEED: Phase.COMMITTED, Move.FAIL: Phase.FAILED},
    Phase.COMMITTED: {},
    Phase.FAILED: {},
    Phase.ABANDONED: {},
}

TERMINAL = frozenset(phase for phase, moves in TRANSITIONS.items() if not moves)
EXECUTED = frozenset({Phase.COMMITTED, Phase.FAILED})


class IllegalMove(Exception):
    """A move that the state machine does not have: a bug of ours, never a client's fault."""


def advance(phase: Phase, move: Move) -> Phase:
    """The phase that a move leads to."""
    try:
        return TRANSITIONS[phase][move]
    except KeyError:
        raise IllegalMove(f"{move} is not possible in {phase}") from None
