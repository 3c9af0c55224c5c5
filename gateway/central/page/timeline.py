"""One transaction in order of time (pure): from the gateway's own record of it, or from the ledger's rows alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gateway.central.page import moments, states
from gateway.protocol.phases import Phase

Document = Mapping[str, Any]
_LONG_AGO = datetime(1, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Step:
    """Something that happened: an icon with its tone, a few words, and what else is known."""

    at: str | None
    icon: str
    tone: str
    what: str
    code: str | None = None
    text: str = ""
    detail: Any = None


def of_intent(intent: Document) -> list[Step]:
    """Events with their codes, attempts and deliveries of an intent as its gateway tells it."""
    steps = [_event(event) for event in intent["events"]]
    steps += [step for attempt in intent["attempts"] for step in _attempt(attempt)]
    steps += [step for delivery in intent["deliveries"] for step in _delivery(delivery)]
    return _sorted(steps)


def of_entries(entries: Sequence[Document]) -> list[Step]:
    """What the two registrations alone tell."""
    steps: list[Step] = []
    for entry in entries:
        who = f"{entry['source']}, as {entry['actor']}"
        waiting = states.of_phase(Phase.WAITING_CONFIRM)
        steps.append(Step(entry["phase_1_timestamp"], waiting.key, waiting.key, f"registered by {who}"))
        if entry["phase_2_timestamp"]:
            state = states.of_entry(entry)
            steps.append(Step(entry["phase_2_timestamp"], state.key, state.key, f"{state.word}, says {who}"))
        if entry["in_doubt"]:
            doubt = states.IN_DOUBT
            steps.append(Step(entry["in_doubt"], doubt.key, doubt.key, f"in doubt, says {who}"))
    return _sorted(steps)


def _event(event: Document) -> Step:
    if event["phase"] is None:
        return Step(event["at"], "event", "", "noted", code=event["code"], detail=event["detail"])
    state = states.of_phase(event["phase"])
    return Step(event["at"], state.key, state.key, state.word, code=event["code"], detail=event["detail"])


def _attempt(attempt: Document) -> list[Step]:
    name = f"attempt {attempt['number']}"
    steps = [Step(attempt["started_at"], "call", "processing", f"{name} began")]
    if attempt["ended_at"]:
        status, error = attempt["status"], attempt["error"]
        text = f"the service answered {status}" if status is not None else (error or "")
        tone = "failed" if error else "committed"
        steps.append(Step(attempt["ended_at"], "call", tone, f"{name} ended", text=text))
    return steps


def _delivery(delivery: Document) -> list[Step]:
    name = f"{delivery['kind']} for {delivery['event']}"
    steps = [Step(delivery["created_at"], "callback", "", f"{name} promised")]
    if delivery["settled_at"]:
        good = delivery["state"] == "delivered"
        what = f"{name} {'acknowledged' if good else 'given up'}"
        steps.append(
            Step(delivery["settled_at"], "callback", "committed" if good else "failed", what, text=_tries(delivery))
        )
    elif delivery["attempts"]:
        what = f"{name} to be tried again"
        steps.append(Step(delivery["next_at"], "callback", "waiting", what, text=_tries(delivery)))
    return steps


def _tries(delivery: Document) -> str:
    count = delivery["attempts"]
    last = delivery["last_error"] or (f"answered {delivery['last_status']}" if delivery["last_status"] else "")
    return f"{count} {'try' if count == 1 else 'tries'}{', ' + last if last else ''}"


def _sorted(steps: list[Step]) -> list[Step]:
    return sorted(steps, key=lambda step: moments.parsed(step.at) or _LONG_AGO)  # stable: what has no time comes first
