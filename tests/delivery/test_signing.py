"""ACM-3: Standard Webhooks signatures, checked by a verifier of our own and by the library's."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from gateway.delivery.signing import Signer, caller_key, store_key
from tests.delivery.verifier import signatures_by

NEW = "whsec_" + base64.b64encode(b"n" * 32).decode()
OLD = "whsec_" + base64.b64encode(b"o" * 24).decode()
ALICE, BOB = b"a" * 16, b"b" * 16
BODY = '{"client_correlation_id":"é","ponr_crossed":true}'.encode()


def test_every_key_signs_the_newest_first() -> None:
    """Receivers that know either key accept it, so keys can be rotated."""
    headers = Signer([NEW, OLD]).headers(uuid4(), datetime.now(UTC), BODY, caller=ALICE)
    assert signatures_by(NEW, headers, BODY) == [0]
    assert signatures_by(OLD, headers, BODY) == [1]
    assert Webhook(NEW).verify(BODY, headers)["ponr_crossed"] is True
    assert Webhook(OLD).verify(BODY, headers)["ponr_crossed"] is True


def test_the_id_is_the_deliverys_and_the_timestamp_is_whole_seconds() -> None:
    delivery, at = uuid4(), datetime(2026, 1, 2, 3, 4, 5, 999_999, tzinfo=UTC)
    headers = Signer([NEW]).headers(delivery, at, BODY, caller=None)
    assert headers["webhook-id"] == str(delivery)
    assert headers["webhook-timestamp"] == "1767323045"
    assert signatures_by(NEW, headers, BODY) == [0]


@pytest.mark.parametrize("change", ["body", "id", "timestamp"])
def test_what_was_changed_on_the_way_does_not_verify(change: str) -> None:
    headers = Signer([NEW]).headers(uuid4(), datetime.now(UTC), BODY, caller=None)
    body = BODY + b" " if change == "body" else BODY
    if change == "id":
        headers["webhook-id"] = str(uuid4())
    if change == "timestamp":
        headers["webhook-timestamp"] = str(int(headers["webhook-timestamp"]) + 1)
    assert signatures_by(NEW, headers, body) == []
    with pytest.raises(WebhookVerificationError):
        Webhook(NEW).verify(body, headers)


def test_each_caller_has_keys_of_its_own_when_asked_for() -> None:
    """`per_caller`: what one receiver knows does not sign for another."""
    signer = Signer([NEW, OLD], per_caller=True)
    headers = signer.headers(uuid4(), datetime.now(UTC), BODY, caller=ALICE)
    assert signatures_by(caller_key(NEW, ALICE), headers, BODY) == [0]
    assert signatures_by(caller_key(OLD, ALICE), headers, BODY) == [1]
    for key in (NEW, OLD, caller_key(NEW, BOB), caller_key(OLD, BOB)):
        assert signatures_by(key, headers, BODY) == []


def test_hooks_are_signed_with_the_configured_keys_also_then() -> None:
    headers = Signer([NEW], per_caller=True).headers(uuid4(), datetime.now(UTC), BODY, caller=None)
    assert signatures_by(NEW, headers, BODY) == [0]


def test_a_callers_key_never_changes() -> None:
    """Receivers hold it: a release that derived another would break them all."""
    assert caller_key(NEW, ALICE) == "whsec_/Zek4bL+QT2xTmhxcIIPysdwVNLzC2UnUNlm+lt6Ewk="
    assert store_key(b"p" * 32) == "whsec_S8H16sEgTBOJhVFvYvN6jBECCrxvfkf5Tj1nIvFeiXo="


def test_derived_keys_are_keys_like_any_other() -> None:
    for key in (caller_key(NEW, ALICE), store_key(b"p" * 32)):
        headers = Signer([key]).headers(uuid4(), datetime.now(UTC), BODY, caller=None)
        assert signatures_by(key, headers, BODY) == [0]
        assert len(base64.b64decode(key.removeprefix("whsec_"))) == 32
