"""REUSE: a late first confirmation inside delta, with a token as its proof (RPL-3, SEC-3, REP-2, TTL-3)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from multidict import CIMultiDict

from gateway.store.replay import SQL
from tests.e2e.conftest import MakeGateway
from tests.e2e.harness import Gateway, Reply, database, eventually
from tests.faults import exactly, fault_proxy
from tests.upstream.fake import FakeUpstream

TOKEN = {"replay_policy": "REUSE", "replay_proof": "token"}
WIDE = {"ttl": "150ms", "grace": "60s", "replay_horizon": "10m"}  # expires at once, stays inside delta for the test
ROUTES = [{"path": "/orders/**", **WIDE, **TOKEN}]


async def until_expired(gateway: Gateway, server_id: str, phase: str = "TTL_EXPIRED") -> None:
    async def seen() -> bool:
        return bool((await gateway.intent(server_id))["phase"] == phase)

    await eventually(seen)


async def late(gateway: Gateway, client_id: str, **options: Any) -> Reply:
    """Registered, and expired."""
    registered = await gateway.register(client_id, **options)
    assert registered.status == 200, registered.body
    await until_expired(gateway, registered.server_id)
    return registered


async def confirm(gateway: Gateway, client_id: str, server_id: str, nonce: str | None, **options: Any) -> Reply:
    headers = {} if nonce is None else {"DTT_2PHP_Authorization_Nonce": nonce}
    return await gateway.confirm(client_id, server_id, **headers, **options)


async def test_a_late_confirmation_with_its_token_executes_once(
    make_gateway: MakeGateway, upstream: FakeUpstream
) -> None:
    """RPL-3, SEC-3: accepted inside delta; its replay gets the stored answer, with the token and without."""
    gateway = await make_gateway(routes=ROUTES)
    registered = await late(gateway, "c-1")
    assert registered.headers["DTT-2PHP-Replay-Policy"] == registered.json["replay_policy"] == "REUSE"
    nonce = registered.json["authorization_nonce"]
    done = await confirm(gateway, "c-1", registered.server_id, nonce)
    assert (done.status, done.phase, done.headers["DTT-2PHP-Resource-ID"]) == (200, "COMMITTED", "17")
    for repeated in (nonce, None, "another"):
        again = await confirm(gateway, "c-1", registered.server_id, repeated)
        assert (again.status, again.phase, again.body) == (200, "COMMITTED", done.body)
    assert len(upstream.requests) == 1
    intent = await gateway.intent(registered.server_id)
    assert [event["phase"] for event in intent["events"]] == [
        "WAITING_CONFIRM",
        "TTL_EXPIRED",
        "PROCESSING",
        "COMMITTED",
    ]


async def test_a_late_confirmation_without_its_token_is_refused_as_under_reject(
    make_gateway: MakeGateway, upstream: FakeUpstream
) -> None:
    """SEC-3, TTL-1, TTL-3: byte for byte the 408 of REJECT; nothing tells that there is still a way."""
    reject = {"path": "/orders/reject", **WIDE}
    gateway = await make_gateway(routes=[reject, *ROUTES])
    there = await late(gateway, "c-1")
    plain = await late(gateway, "c-2", path="/orders/reject")
    under_reuse = await confirm(gateway, "c-1", there.server_id, None)
    under_reject = await confirm(gateway, "c-2", plain.server_id, None, path="/orders/reject/confirm")
    assert (under_reuse.status, under_reuse.problem) == (408, "ttl-expired")
    assert under_reuse.body == under_reject.body
    assert _shown(under_reuse, there.server_id) == _shown(under_reject, plain.server_id)
    assert (await gateway.register("c-1")).status == 408
    look = await gateway.request("GET", "/.well-known/2php/intents/c-1")
    assert look.json["phase_state"] == "TTL_EXPIRED"
    assert "nonce" not in look.body.decode()
    assert upstream.requests == []
    # And the way is still there for who has the token.
    done = await confirm(gateway, "c-1", there.server_id, there.json["authorization_nonce"])
    assert (done.status, done.phase) == (200, "COMMITTED")


def _shown(reply: Reply, server_id: str) -> list[tuple[str, str]]:
    return sorted((name, value.replace(server_id, "…")) for name, value in reply.headers.items() if name != "Date")


async def test_rp_04_a_nonce_that_is_not_this_intents_is_unbound(
    make_gateway: MakeGateway, upstream: FakeUpstream
) -> None:
    """RP-04, SEC-3, REP-5: free-floating, another intent's, another caller's: 403, each audited; nothing runs."""
    gateway = await make_gateway(routes=ROUTES)
    mine = await late(gateway, "c-1")
    other = await late(gateway, "c-2")
    theirs = await late(gateway, "c-1", caller="Bearer you")
    for nonce in ("free-floating", other.json["authorization_nonce"], theirs.json["authorization_nonce"]):
        refused = await confirm(gateway, "c-1", mine.server_id, nonce)
        assert (refused.status, refused.problem, refused.json["code"]) == (403, "nonce-unbound", "NONCE_UNBOUND")
    stolen = await confirm(gateway, "c-1", mine.server_id, mine.json["authorization_nonce"], caller="Bearer you")
    assert (stolen.status, stolen.problem) == (403, "other-caller")
    assert await _confirmed_with_two_nonces(gateway, mine) == 400
    assert upstream.requests == []

    async def audited() -> bool:
        events = (await gateway.intent(mine.server_id))["events"]
        told = {event["code"]: event["detail"] for event in events if event["phase"] is None}
        return told.keys() == {"NONCE_UNBOUND", "REFUSED"} and told["REFUSED"]["refused"] == "other-caller"

    await eventually(audited)
    done = await confirm(gateway, "c-1", mine.server_id, mine.json["authorization_nonce"])
    assert (done.status, len(upstream.requests)) == (200, 1)


async def _confirmed_with_two_nonces(gateway: Gateway, registered: Reply) -> int:
    """P1-1's rule for our own field: two values leave it open which one is meant."""
    assert gateway.session is not None
    headers = [
        ("Authorization", "Bearer me"),
        ("DTT-2PHP-Enabled", "true"),
        ("DTT-2PHP-Client-Correlation-ID", "c-1"),
        ("DTT-2PHP-Server-Correlation-ID", registered.server_id),
        ("DTT-2PHP-Authorization-Nonce", registered.json["authorization_nonce"]),
        ("DTT-2PHP-Authorization-Nonce", "another"),
    ]
    async with gateway.session.post(gateway.url + "/orders/confirm", headers=CIMultiDict(headers)) as answer:
        return answer.status


