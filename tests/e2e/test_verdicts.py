"""`recovery: hold` and the operator's verdict (REC-2, REC-6): with a reason, audited, exactly once."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from tests.delivery.receiver import Receiver
from tests.e2e.conftest import MakeGateway
from tests.e2e.doubts import QUICK, created, drop, held, in_phase, in_turn, silence
from tests.e2e.harness import TOKENS, Gateway, Reply, eventually
from tests.e2e.test_cli import twophp
from tests.upstream.fake import FakeUpstream


@pytest.fixture
async def gateway(make_gateway: MakeGateway, upstream: FakeUpstream) -> Gateway:
    """Of which every outcome is lost."""
    in_turn(upstream, drop)
    return await make_gateway(recovery=QUICK)


async def resolve(gateway: Gateway, server_id: str, *, role: str = "operations", **said: Any) -> Reply:
    path = f"/v1/in-doubt/{server_id}/resolve"
    return await gateway.operator("POST", path, role=role, data=json.dumps(said).encode())


async def doubtful(gateway: Gateway, client_id: str = "c-1") -> str:
    registered = await gateway.register(client_id)
    assert (await gateway.confirm(client_id, registered.server_id)).status == 202
    await held(gateway, registered.server_id)
    return registered.server_id


async def test_a_verdict_settles_what_was_held(gateway: Gateway, upstream: FakeUpstream) -> None:
    """REC-2, REC-6: 200 COMMITTED or 500 FAILED with a small JSON that says how it was settled; nothing is sent."""
    made = await doubtful(gateway, "c-1")
    lost = await doubtful(gateway, "c-2")
    metric = re.compile(r"^twophp_in_doubt 2\.0$", re.M)

    async def counted() -> bool:
        return metric.search((await gateway.operator("GET", "/metrics", role=None)).body.decode()) is not None

    await eventually(counted)
    listed = (await gateway.operator("GET", "/v1/in-doubt")).json["items"]
    assert [(item["held"], item["policy"]) for item in listed] == [("recovery: hold", "hold")] * 2
    reply = await resolve(gateway, made, verdict="committed", reason="seen in the warehouse", resource_id="o-17")
    assert (reply.status, reply.json["phase"], reply.json["settled_by"]) == (200, "COMMITTED", "verdict:operations")
    assert (await resolve(gateway, lost, verdict="failed", reason="never arrived")).json["phase"] == "FAILED"
    answer = await gateway.confirm("c-1", made)
    assert (answer.status, answer.phase, answer.headers["DTT-2PHP-Resource-ID"]) == (200, "COMMITTED", "o-17")
    assert answer.json["detail"] == "Settled by an operator's verdict: the request took effect."
    answer = await gateway.confirm("c-2", lost)
    assert (answer.status, answer.phase) == (500, "FAILED")
    assert answer.json["detail"] == "Settled by an operator's verdict: the request did not take effect."
    polled = await gateway.request("GET", f"/orders/{lost}")
    assert (polled.status, polled.body) == (500, answer.body)
    assert (await gateway.operator("GET", "/v1/in-doubt")).json["items"] == []
    assert len(upstream.requests) == 2
    event = (await gateway.intent(made))["events"][-1]
    assert (event["code"], event["phase"]) == ("OBL-002", "COMMITTED")
    assert event["detail"] == {"settled_by": "verdict:operations", "reason": "seen in the warehouse"}


async def test_an_auto_confirmed_request_hears_its_verdict_too(gateway: Gateway) -> None:
    """REC-6, ACM-5: 502 in doubt, then 500 FAILED with how it was settled, the same on every repeat."""
    first = await gateway.register("c-1", DTT_2PHP_Auto_Confirm="true")
    assert (first.status, first.phase) == (502, "PROCESSING")
    assert (await resolve(gateway, first.server_id, verdict="failed", reason="never arrived")).status == 200
    for _ in range(2):
        again = await gateway.register("c-1", DTT_2PHP_Auto_Confirm="true")
        assert (again.status, again.phase) == (500, "FAILED")
        assert again.json["detail"] == "Settled by an operator's verdict: the request did not take effect."


async def test_a_second_verdict_hears_how_it_was_settled(gateway: Gateway) -> None:
    """REC-2: exactly once; many at once have one winner, and every other is audited."""
    server_id = await doubtful(gateway)
    said = [("committed", "it is there"), ("failed", "it is not there")] * 5
    replies = await asyncio.gather(
        *(resolve(gateway, server_id, verdict=verdict, reason=reason) for verdict, reason in said)
    )
    (winner,) = [reply for reply in replies if reply.status == 200]
    for reply in replies:
        if reply is not winner:
            assert (reply.status, reply.problem) == (409, "not-in-doubt")
            assert reply.json["settled_by"] == "verdict:operations"
            assert winner.json["phase"] in reply.json["detail"]
    intent = await gateway.intent(server_id)
    assert intent["phase"] == winner.json["phase"]
    refused = [event for event in intent["events"] if event["code"] == "VERDICT_REFUSED"]
    assert len(refused) == 9
    assert all(event["detail"]["by"] == "operations" and event["detail"]["reason"] for event in refused)


NO_VERDICTS: list[tuple[dict[str, Any], str]] = [
    ({"verdict": "committed"}, "member-missing"),
    ({"reason": "why"}, "member-missing"),
    ({"verdict": "maybe", "reason": "why"}, "member-invalid"),
    ({"verdict": ["committed"], "reason": "why"}, "member-invalid"),
    ({"verdict": "failed", "reason": "  "}, "member-invalid"),
    ({"verdict": "failed", "reason": 7}, "member-invalid"),
    ({"verdict": "failed", "reason": "x" * 2001}, "member-invalid"),
    ({"verdict": "failed", "reason": "\0"}, "member-invalid"),
    ({"verdict": "failed", "reason": "why", "resource_id": "17"}, "member-invalid"),
    ({"verdict": "committed", "reason": "why", "resource_id": "a b"}, "member-invalid"),
    ({"verdict": "committed", "reason": "why", "phase": "COMMITTED"}, "member-unknown"),
]


async def test_a_verdict_that_is_not_one_changes_nothing(gateway: Gateway) -> None:
    """OPS-3."""
    server_id = await doubtful(gateway)
    for said, problem in NO_VERDICTS:
        reply = await resolve(gateway, server_id, **said)
        assert (reply.status, reply.problem) == (400, problem), said
    assert (await gateway.intent(server_id))["in_doubt"] is not None


async def test_who_may_judge_and_what(gateway: Gateway) -> None:
    """SEC-5: operations alone; REC-2: nothing that is unknown, waits or was settled."""
    server_id = await doubtful(gateway)
    for role in ("audit", "compliance", "sync"):
        assert (await resolve(gateway, server_id, role=role, verdict="failed", reason="x")).status == 403
    unknown = "0c9e1a1e-58ab-4c3e-9d0a-1d3a5e0f7abc"
    assert (await resolve(gateway, unknown, verdict="failed", reason="x")).problem == "intent-unknown"
    waiting = (await gateway.register("c-waiting")).server_id
    assert (await resolve(gateway, waiting, verdict="failed", reason="x")).problem == "not-in-doubt"
    assert (await gateway.intent(waiting))["phase"] == "WAITING_CONFIRM"
    shown = await gateway.operator("GET", f"/v1/in-doubt/{server_id}", role="audit")
    assert shown.json["in_doubt"]["held"] == "recovery: hold"
    assert (await gateway.operator("GET", f"/v1/in-doubt/{unknown}")).problem == "intent-unknown"


async def test_verdicts_racing_a_redrive_never_make_two_outcomes(
    make_gateway: MakeGateway, upstream: FakeUpstream
) -> None:
    """REC-2: a verdict wins before the next send, or hears that it is being executed."""
    in_turn(upstream, drop, silence, created)
    route = {"path": "/orders/**", "recovery": "redrive"}
    gateway = await make_gateway(recovery=QUICK, routes=[route])
    registered = await gateway.register("c-1")
    await gateway.confirm("c-1", registered.server_id)
    await eventually(lambda: len(upstream.requests) == 2)
    reply = await resolve(gateway, registered.server_id, verdict="failed", reason="gave up")
    assert (reply.status, reply.problem, reply.json["phase"]) == (409, "not-in-doubt", "PROCESSING")
    await gateway.kill()
    await gateway.start()
    intent = await in_phase(gateway, registered.server_id, "COMMITTED")
    assert (intent["settled_by"], len(upstream.requests)) == ("upstream", 3)


async def test_a_hook_is_told_of_what_a_rescuer_finds(make_gateway: MakeGateway, upstream: FakeUpstream) -> None:
    """REC-6, LED-6: IN_DOUBT is told once, whoever put it there: the attempt itself, or who found its gateway dead."""
    receiver = await Receiver().start()
    try:
        in_turn(upstream, silence)
        hook = {"url": f"http://127.0.0.1:{receiver.port}/undo", "on": ["IN_DOUBT"]}
        gateway = await make_gateway(
            recovery=QUICK,
            routes=[{"path": "/orders/**", "compensation": [hook]}],
            callbacks={"allow_http": True, "allow_networks": ["127.0.0.0/8"]},
        )
        registered = await gateway.register("c-1")
        confirming = asyncio.create_task(gateway.confirm("c-1", registered.server_id))
        await eventually(lambda: bool(upstream.requests))
        await gateway.kill()
        await asyncio.gather(confirming, return_exceptions=True)
        await gateway.start()
        await held(gateway, registered.server_id)
        await eventually(lambda: bool(receiver.requests))
        (told,) = [json.loads(request.body)["data"] for request in receiver.requests]
        assert (told["event"], told["server_correlation_id"]) == ("IN_DOUBT", registered.server_id)
    finally:
        await receiver.stop()


async def test_the_command_line_lists_shows_and_resolves(gateway: Gateway) -> None:
    """REC-2: `twophp in-doubt`."""
    server_id = await doubtful(gateway)
    where = {"TWOPHP_URL": gateway.operator_url, "TWOPHP_TOKEN": TOKENS["operations"]}
    status, out, _ = await twophp("in-doubt", "list", **where)
    assert (status, server_id in out, "recovery: hold" in out) == (0, True, True)
    status, out, _ = await twophp("in-doubt", "show", server_id, **where)
    assert status == 0
    assert "phase: PROCESSING" in out
    assert "IN_DOUBT" in out
    status, _, errors = await twophp("in-doubt", "resolve", server_id, "perhaps", "--reason", "x", **where)
    assert (status, "`verdict` takes committed or failed" in errors) == (1, True)
    status, out, _ = await twophp("in-doubt", "resolve", server_id, "failed", "--reason", "never arrived", **where)
    assert (status, out) == (0, f"{server_id}: FAILED, verdict:operations\n")
    status, _, errors = await twophp("in-doubt", "resolve", server_id, "failed", "--reason", "again", **where)
    assert (status, "settled before: FAILED, by verdict:operations" in errors) == (1, True)
    status, out, _ = await twophp("in-doubt", "show", server_id, "--json", **where)
    assert json.loads(out)["settled_by"] == "verdict:operations"
