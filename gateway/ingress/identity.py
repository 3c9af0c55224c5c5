"""Who sent a request (SEC-2): the identity that Phase 1 and Phase 2 must share.

Each method is a small strategy behind `Identifier`; those that need nothing from outside are here, made by
`identifier()`, JSON Web Tokens and client certificates in modules of their own. A credential is never kept or logged:
what leaves here is a digest, or the name that configuration or a trusted proxy gave. Authorising is not done here.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

from gateway.ingress.proxies import Networks
from gateway.protocol import problems
from gateway.protocol.messages import Headers


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller: canonical bytes that two requests of the same caller share, prefixed with how they were found."""

    name: bytes
    anonymous: bool = False


ANONYMOUS = Caller(b"anonymous", anonymous=True)


class Identifier(Protocol):
    """One way to tell callers apart."""

    def identify(self, headers: Headers, peer: str, certificate: bytes | None = None) -> Caller | None:
        """The caller; a Problem where credentials are missing, repeated or unknown.

        `peer` is the socket's own, `certificate` the client's that the TLS handshake accepted. None: it takes a look at
        something that may have to be waited for, which `examine` does.
        """
        ...

    async def examine(self, headers: Headers) -> Caller:
        """The caller that `identify` could not tell at once."""
        ...


class AtOnce:
    """A method that never waits for anything."""

    __slots__ = ()

    async def examine(self, headers: Headers) -> Caller:
        """Never asked for."""
        raise AssertionError("this method tells every caller at once")


class AuthorizationDigest(AtOnce):
    """The value of `Authorization`, whatever its scheme, as a digest: the upstream judges it, we only recognise it."""

    __slots__ = ()

    def identify(self, headers: Headers, peer: str, certificate: bytes | None = None) -> Caller:
        value = single_value(headers, b"authorization", "Authorization")
        if not value:
            raise problems.credentials_missing(b"Bearer")
        return Caller(b"authorization_digest:" + sha256(value).hexdigest().encode())


class ApiKey(AtOnce):
    """An API key in a header. With configured keys only those are callers, by name; without, each value is one."""

    __slots__ = ("_header", "_keys", "_name")

    def __init__(self, header: str, keys: Iterable[tuple[str, str]] = ()) -> None:
        self._name = header
        self._header = header.lower().encode()
        self._keys = tuple((name.encode(), bytes.fromhex(digest)) for name, digest in keys)

    def identify(self, headers: Headers, peer: str, certificate: bytes | None = None) -> Caller:
        value = single_value(headers, self._header, self._name)
        if not value:
            raise problems.credentials_missing()
        digest = sha256(value)
        if not self._keys:
            return Caller(b"api_key:sha256:" + digest.hexdigest().encode())
        found: bytes | None = None
        for name, known in self._keys:  # every key is compared, so that the time taken tells nothing
            if hmac.compare_digest(digest.digest(), known):
                found = name
        if found is None:
            raise problems.credentials_invalid()
        return Caller(b"api_key:name:" + found)


class TrustedHeader(AtOnce):
    """A header that a trusted proxy sets after authenticating; from any other peer it is no credential at all."""

    __slots__ = ("_header", "_name", "_networks")

    def __init__(self, header: str, trusted_networks: Iterable[str]) -> None:
        self._name = header
        self._header = header.lower().encode()
        self._networks = Networks(trusted_networks)

    def identify(self, headers: Headers, peer: str, certificate: bytes | None = None) -> Caller:
        if not self._networks.contains(peer):
            raise problems.credentials_missing()
        value = single_value(headers, self._header, self._name)
        if not value:
            raise problems.credentials_missing()
        return Caller(b"trusted_header:" + value)


class OrAnonymous:
    """`identity.anonymous: allow`: who shows no credentials is one shared caller. Wrong credentials stay wrong."""

    __slots__ = ("_identifier",)

    def __init__(self, identifier: Identifier) -> None:
        self._identifier = identifier

    def identify(self, headers: Headers, peer: str, certificate: bytes | None = None) -> Caller | None:
        try:
            return self._identifier.identify(headers, peer, certificate)
        except problems.Problem as problem:
            if problem.slug == "credentials-missing":
                return ANONYMOUS
            raise

    async def examine(self, headers: Headers) -> Caller:
        return await self._identifier.examine(headers)  # what is examined is there


def identifier(
    *,
    method: str,
    anonymous: str = "reject",
    header: str | None = None,
    keys: Iterable[Mapping[str, str]] = (),
    trusted_networks: Iterable[str] = (),
) -> Identifier:
    """The strategy that `identity:` of the configuration names. `keys` are mappings with `name` and `sha256` (hex)."""
    made: Identifier
    if method == "authorization_digest":
        made = AuthorizationDigest()
    elif method == "api_key":
        made = ApiKey(header or "X-Api-Key", [(key["name"], key["sha256"]) for key in keys])
    elif method == "trusted_header":
        made = TrustedHeader(header or "X-Remote-User", trusted_networks)
    else:
        raise ValueError(f"unknown identity method {method!r}")
    return or_anonymous(made, anonymous)


def or_anonymous(made: Identifier, anonymous: str) -> Identifier:
    """What `identity.anonymous` makes of a method."""
    return OrAnonymous(made) if anonymous == "allow" else made


def single_value(headers: Headers, header: bytes, name: str) -> bytes | None:
    """The one value of a header. Two values leave it open who is asking, and the upstream might pick the other: 400."""
    found: bytes | None = None
    for key, value in headers:
        if len(key) == len(header) and key.lower() == header:
            if found is not None:
                raise problems.repeated_header(name)
            found = value
    return found
