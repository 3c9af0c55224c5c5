"""The invariants of RELIABILITY, over client history x upstream's own log x ledger.

Pure: it is given what the witnesses say and names every contradiction. An operation whose client heard nothing may have
gone either way; what was acknowledged, sent or done may not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise

from gateway.protocol.phases import TERMINAL, TRANSITIONS, Phase
from tests.rig.records import Heard, Operation, Row, Seen

NEVER_EXECUTED = frozenset({"WAITING_CONFIRM", "TTL_EXPIRED", "ABANDONED"})
GRACE = timedelta(seconds=15)  # the longest grace of the rig's routes and a sweep


@dataclass(frozen=True, slots=True)
class Violation:
    """One contradiction."""

    invariant: str
    intent: str
    detail: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.intent}: {self.detail}"


@dataclass(slots=True)
class Case:
    """Everything that is said about one operation."""

    operation: Operation | None
    row: Row | None
    seen: Sequence[Seen]
    heard: Heard | None
    again: bool  # a second row for the same operation
    now: datetime
    healing: Collection[str]  # recoveries that settle what is in doubt by themselves

    @property
    def effects(self) -> int:
        return sum(one.effect for one in self.seen)

    @property
    def name(self) -> str:
        if self.row is not None:
            return self.row.server_id
        if self.operation is not None:
            return self.operation.server_id or self.operation.client_id
        return self.seen[0].server_id

    @property
    def recovery(self) -> str:
        return self.operation.recovery if self.operation is not None else "hold"


Details = Iterator[str]


def one_intent_per_key(case: Case) -> Details:
    if case.again:
        yield "two rows for one operation"
    operation, row = case.operation, case.row
    if operation and row and operation.server_id not in (None, row.server_id):
        yield f"the client was told {operation.server_id}"


def acknowledged_phase_1_is_in_the_ledger(case: Case) -> Details:
    if case.operation and case.operation.server_id and case.row is None:
        yield "acknowledged, and not there"


def acknowledged_outcome_stays(case: Case) -> Details:
    operation, row = case.operation, case.row
    if operation and operation.outcome and row and row.phase != operation.outcome:
        yield f"{operation.outcome} was acknowledged, {row.phase} is recorded"


def what_is_said_twice_is_the_same(case: Case) -> Details:
    if case.operation:
        yield from case.operation.contradictions


def no_408_for_what_took_effect(case: Case) -> Details:
    if case.operation and case.operation.expired and (case.seen or (case.row and case.row.phase_2_at)):
        yield "408 was said, and it was executed"


def no_request_without_a_row(case: Case) -> Details:
    if case.seen and case.row is None:
        yield "sent upstream, and not in the ledger"
    if case.row and any(one.server_id != case.row.server_id for one in case.seen):
        yield "sent upstream under another id"


def one_effect_at_most(case: Case) -> Details:
    if case.effects > 1:
        yield f"{case.effects} effects"


def one_request_on_hold_and_probe(case: Case) -> Details:
    if case.recovery != "redrive" and len(case.seen) > 1:
        yield f"{len(case.seen)} requests on a {case.recovery} route"


def one_idempotency_key(case: Case) -> Details:
    if any(one.key != one.server_id for one in case.seen):
        yield f"keys {sorted({one.key for one in case.seen})}"


def the_registered_body_is_sent(case: Case) -> Details:
    if case.row and any(one.body_sha256 != case.row.body_sha256 for one in case.seen):
        yield "another body than the ledger's"


def durable_before_the_first_byte(case: Case) -> Details:
    if any(one.durable is False for one in case.seen):
        yield "the upstream had the request before Postgres had its PONR"


def nothing_unconfirmed_is_sent(case: Case) -> Details:
    if case.seen and case.operation and not case.operation.confirmed:
        yield "nobody confirmed it"
    if case.seen and case.row and case.row.phase in NEVER_EXECUTED:
        yield f"it is {case.row.phase}"


def every_request_has_its_attempt(case: Case) -> Details:
    if case.row:
        for one in case.seen:
            if one.attempt not in case.row.attempts:
                yield f"attempt {one.attempt} is not in the ledger"


def nothing_is_sent_after_failed(case: Case) -> Details:
    row = case.row
    failed_at = row.settled_at if row and row.phase == "FAILED" else None
    if failed_at and any(one.at > failed_at.timestamp() for one in case.seen):
        yield "a request came after it had FAILED"


def failed_hides_no_success(case: Case) -> Details:
    if case.row and case.row.phase == "FAILED" and any(one.effect or one.status in (200, 201) for one in case.seen):
        yield "FAILED, and it took effect"


def committed_is_one_effect(case: Case) -> Details:
    if case.row and case.row.phase == "COMMITTED" and case.effects != 1:
        yield f"COMMITTED with {case.effects} effects"


def only_legal_transitions(case: Case) -> Details:
    if case.row is None:
        return
    phases = case.row.phases
    if phases[:1] != ("WAITING_CONFIRM",) or phases[-1:] != (case.row.phase,):
        yield f"its events say {' > '.join(phases)}, its row {case.row.phase}"
    for before, after in pairwise(phases):
        if Phase(after) not in TRANSITIONS[Phase(before)].values():
            yield f"{before} > {after}"


def deadlines_hold(case: Case) -> Details:
    row = case.row
    if row is None or row.deadline is None:
        return
    if row.phase_2_at and row.phase_2_at >= row.deadline:
        yield f"confirmed at {row.phase_2_at}, deadline {row.deadline}"
    if row.expired_at and row.expired_at < row.deadline:
        yield f"expired at {row.expired_at}, deadline {row.deadline}"


def healed(case: Case) -> Details:
    row = case.row
    if row is None:
        return
    if row.running:
        yield "an attempt is still held, or its work still queued"
    if row.phase in ("WAITING_CONFIRM", "TTL_EXPIRED"):
        if row.deadline and row.deadline + GRACE < case.now:
            yield f"still {row.phase} long after its deadline"
    elif Phase(row.phase) not in TERMINAL:
        if row.in_doubt is None:
            yield f"{row.phase}, and not in doubt"
        elif case.recovery in case.healing:
            yield f"left in doubt on a {case.recovery} route: {row.in_doubt}"


def callbacks_are_delivered(case: Case) -> Details:
    operation, row = case.operation, case.row
    if case.heard and case.heard.unsigned:
        yield "a callback whose signature is wrong"
    if not operation or not operation.callback or row is None:
        return
    ids = {delivery for delivery, _ in row.deliveries}
    if len(ids) != 1 or any(state != "delivered" for _, state in row.deliveries):
        yield f"deliveries {row.deliveries}"
    if case.heard is None or case.heard.ids != ids:
        yield f"the receiver heard {case.heard.ids if case.heard else 'nothing'}"


INVARIANTS: dict[str, Callable[[Case], Details]] = {
    check.__name__.replace("_", " "): check
    for check in (
        one_intent_per_key,
        acknowledged_phase_1_is_in_the_ledger,
        acknowledged_outcome_stays,
        what_is_said_twice_is_the_same,
        no_408_for_what_took_effect,
        no_request_without_a_row,
        one_effect_at_most,
        one_request_on_hold_and_probe,
        one_idempotency_key,
        the_registered_body_is_sent,
        durable_before_the_first_byte,
        nothing_unconfirmed_is_sent,
        every_request_has_its_attempt,
        nothing_is_sent_after_failed,
        failed_hides_no_success,
        committed_is_one_effect,
        only_legal_transitions,
        deadlines_hold,
        healed,
        callbacks_are_delivered,
    )
}


@dataclass
class Findings:
    """What a check came to."""

    violations: list[Violation] = field(default_factory=list)
    intents: int = 0
    phases: dict[str, int] = field(default_factory=dict)
    in_doubt: dict[str, int] = field(default_factory=dict)  # by recovery
    lost: int = 0
    doubled: int = 0


class Checker:
    """Is shown every row of the ledger, once each; `finish` adds what has no row."""

    def __init__(
        self,
        operations: Mapping[int, Operation],
        log: Iterable[Seen],
        heard: Mapping[int, Heard],
        *,
        now: datetime,
        healing: Collection[str] = (),
    ) -> None:
        self._operations = operations
        self._requests: dict[int, list[Seen]] = {}
        for one in log:
            self._requests.setdefault(one.number, []).append(one)
        self._heard = heard
        self._now = now
        self._healing = healing
        self._known: set[int] = set()
        self._findings = Findings()

    def row(self, row: Row) -> None:
        """Look at one intent."""
        case = self._look(row.number, row)
        found = self._findings
        found.intents += 1
        found.phases[row.phase] = found.phases.get(row.phase, 0) + 1
        if row.in_doubt is not None:
            found.in_doubt[case.recovery] = found.in_doubt.get(case.recovery, 0) + 1

    def finish(self) -> Findings:
        """Everything that was found."""
        for number in (self._operations.keys() | self._requests.keys()) - self._known:
            self._look(number, None)
        return self._findings

    def _look(self, number: int, row: Row | None) -> Case:
        case = Case(
            self._operations.get(number),
            row,
            self._requests.get(number, ()),
            self._heard.get(number),
            number in self._known,
            self._now,
            self._healing,
        )
        self._known.add(number)
        found = self._findings
        for name, invariant in INVARIANTS.items():
            found.violations += [Violation(name, case.name, detail) for detail in invariant(case)]
        found.doubled += case.effects > 1
        found.lost += row is None and case.operation is not None and case.operation.server_id is not None
        return case


def exposed(texts: Iterable[str], canary: str) -> list[Violation]:
    """SEC-4: what was said in confidence, in the clear. `texts` are logs, metrics and columns of the ledger."""
    return [
        Violation("no secret in the clear", "-", text[max(0, at - 80) : at + 80])
        for text in texts
        if (at := text.find(canary)) >= 0
    ]
