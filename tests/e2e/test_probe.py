"""`recovery: probe` (REC-2): a GET tells whether the effect exists; what does not tell is asked again."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.e2e.conftest import MakeGateway
from tests.e2e.doubts import QUICK, Step, answering, drop, header, in_phase, silence
from tests.e2e.harness import Gateway, eventually
from tests.upstream.fake import FakeUpstream, Seen, Wire

TIMEOUT_MS = 700
BY_KEY = "/orders/by-key/{server_correlation_id}"


class Ledger:
    """An upstream that loses its answers to mutations, and answers questions step by step."""

    def __init__(self, upstream: FakeUpstream, mutation: Step, *answers: Step) -> None:
        self.upstream = upstream
        self.mutation = mutation
        self.answers = list(answers)
        self.asked: list[tuple[datetime, Seen]] = []
        upstream.script = self.script

    async def script(self, wire: Wire) -> None:
        while True:
            seen = await wire.request()
            if not seen.line.startswith(b"GET "):
                await self.mutation(wire)
                continue
            self.asked.append((datetime.now().astimezone(), seen))
            await self.answers[min(len(self.asked), len(self.answers)) - 1](wire)

    @property
    def sent(self) -> int:
        return sum(not seen.line.startswith(b"GET ") for seen in self.upstream.requests)


async def probing(make_gateway: MakeGateway, upstream: FakeUpstream, **probe: Any) -> Gateway:
    route = {"path": "/orders/**", "recovery": "probe", "probe": {"path": BY_KEY, **probe}}
    return await make_gateway(
        recovery=QUICK, upstream={"url": upstream.url, "timeout": f"{TIMEOUT_MS}ms"}, routes=[route]
    )


async def doubtful(gateway: Gateway, client_id: str = "c-1") -> str:
    registered = await gateway.register(client_id)
    answer = await gateway.confirm(client_id, registered.server_id)
    assert (answer.status, answer.phase) == (202, "PROCESSING")
    return registered.server_id


@pytest.mark.parametrize("mutation", [drop, silence], ids=["drop", "silence"])
async def test_a_yes_commits(make_gateway: MakeGateway, upstream: FakeUpstream, mutation: Step) -> None:
    """REC-2, REC-6: 200 and COMMITTED with a small JSON that says how it was settled; nothing is sent again."""
    ledger = Ledger(upstream, mutation, answering(200, b'{"id": "o-17"}'))
    gateway = await probing(make_gateway, upstream, json="/id")
    server_id = await doubtful(gateway)
    intent = await in_phase(gateway, server_id, "COMMITTED")
    assert intent["settled_by"] == "probe"
    (_, question), *_ = ledger.asked
    assert question.line == f"GET /orders/by-key/{server_id} HTTP/1.1".encode()
    assert header(question, "Authorization") == "Bearer me"
    assert b"dtt-2php" not in question.head.lower()
    assert b"idempotency-key" not in question.head.lower()
    for reply in (
        await gateway.confirm("c-1", server_id),
        await gateway.request("GET", f"/orders/{server_id}"),
    ):
        assert (reply.status, reply.phase, reply.headers["DTT-2PHP-Resource-ID"]) == (200, "COMMITTED", "o-17")
        assert reply.json["detail"] == "Settled by asking upstream: the request took effect."
    assert ledger.sent == 1
    assert intent["events"][-1]["detail"] == {"settled_by": "probe"}


@pytest.mark.parametrize(
    ("answer", "pointer"),
    [(answering(404), None), (answering(410), None), (answering(200, b'{"items": []}'), "/items/0")],
    ids=["404", "410", "a pointer that leads nowhere"],
)
async def test_a_no_fails_but_not_before_nothing_can_be_under_way(
    make_gateway: MakeGateway, upstream: FakeUpstream, answer: Step, pointer: str | None
) -> None:
    """REC-2: a no counts only when asked at least `upstream.timeout` after the end of the attempt's send."""
    ledger = Ledger(upstream, drop, answer)
    gateway = await probing(make_gateway, upstream, **({} if pointer is None else {"json": pointer}))
    server_id = await doubtful(gateway)
    intent = await in_phase(gateway, server_id, "FAILED")
    ended_at = datetime.fromisoformat(intent["attempts"][0]["ended_at"])
    assert len(ledger.asked) >= 2, "the first no came too early and was asked again"
    assert ledger.asked[0][0] < ended_at + timedelta(milliseconds=TIMEOUT_MS)
    assert ledger.asked[-1][0] >= ended_at + timedelta(milliseconds=TIMEOUT_MS)
    reply = await gateway.confirm("c-1", server_id)
    assert (reply.status, reply.phase) == (500, "FAILED")
    assert reply.json["detail"] == "Settled by asking upstream: the request did not take effect."
    assert ledger.sent == 1


