"""Caller identity (SEC-2)."""

from __future__ import annotations

from hashlib import sha256

import pytest

from gateway.ingress.identity import ANONYMOUS, identifier
from gateway.protocol.messages import Header
from gateway.protocol.problems import Problem

PEER = "127.0.0.1"
TOKEN: Header = (b"Authorization", b"Bearer hush-hush")
KEYS = [
    {"name": "billing", "sha256": sha256(b"key-one").hexdigest()},
    {"name": "billing", "sha256": sha256(b"key-two").hexdigest()},
    {"name": "stock", "sha256": sha256(b"key-three").hexdigest()},
]


def refusal(identify: object, headers: list[Header], peer: str = PEER) -> Problem:
    with pytest.raises(Problem) as refused:
        identify.identify(headers, peer)  # type: ignore[attr-defined]
    return refused.value


def test_authorization_is_known_by_its_digest() -> None:
    digest = identifier(method="authorization_digest")
    caller = digest.identify([TOKEN], PEER)
    assert caller == digest.identify([(b"AUTHORIZATION", TOKEN[1])], "10.0.0.1")
    assert caller != digest.identify([(b"Authorization", b"Bearer other")], PEER)
    assert caller.name == b"authorization_digest:" + sha256(TOKEN[1]).hexdigest().encode()
    assert not caller.anonymous


def test_no_caller_shows_its_credential() -> None:
    for made in (identifier(method="authorization_digest"), identifier(method="api_key", header="Authorization")):
        assert "hush-hush" not in repr(made.identify([TOKEN], PEER))


@pytest.mark.parametrize("headers", [[], [(b"Authorization", b"")], [(b"X-Authorization", b"x")]])
def test_no_credentials_are_a_401_with_a_challenge(headers: list[Header]) -> None:
    problem = refusal(identifier(method="authorization_digest"), headers)
    assert (problem.status, problem.slug) == (401, "credentials-missing")
    assert (b"WWW-Authenticate", b"Bearer") in problem.headers


@pytest.mark.parametrize(
    ("options", "header"),
    [
        ({"method": "authorization_digest"}, b"authorization"),
        ({"method": "api_key"}, b"x-api-key"),
        ({"method": "trusted_header", "trusted_networks": ["127.0.0.0/8"]}, b"x-remote-user"),
        ({"method": "authorization_digest", "anonymous": "allow"}, b"authorization"),
    ],
)
def test_a_repeated_credential_is_refused(options: dict[str, object], header: bytes) -> None:
    """Two values leave it open who is asking."""
    problem = refusal(identifier(**options), [(header, b"a"), (header.upper(), b"a")])  # type: ignore[arg-type]
    assert (problem.status, problem.slug) == (400, "repeated-header")


def test_anonymous_callers_are_one_caller_where_they_are_allowed() -> None:
    allowing = identifier(method="authorization_digest", anonymous="allow")
    assert allowing.identify([], PEER) is allowing.identify([], "10.0.0.1") is ANONYMOUS
    assert ANONYMOUS.anonymous
    assert not allowing.identify([TOKEN], PEER).anonymous


def test_a_wrong_credential_does_not_become_anonymous() -> None:
    allowing = identifier(method="api_key", keys=KEYS, anonymous="allow")
    assert refusal(allowing, [(b"X-Api-Key", b"wrong")]).slug == "credentials-invalid"


def test_configured_api_keys_are_callers_by_name() -> None:
    """Two keys of one name are one caller, so that a key can be replaced."""
    keyed = identifier(method="api_key", header="X-Key", keys=KEYS)
    one, two, three = [keyed.identify([(b"x-key", key)], PEER) for key in (b"key-one", b"key-two", b"key-three")]
    assert one == two
    assert one != three
    assert one.name == b"api_key:name:billing"
    problem = refusal(keyed, [(b"X-Key", b"key-four")])
    assert (problem.status, problem.slug) == (401, "credentials-invalid")
    assert refusal(keyed, []).slug == "credentials-missing"


def test_without_configured_keys_each_value_is_a_caller() -> None:
    keyed = identifier(method="api_key")
    assert keyed.identify([(b"X-Api-Key", b"a")], PEER) != keyed.identify([(b"X-Api-Key", b"b")], PEER)


def test_a_trusted_header_counts_only_from_trusted_networks() -> None:
    trusting = identifier(method="trusted_header", trusted_networks=["127.0.0.0/8"])
    user: list[Header] = [(b"X-Remote-User", b"alice")]
    assert trusting.identify(user, "127.0.0.1").name == b"trusted_header:alice"
    assert refusal(trusting, user, "10.0.0.1").slug == "credentials-missing"
    assert refusal(trusting, [], "127.0.0.1").slug == "credentials-missing"
    allowing = identifier(method="trusted_header", trusted_networks=["127.0.0.0/8"], anonymous="allow")
    assert allowing.identify(user, "10.0.0.1") is ANONYMOUS


def test_names_of_different_methods_never_meet() -> None:
    value = b"authorization_digest:" + sha256(TOKEN[1]).hexdigest().encode()
    spoofed = identifier(method="trusted_header", trusted_networks=["127.0.0.0/8"]).identify(
        [(b"X-Remote-User", value)], PEER
    )
    assert spoofed != identifier(method="authorization_digest").identify([TOKEN], PEER)


def test_an_unknown_method_is_our_mistake() -> None:
    with pytest.raises(ValueError, match="unknown identity method"):
        identifier(method="palm-reading")
