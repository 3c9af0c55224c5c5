"""`recovery: redrive` (REC-2, REC-3, REC-6): the same request once more, for upstreams that honour the key."""

from __future__ import annotations

import asyncio
import re

import pytest

from tests.e2e.conftest import CREATED, MakeGateway
from tests.e2e.doubts import QUICK, Step, answering, created, drop, header, held, in_phase, in_turn, reset, silence
from tests.e2e.harness import database, eventually
from tests.upstream.fake import FakeUpstream, Seen, Wire

REDRIVE = {"routes": [{"path": "/orders/**", "recovery": "redrive"}]}


def without(seen: Seen, name: str) -> bytes:
    """A request's bytes but for one header."""
    return re.sub(rb"\r\n" + name.encode() + rb": [^\r]*", b"", seen.head, flags=re.IGNORECASE) + seen.body


@pytest.mark.parametrize(
    ("first", "status"),
    [(drop, None), (reset, None), (silence, None), (answering(502), 502), (answering(504), 504)],
    ids=["drop", "reset", "silence", "502", "504"],
)
async def test_the_same_request_goes_once_more_and_its_answer_is_the_intents(
    make_gateway: MakeGateway, upstream: FakeUpstream, first: Step, status: int | None
) -> None:
    """REC-2, REC-3, REC-6: same bytes and key, another attempt; 202 until settled, then the stored answer."""
    in_turn(upstream, first, created)
    gateway = await make_gateway(recovery=QUICK, upstream={"url": upstream.url, "timeout": "500ms"}, **REDRIVE)
    registered = await gateway.register("c-1", body=b'{"item": "b\xc3\xbccher"}')
    answer = await gateway.confirm("c-1", registered.server_id)
    assert (answer.status, answer.phase) == (202, "PROCESSING")
    assert answer.headers["DTT-2PHP-Message"].startswith("Outcome in doubt")
    intent = await in_phase(gateway, registered.server_id, "COMMITTED")
    one, two = upstream.requests
    assert without(one, "DTT-2PHP-Attempt-ID") == without(two, "DTT-2PHP-Attempt-ID")
    assert header(one, "Idempotency-Key") == registered.server_id
    assert [header(seen, "DTT-2PHP-Attempt-ID") for seen in (one, two)] == [
        attempt["attempt_id"] for attempt in intent["attempts"]
    ]
    before, after = intent["attempts"]
    assert (before["number"], before["sent"], before["status"]) == (1, True, status)
    assert before["error"]
    assert (after["number"], after["sent"], after["status"], after["error"]) == (2, True, 201, None)
    assert after["fence"] > before["fence"]
    assert before["started_at"] <= before["ended_at"] <= after["started_at"] <= after["ended_at"]
    assert [event["code"] for event in intent["events"]] == ["OBL-001", "PONR", "IN_DOUBT", "REDRIVE", "OBL-002"]
    assert intent["in_doubt"] is None
    for _ in range(2):
        replayed = await gateway.confirm("c-1", registered.server_id)
        assert (replayed.status, replayed.phase, replayed.body) == (200, "COMMITTED", b'{"id": "17"}')
    polled = await gateway.request("GET", f"/orders/{registered.server_id}")
    assert (polled.status, polled.body) == (200, b'{"id": "17"}')
    assert len(upstream.requests) == 2


async def test_a_gateway_killed_in_mid_flight_is_redriven_by_the_next(
    make_gateway: MakeGateway, upstream: FakeUpstream, fresh_database: str
) -> None:
    """REC-1, REC-2: kill -9 after the first byte; the payload is erased once it is settled."""
    in_turn(upstream, silence, created)
    gateway = await make_gateway(recovery=QUICK, **REDRIVE)
    registered = await gateway.register("c-1")
    confirming = asyncio.create_task(gateway.confirm("c-1", registered.server_id))
    await eventually(lambda: bool(upstream.requests))
    await gateway.kill()
    await asyncio.gather(confirming, return_exceptions=True)
    await gateway.start()
    intent = await in_phase(gateway, registered.server_id, "COMMITTED")
    assert [attempt["sent"] for attempt in intent["attempts"]] == [None, True]
    assert len(upstream.requests) == 2
    async with database(fresh_database) as store:
        assert await store.fetchval("SELECT count(*) FROM payloads") == 0
        assert await store.fetchval("SELECT count(*) FROM in_doubt") == 0


