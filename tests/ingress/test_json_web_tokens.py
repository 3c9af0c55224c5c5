"""SEC-2, `identity.method: jwt`: which tokens name a caller, and which do not."""

from __future__ import annotations

import base64
import hmac
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from gateway.ingress import json_web_tokens
from gateway.ingress.identity import ANONYMOUS, Caller, or_anonymous
from gateway.ingress.json_web_tokens import JsonWebToken
from gateway.ingress.jwks import KeySet
from gateway.protocol.messages import Header
from gateway.protocol.problems import Problem

ISSUER, AUDIENCE = "https://id.example.com", "orders"
SECRET = b"s" * 64
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
NOW = int(time.time())  # the library asks the clock itself; what is early or late here is so by hours


@pytest.fixture
def keys(tmp_path: Path) -> KeySet:
    file = tmp_path / "jwks.json"
    members = [
        {**RSAAlgorithm.to_jwk(RSA_KEY.public_key(), as_dict=True), "kid": "r1", "use": "sig"},
        {**ECAlgorithm.to_jwk(EC_KEY.public_key(), as_dict=True), "kid": "e1", "use": "sig"},
    ]
    file.write_text(json.dumps({"keys": members}))
    return KeySet(file=str(file))


def made(keys: bytes | KeySet, **changes: Any) -> JsonWebToken:
    algorithms = ["HS256"] if isinstance(keys, bytes) else ["RS256", "ES256"]
    options = {"algorithms": algorithms, "issuer": ISSUER, "audience": AUDIENCE, "claims": ["iss", "sub"], **changes}
    return JsonWebToken(keys=keys, clock=lambda: NOW, **options)


def payload(**changes: Any) -> dict[str, Any]:
    whole = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": NOW + 36_000, **changes}
    return {name: value for name, value in whole.items() if value is not None}


def signed(claims: dict[str, Any], *, kid: str | None = "r1", key: Any = RSA_KEY, algorithm: str = "RS256") -> str:
    return jwt.encode(claims, key, algorithm, headers={} if kid is None else {"kid": kid})


def shared_secret(claims: dict[str, Any]) -> str:
    """Signed with the secret, whatever the claims are: a library would refuse some of them."""
    return hs256({"alg": "HS256"}, claims, SECRET)


def hs256(header: dict[str, Any], claims: dict[str, Any], secret: bytes) -> str:
    body = unsigned(header, claims).removesuffix(".")
    return f"{body}.{encoded(hmac.digest(secret, body.encode(), 'sha256'))}"


def unsigned(header: dict[str, Any], claims: dict[str, Any]) -> str:
    return f"{encoded(json.dumps(header).encode())}.{encoded(json.dumps(claims).encode())}."


def encoded(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).decode().rstrip("=")


def carried(token: str, scheme: str = "Bearer") -> list[Header]:
    return [(b"Authorization", f"{scheme} {token}".encode())]


async def caller_of(tokens: JsonWebToken, token: str) -> Caller:
    headers = carried(token)
    return tokens.identify(headers, "") or await tokens.examine(headers)


async def refused(tokens: JsonWebToken, headers: list[Header]) -> Problem:
    async def caller() -> Caller:
        return tokens.identify(headers, "") or await tokens.examine(headers)

    with pytest.raises(Problem) as caught:
        await caller()
    problem = caught.value
    assert problem.status == 401
    assert any(name == b"WWW-Authenticate" for name, _ in problem.headers)
    return problem


@pytest.mark.parametrize(
    ("kid", "key", "algorithm"), [("r1", RSA_KEY, "RS256"), ("e1", EC_KEY, "ES256")], ids=["RS256", "ES256"]
)
async def test_a_refreshed_token_is_the_same_caller(keys: KeySet, kid: str, key: Any, algorithm: str) -> None:
    """SEC-2, P2-3: the claims name the caller, not the token."""
    tokens = made(keys)
    first = await caller_of(tokens, signed(payload(), kid=kid, key=key, algorithm=algorithm))
    second = await caller_of(tokens, signed(payload(exp=NOW + 36_900, jti="2"), kid=kid, key=key, algorithm=algorithm))
    assert first == second
    assert not first.anonymous
    other = await caller_of(tokens, signed(payload(sub="bob"), kid=kid, key=key, algorithm=algorithm))
    assert other != first


async def test_a_shared_secret_needs_no_waiting() -> None:
    token = carried(shared_secret(payload()), "bearer")
    assert made(SECRET).identify(token, "") == Caller(b'jwt:["https://id.example.com","alice"]')


async def test_no_two_lists_of_claims_share_a_name() -> None:
    """SEC-2: neither by where one claim ends and the next begins, nor by what kind of value it is."""
    tokens = made(SECRET, claims=["tenant", "sub"])
    pairs = [("a", "b"), ("a,b", "x"), ('a","b', "c"), ("a", 'b","c'), ("1", "1"), (1, "1")]
    named = [shared_secret(payload(tenant=tenant, sub=sub)) for tenant, sub in pairs]
    assert len({(await caller_of(tokens, token)).name for token in named}) == len(pairs)


TAMPERED = {
    "expired": (payload(exp=NOW - 36_000), "has expired"),
    "without an end": (payload(exp=None), "lacks a claim"),
    "not valid yet": (payload(nbf=NOW + 36_000), "not valid yet"),
    "of another issuer": (payload(iss="https://evil.example.com"), "issued by somebody else"),
    "without an issuer": (payload(iss=None), "lacks a claim"),
    "for another audience": (payload(aud="billing"), "another audience"),
    "for no audience": (payload(aud=None), "lacks a claim"),
    "of nobody": (payload(sub=None), "lacks a claim"),
    "of an empty name": (payload(sub=""), "neither text nor a number"),
    "with an endless end": (payload(exp=1e999), "cannot be read"),
}


