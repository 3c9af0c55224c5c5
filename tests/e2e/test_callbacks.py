"""Callbacks and hooks: told before the work starts, signed, never forgotten (ACM-2 .. ACM-4, LED-6)."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from standardwebhooks import Webhook

from tests.delivery.receiver import Receiver, answer
from tests.e2e.conftest import CREATED, MakeGateway
from tests.e2e.harness import Gateway, Reply, database, eventually
from tests.e2e.stamped import StampedServer
from tests.upstream.fake import FakeUpstream, Wire

KEY = "whsec_" + base64.b64encode(b"s" * 32).decode()
CALLBACKS = {
    "allow_http": True,
    "allow_networks": ["127.0.0.0/8"],
    "signing_keys": [{"env": "TWOPHP_TEST_SIGNING"}],
    "schedule": ["200ms", "200ms", "300ms", "500ms", "500ms", "500ms", "500ms", "1s", "1s", "1s", "1s", "1s", "1s"],
    "timeout": "2s",
}


@pytest.fixture(autouse=True)
def signing_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOPHP_TEST_SIGNING", KEY)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver = await Receiver().start()
    yield receiver
    await receiver.stop()


async def auto(gateway: Gateway, client_id: str, callback: str, **options: Any) -> Reply:
    return await gateway.register(client_id, DTT_2PHP_Auto_Confirm="true", DTT_2PHP_Callback=callback, **options)


async def test_a_callback_tells_that_the_ponr_was_crossed(make_gateway: MakeGateway, receiver: Receiver) -> None:
    """ACM-2, ACM-3: exactly the draft's five fields, signed, with a constant ID; the ledger knows that it was heard."""
    gateway = await make_gateway(callbacks=CALLBACKS)
    reply = await auto(gateway, "c-1", f"http://127.0.0.1:{receiver.port}/cb?x=1")
    assert (reply.status, reply.phase) == (201, "COMMITTED")
    await eventually(lambda: len(receiver.requests) == 1)
    (received,) = receiver.requests
    assert received.target == "/cb?x=1"
    document = json.loads(received.body)
    stamp = document.pop("callback_timestamp")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", stamp)
    assert document == {
        "server_correlation_id": reply.server_id,
        "client_correlation_id": "c-1",
        "phase_state": "PROCESSING",
        "ponr_crossed": True,
    }
    headers = {name.lower(): value for name, value in received.headers.items()}
    Webhook(KEY).verify(received.body, headers)

    async def heard() -> bool:
        deliveries = (await gateway.intent(reply.server_id))["deliveries"]
        return [(one["kind"], one["acknowledged"], one["id"]) for one in deliveries] == [
            ("callback", True, headers["webhook-id"])
        ]

    await eventually(heard)
    assert (await gateway.operator("GET", "/v1/callback-gaps")).json["items"] == []


async def test_the_callback_is_on_the_wire_before_the_request(make_gateway: MakeGateway) -> None:
    """ACM-2: each of 1,000 calls, by the kernel's time of arrival at both receivers; from the first call on."""
    with (
        StampedServer(answer(200), lambda body: json.loads(body)["client_correlation_id"]) as receiver,
        StampedServer(CREATED, bytes.decode) as upstream,
    ):
        gateway = await make_gateway(callbacks=CALLBACKS, upstream={"url": upstream.url})

        async def client(name: int) -> None:
            for number in range(100):
                client_id = f"c-{name}-{number}"
                assert (await auto(gateway, client_id, receiver.url, body=client_id.encode())).status == 201

        await asyncio.gather(*(client(name) for name in range(10)))
        assert len(receiver.stamps) == len(upstream.stamps) == 1000
        late = {one: receiver.stamps[one] - upstream.stamps[one] for one in receiver.stamps}
        assert {one: ns for one, ns in late.items() if ns >= 0} == {}


