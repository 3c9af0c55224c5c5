"""Deliveries as records, and the rule that says what follows an attempt (ACM-3). Time and chance are passed in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from gateway.protocol.identity import IntentKey
from gateway.protocol.records import Sealed

Kind = Literal["callback", "compensation"]
State = Literal["pending", "delivered", "dead"]
STATES: tuple[State, ...] = ("pending", "delivered", "dead")

JITTER = 0.2  # of a pause: retries of one outage do not come back as one wave
GONE = 410  # the receiver asks never to be called again
LEASE_MARGIN_MS = 5_000  # beyond the time of an attempt, to record it before somebody else claims the delivery


@dataclass(frozen=True, slots=True)
class Subject:
    """The intent that a delivery speaks of, as it is now."""

    server_correlation_id: UUID
    client_correlation_id: str
    caller: bytes
    service: str
    method: str
    path: bytes
    phase: str
    resource_id: str | None
    message: str | None
    in_doubt: str | None


@dataclass(frozen=True, slots=True)
class DueDelivery:
    """A delivery that was claimed: whoever holds it makes one attempt before its lease ends."""

    key: IntentKey
    id: UUID
    kind: Kind
    event: str
    attempts: int
    created_at: datetime
    host: int
    url: Sealed
    subject: Subject


@dataclass(frozen=True, slots=True)
class Result:
    """What one attempt heard: a status, or the kind of failure, or (`refused`) the guard's reason."""

    status: int | None = None
    error: str | None = None
    refused: bool = False
    asked: bool = True  # whether it got as far as the host


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one attempt came to. `attempts` counts those before it, which guards against a late record."""

    key: IntentKey
    id: UUID
    attempts: int
    state: State
    pause_ms: int | None
    status: int | None
    error: str | None
    host_failed: bool  # it was asked, and did not answer


def lease_ms(timeout_ms: int) -> int:
    """How long one attempt belongs to who makes it."""
    return timeout_ms + LEASE_MARGIN_MS


def after_attempt(
    key: IntentKey, delivery_id: UUID, attempts: int, result: Result, *, schedule_ms: Sequence[int], chance: float
) -> Outcome:
    """2xx: delivered. 410 or a refused address: dead at once. Anything else: again after the schedule's next pause, and
    dead when there is none left. `chance` is uniform in [0, 1)."""
    status = result.status
    error = f"status {status}" if status is not None else result.error
    pause_ms: int | None = None
    state: State = "dead"
    if status is not None and 200 <= status < 300:
        state, error = "delivered", None
    elif result.refused:
        error = f"refused: {result.error}"
    elif status != GONE and attempts < len(schedule_ms):
        state = "pending"
        pause_ms = round(schedule_ms[attempts] * (1 - JITTER + 2 * JITTER * chance))
    host_failed = status is None and result.asked
    return Outcome(key, delivery_id, attempts, state, pause_ms, status, error, host_failed)