async def test_after_delta_neither_token_nor_guess_helps(make_gateway: MakeGateway, upstream: FakeUpstream) -> None:
    """RPL-3, TTL-3: cleanup has happened: 408 for the right token; a wrong one gets what it got before."""
    gateway = await make_gateway(routes=[{"path": "/orders/**", "ttl": "100ms", "grace": "100ms", **TOKEN}])
    registered = await gateway.register("c-1")
    await until_expired(gateway, registered.server_id, "ABANDONED")
    right = await confirm(gateway, "c-1", registered.server_id, registered.json["authorization_nonce"])
    wrong = await confirm(gateway, "c-1", registered.server_id, "free-floating")
    none = await confirm(gateway, "c-1", registered.server_id, None)
    assert [reply.status for reply in (right, wrong, none)] == [408, 403, 408]
    assert right.body == none.body
    assert upstream.requests == []


async def test_the_token_is_the_same_on_every_retry_of_phase_1_and_on_every_replica(
    make_gateway: MakeGateway, upstream: FakeUpstream
) -> None:
    """P1-5, SEC-3: derived from the store's own secret: a retry or a restart does not invalidate it."""
    one, two = await make_gateway(routes=ROUTES), await make_gateway(routes=ROUTES)
    first = await one.register("c-1", DTT_2PHP_Requested_TTL="1400")
    again = await two.register("c-1", DTT_2PHP_Requested_TTL="1400")
    assert again.json["authorization_nonce"] == first.json["authorization_nonce"]
    await until_expired(two, first.server_id)
    done = await confirm(two, "c-1", first.server_id, first.json["authorization_nonce"])
    assert (done.status, len(upstream.requests)) == (200, 1)


async def test_the_token_is_only_given_where_it_is_asked_for(make_gateway: MakeGateway) -> None:
    """SEC-3: under REJECT there is none."""
    gateway = await make_gateway()
    registered = await gateway.register("c-1")
    assert registered.headers["DTT-2PHP-Replay-Policy"] == "REJECT"
    assert "authorization_nonce" not in registered.json


