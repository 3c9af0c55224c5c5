"""Who is there: a bearer token as everywhere, or the session cookie of a browser that asks for its own page (SEC-5).

A cookie is sent by the browser whoever caused the request, so it counts only for requests that our own pages made:
same-site strict by its attribute, and by what the browser says of the origin.
"""

from __future__ import annotations

from multidict import CIMultiDictProxy

from gateway.central.page.sessions import Session, Sessions
from gateway.operator.access import Gate, Token
from gateway.protocol.problems import Problem

COOKIE = "twophp"
OWN_SITES = frozenset({"same-origin", "none"})  # `none`: typed, or a bookmark


class PageGate:
    """Bearer or session."""

    def __init__(self, tokens: Gate, sessions: Sessions, *, secure: bool) -> None:
        self._tokens = tokens
        self._sessions = sessions
        # The prefix makes the browser refuse such a cookie from anyone but this host over TLS.
        self.cookie = f"__Host-{COOKIE}" if secure else COOKIE
        self._secure = secure

    def identify(self, headers: CIMultiDictProxy[str]) -> Token:
        """Whose request this is, or the 401 (or 403 for a page of somebody else's)."""
        if "Authorization" not in headers:
            session = self.session(headers)
            if session is not None:
                require_own_origin(headers)
                return session.token
        return self._tokens.identify(headers)

    def session(self, headers: CIMultiDictProxy[str]) -> Session | None:
        """The session of a request, if it has one."""
        value = self.cookie_value(headers)
        return None if value is None else self._sessions.find(value)

    def cookie_value(self, headers: CIMultiDictProxy[str]) -> str | None:
        """The one cookie of ours; with two of them, somebody else set one, so neither counts."""
        found = [
            value.strip()
            for line in headers.getall("Cookie", [])
            for name, _, value in (pair.partition("=") for pair in line.split(";"))
            if name.strip() == self.cookie
        ]
        return found[0] if len(found) == 1 else None

    def set_cookie(self, value: str) -> bytes:
        """The header that logs a browser in; or out, with an empty value."""
        rest = "; Path=/; HttpOnly; SameSite=Strict" + ("; Secure" if self._secure else "")
        return f"{self.cookie}={value}{rest}{'' if value else '; Max-Age=0'}".encode()


def require_own_origin(headers: CIMultiDictProxy[str]) -> None:
    """The 403 if the browser says that another site caused the request."""
    site = headers.get("Sec-Fetch-Site")
    origin = headers.get("Origin")
    # Behind a proxy that ends TLS the scheme is not ours to know; host and port are.
    elsewhere = origin is not None and origin.partition("://")[2] != headers.get("Host")
    if elsewhere or (site is not None and site not in OWN_SITES):
        raise foreign_origin()


def foreign_origin() -> Problem:
    """CSRF, or a link that should be opened in a tab of its own."""
    return Problem(
        "foreign-origin", 403, "Caused by another site", "A session counts only for requests of our own pages."
    )
