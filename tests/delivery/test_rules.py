"""ACM-3: what follows an attempt, and what is known of hosts. No sockets, no store."""

from __future__ import annotations

from uuid import UUID

import pytest

from gateway.delivery import hosts
from gateway.delivery.hosts import Hosts
from gateway.protocol.deliveries import Outcome, Result, after_attempt, lease_ms
from gateway.protocol.identity import IntentKey

KEY = IntentKey(0, b"k" * 16)
ID = UUID(int=1)
SCHEDULE = (1_000, 10_000, 100_000)


def after(result: Result, attempts: int = 0, chance: float = 0.5) -> Outcome:
    return after_attempt(KEY, ID, attempts, result, schedule_ms=SCHEDULE, chance=chance)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 226, 299])
def test_any_2xx_is_an_acknowledgement(status: int) -> None:
    outcome = after(Result(status=status), attempts=99)
    assert (outcome.state, outcome.pause_ms, outcome.error) == ("delivered", None, None)


@pytest.mark.parametrize("result", [Result(status=s) for s in (199, 300, 302, 400, 404, 408, 429, 500, 503)])
def test_any_other_status_is_tried_again(result: Result) -> None:
    outcome = after(result)
    assert (outcome.state, outcome.pause_ms, outcome.error) == ("pending", 1_000, f"status {result.status}")
    assert not outcome.host_failed


@pytest.mark.parametrize("error", ["dns", "connect", "tls", "timeout", "disconnected", "protocol"])
def test_no_answer_is_tried_again_and_is_the_hosts_failure(error: str) -> None:
    outcome = after(Result(error=error))
    assert (outcome.state, outcome.pause_ms, outcome.error, outcome.status) == ("pending", 1_000, error, None)
    assert outcome.host_failed


def test_410_is_dead_at_once() -> None:
    outcome = after(Result(status=410))
    assert (outcome.state, outcome.pause_ms, outcome.error) == ("dead", None, "status 410")


def test_a_refused_address_is_dead_at_once_with_its_reason() -> None:
    """ACM-4: the guard's word at dial time."""
    outcome = after(Result(error="loopback", refused=True, asked=False))
    assert (outcome.state, outcome.pause_ms, outcome.error) == ("dead", None, "refused: loopback")
    assert not outcome.host_failed


def test_the_schedule_is_followed_to_its_end_and_then_it_is_dead() -> None:
    failed = Result(status=500)
    assert [after(failed, attempts).pause_ms for attempts in range(4)] == [1_000, 10_000, 100_000, None]
    assert [after(failed, attempts).state for attempts in range(4)] == ["pending"] * 3 + ["dead"]


def test_pauses_vary_by_a_fifth_either_way() -> None:
    pauses = [after(Result(status=500), chance=chance).pause_ms for chance in (0.0, 0.5, 0.999_999)]
    assert pauses == [800, 1_000, 1_200]


def test_a_lease_outlives_the_attempt() -> None:
    assert lease_ms(5_000) > 5_000


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def fail(book: Hosts, key: int, times: int) -> None:
    for _ in range(times):
        host = book.enter(key)
        assert host is not None
        book.leave(host, answered=False)


def test_a_host_takes_as_many_at_once_as_its_limit_and_no_other_host_notices() -> None:
    book = Hosts(limit=2)
    first, second = book.enter(1), book.enter(1)
    assert first is not None
    assert second is not None
    assert book.enter(1) is None
    assert book.rooms() == {1: 0}
    assert book.enter(2) is not None
    book.leave(first, answered=True)
    assert book.rooms() == {1: 1, 2: 1}
    assert book.enter(1) is not None


def test_a_host_that_does_not_answer_several_times_in_a_row_rests_longer_and_longer() -> None:
    clock = Clock()
    book = Hosts(limit=8, clock=clock)
    fail(book, 1, hosts.TRIP - 1)
    assert book.rooms() == {}
    rests = []
    for _ in range(8):
        fail(book, 1, 1)
        assert book.enter(1) is None
        assert book.rooms() == {1: 0}
        started = clock.now
        while book.rooms():
            clock.now += 0.01
        rests.append(clock.now - started)
    assert 0.3 < rests[0] < 0.7
    assert 8 <= rests[-1] <= 12.1
    assert rests[3] > 2 * rests[0]


def test_failures_of_one_wave_count_as_one_rest() -> None:
    clock = Clock()
    book = Hosts(limit=8, clock=clock)
    wave = [book.enter(1) for _ in range(8)]
    for host in wave:
        assert host is not None
        book.leave(host, answered=False)
    clock.now += hosts.REST_MIN_S * 1.3
    assert book.enter(1) is not None


def test_an_answer_ends_the_rest_and_the_row_of_failures() -> None:
    book = Hosts(limit=8)
    early = book.enter(1)
    assert early is not None
    fail(book, 1, hosts.TRIP)
    assert book.enter(1) is None
    book.leave(early, answered=True)
    assert book.enter(1) is not None
    fail(book, 1, hosts.TRIP - 1)
    assert book.enter(1) is not None


def test_what_was_never_attempted_teaches_nothing() -> None:
    book = Hosts(limit=1)
    for _ in range(2 * hosts.TRIP):
        host = book.enter(1)
        assert host is not None
        book.abandon(host)
    assert book.rooms() == {}


def test_hosts_are_forgotten_the_longest_unused_first_and_none_in_use() -> None:
    book = Hosts(limit=8)
    busy = book.enter(-1)
    fail(book, -2, hosts.TRIP)
    for key in range(hosts.KEPT_MAX + 10):
        fail(book, key, 1)
    assert busy is not None
    assert book.rooms() == {-1: 7}  # -2 and its rest are forgotten
