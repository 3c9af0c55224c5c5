"""A caller is certain claims of its bearer token (SEC-2, `identity.method: jwt`).

A refreshed token of the same subject is the same caller, so that Phase 2 may come with another one (P2-3). Algorithms
are those of the configuration, never the token's choice, and a key is used for its own family of them only: settings
refuse a shared secret beside public keys. A token that was found good is remembered by its digest, so that the next
request with it costs a look-up; the token itself is not kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any

import jwt
import orjson

from gateway.ingress.identity import Caller, single_value
from gateway.ingress.jwks import KeysAway, KeySet
from gateway.protocol import problems
from gateway.protocol.messages import Headers

LEEWAY_S = 30.0  # how far the clock of who issues tokens may be from ours
REMEMBERED_MAX = 4096  # tokens that were found good
REMEMBERED_S = 300.0  # a key that was withdrawn stops working here after that: as long as the key set itself is kept
CLAIM_BYTES_MAX = 1024  # of all claims that name a caller together

# What a token that somebody made up can make the library raise; depth and huge numbers among it.
_UNREADABLE = (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError)


class JsonWebToken:
    """Checks bearer tokens. `keys` is a shared secret (HS…) or a set of public keys."""

    __slots__ = ("_algorithms", "_audience", "_claims", "_clock", "_good", "_issuer", "_keys", "_options")

    def __init__(
        self,
        *,
        algorithms: Sequence[str],
        keys: bytes | KeySet | None,
        issuer: str | None,
        audience: str | None,
        claims: Sequence[str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        assert keys is not None, "settings name a secret or a key set"
        self._algorithms = list(algorithms)
        self._keys = keys
        self._issuer = issuer
        self._audience = audience
        self._claims = list(claims)
        self._clock = clock
        self._options: Any = {"require": ["exp", *claims], "verify_aud": audience is not None}
        self._good: dict[bytes, tuple[Caller, float]] = {}

    def identify(self, headers: Headers, peer: str, certificate: bytes | None = None) -> Caller | None:
        """A caller whose token is known, or can be checked here and now."""
        token = _bearer(headers)
        known = self._good.get(sha256(token).digest())
        if known is not None and self._clock() < known[1]:
            return known[0]
        return self._judge(token, self._keys) if isinstance(self._keys, bytes) else None

    async def examine(self, headers: Headers) -> Caller:
        """The same with a key that may have to be read first."""
        token = _bearer(headers)
        assert isinstance(self._keys, KeySet)
        try:
            kid = jwt.get_unverified_header(token).get("kid")
        except _UNREADABLE:
            raise problems.token_not_accepted("The bearer token is not a signed JSON Web Token.") from None
        if not isinstance(kid, str):
            raise problems.token_not_accepted("The token does not say which key signed it (kid).")
        try:
            key = await self._keys.key(kid)
        except KeysAway:
            raise problems.identity_away() from None
        if key is None:
            raise problems.token_not_accepted("The token was signed with a key that is not known here.")
        return self._judge(token, key.key)

    def _judge(self, token: bytes, key: Any) -> Caller:
        """The caller that a good token names, which is then remembered."""
        try:
            found = jwt.decode(
                token,
                key,
                algorithms=self._algorithms,
                options=self._options,
                issuer=self._issuer,
                audience=self._audience,
                leeway=LEEWAY_S,
            )
        except _UNREADABLE as error:
            raise problems.token_not_accepted(_why(error)) from None
        caller = Caller(self._name(found))
        if len(self._good) >= REMEMBERED_MAX:
            del self._good[next(iter(self._good))]
        self._good[sha256(token).digest()] = caller, min(float(found["exp"]), self._clock() + REMEMBERED_S)
        return caller

    def _name(self, found: dict[str, Any]) -> bytes:
        """As a JSON array: no two lists of claims share a name."""
        values = [found[claim] for claim in self._claims]
        if not all(isinstance(value, str | int) and value != "" for value in values):
            raise problems.token_not_accepted("A claim that names the caller is neither text nor a number.")
        try:
            name = orjson.dumps(values)
        except TypeError:  # half a character, or a number beyond 64 bits
            raise problems.token_not_accepted("A claim that names the caller cannot be written down.") from None
        if len(name) > CLAIM_BYTES_MAX:
            raise problems.token_not_accepted("The claims that name the caller are too long.")
        return b"jwt:" + name


def _bearer(headers: Headers) -> bytes:
    value = single_value(headers, b"authorization", "Authorization")
    if not value:
        raise problems.credentials_missing(b"Bearer")
    scheme, _, token = value.strip().partition(b" ")
    if scheme.lower() != b"bearer":
        raise problems.token_not_accepted("Send a bearer token in Authorization.")
    return token.strip()


def _why(error: Exception) -> str:
    """What is wrong with a token, without a word of what it says."""
    match error:
        case jwt.ExpiredSignatureError():
            return "The token has expired. Get a new one."
        case jwt.ImmatureSignatureError():
            return "The token is not valid yet."
        case jwt.InvalidIssuerError():
            return "The token was issued by somebody else than this gateway accepts."
        case jwt.InvalidAudienceError():
            return "The token is meant for another audience."
        case jwt.MissingRequiredClaimError():
            return "The token lacks a claim that is needed here: its end (exp), or one that names the caller."
        case jwt.InvalidAlgorithmError():
            return "The token is signed with an algorithm that this gateway does not accept."
        case jwt.InvalidSignatureError():
            return "The token's signature is wrong."
        case _:
            return "The bearer token cannot be read."
