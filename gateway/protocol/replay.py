"""What a repeated or late request gets. Pure: the caller of these rules has already tried the guarded write.

`on_register` is asked when Phase 1 found its key consumed; `on_confirm` when the guarded write of Phase 2 changed
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from gateway.protocol import problems
from gateway.protocol.intents import Intent
from gateway.protocol.phases import EXECUTED, Phase
from gateway.protocol.problems import Problem


@dataclass(frozen=True, slots=True)
class ReturnPrior:
    """P1-5: the same registration again."""

    intent: Intent


@dataclass(frozen=True, slots=True)
class ReturnStored:
    """RPL-1, RPL-2: executed; the stored answer, whenever it is asked for."""

    intent: Intent


@dataclass(frozen=True, slots=True)
class InProgress:
    """P2-8: somebody executes it now; wait for that result."""

    intent: Intent


@dataclass(frozen=True, slots=True)
class InDoubt:
    """REC-6: executed with an unknown outcome."""

    intent: Intent


@dataclass(frozen=True, slots=True)
class TryAgain:
    """Still waiting for a confirmation: the write lost to something that has since gone away."""


@dataclass(frozen=True, slots=True)
class Late:
    """RPL-3: never confirmed and past its deadline, under REUSE: it depends on the proof, and on the guarded write."""

    intent: Intent


@dataclass(frozen=True, slots=True)
class Refuse:
    """A refusal."""

    problem: Problem


def on_register(existing: Intent, replay_key: bytes) -> ReturnPrior | Refuse:
    """P1-5, P1-6: the key is consumed; is this the same request?"""
    if existing.replay_key != replay_key:
        return Refuse(problems.key_reused())
    if existing.phase in (Phase.TTL_EXPIRED, Phase.ABANDONED):
        return Refuse(problems.ttl_expired(existing.server_correlation_id))
    return ReturnPrior(existing)


def on_confirm(
    intent: Intent | None, server_correlation_id: UUID, confirms: tuple[bytes, ...], confirm_path: str
) -> ReturnStored | InProgress | InDoubt | TryAgain | Late | Refuse:
    """P2-1, P2-7, TTL-1, RPL-1 .. RPL-3. `confirms` are the Phase 1 paths that the request's own path stands for."""
    if intent is None or intent.server_correlation_id != server_correlation_id:
        return Refuse(problems.intent_unknown())
    if intent.path not in confirms:
        return Refuse(problems.confirm_mismatch(confirm_path))
    phase = intent.phase
    if phase in EXECUTED:
        return ReturnStored(intent)
    if phase is Phase.PROCESSING:
        return InDoubt(intent) if intent.in_doubt is not None else InProgress(intent)
    if phase is Phase.WAITING_CONFIRM:
        return TryAgain()
    if intent.replay_policy == "REUSE":
        return Late(intent)
    return Refuse(problems.ttl_expired(intent.server_correlation_id))