async def test_a_waiting_confirmation_hears_what_the_redrive_came_to(
    make_gateway: MakeGateway, upstream: FakeUpstream
) -> None:
    """P2-8, REC-6: a repeat that arrives while the redrive runs waits for it."""
    release = asyncio.Event()

    async def later(wire: Wire) -> None:
        await release.wait()
        await created(wire)

    in_turn(upstream, drop, later)
    gateway = await make_gateway(recovery=QUICK, **REDRIVE)
    registered = await gateway.register("c-1")
    assert (await gateway.confirm("c-1", registered.server_id)).status == 202
    await eventually(lambda: len(upstream.requests) == 2)
    waiting = asyncio.create_task(gateway.confirm("c-1", registered.server_id))
    polled = await gateway.request("GET", f"/orders/{registered.server_id}")
    assert (polled.status, polled.phase) == (202, "PROCESSING")
    release.set()
    answer = await waiting
    assert (answer.status, answer.phase, answer.body) == (200, "COMMITTED", b'{"id": "17"}')


async def test_sends_are_counted_and_then_it_is_held(make_gateway: MakeGateway, upstream: FakeUpstream) -> None:
    """REC-2: `recovery.attempts` counts sends, the first included; the key is the same on each."""
    in_turn(upstream, drop)
    gateway = await make_gateway(recovery={**QUICK, "attempts": 3}, **REDRIVE)
    registered = await gateway.register("c-1", Idempotency_Key="mine")
    await gateway.confirm("c-1", registered.server_id)
    intent = await held(gateway, registered.server_id)
    assert intent["in_doubt"]["held"] == "recovery.attempts used up: sent 3 times"
    assert [header(seen, "Idempotency-Key") for seen in upstream.requests] == ["mine"] * 3
    assert [attempt["number"] for attempt in intent["attempts"]] == [1, 2, 3]
    assert [event["code"] for event in intent["events"]][-1] == "HELD"
    listed = (await gateway.operator("GET", "/v1/in-doubt")).json["items"]
    assert [(item["policy"], item["attempts"], item["next_at"]) for item in listed] == [("redrive", 3, None)]


async def test_an_answer_to_a_repeat_settles_only_what_it_tells(
    make_gateway: MakeGateway, upstream: FakeUpstream
) -> None:
    """REC-2: never a guess.

    A layer that never looked at the key says nothing of the first attempt: FAILED would hide an effect.
    """
    settles = {"404": "FAILED", "422": "FAILED", "200": "COMMITTED", "303": "COMMITTED"}
    tells_nothing = ("401", "403", "408", "409", "412", "425", "429", "500", "503")

    async def script(wire: Wire) -> None:
        while True:
            seen = await wire.request()
            status = seen.body.decode()
            if sum(other.body == seen.body for other in upstream.requests) == 1:
                wire.close()
                return
            await answering(int(status))(wire)

    upstream.script = script
    gateway = await make_gateway(recovery={**QUICK, "attempts": 2}, **REDRIVE)
    ids = {}
    for status in (*settles, *tells_nothing):
        registered = await gateway.register(f"c-{status}", body=status.encode())
        await gateway.confirm(f"c-{status}", registered.server_id)
        ids[status] = registered.server_id
    for status in tells_nothing:
        intent = await held(gateway, ids[status])
        assert (intent["phase"], intent["attempts"][1]["status"]) == ("PROCESSING", int(status))
    for status, phase in settles.items():
        intent = await in_phase(gateway, ids[status], phase)
        assert intent["attempts"][1]["status"] == int(status)
    answer = await gateway.confirm("c-422", ids["422"])
    assert (answer.status, answer.body) == (422, b"no")
    assert len(upstream.requests) == 2 * len(ids)


async def test_an_upstream_that_is_gone_is_no_failure_of_the_intent(
    make_gateway: MakeGateway, upstream: FakeUpstream
) -> None:
    """REC-2, REC-4: a repeat that was never sent does not count as one, and says nothing of the first attempt."""
    in_turn(upstream, drop)
    gateway = await make_gateway(recovery={**QUICK, "attempts": 2}, **REDRIVE)
    registered = await gateway.register("c-1")
    await gateway.confirm("c-1", registered.server_id)
    port = upstream.port
    await upstream.stop()

    async def refused() -> bool:
        attempts = (await gateway.intent(registered.server_id))["attempts"]
        return [attempt["sent"] for attempt in attempts][:3] == [True, False, False]

    await eventually(refused)
    assert (await gateway.intent(registered.server_id))["phase"] == "PROCESSING"
    back = FakeUpstream()
    await back.start(port)
    back.answer(CREATED)
    await in_phase(gateway, registered.server_id, "COMMITTED")
    await back.stop()
    assert len(back.requests) == 1


