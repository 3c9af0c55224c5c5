"""What every page needs besides the ledger: who is looking, and their forms."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from hmac import compare_digest
from typing import Any, Protocol

from gateway.central.page.attempts import Attempts
from gateway.central.page.forms import form
from gateway.central.page.gate import PageGate, foreign_origin
from gateway.central.page.rendering import html
from gateway.central.page.sessions import Session, Sessions, Tokens
from gateway.operator.access import Gate
from gateway.operator.calls import Call
from gateway.protocol.messages import Answer


class KnownTokens(Gate, Tokens, Protocol):
    """The configured tokens, which a reload may replace."""


class Desk:
    """One central ledger's pages: `gate` is for its listener."""

    def __init__(
        self,
        tokens: KnownTokens,
        *,
        secure: bool,
        session_s: float,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.tokens = tokens
        self.sessions = Sessions(tokens, life_s=session_s)
        self.gate = PageGate(tokens, self.sessions, secure=secure)
        self.attempts = Attempts()
        self._clock = clock  # for ages on a page; nothing is decided by it

    def now(self) -> datetime:
        """The present, for ages."""
        return self._clock()

    def may_still_read(self, call: Call) -> bool:
        """Whether a stream that was begun may go on: its session and its token still count."""
        if call.token is None or not self.tokens.holds(call.token):
            return False
        return "Authorization" in call.headers or self.gate.session(call.headers) is not None

    def own_form(self, call: Call, *, takes: tuple[str, ...] = ()) -> tuple[Session, dict[str, str]]:
        """The session and the fields of a form that one of its own pages held, or the 403."""
        session = self.gate.session(call.headers)
        given = form(call, takes=("form_secret", *takes))
        secret = given.pop("form_secret", "")
        if session is None or not compare_digest(secret.encode(), session.form_secret.encode()):
            raise foreign_origin()
        return session, given

    def show(self, call: Call, template: str, here: str, *, status: int = 200, **values: Any) -> Answer:
        """A page for whoever is looking; `here` is its place in the navigation."""
        session = self.gate.session(call.headers)
        # A page that brings itself up to date in the background must not take the notice of the one opened next.
        opened = call.headers.get("Sec-Fetch-Dest", "document") == "document"
        return html(
            template,
            status=status,
            reader=call.token,
            form_secret=session.form_secret if session is not None else None,
            notice=session.take_notice() if session is not None and opened else None,
            here=here,
            now=self.now(),
            **values,
        )