@pytest.mark.parametrize("case", TAMPERED)
async def test_a_token_is_refused_that_is(keys: KeySet, case: str) -> None:
    """SEC-2: 401, with what is wrong and nothing of what it says."""
    claims, why = TAMPERED[case]
    problem = await refused(made(keys), carried(signed(claims)))
    assert why in problem.detail
    for said in ("alice", "evil", "billing"):
        assert said not in problem.detail


async def test_clocks_may_differ_a_little(keys: KeySet) -> None:
    now = int(time.time())
    assert await caller_of(made(keys), signed(payload(exp=now - 5, nbf=now + 20, iat=now + 20)))


async def test_the_token_does_not_choose_its_algorithm(keys: KeySet) -> None:
    """SEC-2: neither none, nor the public key as a shared secret, nor an algorithm that is not configured."""
    tokens = made(keys)
    for algorithm in ("none", "None", "HS256", "RS512"):
        problem = await refused(tokens, carried(unsigned({"alg": algorithm, "kid": "r1"}, payload())))
        assert "algorithm" in problem.detail or "cannot be read" in problem.detail
    public = RSA_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    await refused(tokens, carried(hs256({"alg": "HS256", "kid": "r1"}, payload(), public)))
    await refused(made(SECRET), carried(signed(payload())))
    await refused(tokens, carried(signed(payload(), kid="e1")))  # one family's key for another's algorithm


async def test_a_key_that_nobody_published_signs_nothing(keys: KeySet) -> None:
    """SEC-2: unknown kid, no kid, another key under a known kid."""
    tokens = made(keys)
    stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    assert "not known" in (await refused(tokens, carried(signed(payload(), kid="r2", key=stranger)))).detail
    assert "kid" in (await refused(tokens, carried(signed(payload(), kid=None)))).detail
    assert "signature" in (await refused(tokens, carried(signed(payload(), key=stranger)))).detail


@pytest.mark.parametrize(
    "token", ["", "x", "a.b.c", "e30.e30.", "eyJhbGciOiJSUzI1NiIsImtpZCI6N30.e30.AAAA", "[" * 20_000, "é.é.é"]
)
async def test_what_is_no_token_is_refused(keys: KeySet, token: str) -> None:
    await refused(made(keys), carried(token))
    problem = await refused(made(keys), carried(base64.urlsafe_b64encode(b"[" * 9_000).decode() + ".e30.AAAA"))
    assert "not a signed JSON Web Token" in problem.detail


async def test_missing_credentials_and_another_scheme(keys: KeySet) -> None:
    """SEC-2: none is a 401 or the anonymous caller; a wrong one stays wrong."""
    tokens = made(keys)
    assert (await refused(tokens, [])).slug == "credentials-missing"
    assert (await refused(tokens, carried("YTpi", "Basic"))).slug == "credentials-invalid"
    lenient = or_anonymous(tokens, "allow")
    assert lenient.identify([], "") == ANONYMOUS
    with pytest.raises(Problem):
        lenient.identify(carried("YTpi", "Basic"), "")
    with pytest.raises(Problem):
        await lenient.examine(carried(signed(payload(exp=NOW - 36_000))))


async def test_a_good_token_is_checked_once_and_not_beyond_its_end(
    keys: KeySet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEC-2: the hot path looks it up; its end, and a withdrawn key, still count."""
    start = int(time.time())
    now = [float(start)]
    tokens = JsonWebToken(
        algorithms=["RS256"], keys=keys, issuer=None, audience=None, claims=["sub"], clock=lambda: now[0]
    )
    short, long = signed(payload(exp=start + 60)), signed(payload(exp=start + 86_400))
    for token in (short, long):
        assert tokens.identify(carried(token), "") is None
        assert tokens.identify(carried(token), "") is None
        found = await tokens.examine(carried(token))
        assert tokens.identify(carried(token), "") is found
    now[0] = start + 60
    assert tokens.identify(carried(short), "") is None
    assert tokens.identify(carried(long), "") is not None
    now[0] = start + json_web_tokens.REMEMBERED_S
    assert tokens.identify(carried(long), "") is None
    monkeypatch.setattr(json_web_tokens, "REMEMBERED_MAX", 2)
    for number in range(5):
        await tokens.examine(carried(signed(payload(jti=str(number)))))
    assert len(tokens._good) == 2
    assert not any(b"eyJ" in kept for kept in tokens._good)


async def test_keys_that_cannot_be_read_are_no_verdict(tmp_path: Path) -> None:
    """SEC-2: 503, retry; not a 401 for somebody whose token may be good."""
    tokens = made(KeySet(file=str(tmp_path / "gone.json")))
    with pytest.raises(Problem) as caught:
        await tokens.examine(carried(signed(payload())))
    assert (caught.value.status, caught.value.slug) == (503, "identity-unavailable")


@pytest.mark.parametrize("sub", ["x" * 5000, "\ud800", 2**70, ["alice"], {"a": 1}, 1.5, None])
async def test_claims_of_any_size_or_kind_do_no_harm(sub: Any) -> None:
    """SEC-2: a name is short text or a number, or the token names nobody."""
    with pytest.raises(Problem) as caught:
        made(SECRET, issuer=None, audience=None, claims=["sub"]).identify(
            carried(shared_secret({"sub": sub, "exp": NOW + 36_000})), ""
        )
    assert caught.value.status == 401