async def test_late_confirmations_racing_on_two_replicas_have_one_effect(
    make_gateway: MakeGateway, upstream: FakeUpstream
) -> None:
    """RP-09, REP-3: the losers read the winner's result; who brought no proof never spoils it for who did."""
    one, two = await make_gateway(routes=ROUTES), await make_gateway(routes=ROUTES)
    for number in range(5):
        client_id = f"c-{number}"
        registered = await late(one, client_id)
        nonce = registered.json["authorization_nonce"]
        replies = await asyncio.gather(
            *(
                confirm(gateway, client_id, registered.server_id, sent)
                for sent in (None, "guess", nonce, nonce)
                for gateway in (one, two)
            )
        )
        proven = replies[4:]
        assert {(reply.status, reply.phase, reply.body) for reply in proven} == {(200, "COMMITTED", proven[0].body)}
        assert {reply.status for reply in replies[:4]} <= {200, 403, 408}
    assert len(upstream.requests) == 5


async def test_an_asynchronous_route_takes_late_confirmations_too(
    make_gateway: MakeGateway, upstream: FakeUpstream
) -> None:
    """RPL-3, ASY-1: 202 and the queue, as in time."""
    gateway = await make_gateway(routes=[{**ROUTES[0], "execution": "async"}])
    registered = await late(gateway, "c-1")
    accepted = await confirm(gateway, "c-1", registered.server_id, registered.json["authorization_nonce"])
    assert (accepted.status, accepted.phase) == (202, "PROCESSING")
    await until_expired(gateway, registered.server_id, "COMMITTED")
    assert len(upstream.requests) == 1


async def test_an_auto_confirmed_intent_says_its_routes_policy(make_gateway: MakeGateway, fresh_database: str) -> None:
    """RPL-3: it is never late, and its row is as truthful as any."""
    gateway = await make_gateway(routes=ROUTES)
    done = await gateway.register("c-1", DTT_2PHP_Auto_Confirm="true")
    assert done.phase == "COMMITTED"
    async with database(fresh_database) as store:
        assert await store.fetchval("SELECT replay_policy FROM intents") == "REUSE"


async def test_nothing_public_tells_delta_under_reuse(make_gateway: MakeGateway, fresh_database: str) -> None:
    """TTL-3: registration, refusals, looks and the late answer itself; nor does the store keep the token."""
    gateway = await make_gateway(routes=[{**ROUTES[0], "grace": "54321ms"}])
    registered = await late(gateway, "c-1")
    nonce = registered.json["authorization_nonce"]
    answers = [
        registered,
        await confirm(gateway, "c-1", registered.server_id, None),
        await confirm(gateway, "c-1", registered.server_id, "guess"),
        await gateway.request("GET", "/.well-known/2php/intents/c-1"),
        await gateway.request("GET", f"/orders/{registered.server_id}"),
        await confirm(gateway, "c-1", registered.server_id, nonce),
    ]
    for answer in answers:
        told = json.dumps([list(map(str, answer.raw_headers)), answer.body.decode()]).lower()
        assert not any(word in told for word in ("54321", "grace", "delta"))
    async with database(fresh_database) as store:
        assert await store.fetchval("SELECT count(*) FROM nonces") == 1
        assert await store.fetchval("SELECT count(*) FROM nonces WHERE nonce = $1", nonce.encode()) == 0
    assert nonce not in gateway.logs()


async def test_a_late_confirmation_of_unknown_fate_is_resolved_once_the_store_is_back(
    tmp_path: Path, upstream: FakeUpstream, fresh_database: str
) -> None:
    """REC-7, RPL-3: 503 and nothing sent; the crossing is then found again under its attempt, and executed once."""
    async with fault_proxy(fresh_database) as proxy:
        changes = {"routes": ROUTES, "recovery": {"lease": "20s"}}
        gateway = Gateway(tmp_path, upstream.url, proxy.url, changes)
        await gateway.start()
        try:
            registered = await late(gateway, "c-1")
            nonce = registered.json["authorization_nonce"]
            fault = proxy.cut("after", exactly(SQL["claim_late"]))
            confirming = asyncio.create_task(confirm(gateway, "c-1", registered.server_id, nonce))
            await fault.happened.wait()
            await proxy.refuse()
            unresolved = await confirming
            assert (unresolved.status, unresolved.problem) == (503, "confirmation-unresolved")
            assert upstream.requests == []
            await proxy.listen()
            await eventually(lambda: bool(upstream.requests))
            again = await confirm(gateway, "c-1", registered.server_id, nonce)
            assert (again.status, again.phase) == (200, "COMMITTED")
            assert len(upstream.requests) == 1
        finally:
            await gateway.aclose()
