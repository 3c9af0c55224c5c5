"""Signed confirmations (SEC-3, RFC 9421): signed by the library that clients use, judged as at the edge."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from http_message_signatures import algorithms

from gateway.ingress.jwks import KeySet
from gateway.ingress.proxies import TrustedProxies
from gateway.ingress.signatures import SIGNATURES_MAX, SignatureJudge, VerificationKey
from gateway.protocol import proofs
from gateway.protocol.problems import Problem
from gateway.protocol.proofs import MISSING, Proven, Unbound
from tests.ingress.test_jwks import jwk
from tests.signer import COVERED, Signer

SECRET = b"s" * 32
HMAC = Signer(SECRET)
URL = "http://gateway.test:8080/orders/confirm"
IDS = {
    "Host": "gateway.test:8080",
    "DTT-2PHP-Enabled": "true",
    "DTT-2PHP-Client-Correlation-ID": "c-1",
    "DTT-2PHP-Server-Correlation-ID": "6f0f6c2e-31d5-4c5e-9d35-0b7d3f6b4a11",
}


@dataclass
class Asked:
    """A confirmation at the edge."""

    raw_headers: Any
    method: str = "POST"
    target: bytes = b"/orders/confirm"
    peer: str = "203.0.113.9"
    secure: bool = False


def asked(headers: dict[str, str], **changes: Any) -> Asked:
    return Asked(tuple((name.encode(), value.encode()) for name, value in headers.items()), **changes)


@pytest.fixture
def judge() -> SignatureJudge:
    keys = {"k": VerificationKey(algorithms.HMAC_SHA256, SECRET)}
    return SignatureJudge(keys, None, TrustedProxies(["10.0.0.0/8"]))


async def test_a_signature_that_says_all_is_a_proof_by_its_nonce(judge: SignatureJudge) -> None:
    """SEC-3: the same nonce of the same signer is the same proof, whatever it signs."""
    verdict = await judge.judge(asked(HMAC.sign(URL, IDS, nonce="n-1")))
    assert verdict == Proven(proofs.nonce_digest("signature", "k", "n-1"))
    other = {**IDS, "DTT-2PHP-Client-Correlation-ID": "c-2"}
    assert await judge.judge(asked(HMAC.sign(URL, other, nonce="n-1"))) == verdict
    assert await judge.judge(asked(HMAC.sign(URL, IDS, nonce="n-2"))) != verdict


async def test_no_signature_is_no_proof(judge: SignatureJudge) -> None:
    """SEC-3: missing, and not unbound: that is a 408."""
    assert await judge.judge(asked(IDS)) is MISSING


@pytest.mark.parametrize("left_out", COVERED)
async def test_every_component_must_be_covered(judge: SignatureJudge, left_out: str) -> None:
    """SEC-3: @method, @path and both correlation IDs."""
    covered = [name for name in COVERED if name != left_out]
    verdict = await judge.judge(asked(HMAC.sign(URL, IDS, covered=covered)))
    assert verdict == Unbound(f"the signature does not cover {left_out}")


async def test_the_target_uri_covers_the_path(judge: SignatureJudge) -> None:
    """SEC-3: also behind a proxy of ours that ends TLS."""
    covered = ["@target-uri", *(name for name in COVERED if name != "@path")]
    assert isinstance(await judge.judge(asked(HMAC.sign(URL, IDS, covered=covered))), Proven)
    public = HMAC.sign(URL.replace("http:", "https:"), IDS, covered=covered)
    proxied = {**public, "X-Forwarded-Proto": "https"}
    assert isinstance(await judge.judge(asked(proxied, peer="10.1.2.3")), Proven)
    assert isinstance(await judge.judge(asked(proxied)), Unbound)  # from anybody else it is only a claim


@pytest.mark.parametrize("parameter", ["expires", "nonce"])
async def test_every_parameter_must_be_there(judge: SignatureJudge, parameter: str) -> None:
    """SEC-3: expires and nonce; the library that clients use always says created and keyid."""
    signed = HMAC.sign(URL, IDS, **{"expires": {"expires_s": None}, "nonce": {"nonce": None}}[parameter])  # type: ignore[arg-type]
    assert await judge.judge(asked(signed)) == Unbound(f"the signature has no {parameter}")


@pytest.mark.parametrize("parameter", proofs.PARAMETERS)
def test_what_a_signature_must_say(parameter: str) -> None:
    """SEC-3: created, expires, nonce and keyid."""
    said: dict[str, Any] = {"created": 1, "expires": 2, "nonce": "n", "keyid": "k"}
    components = [(name, {}) for name in COVERED]
    assert proofs.signature_lacks(components, said) is None
    assert proofs.signature_lacks(components, {k: v for k, v in said.items() if k != parameter}) is not None


def test_a_part_of_a_component_is_not_the_component() -> None:
    """SEC-3: a member of a field, or a component of another message, covers something else."""
    said: dict[str, Any] = {"created": 1, "expires": 2, "nonce": "n", "keyid": "k"}
    components: list[proofs.Component] = [(name, {}) for name in COVERED]
    components[0] = ("@method", {"req": True})
    assert proofs.signature_lacks(components, said) == "the signature does not cover @method"


@pytest.mark.parametrize(
    ("created_s", "expires_s", "proven"),
    [(0, 60, True), (3, 60, True), (-60, -3, True), (60, 120, False), (-60, -10, False)],
)
async def test_a_signature_holds_in_its_window_give_or_take_five_seconds(
    judge: SignatureJudge, created_s: int, expires_s: int, proven: bool
) -> None:
    """SEC-3: on this replica's clock."""
    verdict = await judge.judge(asked(HMAC.sign(URL, IDS, created_s=created_s, expires_s=expires_s)))
    assert isinstance(verdict, Proven) is proven


