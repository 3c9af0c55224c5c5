"""REC-2, REC-5: what is done about a doubt, and what a GET or a repeat tells. No loop, no clock, no store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol import recovery
from gateway.protocol.identity import IntentKey
from gateway.protocol.outcome import Doubtful, Settled
from gateway.protocol.phases import Phase
from gateway.protocol.records import Doubted
from gateway.protocol.recovery import Hold, Limits, No, Probe, Redrive, Unsure, UseEvidence, Wait, Yes

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LIMITS = Limits(attempts=3, backoff_ms=1000, upstream_timeout_ms=30_000)


def doubted(*, ended_ms_ago: int = 100_000, **changes: Any) -> Doubted:
    fields: dict[str, Any] = {
        "key": IntentKey(0, b"k"),
        "token": NOW,
        "fence": 1,
        "server_correlation_id": UUID(int=1),
        "client_correlation_id": "c",
        "method": "POST",
        "path": b"/orders",
        "asked": 0,
        "tries": 1,
        "sends": 1,
        "ended_at": NOW - timedelta(milliseconds=ended_ms_ago),
        "read_at": NOW,
        "payload_kept": True,
        "proven": False,
    }
    return Doubted(**{**fields, **changes})


def decide(doubt: Doubted, policy: str | None, *, chance: float = 0.5) -> recovery.Decision:
    return recovery.decide(doubt, policy, LIMITS, chance=chance)


@pytest.mark.parametrize("policy", ["hold", "redrive", "probe", None])
def test_evidence_comes_before_every_policy(policy: str | None) -> None:
    """DESIGN decision 7."""
    assert decide(doubted(proven=True), policy) == UseEvidence()


def test_the_default_is_to_hold_and_that_is_no_news() -> None:
    """REC-2."""
    assert decide(doubted(), "hold") == Hold(recovery.BY_POLICY, news=False)


def test_a_route_that_is_gone_is_held() -> None:
    """REC-2: another route's policy was never meant for it."""
    decision = decide(doubted(), None)
    assert isinstance(decision, Hold)
    assert decision.news


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"payload_kept": False}, "its payload was not kept, so it cannot be sent again"),
        ({"tries": 3, "sends": 3}, "recovery.attempts used up: sent 3 times"),
        ({"tries": 60}, "upstream could not be reached in 60 attempts"),
    ],
)
def test_what_cannot_be_sent_again_is_held_and_says_why(changes: dict[str, Any], reason: str) -> None:
    """REC-2: `recovery.attempts` counts sends, the first included; what was never sent is bounded too."""
    assert decide(doubted(**changes), "redrive") == Hold(reason)


def test_a_probe_without_its_callers_credentials_is_not_asked() -> None:
    """REC-2: an upstream may answer 404 to whom it does not know, and the doubt would be settled by that."""
    reason = "its payload was not kept, so upstream cannot be asked with its caller's credentials"
    assert decide(doubted(payload_kept=False), "probe") == Hold(reason)
    assert decide(doubted(payload_kept=False, proven=True), "probe") == UseEvidence()


def test_a_redrive_waits_for_its_back_off() -> None:
    """REC-2: doubled with every attempt, counted from the end of the last."""
    assert decide(doubted(ended_ms_ago=1000), "redrive") == Redrive()
    assert decide(doubted(ended_ms_ago=400), "redrive") == Wait(600)
    assert decide(doubted(ended_ms_ago=1000, tries=2, sends=2), "redrive") == Wait(1000)
    assert decide(doubted(ended_ms_ago=2000, tries=2, sends=1), "redrive") == Redrive()


def test_a_probe_is_ripe_when_nothing_can_be_under_way_any_more() -> None:
    """REC-2: at least `upstream.timeout` after the end of the last send."""
    assert decide(doubted(ended_ms_ago=29_999), "probe") == Probe(ripe=False, ripe_in_ms=1)
    assert decide(doubted(ended_ms_ago=30_000), "probe") == Probe(ripe=True, ripe_in_ms=0)
    assert decide(doubted(ended_at=None), "probe") == Probe(ripe=False, ripe_in_ms=30_000)


