"""Logging in with a token, and out again (SEC-5). Must not keep, log or echo the token."""

from __future__ import annotations

import logging
from typing import Any

from multidict import CIMultiDict, CIMultiDictProxy

from gateway.central.page.desk import Desk
from gateway.central.page.forms import form, own_path
from gateway.central.page.gate import require_own_origin
from gateway.central.page.rendering import html, redirect
from gateway.operator import parameters, refusals
from gateway.operator.access import READERS, Token
from gateway.operator.calls import Call
from gateway.protocol.messages import Answer
from gateway.protocol.problems import Problem

log = logging.getLogger(__name__)

WRONG = "No token of this ledger has this value."
NOT_A_READER = "This token's role reads nothing here. Log in with one of role audit, operations or compliance."


async def login_form(desk: Desk, sources: Any, call: Call) -> Answer:
    """The way in; whoever is inside already goes on."""
    given = parameters.parse(call.query, takes=("next",))
    onward = own_path(given.get("next", "/"))
    return redirect(onward) if desk.gate.session(call.headers) is not None else _form(onward)


async def login(desk: Desk, sources: Any, call: Call) -> Answer:
    """A token for a session."""
    require_own_origin(call.headers)
    given = form(call, takes=("token", "next"))
    onward = own_path(given.get("next", "/"))
    wait_s = desk.attempts.wait_s(call.peer)
    if wait_s:
        return _form(onward, f"Too many wrong tokens. Try again in {wait_s} s.", status=429, wait_s=wait_s)
    token = _token(desk, given.get("token", ""))
    if token is None:
        desk.attempts.failed(call.peer)
        log.warning("page login refused", extra={"peer": call.peer})
        return _form(onward, WRONG, status=401)
    if token.role not in READERS:
        return _form(onward, NOT_A_READER, status=403)
    former = desk.gate.cookie_value(call.headers)
    if former is not None:
        desk.sessions.end(former)
    log.info("page login", extra={"reader": token.name, "role": token.role, "peer": call.peer})
    return redirect(onward, (b"Set-Cookie", desk.gate.set_cookie(desk.sessions.begin(token))))


async def logout(desk: Desk, sources: Any, call: Call) -> Answer:
    """The session ends here, not only in the browser."""
    desk.own_form(call)
    former = desk.gate.cookie_value(call.headers)
    if former is not None:
        desk.sessions.end(former)
    return redirect("/login", (b"Set-Cookie", desk.gate.set_cookie("")))


def _token(desk: Desk, value: str) -> Token | None:
    headers = CIMultiDictProxy(CIMultiDict({"Authorization": f"Bearer {value}"}))
    try:
        return desk.tokens.identify(headers)
    except Problem as problem:
        if problem.slug == refusals.no_tokens().slug:
            raise
        return None


def _form(onward: str, refusal: str | None = None, *, status: int = 200, wait_s: int = 0) -> Answer:
    answer = html("login.html", status=status, reader=None, next=onward, refusal=refusal)
    if wait_s:
        answer.headers.append((b"Retry-After", str(wait_s).encode()))
    return answer
