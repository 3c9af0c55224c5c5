"""How a state looks: a word, a colour and a shape, so that colour is never the only carrier (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.protocol.phases import Phase


@dataclass(frozen=True, slots=True)
class State:
    """`key` names its colour in the style sheet and its shape among the icons."""

    key: str
    word: str
    means: str


PHASES: Mapping[str, State] = {
    Phase.WAITING_CONFIRM: State("waiting", "waiting", "Registered; nothing runs until it is confirmed."),
    Phase.PROCESSING: State("processing", "processing", "Confirmed; the service was called or is about to be."),
    Phase.COMMITTED: State("committed", "committed", "The service did it, once."),
    Phase.FAILED: State("failed", "failed", "The service answered that it did not do it."),
    Phase.TTL_EXPIRED: State("expired", "expired", "Not confirmed in time; nothing was run."),
    Phase.ABANDONED: State("abandoned", "abandoned", "Expired and closed for good; nothing was run."),
}
IN_DOUBT = State("in-doubt", "in doubt", "Sent without an answer: it may have happened, and nobody knows yet.")
ABSENT = State("absent", "not registered", "This side's registration is not in the ledger.")
REDACTED = State("redacted", "not shown", "Another service's registration, which this token may not read.")
UNHEARD = State("unknown", "unknown", "A phase that this release does not know.")


def of_entry(entry: Mapping[str, Any] | None) -> State:
    """What an entry's phase and doubt amount to; None: the side that is missing."""
    if entry is None:
        return ABSENT
    if entry.get("redacted"):
        return REDACTED
    if entry.get("in_doubt"):
        return IN_DOUBT
    return of_phase(entry.get("phase"))


def of_phase(phase: object) -> State:
    """A phase alone, as events carry it."""
    return PHASES.get(str(phase), UNHEARD)
