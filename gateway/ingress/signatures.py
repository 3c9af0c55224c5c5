"""Signed confirmations (SEC-3, RFC 9421): is a signature genuine, does it say what a proof must, is it of now.

What a proof must say is in `protocol.proofs`; whether its nonce is still unused is the store's to know. A request may
carry signatures of others, so any one that is a proof will do.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import http_sf
from http_message_signatures import (
    HTTPMessageSignaturesException,
    HTTPMessageVerifier,
    HTTPSignatureAlgorithm,
    MappingKeyResolver,
    algorithms,
)
from multidict import CIMultiDict

from gateway.flows.replay_ports import SignedRequest
from gateway.ingress.jwks import KeysAway, KeySet
from gateway.ingress.proxies import TrustedProxies
from gateway.protocol import problems, proofs
from gateway.protocol.messages import first_value

log = logging.getLogger(__name__)

SIGNATURES_MAX = 4  # per request: each costs a public-key operation
CLOCK_SKEW = datetime.timedelta(seconds=5)  # between the signer's clock and this replica's

Algorithm = type[HTTPSignatureAlgorithm]

CONFIGURED: Mapping[str, Algorithm] = {"hmac-sha256": algorithms.HMAC_SHA256, "ed25519": algorithms.ED25519}
# A JWK names the algorithm of tokens (RFC 7518); the same key signs requests with its like.
OF_JWK: Mapping[str, Algorithm] = {
    "EdDSA": algorithms.ED25519,
    "ES256": algorithms.ECDSA_P256_SHA256,
    "ES384": algorithms.ECDSA_P384_SHA384,
    "RS256": algorithms.RSA_V1_5_SHA256,
    "PS512": algorithms.RSA_PSS_SHA512,
}


class _Verifier(HTTPMessageVerifier):
    max_clock_skew = CLOCK_SKEW


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """A key that signatures are checked with, and the one algorithm it is for."""

    algorithm: Algorithm
    material: Any


@dataclass(slots=True)
class _Message:
    """A request, as the library reads it."""

    method: str
    url: str
    headers: CIMultiDict[str]


class SignatureJudge:
    """Checks signatures with the keys of the configuration, and those of a key set."""

    def __init__(self, keys: Mapping[str, VerificationKey], key_set: KeySet | None, proxies: TrustedProxies) -> None:
        self._keys = dict(keys)
        self._key_set = key_set
        self._proxies = proxies

    async def judge(self, request: SignedRequest) -> proofs.Verdict:
        """What the signatures of a confirmation prove."""
        message = self._message(request)
        sent = [message.headers.popall(name, []) for name in ("Signature-Input", "Signature")]
        if not any(sent):
            return proofs.MISSING
        try:
            inputs, signatures = (_dictionary(values) for values in sent)
        except ValueError:
            return proofs.Unbound("the signature fields are malformed")
        if len(inputs) > SIGNATURES_MAX:
            return proofs.Unbound("too many signatures")
        reason = "no signature"
        for label, described in inputs.items():
            if label not in signatures:
                continue
            message.headers["Signature-Input"] = http_sf.ser({label: described})
            message.headers["Signature"] = http_sf.ser({label: signatures[label]})
            verdict = await self._judge_one(message, *described)
            if isinstance(verdict, proofs.Proven):
                return verdict
            reason = verdict.reason
        return proofs.Unbound(reason)

    async def _judge_one(self, message: _Message, components: Any, parameters: Any) -> proofs.Proven | proofs.Unbound:
        if not isinstance(components, list):
            return proofs.Unbound("the signature fields are malformed")
        lacks = proofs.signature_lacks(components, parameters)
        if lacks is not None:
            return proofs.Unbound(lacks)
        keyid, nonce = parameters["keyid"], parameters["nonce"]
        if not isinstance(keyid, str) or not isinstance(nonce, str):
            return proofs.Unbound("the signature fields are malformed")
        key = await self._key(keyid)
        if key is None:
            return proofs.Unbound("signed with a key that is not known")
        verifier = _Verifier(
            signature_algorithm=key.algorithm,
            key_resolver=MappingKeyResolver(public_keys={keyid: key.material}, private_keys={}),
        )
        try:
            verifier.verify(message, max_age=None)
        except HTTPMessageSignaturesException:
            # Wrong, for another request, or out of its window. The library's words may quote the request.
            return proofs.Unbound("the signature is not genuine for this request, or not of now")
        return proofs.Proven(proofs.nonce_digest(proofs.SIGNATURE, keyid, nonce))

    async def _key(self, keyid: str) -> VerificationKey | None:
        found = self._keys.get(keyid)
        if found is not None or self._key_set is None:
            return found
        try:
            jwk = await self._key_set.key(keyid)
        except KeysAway:
            raise problems.keys_away() from None
        if jwk is None or jwk.algorithm_name not in OF_JWK:
            return None
        return VerificationKey(OF_JWK[jwk.algorithm_name], jwk.key)

    def _message(self, request: SignedRequest) -> _Message:
        scheme = self._proxies.client(request.peer, request.secure, request.raw_headers).scheme
        host = first_value(request.raw_headers, b"host") or b""
        url = (scheme + b"://" + host + request.target).decode("latin-1")
        headers = CIMultiDict((name.decode("latin-1"), value.decode("latin-1")) for name, value in request.raw_headers)
        return _Message(request.method, url, headers)


def _dictionary(values: list[str]) -> dict[str, Any]:
    """A structured field of labelled members; ValueError when it is none, or a label comes twice."""

    def twice(key: str, context: str) -> None:
        if context == "dictionary":
            raise ValueError("a label comes twice")

    if not values:
        return {}
    parsed = http_sf.parse(", ".join(values).encode("latin-1"), tltype="dictionary", on_duplicate_key=twice)
    assert isinstance(parsed, dict)
    return parsed