async def test_a_black_hole_costs_the_caller_nothing(make_gateway: MakeGateway, receiver: Receiver) -> None:
    """ACM-2: a host that takes the request and never answers; every answer comes while all callbacks still hang."""
    receiver.behave = receiver.hang
    gateway = await make_gateway(callbacks=CALLBACKS)
    url = f"http://127.0.0.1:{receiver.port}/"
    for number in range(20):
        assert (await auto(gateway, f"c-{number}", url)).status == 201
    gaps = (await gateway.operator("GET", "/v1/callback-gaps")).json["items"]
    assert len(gaps) == 20
    assert {gap["state"] for gap in gaps} == {"pending"}


async def test_a_dead_callback_host_delays_nothing_and_ends_in_the_dead_letters(make_gateway: MakeGateway) -> None:
    """ACM-3: retried on schedule, then dead, visible, and sent again when somebody says so."""
    late = Receiver()
    await late.start()
    port = late.port
    await late.stop()
    gateway = await make_gateway(callbacks={**CALLBACKS, "schedule": ["100ms", "100ms"]})
    reply = await auto(gateway, "c-1", f"http://127.0.0.1:{port}/")
    assert reply.status == 201

    async def dead() -> Any:
        return (await gateway.operator("GET", "/v1/deliveries?state=dead")).json["items"]

    (item,) = await eventually(dead)
    assert item["attempts"] == 3
    assert item["server_correlation_id"] == reply.server_id
    receiver = Receiver()
    receiver.port = port
    await receiver.start()
    try:
        retried = await gateway.operator("POST", f"/v1/deliveries/{item['id']}/retry")
        assert retried.status == 200
        await eventually(lambda: len(receiver.requests) == 1)
        assert {name.lower(): value for name, value in receiver.requests[0].headers.items()}["webhook-id"] == item["id"]

        async def refused() -> bool:
            return (await gateway.operator("POST", f"/v1/deliveries/{item['id']}/retry")).status == 409

        await eventually(refused)
        assert (await gateway.operator("POST", f"/v1/deliveries/{item['id']}/retry", role="audit")).status == 403
    finally:
        await receiver.stop()


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "https://localhost/",
        "https://127.0.0.1/",
        "https://0x7f000001/",
        "https://2130706433/",
        "https://[::1]/",
        "https://169.254.169.254/latest",
        "https://user:pass@example.com/",
        "https://intranet/",
        "https://x.internal/",
        "https://example.com:22/",
        "ftp://example.com/",
        "not a url",
    ],
)
async def test_a_hostile_callback_is_refused_before_anything_happens(
    gateway: Gateway, upstream: FakeUpstream, fresh_database: str, url: str
) -> None:
    """ACM-4: 400, nothing stored, nothing executed, and the URL is not repeated."""
    refused = await auto(gateway, "c-1", url)
    assert (refused.status, refused.problem) == (400, "callback-refused")
    assert url.encode() not in refused.body
    assert upstream.requests == []
    async with database(fresh_database) as store:
        assert await store.fetchval("SELECT count(*) FROM intents") == 0
        assert await store.fetchval("SELECT count(*) FROM deliveries") == 0


async def test_a_callback_needs_a_client_id(gateway: Gateway) -> None:
    """P1-1: there is nothing to tell the callback about otherwise."""
    reply = await gateway.register(
        None, DTT_2PHP_Auto_Confirm="true", DTT_2PHP_Callback="https://example.com/", body=b"x"
    )
    assert (reply.status, reply.problem) == (400, "client-correlation-id-missing")


