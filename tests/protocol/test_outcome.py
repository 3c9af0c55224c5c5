"""What an upstream's answer means (P2-4, P2-5, P2-6, REC-2, REC-4)."""

from __future__ import annotations

import pytest

from gateway.protocol.messages import Header
from gateway.protocol.outcome import (
    Doubtful,
    ResourceIdRule,
    Settled,
    client_status,
    of_answer,
    of_failure,
    resource_id,
)
from gateway.protocol.phases import Phase

JSON: Header = (b"Content-Type", b"application/json; charset=utf-8")


@pytest.mark.parametrize(
    ("status", "phase", "told"),
    [
        (200, Phase.COMMITTED, 200),
        (201, Phase.COMMITTED, 200),
        (204, Phase.COMMITTED, 200),
        (303, Phase.COMMITTED, 200),
        (400, Phase.FAILED, 400),
        (404, Phase.FAILED, 404),
        (409, Phase.FAILED, 409),
        (499, Phase.FAILED, 499),
        (500, Phase.FAILED, 500),
        (503, Phase.FAILED, 500),
    ],
)
def test_a_definite_answer_settles_the_intent(status: int, phase: Phase, told: int) -> None:
    """P2-4, P2-5."""
    verdict = of_answer(status, {502, 504})
    assert isinstance(verdict, Settled)
    assert verdict.phase is phase
    assert client_status(phase, status) == told


@pytest.mark.parametrize("status", [502, 504])
def test_a_proxys_error_leaves_it_in_doubt(status: int) -> None:
    """P2-5, REC-2: configurable."""
    assert isinstance(of_answer(status, {502, 504}), Doubtful)
    assert isinstance(of_answer(status, ()), Settled)


@pytest.mark.parametrize("kind", ["refused", "dns", "tls", "connect_timeout", "pool", "lease"])
def test_what_was_never_sent_has_failed(kind: str) -> None:
    """P2-5, REC-4."""
    verdict = of_failure(kind, sent=False)
    assert isinstance(verdict, Settled)
    assert verdict.phase is Phase.FAILED
    assert verdict.message
    assert client_status(verdict.phase, None) == 500


@pytest.mark.parametrize("kind", ["timeout", "reset", "protocol", "lease"])
def test_what_may_have_been_received_is_in_doubt(kind: str) -> None:
    """REC-2, REC-4: never a guess."""
    assert isinstance(of_failure(kind, sent=True), Doubtful)


def found(
    rule: ResourceIdRule, *headers: Header, method: str = "POST", path: bytes = b"/o/7", body: bytes = b""
) -> str:
    return resource_id(rule, method=method, path=path, headers=headers, body=body, fallback="fallback")


DEFAULT = ResourceIdRule()


def test_the_default_is_location_then_json_id_then_the_target_then_ours() -> None:
    """P2-6."""
    location = (b"location", b"https://x/orders/a%20b/?q#f")
    assert found(DEFAULT, location, JSON, body=b'{"id": 5}') == "a%20b"
    assert found(DEFAULT, JSON, body=b'{"id": 5}') == "5"
    assert found(DEFAULT, JSON, body=b'{"id": {}}', method="PUT") == "7"
    assert found(DEFAULT, method="DELETE", path=b"/o/x/") == "x"
    assert found(DEFAULT, method="POST") == "fallback"


def test_a_routes_own_rule_is_the_only_one() -> None:
    """P2-6."""
    assert found(ResourceIdRule(header="X-Id"), (b"x-id", b"q 1"), (b"Location", b"/l")) == "q%201"
    assert found(ResourceIdRule(json="/a/0/b~1c"), JSON, body=b'{"a": [{"b/c": "z"}]}') == "z"
    assert found(ResourceIdRule(path="last"), (b"Location", b"/l")) == "7"
    assert found(ResourceIdRule(header="X-Id"), (b"Location", b"/l")) == "fallback"


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"id": null}', b'{"id": true}', b'{"id": ""}', b'{"id": "' + b"x" * 300 + b'"}']
)
def test_what_is_no_usable_id_falls_back(body: bytes) -> None:
    """P2-6: a header of ours never breaks on what an upstream says."""
    assert found(DEFAULT, JSON, body=body) == "fallback"


def test_an_id_that_is_no_header_text_is_percent_encoded() -> None:
    """P2-6."""
    assert found(DEFAULT, JSON, body='{"id": "é\\n"}'.encode()) == "%C3%A9%0A"
