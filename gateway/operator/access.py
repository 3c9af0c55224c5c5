"""Who may ask what: bearer tokens with roles, denied by default (SEC-5).

The configuration holds digests of tokens, never a token; neither is ever logged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from hmac import compare_digest
from typing import Protocol

from multidict import CIMultiDictProxy

from gateway.operator import refusals

ROLES = frozenset({"audit", "compliance", "operations", "sync"})
NOBODY: frozenset[str] = frozenset()
OPERATORS = frozenset({"operations"})  # who may also do things: resolve, retry, pull
WRITERS = frozenset({"sync"})
READERS = ROLES - WRITERS  # `sync` writes its own service's entries and reads nothing


class Token(Protocol):
    """A configured token."""

    @property
    def name(self) -> str:
        """Who holds it."""
        ...

    @property
    def role(self) -> str:
        """What it may do."""
        ...

    @property
    def service(self) -> str | None:
        """The service it is bound to: whose entries it may write, or whose rows alone it may read."""
        ...

    @property
    def sha256(self) -> str:
        """Its digest, in hexadecimal."""
        ...


class Gate(Protocol):
    """Who is there."""

    def identify(self, headers: CIMultiDictProxy[str]) -> Token:
        """Whose token a request carries, or the 401."""
        ...


class Access:
    """The tokens of the moment; a reload replaces them all at once."""

    def __init__(self, tokens: Iterable[Token]) -> None:
        self._tokens = tuple(tokens)

    def replace_tokens(self, tokens: Iterable[Token]) -> None:
        """From the next request on, only these count."""
        self._tokens = tuple(tokens)

    def holds(self, token: Token) -> bool:
        """Whether this very token, role and service included, still counts: what is derived from it ends with it."""
        return token in self._tokens

    def identify(self, headers: CIMultiDictProxy[str]) -> Token:
        """Whose token the Authorization header carries, or the 401."""
        if not self._tokens:
            raise refusals.no_tokens()
        presented = _bearer(headers.getall("Authorization", []))
        # Every digest is compared, each in constant time: how long it takes tells nothing of which one came close.
        digest = sha256(presented).hexdigest().encode()
        holder: Token | None = None
        for token in self._tokens:
            if compare_digest(token.sha256.lower().encode(), digest) and holder is None:
                holder = token
        if holder is None:
            raise refusals.token_invalid()
        return holder


def _bearer(authorization: Sequence[str]) -> bytes:
    """RFC 6750: the one token of the one header."""
    if len(authorization) != 1:
        raise refusals.token_missing()
    scheme, _, token = authorization[0].strip().partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise refusals.token_missing()
    return token.encode("utf-8", "surrogateescape")


def require(token: Token, roles: frozenset[str]) -> None:
    """The 403 unless the token's role is one of these."""
    if token.role not in roles:
        raise refusals.role_not_allowed(roles)
