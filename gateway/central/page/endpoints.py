"""The pages as a table: path, who may, and the function that answers. What they refuse is a page too."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from gateway.central.page import lists, live, search, services, signing_in, transaction, tree
from gateway.central.page.assets import asset
from gateway.central.page.desk import Desk
from gateway.central.page.forms import BODY_MAX_BYTES
from gateway.central.page.overview import overview
from gateway.central.page.rendering import redirect, segment
from gateway.operator.access import OPERATORS, READERS
from gateway.operator.calls import Call, Endpoint
from gateway.protocol.messages import Answer
from gateway.protocol.problems import Problem

if TYPE_CHECKING:
    from gateway.central.endpoints import Sources

Answering = Callable[[Desk, Any, Call], Awaitable[Answer]]

PAGES: tuple[tuple[str, Answering], ...] = (
    ("/", overview),
    ("/search", search.search),
    ("/tree", tree.look_up),
    ("/tree/{client_correlation_id}", tree.tree),
    ("/transactions/{server_correlation_id}", transaction.transaction),
    ("/stalled", lists.stalled),
    ("/in-doubt", lists.in_doubt),
    ("/unpaired", lists.unpaired),
    ("/callback-gaps", lists.callback_gaps),
    ("/services", services.services),
)
_VARIABLE = re.compile(r"\{(\w+)\}")


def page_endpoints(desk: Desk) -> tuple[Endpoint[Sources], ...]:
    """All pages of one central ledger; its listener's gate is `desk.gate`."""
    shown: list[Endpoint[Any]] = [
        Endpoint(path, partial(answer, desk), roles=READERS, refusal=partial(_refuse, desk, path))
        for path, answer in PAGES
    ]
    return (
        *shown,
        _form(desk, "/services/{service_ledger_id}/pull", services.pull, back="/services", roles=OPERATORS),
        _form(desk, "/logout", signing_in.logout, back="/", roles=READERS),
        Endpoint("/login", partial(signing_in.login_form, desk), open=True, refusal=partial(_refuse, desk, "/")),
        _form(desk, "/login", signing_in.login, back="/", open=True),
        Endpoint("/live", partial(live.head, desk), roles=READERS, methods=("GET",), stream=_stream(desk)),
        Endpoint("/static/{name}", asset, open=True),
    )


def _form(desk: Desk, path: str, answer: Answering, *, back: str, **access: Any) -> Endpoint[Any]:
    refusal = partial(_refuse, desk, back)
    return Endpoint(
        path, partial(answer, desk), methods=("POST",), body_max_bytes=BODY_MAX_BYTES, refusal=refusal, **access
    )


def _stream(desk: Desk) -> Callable[[Any, Call], AsyncIterator[bytes]]:
    return partial(live.changes, desk)


def _refuse(desk: Desk, path: str, call: Call, problem: Problem) -> Answer:
    """A page that says no: to those who are not logged in, the way in and back here."""
    if problem.status == 401 and "Authorization" not in call.headers:
        here = _VARIABLE.sub(lambda name: segment(call.segments.get(name[1], "")), path)
        here += f"?{call.query}" if call.query else ""
        return redirect("/login" if here == "/" else f"/login?next={quote(here, safe='/')}")
    answer = desk.show(call, "refusal.html", "", status=problem.status, problem=problem)
    answer.headers += problem.headers
    answer.close = problem.close
    return answer
