"""The checker finds what is wrong: every invariant has planted violations, and a run without fault has none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import pytest

from tests.rig.checker import INVARIANTS, Checker, Findings, exposed
from tests.rig.records import CANARY, Heard, Operation, Row, Seen

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
ID, ATTEMPT, DELIVERY = "server-1", "attempt-1", "delivery-1"
HEADERS = [(b"X-Rig", b"upstream"), (b"Date", b"today")]


class Scene:
    """A handshake with a callback that went well; each plant spoils one thing."""

    def __init__(self) -> None:
        self.operation = Operation(1, "auto", "hold", "POST", confirmed=True, callback=True)
        self.operation.registered(ID, "noon")
        self.operation.settled("COMMITTED", 201, HEADERS, b"made")
        digest = sha256(self.operation.body).digest()
        self.seen = [Seen(1, ID, ID, ATTEMPT, digest, NOW.timestamp() - 2, effect=True, status=201, durable=True)]
        row = Row(1, ID, "c-1", "COMMITTED", body_sha256=digest, attempts=frozenset({ATTEMPT}))
        row.phases = ("WAITING_CONFIRM", "PROCESSING", "COMMITTED")
        row.phase_1_at, row.deadline = NOW - timedelta(seconds=10), NOW + timedelta(seconds=20)
        row.phase_2_at, row.settled_at = NOW - timedelta(seconds=3), NOW - timedelta(seconds=1)
        row.deliveries = ((DELIVERY, "delivered"),)
        self.rows = [row]
        self.heard = {1: Heard({DELIVERY})}

    @property
    def row(self) -> Row:
        return self.rows[0]

    def unexecuted(self, phase: str) -> None:
        """It was never confirmed, and the client knows no outcome."""
        self.row.phase, self.row.phases = (
            phase,
            ("WAITING_CONFIRM",)
            if phase == "WAITING_CONFIRM"
            else (
                ("WAITING_CONFIRM", "TTL_EXPIRED")
                if phase == "TTL_EXPIRED"
                else ("WAITING_CONFIRM", "TTL_EXPIRED", phase)
            ),
        )
        self.row.phase_2_at = self.row.settled_at = self.operation.outcome = None

    def failed(self) -> None:
        """It had no effect, and everybody knows."""
        self.row.phase, self.row.phases = "FAILED", ("WAITING_CONFIRM", "PROCESSING", "FAILED")
        self.operation.outcome = "FAILED"
        self.seen = [replace(self.seen[0], effect=False, status=500)]

    def in_doubt(self) -> None:
        """Nobody knows."""
        self.row.phase, self.row.phases = "PROCESSING", ("WAITING_CONFIRM", "PROCESSING")
        self.row.in_doubt, self.row.settled_at, self.operation.outcome = "no answer", None, None

    def violated(self) -> set[str]:
        return {violation.invariant for violation in self.findings().violations}

    def findings(self) -> Findings:
        operations = {1: self.operation}
        checker = Checker(operations, self.seen, self.heard, now=NOW, healing=("redrive", "probe"))
        for row in self.rows:
            checker.row(row)
        return checker.finish()


def test_a_run_without_fault_has_no_violation() -> None:
    assert Scene().violated() == set()


@pytest.mark.parametrize("state", ["failed", "in_doubt"])
def test_neither_have_its_other_ends(state: str) -> None:
    scene = Scene()
    getattr(scene, state)()
    assert scene.violated() == set()


@pytest.mark.parametrize("phase", ["WAITING_CONFIRM", "TTL_EXPIRED", "ABANDONED"])
def test_nor_has_an_operation_that_nobody_confirmed(phase: str) -> None:
    scene = Scene()
    scene.unexecuted(phase)
    scene.operation.confirmed, scene.seen, scene.operation.callback = False, [], False
    assert scene.violated() == set()


def test_an_operation_whose_client_heard_nothing_may_have_gone_either_way() -> None:
    scene = Scene()
    scene.operation = Operation(1, "auto", "hold", "POST", confirmed=True)
    assert scene.violated() == set()
    scene.seen, scene.rows, scene.heard = [], [], {}
    assert scene.violated() == set()


def two_rows(scene: Scene) -> None:
    scene.rows.append(replace(scene.row))


def another_id_was_acknowledged(scene: Scene) -> None:
    scene.operation.server_id = "server-2"


def the_row_is_gone(scene: Scene) -> None:
    scene.rows.clear()


def the_outcome_changed_later(scene: Scene) -> None:
    scene.failed()
    scene.operation.outcome = "COMMITTED"


def a_replay_has_another_body(scene: Scene) -> None:
    scene.operation.settled("COMMITTED", 201, HEADERS, b"made again")


def a_replay_has_another_header(scene: Scene) -> None:
    scene.operation.settled("COMMITTED", 201, [*HEADERS, (b"X-More", b"1")], b"made")


def a_replay_has_another_outcome(scene: Scene) -> None:
    scene.operation.settled("FAILED", 201, HEADERS, b"made")


def phase_1_again_has_another_id(scene: Scene) -> None:
    scene.operation.registered("server-2", None)
    scene.operation.registered(ID, None)


def phase_1_again_has_another_deadline(scene: Scene) -> None:
    scene.operation.registered(ID, "one o'clock")


def a_408_for_an_effect(scene: Scene) -> None:
    scene.operation.expired = True


def a_request_of_an_unknown_intent(scene: Scene) -> None:
    scene.seen.append(replace(scene.seen[0], number=2, effect=False))


def a_request_under_another_id(scene: Scene) -> None:
    scene.seen[0].server_id = scene.seen[0].key = "server-2"


def two_effects(scene: Scene) -> None:
    scene.seen.append(replace(scene.seen[0]))


def two_requests_on_a_hold_route(scene: Scene) -> None:
    scene.seen.append(replace(scene.seen[0], effect=False))


def another_idempotency_key(scene: Scene) -> None:
    scene.seen[0].key = "another"


def another_body(scene: Scene) -> None:
    scene.seen[0].body_sha256 = sha256(b"another").digest()


def sent_before_it_was_durable(scene: Scene) -> None:
    scene.seen[0].durable = False


def sent_unconfirmed(scene: Scene) -> None:
    scene.operation.confirmed = False


def sent_and_expired(scene: Scene) -> None:
    scene.unexecuted("ABANDONED")


def an_attempt_without_a_row(scene: Scene) -> None:
    scene.row.attempts = frozenset()


def sent_after_it_failed(scene: Scene) -> None:
    scene.failed()
    scene.seen[0].at = NOW.timestamp()


def failed_with_an_effect(scene: Scene) -> None:
    scene.failed()
    scene.seen[0].effect = True


def failed_with_a_2xx(scene: Scene) -> None:
    scene.failed()
    scene.seen[0].status = 200


def committed_without_an_effect(scene: Scene) -> None:
    scene.seen[0].effect = False


def a_leap_of_phases(scene: Scene) -> None:
    scene.row.phases = ("WAITING_CONFIRM", "COMMITTED")


def a_way_back(scene: Scene) -> None:
    scene.row.phases = ("WAITING_CONFIRM", "PROCESSING", "WAITING_CONFIRM", "PROCESSING", "COMMITTED")


def a_phase_without_an_event(scene: Scene) -> None:
    scene.row.phases = ("WAITING_CONFIRM", "PROCESSING")


def confirmed_too_late(scene: Scene) -> None:
    scene.row.phase_2_at = scene.row.deadline


def expired_too_early(scene: Scene) -> None:
    scene.row.expired_at = NOW


def an_attempt_that_nobody_ended(scene: Scene) -> None:
    scene.row.running = True


def never_swept(scene: Scene) -> None:
    scene.unexecuted("WAITING_CONFIRM")
    scene.row.deadline = NOW - timedelta(minutes=1)


def neither_settled_nor_in_doubt(scene: Scene) -> None:
    scene.in_doubt()
    scene.row.in_doubt = None


def in_doubt_on_a_route_that_heals(scene: Scene) -> None:
    scene.in_doubt()
    scene.operation.recovery = "probe"


def an_unsigned_callback(scene: Scene) -> None:
    scene.heard[1].unsigned = 1


def a_callback_that_never_came(scene: Scene) -> None:
    scene.heard.clear()


def a_callback_under_two_ids(scene: Scene) -> None:
    scene.heard[1].ids.add("delivery-2")


def a_callback_that_was_never_promised(scene: Scene) -> None:
    scene.row.deliveries = ()


def a_callback_not_marked(scene: Scene) -> None:
    scene.row.deliveries = ((DELIVERY, "pending"),)


PLANTS: dict[Callable[[Scene], None], str] = {
    two_rows: "one intent per key",
    another_id_was_acknowledged: "one intent per key",
    the_row_is_gone: "acknowledged phase 1 is in the ledger",
    the_outcome_changed_later: "acknowledged outcome stays",
    a_replay_has_another_body: "what is said twice is the same",
    a_replay_has_another_header: "what is said twice is the same",
    a_replay_has_another_outcome: "what is said twice is the same",
    phase_1_again_has_another_id: "what is said twice is the same",
    phase_1_again_has_another_deadline: "what is said twice is the same",
    a_408_for_an_effect: "no 408 for what took effect",
    a_request_of_an_unknown_intent: "no request without a row",
    a_request_under_another_id: "no request without a row",
    two_effects: "one effect at most",
    two_requests_on_a_hold_route: "one request on hold and probe",
    another_idempotency_key: "one idempotency key",
    another_body: "the registered body is sent",
    sent_before_it_was_durable: "durable before the first byte",
    sent_unconfirmed: "nothing unconfirmed is sent",
    sent_and_expired: "nothing unconfirmed is sent",
    an_attempt_without_a_row: "every request has its attempt",
    sent_after_it_failed: "nothing is sent after failed",
    failed_with_an_effect: "failed hides no success",
    failed_with_a_2xx: "failed hides no success",
    committed_without_an_effect: "committed is one effect",
    a_leap_of_phases: "only legal transitions",
    a_way_back: "only legal transitions",
    a_phase_without_an_event: "only legal transitions",
    confirmed_too_late: "deadlines hold",
    expired_too_early: "deadlines hold",
    an_attempt_that_nobody_ended: "healed",
    never_swept: "healed",
    neither_settled_nor_in_doubt: "healed",
    in_doubt_on_a_route_that_heals: "healed",
    an_unsigned_callback: "callbacks are delivered",
    a_callback_that_never_came: "callbacks are delivered",
    a_callback_under_two_ids: "callbacks are delivered",
    a_callback_that_was_never_promised: "callbacks are delivered",
    a_callback_not_marked: "callbacks are delivered",
}


@pytest.mark.parametrize(("plant", "invariant"), PLANTS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_planted_violation_is_found(plant: Callable[[Scene], None], invariant: str) -> None:
    scene = Scene()
    plant(scene)
    assert invariant in scene.violated()


def test_every_invariant_has_a_planted_violation() -> None:
    assert set(PLANTS.values()) == set(INVARIANTS)


def test_an_invariant_that_is_switched_off_would_be_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plants above are found by their own invariant, not by a neighbour."""
    for plant, invariant in PLANTS.items():
        with monkeypatch.context() as without:
            without.setitem(INVARIANTS, invariant, lambda case: iter(()))
            scene = Scene()
            plant(scene)
            assert invariant not in scene.violated()


def test_lost_and_doubled_are_counted() -> None:
    """The two figures of a summary."""
    scene = Scene()
    two_effects(scene)
    the_row_is_gone(scene)
    found = scene.findings()
    assert (found.lost, found.doubled) == (1, 1)


def test_a_secret_in_the_clear_is_found() -> None:
    """SEC-4."""
    assert exposed(["nothing here"], CANARY) == []
    (violation,) = exposed(["fine", f"a log line with Bearer {CANARY}-3 in it"], CANARY)
    assert CANARY in violation.detail
