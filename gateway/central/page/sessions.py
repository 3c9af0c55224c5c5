"""Who is logged in: sessions of the page, held by this process and known by a digest of their cookie (SEC-5).

A session is no more than its token: what ends the token ends the session at the next request. A restart ends them all.
Must not keep a token's value, nor a cookie's.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

from gateway.operator.access import Token

SESSIONS_MAX = 1_000  # the least recently used one ends first
SECRET_BYTES = 32


class Tokens(Protocol):
    """The tokens of the moment."""

    def holds(self, token: Token) -> bool:
        """Whether this very token, role and service included, is still one of them."""
        ...


@dataclass(frozen=True, slots=True)
class Notice:
    """What came of the last thing done, to be shown once."""

    text: str
    good: bool


@dataclass(slots=True)
class Session:
    """One browser, logged in."""

    token: Token
    form_secret: str  # repeated by every form of this session's pages
    ends_at_s: float
    notice: Notice | None = None

    def take_notice(self) -> Notice | None:
        """What is to be shown now, and not again."""
        notice, self.notice = self.notice, None
        return notice


class Sessions:
    """All sessions, bounded in number and in time."""

    def __init__(self, tokens: Tokens, *, life_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._tokens = tokens
        self._life_s = life_s
        self._clock = clock
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()

    def begin(self, token: Token) -> str:
        """A new session; what its cookie says."""
        cookie = secrets.token_urlsafe(SECRET_BYTES)
        session = Session(token, secrets.token_urlsafe(SECRET_BYTES), self._clock() + self._life_s)
        self._sessions[_digest(cookie)] = session
        if len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return cookie

    def find(self, cookie: str) -> Session | None:
        """The session of a cookie, if it has not ended and its token still counts."""
        digest = _digest(cookie)
        session = self._sessions.get(digest)
        if session is None:
            return None
        if self._clock() >= session.ends_at_s or not self._tokens.holds(session.token):
            del self._sessions[digest]
            return None
        self._sessions.move_to_end(digest)
        return session

    def end(self, cookie: str) -> None:
        """Log out."""
        self._sessions.pop(_digest(cookie), None)


def _digest(cookie: str) -> bytes:
    # Looked up by digest: how long a look-up takes tells nothing of a cookie that would be found.
    return sha256(cookie.encode("utf-8", "surrogateescape")).digest()