@pytest.mark.parametrize(
    "change",
    [
        {"DTT-2PHP-Server-Correlation-ID": "00000000-31d5-4c5e-9d35-0b7d3f6b4a11"},
        {"DTT-2PHP-Client-Correlation-ID": "c-2"},
    ],
)
async def test_a_signature_for_another_intent_proves_nothing(judge: SignatureJudge, change: dict[str, str]) -> None:
    """SEC-3, RP-04."""
    assert isinstance(await judge.judge(asked({**HMAC.sign(URL, IDS), **change})), Unbound)


async def test_a_signature_for_another_request_proves_nothing(judge: SignatureJudge) -> None:
    """SEC-3: other path, other method, other key, broken bytes."""
    signed = HMAC.sign(URL, IDS)
    assert isinstance(await judge.judge(asked(signed, target=b"/returns/confirm")), Unbound)
    assert isinstance(await judge.judge(asked(signed, method="PUT")), Unbound)
    assert isinstance(await judge.judge(asked(Signer(b"x" * 32).sign(URL, IDS))), Unbound)
    unknown = await judge.judge(asked(Signer(SECRET, keyid="nobody").sign(URL, IDS)))
    assert unknown == Unbound("signed with a key that is not known")
    assert isinstance(await judge.judge(asked({**signed, "Signature": "sig1=:AAAA:"})), Unbound)


@pytest.mark.parametrize(
    "fields",
    [
        {"Signature-Input": "sig1=("},
        {"Signature-Input": "sig1"},
        {"Signature-Input": "sig1=7", "Signature": "sig1=7"},
        {"Signature": "sig1=:AAAA:"},
        {"Signature-Input": 'a=("@method"), a=("@path")', "Signature": "a=:AAAA:"},
        {"Signature-Input": "sig1=(1 2)", "Signature": "sig1=:AAAA:"},
        {"Signature-Input": "sig1=()", "Signature": "\xff"},
    ],
)
async def test_what_is_no_signature_field_proves_nothing(judge: SignatureJudge, fields: dict[str, str]) -> None:
    """SEC-3: malformed is unbound, never an error of ours."""
    assert isinstance(await judge.judge(asked({**IDS, **fields})), Unbound)


async def test_among_signatures_of_others_one_proof_is_enough(judge: SignatureJudge) -> None:
    """RFC 9421: a proxy may have added its own."""
    several = Signer(b"p" * 32, keyid="proxy").sign(URL, IDS, covered=["@authority"], label="proxy", nonce=None)
    assert isinstance(await judge.judge(asked(several)), Unbound)
    several = HMAC.sign(URL, several, label="mine")
    assert isinstance(await judge.judge(asked(several)), Proven)


async def test_only_so_many_signatures_are_looked_at(judge: SignatureJudge) -> None:
    """SEC-3: each costs a public-key operation."""
    several = dict(IDS)
    for number in range(SIGNATURES_MAX + 1):
        several = HMAC.sign(URL, several, label=f"sig{number}")
    assert await judge.judge(asked(several)) == Unbound("too many signatures")


KEYS = {
    "ed25519": (ed25519.Ed25519PrivateKey.generate(), algorithms.ED25519, {}),
    "p256": (ec.generate_private_key(ec.SECP256R1()), algorithms.ECDSA_P256_SHA256, {}),
    "p384": (ec.generate_private_key(ec.SECP384R1()), algorithms.ECDSA_P384_SHA384, {}),
    "rsa": (rsa.generate_private_key(65537, 2048), algorithms.RSA_V1_5_SHA256, {}),
    "pss": (rsa.generate_private_key(65537, 2048), algorithms.RSA_PSS_SHA512, {"alg": "PS512"}),
}


@pytest.mark.parametrize("kind", KEYS)
async def test_keys_of_a_key_set_check_what_their_like_has_signed(tmp_path: Path, kind: str) -> None:
    """SEC-3: signatures.jwks."""
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps({"keys": [jwk(name, key, **more) for name, (key, _, more) in KEYS.items()]}))
    judge = SignatureJudge({}, KeySet(file=str(file)), TrustedProxies())
    private, algorithm, _ = KEYS[kind]
    assert isinstance(await judge.judge(asked(Signer(private, kind, algorithm).sign(URL, IDS))), Proven)
    other = "p384" if kind == "ed25519" else "ed25519"
    assert isinstance(await judge.judge(asked(Signer(private, other, algorithm).sign(URL, IDS))), Unbound)


async def test_an_ed25519_key_is_configured_as_pem() -> None:
    """SEC-3: signatures.keys."""
    private = ed25519.Ed25519PrivateKey.generate()
    pem = private.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    judge = SignatureJudge({"k": VerificationKey(algorithms.ED25519, pem)}, None, TrustedProxies())
    assert isinstance(await judge.judge(asked(Signer(private, "k", algorithms.ED25519).sign(URL, IDS))), Proven)
    # The classic forgery: the public key taken for a shared secret.
    assert isinstance(await judge.judge(asked(Signer(pem, "k").sign(URL, IDS))), Unbound)


async def test_keys_that_cannot_be_read_are_nobodys_fault(tmp_path: Path) -> None:
    """SEC-3: 503, and the same confirmation may be repeated."""
    judge = SignatureJudge({}, KeySet(file=str(tmp_path / "missing.json")), TrustedProxies())
    with pytest.raises(Problem) as refused:
        await judge.judge(asked(HMAC.sign(URL, IDS)))
    assert refused.value.status == 503