async def test_no_callback_is_lost_when_the_gateway_is_killed(
    make_gateway: MakeGateway, upstream: FakeUpstream, receiver: Receiver, fresh_database: str
) -> None:
    """ACM-3: a receiver that fails 30 % of the time, five kills -9: all delivered, ids constant, signatures valid.

    2,000 callbacks, or as many as TWOPHP_TEST_CALLBACKS says.
    """
    count = int(os.environ.get("TWOPHP_TEST_CALLBACKS", "2000"))
    heard: dict[str, set[str]] = {}
    failed = 0

    async def flaky(request: Any, writer: asyncio.StreamWriter) -> None:
        nonlocal failed
        headers = {name.lower(): value for name, value in request.headers.items()}
        Webhook(KEY).verify(request.body, headers)
        heard.setdefault(json.loads(request.body)["client_correlation_id"], set()).add(headers["webhook-id"])
        if hash(request.body) % 10 < 3:
            failed += 1
            writer.write(answer(503))
        else:
            writer.write(answer(200))

    receiver.behave = flaky
    gateway = await make_gateway(callbacks=CALLBACKS, recovery={"lease": "1s", "interval": "100ms"})
    url = f"http://127.0.0.1:{receiver.port}/"
    accepted: set[str] = set()
    numbers = iter(range(count))

    async def client() -> None:
        for number in numbers:
            client_id = f"c-{number}"
            while client_id not in accepted:
                try:
                    if (await auto(gateway, client_id, url, body=client_id.encode())).status in (201, 502, 504):
                        accepted.add(client_id)
                except (aiohttp.ClientError, ConnectionError):
                    await asyncio.sleep(0.01)

    clients = [asyncio.create_task(client()) for _ in range(16)]
    for kill in range(1, 6):
        await eventually(lambda kill=kill: len(accepted) > count * kill // 7)
        await gateway.kill()
        await gateway.start()
    await asyncio.gather(*clients)
    async with database(fresh_database) as store:

        async def all_delivered() -> bool:
            left: int = await store.fetchval("SELECT count(*) FROM deliveries WHERE state <> 'delivered'")
            return left == 0

        await eventually(all_delivered, within_s=60 + count / 50)
        assert await store.fetchval("SELECT count(*) FROM deliveries WHERE state = 'delivered'") >= count
    assert failed > 0
    assert set(heard) == accepted
    assert max(len(ids) for ids in heard.values()) == 1
    assert max(Counter(seen.body for seen in upstream.requests).values()) == 1


async def test_hooks_are_told_of_the_states_they_name(
    make_gateway: MakeGateway, upstream: FakeUpstream, receiver: Receiver
) -> None:
    """LED-6, REC-6: FAILED, ABANDONED and IN_DOUBT of their route, once each, signed; others are not told."""
    hook = {"url": f"http://127.0.0.1:{receiver.port}/undo", "on": ["FAILED", "ABANDONED", "IN_DOUBT"]}
    gateway = await make_gateway(
        callbacks=CALLBACKS,
        routes=[
            {"path": "/orders/short", "ttl": "100ms", "grace": "50ms", "compensation": [hook]},
            {"path": "/orders/quiet"},
            {"path": "/orders/**", "compensation": [hook]},
        ],
    )
    upstream.answer(CREATED, close=True)
    assert (await gateway.handshake("c-committed")).phase == "COMMITTED"
    await gateway.register("c-abandoned", path="/orders/short")
    upstream.answer(b"HTTP/1.1 400 No\r\nContent-Length: 0\r\n\r\n", close=True)
    failed = await gateway.handshake("c-failed")
    await gateway.handshake("c-quiet", path="/orders/quiet")

    async def drop(wire: Wire) -> None:
        await wire.request()
        wire.close()

    upstream.script = drop
    await gateway.handshake("c-in-doubt")
    await eventually(lambda: len(receiver.requests) >= 3)
    told = [json.loads(request.body)["data"] for request in receiver.requests]
    by_client = {document["client_correlation_id"]: document for document in told}
    assert set(by_client) == {"c-abandoned", "c-failed", "c-in-doubt"}
    assert len(told) == 3
    assert by_client["c-failed"]["server_correlation_id"] == failed.server_id
    for request in receiver.requests:
        Webhook(KEY).verify(request.body, {name.lower(): value for name, value in request.headers.items()})
    deliveries = (await gateway.intent(failed.server_id))["deliveries"]
    assert [(one["kind"], one["event"]) for one in deliveries] == [("compensation", "FAILED")]