async def test_an_early_no_that_becomes_a_yes_commits(make_gateway: MakeGateway, upstream: FakeUpstream) -> None:
    """REC-2: the request was still on its way when it was asked for the first time."""
    ledger = Ledger(upstream, drop, answering(404), answering(200))
    gateway = await probing(make_gateway, upstream)
    await in_phase(gateway, await doubtful(gateway), "COMMITTED")
    assert len(ledger.asked) == 2


async def test_what_does_not_tell_is_asked_again(make_gateway: MakeGateway, upstream: FakeUpstream) -> None:
    """REC-2: errors, redirects, refusals, garbage, half a document, silence: none is a yes or a no."""

    async def garbage(wire: Wire) -> None:
        await wire.send(b"this is not HTTP\r\n\r\n")
        wire.close()

    tells_nothing = [
        *(answering(500), answering(302), answering(401), answering(429), garbage, drop),
        *(answering(200, b"<html>"), answering(200, b'{"id": '), answering(200, b"null")),
    ]
    ledger = Ledger(upstream, drop, *tells_nothing, answering(200, b'{"id": 17}'))
    gateway = await make_gateway(
        recovery={**QUICK, "backoff": "5ms"},
        upstream={"url": upstream.url, "timeout": "300ms"},
        routes=[{"path": "/orders/**", "recovery": "probe", "probe": {"path": BY_KEY, "json": "/id"}}],
    )
    server_id = await doubtful(gateway)
    intent = await in_phase(gateway, server_id, "COMMITTED")
    assert len(ledger.asked) == len(tells_nothing) + 1
    assert ledger.sent == 1
    assert len(intent["attempts"]) == 1


async def test_a_gateway_killed_in_mid_flight_is_asked_about(make_gateway: MakeGateway, upstream: FakeUpstream) -> None:
    """REC-1, REC-2: the end of the send is not known, the end of the lease is: a no counts from there."""
    ledger = Ledger(upstream, silence, answering(404))
    gateway = await probing(make_gateway, upstream)
    registered = await gateway.register("c-1")
    confirming = asyncio.create_task(gateway.confirm("c-1", registered.server_id))
    await eventually(lambda: bool(upstream.requests))
    await gateway.kill()
    await asyncio.gather(confirming, return_exceptions=True)
    await gateway.start()
    intent = await in_phase(gateway, registered.server_id, "FAILED")
    (attempt,) = intent["attempts"]
    assert attempt["sent"] is None
    ended_at = datetime.fromisoformat(attempt["ended_at"])
    assert ledger.asked[-1][0] >= ended_at + timedelta(milliseconds=TIMEOUT_MS)
    assert ledger.sent == 1


async def test_what_a_caller_names_cannot_change_the_question(
    make_gateway: MakeGateway, upstream: FakeUpstream
) -> None:
    """SEC-1: a client correlation ID is percent-encoded into one segment."""
    ledger = Ledger(upstream, drop, answering(200))
    route = {"path": "/orders/**", "recovery": "probe", "probe": {"path": "/by-client/{client_correlation_id}"}}
    gateway = await make_gateway(recovery=QUICK, routes=[route])
    await in_phase(gateway, await doubtful(gateway, "../admin?x=1#%2F"), "COMMITTED")
    assert ledger.asked[0][1].line == b"GET /by-client/..%2Fadmin%3Fx%3D1%23%252F HTTP/1.1"
