"""Sessions of the page and attempts to get one (SEC-5), on a clock of the test's own."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gateway.central.page import attempts, sessions
from gateway.central.page.attempts import Attempts
from gateway.central.page.sessions import Sessions
from gateway.operator import Access
from tests.operator.console import ConfiguredToken, configured


@dataclass
class Clock:
    now_s: float = 1_000.0

    def __call__(self) -> float:
        return self.now_s


AUDIT = configured("audit")


def opened(*tokens: ConfiguredToken) -> tuple[Sessions, Access, Clock]:
    access, clock = Access(tokens), Clock()
    return Sessions(access, life_s=60, clock=clock), access, clock


def test_a_session_ends_when_its_time_is_over() -> None:
    """SEC-5: however much it was used."""
    held, _, clock = opened(AUDIT)
    cookie = held.begin(AUDIT)
    clock.now_s += 59
    assert held.find(cookie) is not None
    clock.now_s += 1
    assert held.find(cookie) is None


def test_a_session_ends_at_once_with_its_token() -> None:
    """SEC-5: removed, or given another role or service, it is not the token that logged in."""
    for left in ([], [replace(AUDIT, role="operations")], [replace(AUDIT, service="orders")]):
        held, access, _ = opened(AUDIT)
        cookie = held.begin(AUDIT)
        access.replace_tokens(left)
        assert held.find(cookie) is None
        access.replace_tokens([AUDIT])
        assert held.find(cookie) is None, "what has ended does not come back"


def test_a_logout_ends_one_session_and_no_other() -> None:
    held, _, _ = opened(AUDIT)
    one, other = held.begin(AUDIT), held.begin(AUDIT)
    held.end(one)
    assert held.find(one) is None
    assert held.find(other) is not None
    assert held.find("") is None
    assert held.find("guessed") is None


def test_sessions_are_bounded_and_the_least_used_one_goes_first() -> None:
    held, _, _ = opened(AUDIT)
    first, second = held.begin(AUDIT), held.begin(AUDIT)
    held.find(first)
    for _ in range(sessions.SESSIONS_MAX - 1):
        held.begin(AUDIT)
    assert held.find(second) is None
    assert held.find(first) is not None


def test_neither_token_nor_cookie_is_kept() -> None:
    """SEC-4: what a dump of the process's sessions would show."""
    held, _, _ = opened(AUDIT)
    cookie = held.begin(AUDIT)
    assert cookie not in repr(vars(held))


def test_wrong_tokens_are_bounded_for_each_peer() -> None:
    """SEC-5: so many at once, then one now and then; others are not held up."""
    clock = Clock()
    counted = Attempts(clock=clock)
    for _ in range(attempts.BURST):
        assert counted.wait_s("192.0.2.1") == 0
        counted.failed("192.0.2.1")
    assert counted.wait_s("192.0.2.1") == attempts.REFILL_S
    assert counted.wait_s("192.0.2.2") == 0
    clock.now_s += attempts.REFILL_S
    assert counted.wait_s("192.0.2.1") == 0
    counted.failed("192.0.2.1")
    assert counted.wait_s("192.0.2.1") > 0
    clock.now_s += attempts.BURST * attempts.REFILL_S
    for _ in range(attempts.BURST):
        assert counted.wait_s("192.0.2.1") == 0
        counted.failed("192.0.2.1")
    assert counted.wait_s("192.0.2.1") > 0


def test_peers_that_are_remembered_are_bounded() -> None:
    counted = Attempts(clock=Clock())
    for number in range(attempts.PEERS_MAX + 10):
        counted.failed(str(number))
    assert len(counted._empty_until_s) == attempts.PEERS_MAX