async def test_a_recoverer_killed_in_mid_redrive_is_followed_by_another(
    make_gateway: MakeGateway, upstream: FakeUpstream
) -> None:
    """REC-1: the rescuer finds its attempt as it finds any other."""
    in_turn(upstream, drop, silence, created)
    gateway = await make_gateway(recovery=QUICK, **REDRIVE)
    registered = await gateway.register("c-1")
    await gateway.confirm("c-1", registered.server_id)
    await eventually(lambda: len(upstream.requests) == 2)
    await gateway.kill()
    await gateway.start()
    intent = await in_phase(gateway, registered.server_id, "COMMITTED")
    assert [attempt["sent"] for attempt in intent["attempts"]] == [True, None, True]
    fences = [attempt["fence"] for attempt in intent["attempts"]]
    assert fences == sorted(set(fences))


@pytest.mark.parametrize("mode", ["auto-confirm", "transparent", "async"])
async def test_every_mode_is_redriven(make_gateway: MakeGateway, upstream: FakeUpstream, mode: str) -> None:
    """REC-2, ACM-1, TRN-2, ASY-1: the payload is kept where it may have to be sent again."""
    in_turn(upstream, drop, created)
    route = {"path": "/orders/**", "recovery": "redrive"}
    if mode == "transparent":
        route["mode"] = "transparent"
    elif mode == "async":
        route["execution"] = "async"
    gateway = await make_gateway(recovery=QUICK, routes=[route])
    if mode == "async":
        first = await gateway.handshake("c-1")
        assert first.status == 202
    elif mode == "transparent":
        first = await gateway.request("POST", "/orders", body=b"payload")
        assert first.status == 502
    else:
        first = await gateway.register("c-1", DTT_2PHP_Auto_Confirm="true", body=b"payload")
        assert (first.status, first.phase) == (502, "PROCESSING")
    await in_phase(gateway, first.server_id, "COMMITTED")
    one, two = upstream.requests
    assert without(one, "DTT-2PHP-Attempt-ID") == without(two, "DTT-2PHP-Attempt-ID")
    if mode == "auto-confirm":
        again = await gateway.register("c-1", DTT_2PHP_Auto_Confirm="true", body=b"payload")
        assert (again.status, again.phase, again.body) == (201, "COMMITTED", b'{"id": "17"}')
    assert len(upstream.requests) == 2


async def test_credentials_that_the_confirmation_brought_go_with_the_repeat(
    make_gateway: MakeGateway, upstream: FakeUpstream
) -> None:
    """P2-3: the refreshed token, not the one of Phase 1."""
    in_turn(upstream, drop, created)
    identity = {"method": "api_key", "header": "X-Api-Key"}
    gateway = await make_gateway(recovery=QUICK, identity=identity, **REDRIVE)
    registered = await gateway.register("c-1", caller="Bearer old", X_Api_Key="me")
    await gateway.confirm("c-1", registered.server_id, caller="Bearer new", X_Api_Key="me")
    await in_phase(gateway, registered.server_id, "COMMITTED")
    assert [header(seen, "Authorization") for seen in upstream.requests] == ["Bearer new"] * 2


async def test_a_payload_that_was_passed_on_is_held(make_gateway: MakeGateway, upstream: FakeUpstream) -> None:
    """REC-2, TRN-2: `oversize: stream` keeps no bytes to send again, and says so."""
    in_turn(upstream, drop)
    route = {
        **{"path": "/orders/**", "mode": "transparent", "recovery": "redrive"},
        **{"oversize": "stream", "max_payload": "1KiB"},
    }
    gateway = await make_gateway(recovery=QUICK, routes=[route])
    reply = await gateway.request("POST", "/orders", body=b"x" * 5000)
    intent = await held(gateway, reply.server_id)
    assert intent["in_doubt"]["held"] == "its payload was not kept, so it cannot be sent again"
    assert len(upstream.requests) == 1