@given(first_ms=st.integers(1, 10_000), doublings=st.integers(0, 200), chance=st.floats(0, 1, exclude_max=True))
def test_pauses_grow_are_jittered_and_are_bounded(first_ms: int, doublings: int, chance: float) -> None:
    """REC-2."""
    pause_ms = recovery.pause_ms(first_ms, doublings, chance=chance)
    assert 0.8 * first_ms - 1 <= pause_ms <= 1.2 * recovery.PAUSE_MAX_MS
    assert pause_ms <= recovery.pause_ms(first_ms, doublings + 1, chance=chance)


@pytest.mark.parametrize(
    ("method", "status", "phase"),
    [
        *[("POST", status, Phase.COMMITTED) for status in (200, 201, 204, 303)],
        *[("POST", status, Phase.FAILED) for status in (400, 404, 410, 422)],
        *[("POST", status, None) for status in (401, 403, 408, 409, 412, 425, 429, 500, 502, 503, 504)],
        *[("DELETE", status, None) for status in (404, 410)],
        ("DELETE", 204, Phase.COMMITTED),
    ],
)
def test_a_repeat_settles_only_what_its_answer_tells_of_the_first(
    method: str, status: int, phase: Phase | None
) -> None:
    """REC-2: FAILED is known, or it is not said."""
    found = recovery.of_repeat(method, status, {502, 504})
    assert isinstance(found, Doubtful) if phase is None else isinstance(found, Settled) and found.phase is phase


@pytest.mark.parametrize(
    ("status", "body", "pointer", "told"),
    [
        (200, b"", None, Yes),
        (204, b"", None, Yes),
        (404, b"", None, No),
        (410, b"", None, No),
        (200, b'{"id": 17}', "/id", Yes),
        (200, b'{"id": null}', "/id", Unsure),
        (200, b'{"order": null}', "/order/id", No),
        (200, b"{}", "/id", No),
        (200, b"[]", "/0", No),
        (200, b"<html>", "/id", Unsure),
        (200, b"", "/id", Unsure),
        (200, b"null", "/id", Unsure),
        *[(status, b"", None, Unsure) for status in (301, 400, 401, 403, 429, 500, 502, 503)],
    ],
)
def test_what_a_probe_tells(status: int, body: bytes, pointer: str | None, told: type) -> None:
    """REC-2: 2xx is yes, 404 and 410 are no, a pointer that leads nowhere in a 2xx is no; all else tells nothing.

    A null is somewhere: an upstream may know the key and not yet the value.
    """
    assert isinstance(recovery.of_probe(status, body, pointer, complete=True), told)


def test_half_a_document_tells_nothing_and_a_value_names_the_resource() -> None:
    """REC-2, P2-6."""
    assert isinstance(recovery.of_probe(200, b'{"id": 17}', "/id", complete=False), Unsure)
    assert recovery.of_probe(200, b'{"id": 17}', "/id", complete=True) == Yes("17")
    assert recovery.of_probe(200, b'{"id": "a b"}', "/id", complete=True) == Yes("a%20b")
    assert recovery.of_probe(200, b'{"id": {"x": 1}}', "/id", complete=True) == Yes(None)
    assert recovery.of_probe(200, b'{"id": true}', "/id", complete=True) == Yes(None)


@pytest.mark.parametrize(
    ("status", "told"), [(200, Yes), (204, Yes), (404, No), (400, No), (401, Unsure), (302, Unsure), (503, Unsure)]
)
def test_what_a_verification_tells(status: int, told: type) -> None:
    """REC-5: only a 2xx confirms."""
    assert isinstance(recovery.of_verification(status), told)


@given(st.text(min_size=1, max_size=40))
def test_no_value_can_add_a_segment_or_a_query(value: str) -> None:
    """SEC-1: names come from callers and upstreams."""
    if any("\ud800" <= character <= "\udfff" for character in value):
        return
    target = recovery.target_of("/orders/{resource_id}?x=1", {"resource_id": value})
    assert target.startswith(b"/orders/")
    assert target.endswith(b"?x=1")
    assert target.count(b"/") == 2
    assert target.count(b"?") == 1
    assert not set(target) & set(b" #\r\n")
