"""The services that register here, when each was last heard of, and pulling from one now (LED-3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from gateway.central import writing_endpoints
from gateway.central.page.desk import Desk
from gateway.central.page.rendering import redirect
from gateway.central.page.sessions import Notice
from gateway.central.questions import scope_of
from gateway.operator import parameters
from gateway.operator.access import OPERATORS
from gateway.operator.calls import Call
from gateway.protocol.messages import Answer
from gateway.protocol.problems import Problem

if TYPE_CHECKING:
    from gateway.central.endpoints import Sources


async def services(desk: Desk, sources: Sources, call: Call) -> Answer:
    """`/services`"""
    parameters.parse(call.query, takes=())
    return desk.show(
        call,
        "services.html",
        "/services",
        services=await sources.services.all(scope=scope_of(call)),
        may_pull=call.token is not None and call.token.role in OPERATORS,
    )


async def pull(desk: Desk, sources: Sources, call: Call) -> Answer:
    """The *pull now* button: done while the browser waits, and said on the page it comes back to."""
    session, _ = desk.own_form(call)
    try:
        found = orjson.loads((await writing_endpoints.pull(sources, call)).body)
    except Problem as problem:
        session.notice = Notice(f"{problem.title}: {problem.detail}", good=False)
    else:
        whole = "It is up to date." if found["complete"] else "There is more: pull again."
        text = f"{found['received']} entries received, {found['stored']} of them new or changed. {whole}"
        session.notice = Notice(text, good=True)
    return redirect("/services")
