"""`verify:` (REC-5, RP-07): after a success, a GET must confirm the effect.

If it does not, there is a flag and compensation, and never a second execution.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.delivery.receiver import Receiver
from tests.e2e.conftest import MakeGateway
from tests.e2e.doubts import QUICK, Step, answering, created, drop, header
from tests.e2e.harness import Gateway, database, eventually
from tests.upstream.fake import FakeUpstream, Seen, Wire

CALLBACKS = {"allow_http": True, "allow_networks": ["127.0.0.0/8"]}


class Shop:
    """An upstream whose mutations and whose GETs answer apart."""

    def __init__(self, upstream: FakeUpstream, *answers: Step, mutation: Step = created) -> None:
        self.mutation = mutation
        self.answers = list(answers)
        self.asked: list[Seen] = []
        self.sent: list[Seen] = []
        upstream.script = self.script

    async def script(self, wire: Wire) -> None:
        while True:
            seen = await wire.request()
            if seen.line.startswith(b"GET "):
                self.asked.append(seen)
                await self.answers[min(len(self.asked), len(self.answers)) - 1](wire)
            else:
                self.sent.append(seen)
                await self.mutation(wire)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver = await Receiver().start()
    yield receiver
    await receiver.stop()


def verifying(**route: Any) -> dict[str, Any]:
    return {
        "routes": [{"path": "/orders/**", "verify": {"path": "/orders/{resource_id}"}, **route}],
        "recovery": {**QUICK, "attempts": 3},
    }


async def with_event(gateway: Gateway, server_id: str, code: str) -> Any:
    async def there() -> Any:
        intent = await gateway.intent(server_id)
        return intent if code in [event["code"] for event in intent["events"]] else None

    return await eventually(there)


async def test_a_success_is_confirmed_without_holding_its_answer_back(
    make_gateway: MakeGateway, upstream: FakeUpstream
) -> None:
    """REC-5: asked once, for the resource that was made, as the caller would ask."""
    release = asyncio.Event()

    async def later(wire: Wire) -> None:
        await release.wait()
        await answering(200)(wire)

    shop = Shop(upstream, later)
    gateway = await make_gateway(**verifying())
    answer = await gateway.handshake("c-1")
    assert (answer.status, answer.phase) == (200, "COMMITTED")
    await eventually(lambda: bool(shop.asked))
    release.set()
    intent = await with_event(gateway, answer.server_id, "VERIFIED")
    assert (intent["verify_failed"], len(shop.asked)) == (False, 1)
    assert shop.asked[0].line == b"GET /orders/17 HTTP/1.1"
    assert header(shop.asked[0], "Authorization") == "Bearer me"
    assert "DTT-2PHP-Message" not in (await gateway.confirm("c-1", answer.server_id)).headers


async def test_an_effect_that_is_not_there_is_flagged_and_compensated(
    make_gateway: MakeGateway, upstream: FakeUpstream, receiver: Receiver
) -> None:
    """REC-5, RP-07, LED-6: the stored answer and the flag; the key stays consumed; a hook is told without asking."""
    shop = Shop(upstream, answering(404))
    hook = {"url": f"http://127.0.0.1:{receiver.port}/undo"}
    gateway = await make_gateway(callbacks=CALLBACKS, **verifying(compensation=[hook]))
    answer = await gateway.handshake("c-1")
    intent = await with_event(gateway, answer.server_id, "VERIFY_FAILED")
    assert (intent["phase"], intent["verify_failed"]) == ("COMMITTED", True)
    assert intent["events"][-1]["detail"] == {"reason": "upstream answered 404"}
    for _ in range(2):
        replayed = await gateway.confirm("c-1", answer.server_id)
        assert (replayed.status, replayed.phase, replayed.body) == (200, "COMMITTED", answer.body)
        assert replayed.headers["DTT-2PHP-Message"].startswith("verify_failed: ")
    again = await gateway.register("c-1")
    assert (again.status, again.server_id, again.phase) == (200, answer.server_id, "COMMITTED")
    await eventually(lambda: bool(receiver.requests))
    told = [json.loads(request.body) for request in receiver.requests]
    assert [(document["type"], document["data"]["server_correlation_id"]) for document in told] == [
        ("intent.verify_failed", answer.server_id)
    ]
    assert len(shop.sent) == 1


async def test_what_does_not_tell_is_asked_again_and_then_flagged(
    make_gateway: MakeGateway, upstream: FakeUpstream
) -> None:
    """REC-5: an upstream that is away for a moment has not lost anything; one that never confirms has."""
    shop = Shop(upstream, answering(503), drop, answering(200))
    gateway = await make_gateway(**verifying())
    answer = await gateway.handshake("c-1")
    await with_event(gateway, answer.server_id, "VERIFIED")
    assert len(shop.asked) == 3
    shop.answers = [answering(503)]
    answer = await gateway.handshake("c-2")
    intent = await with_event(gateway, answer.server_id, "VERIFY_FAILED")
    assert intent["events"][-1]["detail"] == {"reason": "not confirmed in 3 tries: upstream answered 503"}


@pytest.mark.parametrize("mode", ["handshake", "auto-confirm"])
async def test_a_verification_survives_a_kill(
    make_gateway: MakeGateway, upstream: FakeUpstream, fresh_database: str, mode: str
) -> None:
    """REC-5: it is written with the outcome, so a crash between them cannot lose it."""
    shop = Shop(upstream, answering(404))
    gateway = await make_gateway(**{**verifying(), "recovery": {**QUICK, "interval": "1h"}})
    if mode == "handshake":
        answer = await gateway.handshake("c-1")
    else:
        answer = await gateway.register("c-1", DTT_2PHP_Auto_Confirm="true")
    assert answer.phase == "COMMITTED"
    async with database(fresh_database) as store:
        assert await store.fetchval("SELECT count(*) FROM verifications") == 1
    await gateway.kill()
    gateway.changes["recovery"] = QUICK
    await gateway.start()
    await with_event(gateway, answer.server_id, "VERIFY_FAILED")
    assert len(shop.sent) == 1


async def test_only_successes_of_routes_that_ask_for_it_are_verified(
    make_gateway: MakeGateway, upstream: FakeUpstream, fresh_database: str
) -> None:
    """REC-5: a failure has nothing to confirm, and other routes have no row."""
    shop = Shop(upstream, answering(200), mutation=answering(422))
    changes = verifying()
    changes["routes"].insert(0, {"path": "/orders/plain"})
    changes["recovery"]["interval"] = "1h"
    gateway = await make_gateway(**changes)
    assert (await gateway.handshake("c-1")).phase == "FAILED"
    shop.mutation = created
    assert (await gateway.handshake("c-2", path="/orders/plain")).phase == "COMMITTED"
    async with database(fresh_database) as store:
        assert await store.fetchval("SELECT count(*) FROM verifications") == 0
    assert shop.asked == []
