"""COR-4: what a called service's answers mean."""

from __future__ import annotations

import pytest

from gateway.protocol.callee import Over, Plain, Refused, Registered, Running, of_phase_1, of_phase_2
from gateway.protocol.phases import Phase

ID = (b"DTT-2PHP-Server-Correlation-ID", b"s-1")


def state(phase: str) -> tuple[bytes, bytes]:
    return b"dtt-2php-phase-state", phase.encode()


def test_a_registration_says_where_to_confirm() -> None:
    """P2-1: as the answer says, and never elsewhere."""
    headers = [ID, state("WAITING_CONFIRM"), (b"DTT-2PHP-TTL", b"500")]
    found = of_phase_1(200, headers, b'{"confirm": "/orders/commit"}', b"/orders")
    assert found == Registered("s-1", Phase.WAITING_CONFIRM, 500, b"/orders/commit")
    for body in (
        b"",
        b"[]",
        b'{"confirm": 1}',
        b'{"confirm": "//h/x"}',
        b'{"confirm": "http://h"}',
        b'{"confirm": "/\\u00e9 "}',
    ):
        registered = of_phase_1(200, headers, body, b"/orders")
        assert isinstance(registered, Registered)
        assert registered.confirm == b"/orders/confirm"
    root = of_phase_1(200, headers, b"", b"/")
    assert isinstance(root, Registered)
    assert root.confirm == b"/confirm"


@pytest.mark.parametrize(
    ("status", "meant"),
    [(200, Plain(Phase.COMMITTED)), (303, Plain(Phase.COMMITTED)), (404, Plain(Phase.FAILED)), (502, Plain(None))],
)
def test_an_answer_without_2php_is_the_outcome(status: int, meant: Plain) -> None:
    """COR-4."""
    assert of_phase_1(status, [(b"X", b"y")], b"", b"/") == meant


def test_a_refusal_of_a_gateway_is_no_outcome() -> None:
    """COR-4: it has a 2PHP field and no registration."""
    assert of_phase_1(503, [(b"DTT-2PHP-Message", b"x")], b"", b"/") == Refused()
    assert of_phase_1(500, [ID, state("WAITING_CONFIRM")], b"", b"/") == Refused()


@pytest.mark.parametrize(
    ("status", "headers", "meant"),
    [
        (200, [state("COMMITTED"), (b"DTT-2PHP-Upstream-Status", b"201")], Over(Phase.COMMITTED, 201)),
        (200, [state("COMMITTED")], Over(Phase.COMMITTED, None)),
        (500, [state("FAILED"), (b"DTT-2PHP-Upstream-Status", b"999")], Over(Phase.FAILED, None)),
        (408, [state("TTL_EXPIRED")], Over(Phase.TTL_EXPIRED, None)),
        (200, [state("ABANDONED")], Over(Phase.TTL_EXPIRED, None)),
        (202, [state("PROCESSING"), (b"Location", b"/o/1")], Running(b"/o/1")),
        (202, [state("PROCESSING"), (b"Location", b"https://h/o/1")], Running(None)),
        (200, [state("WAITING_CONFIRM")], Running(None)),
        (503, [], Refused(later=True)),
        (429, [], Refused(later=True)),
        (401, [], Refused(later=False)),
        (200, [state("NEW_PHASE")], Refused(later=False)),
    ],
)
def test_an_answer_to_a_confirmation(status: int, headers: list[tuple[bytes, bytes]], meant: object) -> None:
    """P2-4, P2-5, ASY-1, TTL-1 as the caller sees them."""
    assert of_phase_2(status, headers) == meant
