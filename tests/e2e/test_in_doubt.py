"""In doubt.

What may have taken effect without an answer is held, never guessed and never sent twice (REC-2, REC-6, REC-8).
"""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.conftest import MakeGateway
from tests.e2e.harness import Gateway, Reply, eventually
from tests.upstream.fake import FakeUpstream, Wire


async def drop(wire: Wire) -> None:
    """Apply, then close without an answer."""
    await wire.request()
    wire.close()


async def reset(wire: Wire) -> None:
    await wire.request()
    wire.reset()


async def half_an_answer(wire: Wire) -> None:
    await wire.request()
    await wire.send(b"HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\nhalf")
    wire.close()


async def garbage(wire: Wire) -> None:
    await wire.request()
    await wire.send(b"this is not HTTP\r\n\r\n")
    wire.close()


async def bad_gateway(wire: Wire) -> None:
    await wire.request()
    await wire.send(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 3\r\n\r\nbad")
    wire.close()


async def gateway_timeout(wire: Wire) -> None:
    await wire.request()
    await wire.send(b"HTTP/1.1 504 Gateway Timeout\r\nContent-Length: 0\r\n\r\n")
    wire.close()


async def silence(wire: Wire) -> None:
    await wire.request()
    await wire.until_peer_closes()


def is_in_doubt(answer: Reply, server_id: str) -> bool:
    return (
        answer.status == 202
        and answer.phase == "PROCESSING"
        and answer.headers["DTT-2PHP-Message"].startswith("Outcome in doubt")
        and answer.headers["Location"] == f"/orders/{server_id}"
        and answer.headers["Retry-After"].isdecimal()
    )


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    "script", [drop, reset, half_an_answer, garbage, bad_gateway, gateway_timeout, silence], ids=lambda s: s.__name__
)
async def test_an_effect_without_an_answer_is_held(
    make_gateway: MakeGateway, upstream: FakeUpstream, script: object, method: str
) -> None:
    """REC-2, REC-6, REC-8, P2-5: one request, 202 in doubt, the same for replays and polls, and the ledger says so."""
    upstream.script = script  # type: ignore[assignment]
    gateway = await make_gateway(upstream={"url": upstream.url, "timeout": "300ms"})
    registered = await gateway.register("c-1", method=method)
    for _ in range(2):
        assert is_in_doubt(await gateway.confirm("c-1", registered.server_id), registered.server_id)
    assert is_in_doubt(await gateway.request("GET", f"/orders/{registered.server_id}"), registered.server_id)
    assert len(upstream.requests) == 1
    intent = await gateway.intent(registered.server_id)
    assert intent["phase"] == "PROCESSING"
    assert intent["outcome"] is None
    assert intent["in_doubt"]["reason"]
    (attempt,) = intent["attempts"]
    assert attempt["sent"] is True
    assert attempt["ended_at"] is not None
    assert [event["code"] for event in intent["events"]] == ["OBL-001", "PONR", "IN_DOUBT"]
    listed = (await gateway.operator("GET", "/v1/in-doubt")).json["items"]
    assert [item["server_correlation_id"] for item in listed] == [registered.server_id]


async def test_which_statuses_are_in_doubt_is_configurable(make_gateway: MakeGateway, upstream: FakeUpstream) -> None:
    """P2-5."""
    upstream.answer(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
    gateway = await make_gateway(upstream={"url": upstream.url, "in_doubt_statuses": [503]})
    registered = await gateway.register("c-1")
    assert is_in_doubt(await gateway.confirm("c-1", registered.server_id), registered.server_id)


async def test_a_key_in_doubt_stays_consumed(gateway: Gateway, upstream: FakeUpstream) -> None:
    """RPL-4, P1-5: registering again gives the same intent and its state, and sends nothing."""
    upstream.script = drop
    registered = await gateway.register("c-1")
    await gateway.confirm("c-1", registered.server_id)
    again = await gateway.register("c-1")
    assert (again.status, again.server_id, again.phase) == (200, registered.server_id, "PROCESSING")
    assert len(upstream.requests) == 1


async def test_redirects_are_answers(gateway: Gateway, upstream: FakeUpstream) -> None:
    """REC-8: followed by nobody below us; P2-4: a 3xx is a success with its headers."""
    upstream.answer(b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n")
    answer = await gateway.handshake("c-1")
    assert (answer.status, answer.phase, answer.headers["Location"]) == (200, "COMMITTED", "/elsewhere")
    assert answer.headers["DTT-2PHP-Upstream-Status"] == "307"
    assert len(upstream.requests) == 1


async def test_a_poll_of_anything_else_goes_upstream_untouched(gateway: Gateway, upstream: FakeUpstream) -> None:
    """ASY-2: an id that is not one of ours."""
    other = "0c9e1a1e-58ab-4c3e-9d0a-1d3a5e0f7abc"
    answer = await gateway.request("GET", f"/orders/{other}?x")
    assert answer.status == 201
    assert upstream.requests[0].line == f"GET /orders/{other}?x HTTP/1.1".encode()


async def test_a_poll_by_another_caller_is_refused(gateway: Gateway, upstream: FakeUpstream) -> None:
    """SEC-2."""
    registered = await gateway.register("c-1")
    await gateway.confirm("c-1", registered.server_id)
    path = f"/orders/{registered.server_id}"
    assert (await gateway.request("GET", path)).status == 200
    assert (await gateway.request("GET", path, caller="Bearer you")).problem == "other-caller"
    assert (await gateway.request("GET", path, caller=None)).problem == "credentials-missing"
    assert len(upstream.requests) == 1


async def test_a_poll_while_it_runs_says_so(gateway: Gateway, upstream: FakeUpstream) -> None:
    """ASY-2: 202, then what the confirmation answered."""
    release = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await release.wait()
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone")

    upstream.script = script
    registered = await gateway.register("c-1")
    running = asyncio.create_task(gateway.confirm("c-1", registered.server_id))
    await eventually(lambda: bool(upstream.requests))
    polled = await gateway.request("GET", f"/orders/{registered.server_id}")
    assert (polled.status, polled.phase) == (202, "PROCESSING")
    assert "DTT-2PHP-Message" not in polled.headers
    release.set()
    confirmed = await running
    polled = await gateway.request("GET", f"/orders/{registered.server_id}")
    assert (polled.status, polled.phase, polled.body) == (200, "COMMITTED", confirmed.body)
