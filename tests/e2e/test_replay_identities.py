"""The adversarial table of the three identities, RP-01 … RP-09, each with the code it names (REP-4).

It also shows REP-1, REP-2, REP-3 and REP-5.

RP-10 is shown where the store is opened (tests/store/test_opening.py).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from http_message_signatures import algorithms

from tests.e2e.conftest import CREATED, MakeGateway
from tests.e2e.harness import Gateway, Reply, database, eventually
from tests.e2e.test_late_confirmations import WIDE, late, until_expired
from tests.faults import FaultProxy, fault_proxy
from tests.ingress.test_jwks import jwk
from tests.signer import COVERED, Signer
from tests.upstream.fake import FakeUpstream, Wire

SECRET = b"s" * 32
SIGNER = Signer(SECRET)
SIGNED = [{"path": "/orders/**", **WIDE, "replay_policy": "REUSE", "replay_proof": "signature"}]
SIGNATURES = {"keys": [{"id": "k", "algorithm": "hmac-sha256", "env": "TWOPHP_TEST_SIGNATURE_KEY"}]}


@pytest.fixture
async def signed(make_gateway: MakeGateway) -> Gateway:
    """A gateway whose late confirmations must be signed."""
    gateway = await make_gateway(start=False, routes=SIGNED, signatures=SIGNATURES)
    gateway.environment["TWOPHP_TEST_SIGNATURE_KEY"] = base64.b64encode(SECRET).decode()
    await gateway.start()
    return gateway


async def sign_and_confirm(
    gateway: Gateway, client_id: str, server_id: str, signer: Signer = SIGNER, **options: Any
) -> Reply:
    """Phase 2 of a client that signs."""
    headers = {
        "DTT-2PHP-Enabled": "true",
        "DTT-2PHP-Client-Correlation-ID": client_id,
        "DTT-2PHP-Server-Correlation-ID": server_id,
    }
    made = signer.sign(gateway.url + "/orders/confirm", headers, **options)
    return await gateway.request("POST", "/orders/confirm", headers=made)


async def audited(gateway: Gateway, server_id: str, code: str) -> Any:
    """The detail of the refusal that was noted on an intent (REP-5)."""

    async def seen() -> Any:
        events = (await gateway.intent(server_id))["events"]
        return next((e["detail"] for e in events if e["code"] == code and e["phase"] is None), None)

    return await eventually(seen)


async def test_rep_1_the_stored_replay_key_binds_everything_but_the_attempt(
    gateway: Gateway, fresh_database: str
) -> None:
    """REP-1: protocol version, logical key, method, target, payload, caller binding and run id; recomputed here."""
    body = b'{"item": "book"}'
    await gateway.register("c-1", path="/orders/x?y=1", body=body)
    async with database(fresh_database) as store:
        row = await store.fetchrow("SELECT replay_key, logical_key, caller FROM intents")
        assert row is not None
        run_id = (await store.fetchval("SELECT service_ledger_id FROM services WHERE name = 'orders'")).bytes
    logical = _digest(b"logical", b"orders", row["caller"], b"c-1")[:16]
    payload = _digest(b"payload", hashlib.sha256(body).digest(), b"application/json", b"")
    parts = (b"2php-00", logical, b"POST", b"/orders/x?y=1", payload, row["caller"], run_id)
    assert row["logical_key"] == logical
    assert row["replay_key"] == _digest(b"replay", *parts)


def _digest(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(len(part).to_bytes(4, "big") + part for part in parts)).digest()


async def test_rp_01_a_new_attempt_at_the_same_key_gets_the_prior_result(
    gateway: Gateway, upstream: FakeUpstream, fresh_database: str
) -> None:
    """RP-01: every confirmation is a new attempt; none of them bypasses the key."""
    registered = await gateway.register("c-1")
    first = await gateway.confirm("c-1", registered.server_id)
    for _ in range(5):
        again = await gateway.confirm("c-1", registered.server_id)
        assert (again.status, again.phase, again.body) == (first.status, "COMMITTED", first.body)
        assert (await gateway.register("c-1")).server_id == registered.server_id
    assert len(upstream.requests) == 1
    async with database(fresh_database) as store:
        assert await store.fetchval("SELECT count(*) FROM attempts") == 1


async def test_rp_02_a_fresh_nonce_makes_no_second_effect(
    signed: Gateway, upstream: FakeUpstream, fresh_database: str
) -> None:
    """RP-02, REP-2: it authorizes; the effect is the key's. A second request under the key is a duplicate."""
    registered = await late(signed, "c-1")
    first = await sign_and_confirm(signed, "c-1", registered.server_id)
    assert (first.status, first.phase) == (200, "COMMITTED")
    again = await sign_and_confirm(signed, "c-1", registered.server_id)
    assert (again.status, again.phase, again.body) == (200, "COMMITTED", first.body)
    other = await signed.register("c-1", body=b"other")
    assert (other.status, other.json["code"]) == (422, "REPLAY_DUPLICATE")
    assert (await audited(signed, registered.server_id, "REPLAY_DUPLICATE"))["status"] == 422
    assert len(upstream.requests) == 1
    async with database(fresh_database) as store:
        assert await store.fetchval("SELECT count(*) FROM nonces") == 1  # the second one authorized nothing


async def test_rp_03_a_consumed_nonce_is_refused(signed: Gateway, upstream: FakeUpstream) -> None:
    """RP-03, SEC-3: 409; the intent it came with is untouched and takes a new one; the first keeps its answer."""
    one, two = await late(signed, "c-1"), await late(signed, "c-2")
    first = await sign_and_confirm(signed, "c-1", one.server_id, nonce="n-1")
    refused = await sign_and_confirm(signed, "c-2", two.server_id, nonce="n-1")
    assert (refused.status, refused.problem, refused.json["code"]) == (409, "nonce-consumed", "REPLAY_NONCE_CONSUMED")
    assert len(upstream.requests) == 1
    assert (await audited(signed, two.server_id, "REPLAY_NONCE_CONSUMED"))["refused"] == "nonce-consumed"
    exact = await sign_and_confirm(signed, "c-1", one.server_id, nonce="n-1")
    assert (exact.status, exact.body) == (200, first.body)
    assert (await sign_and_confirm(signed, "c-2", two.server_id, nonce="n-2")).phase == "COMMITTED"
    assert len(upstream.requests) == 2


FLAWS: dict[str, dict[str, Any]] = {
    "forged": {"signer": Signer(b"x" * 32)},
    "unknown-key": {"signer": Signer(SECRET, keyid="nobody")},
    "no-nonce": {"nonce": None},
    "no-expires": {"expires_s": None},
    "over": {"created_s": -60, "expires_s": -30},
    "not-yet": {"created_s": 30},
    "no-server-id": {"covered": COVERED[:-1]},
    "no-path": {"covered": [name for name in COVERED if name != "@path"]},
}


async def test_rp_04_a_signature_that_is_not_bound_to_intent_and_window_is_refused(
    signed: Gateway, upstream: FakeUpstream
) -> None:
    """RP-04, SEC-3: 403 NONCE_UNBOUND, audited with its reason; nothing runs, and the right proof still can."""
    registered = {name: await signed.register(name) for name in FLAWS}
    for name, flaw in FLAWS.items():
        server_id = registered[name].server_id
        await until_expired(signed, server_id)
        refused = await sign_and_confirm(signed, name, server_id, **flaw)
        assert (refused.status, refused.problem, refused.json["code"]) == (403, "nonce-unbound", "NONCE_UNBOUND"), name
        assert (await audited(signed, server_id, "NONCE_UNBOUND"))["reason"], name
    assert upstream.requests == []
    for name in FLAWS:
        assert (await sign_and_confirm(signed, name, registered[name].server_id)).phase == "COMMITTED"


async def test_signatures_are_checked_with_keys_of_files_and_of_a_key_set(
    make_gateway: MakeGateway, upstream: FakeUpstream, tmp_path: Path
) -> None:
    """SEC-3: an Ed25519 key as PEM, and one of a JWKS."""
    mine, theirs = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    pem, jwks = tmp_path / "mine.pem", tmp_path / "jwks.json"
    pem.write_bytes(mine.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    jwks.write_text(json.dumps({"keys": [jwk("theirs", theirs)]}))
    keys = [{"id": "mine", "algorithm": "ed25519", "file": str(pem)}]
    gateway = await make_gateway(routes=SIGNED, signatures={"keys": keys, "jwks": {"file": str(jwks)}})
    for keyid, key in (("mine", mine), ("theirs", theirs)):
        registered = await late(gateway, keyid)
        swapped = Signer(theirs if key is mine else mine, keyid, algorithms.ED25519)
        assert (await sign_and_confirm(gateway, keyid, registered.server_id, swapped)).status == 403
        done = await sign_and_confirm(gateway, keyid, registered.server_id, Signer(key, keyid, algorithms.ED25519))
        assert (done.status, done.phase) == (200, "COMMITTED")
    assert len(upstream.requests) == 2


async def test_rp_04_without_a_signature_it_is_simply_late(signed: Gateway, upstream: FakeUpstream) -> None:
    """SEC-3, TTL-1: 408 as under REJECT; a token is no signature."""
    registered = await late(signed, "c-1")
    assert "authorization_nonce" not in registered.json
    for headers in ({}, {"DTT_2PHP_Authorization_Nonce": "guess"}):
        refused = await signed.confirm("c-1", registered.server_id, **headers)
        assert (refused.status, refused.problem) == (408, "ttl-expired")
    assert upstream.requests == []


async def test_rp_05_an_exact_retry_after_the_commit_gets_the_durable_result(
    make_gateway: MakeGateway, upstream: FakeUpstream
) -> None:
    """RP-05: on another replica and after a restart."""
    one, two = await make_gateway(), await make_gateway()
    registered = await one.register("c-1")
    assert (await two.register("c-1")).server_id == registered.server_id
    first = await one.confirm("c-1", registered.server_id)
    await one.kill()
    await one.start()
    for gateway in (one, two):
        assert (await gateway.register("c-1")).server_id == registered.server_id
        again = await gateway.confirm("c-1", registered.server_id)
        assert (again.status, again.body) == (first.status, first.body)
    assert len(upstream.requests) == 1


async def test_rp_06_a_crash_between_insert_and_commit_rolls_all_of_it_back(
    tmp_path: Path, upstream: FakeUpstream, fresh_database: str
) -> None:
    """RP-06, S1: neither key nor payload stays; the client is told to ask again under the same key, and that works."""
    async with fault_proxy(fresh_database) as proxy, database(fresh_database) as store:
        gateway = Gateway(tmp_path, upstream.url, proxy.url)
        await gateway.start()
        try:
            await gateway.register("c-1")
            key = await store.fetchval("SELECT logical_key FROM intents")
            await store.execute("DELETE FROM intents; DELETE FROM payloads; DELETE FROM events")
            registering = await _stopped_between_insert_and_commit(gateway, store, proxy, key)
            refused = await registering
            assert (refused.status, refused.problem) == (503, "store-unavailable")
            assert "Client-Correlation-ID" in refused.headers["DTT-2PHP-Message"]
            for table in ("intents", "payloads", "events"):
                assert await store.fetchval(f"SELECT count(*) FROM {table}") == 0
            await proxy.listen()
            await gateway.until_ready()
            registered = await gateway.register("c-1")
            assert (await gateway.confirm("c-1", registered.server_id)).phase == "COMMITTED"
            assert len(upstream.requests) == 1
        finally:
            await gateway.aclose()


async def _stopped_between_insert_and_commit(
    gateway: Gateway, store: Any, proxy: FaultProxy, key: bytes
) -> asyncio.Task[Reply]:
    """A registration whose server process dies when the key is inserted and the rest is not; the store is then away."""
    holding = store.transaction()
    await holding.start()
    await store.execute(
        "INSERT INTO payloads (bucket, logical_key, pending_of, ponr_deadline, sealed_with, sealed)"
        " VALUES (0, $1, 0, now(), 1, '')",
        key,
    )  # whoever inserts the same key waits here for what becomes of this one
    registering = asyncio.create_task(gateway.register("c-1"))
    blocked = "SELECT pid FROM pg_locks WHERE NOT granted"
    pid = await eventually(lambda: store.fetchval(blocked))
    await proxy.refuse()
    await store.execute("SELECT pg_terminate_backend($1)", pid)
    await eventually(lambda: store.fetchval(f"SELECT NOT EXISTS ({blocked})"))
    await holding.rollback()
    return registering


async def test_rp_06_a_commit_whose_acknowledgement_was_lost_is_found_again(
    tmp_path: Path, upstream: FakeUpstream, fresh_database: str
) -> None:
    """RP-06, REC-7: registered once, executed once, though the connection was cut after each commit."""
    async with fault_proxy(fresh_database) as proxy, database(fresh_database) as store:
        gateway = Gateway(tmp_path, upstream.url, proxy.url)
        await gateway.start()
        try:
            lost = [proxy.cut("after", lambda sql: "INSERT INTO payloads" in sql)]
            registered = await gateway.register("c-1")
            assert registered.status == 200
            lost.append(proxy.cut("after", lambda sql: "'PONR'" in sql))
            done = await gateway.confirm("c-1", registered.server_id)
            assert (done.status, done.phase) == (200, "COMMITTED")
            assert all(fault.happened.is_set() for fault in lost)
            assert len(upstream.requests) == 1
            assert await store.fetchval("SELECT count(*) FROM intents") == 1
        finally:
            await gateway.aclose()


async def test_rp_08_a_stale_request_frees_nothing(
    make_gateway: MakeGateway, upstream: FakeUpstream, fresh_database: str
) -> None:
    """RP-08, RPL-4: the request is inadmissible, and the consumed row still blocks: no registration, no effect."""
    gateway = await make_gateway(routes=[{"path": "/orders/**", "ttl": "100ms", "grace": "50ms"}])
    registered = await gateway.register("c-1")
    await until_expired(gateway, registered.server_id, "ABANDONED")
    assert (await gateway.register("c-1")).problem == "ttl-expired"
    assert (await gateway.confirm("c-1", registered.server_id)).problem == "ttl-expired"
    auto = await gateway.register("c-1", DTT_2PHP_Auto_Confirm="true")
    assert auto.problem == "ttl-expired"
    other = await gateway.register("c-1", body=b"other")
    assert (other.status, other.json["code"]) == (422, "REPLAY_DUPLICATE")
    assert (await audited(gateway, registered.server_id, "REFUSED"))["refused"] == "ttl-expired"
    async with database(fresh_database) as store:
        assert await store.fetchval("SELECT count(*) FROM intents") == 1
    assert upstream.requests == []


async def test_rp_09_of_concurrent_attempts_one_wins_and_the_others_read_its_result(
    make_gateway: MakeGateway, upstream: FakeUpstream, fresh_database: str
) -> None:
    """RP-09, REP-3: both phases, two replicas."""
    replicas = [await make_gateway(), await make_gateway()]
    registered = await asyncio.gather(*(replicas[n % 2].register("c-1") for n in range(20)))
    assert len({reply.server_id for reply in registered}) == 1
    server_id = registered[0].server_id
    confirmed = await asyncio.gather(*(replicas[n % 2].confirm("c-1", server_id) for n in range(20)))
    assert {(reply.status, reply.phase, reply.body) for reply in confirmed} == {(200, "COMMITTED", b'{"id": "17"}')}
    assert len(upstream.requests) == 1
    async with database(fresh_database) as store:
        assert await store.fetchval("SELECT count(*) FROM intents") == 1
        assert await store.fetchval("SELECT count(*) FROM attempts") == 1


async def test_rp_09_a_collision_that_cannot_wait_for_the_winner_says_so(
    make_gateway: MakeGateway, upstream: FakeUpstream
) -> None:
    """RP-09: ATTEMPT_COLLISION where the loser of a race gets a problem; the same request later reads the result."""
    release = asyncio.Event()

    async def slowly(wire: Wire) -> None:
        await wire.request()
        await wire.send(CREATED[:-1])
        await release.wait()
        await wire.send(CREATED[-1:])

    upstream.script = slowly
    gateway = await make_gateway(upstream={"url": upstream.url, "timeout": "300ms"})
    registered = await gateway.register("c-1")
    winner = asyncio.create_task(gateway.confirm("c-1", registered.server_id))
    await eventually(lambda: bool(upstream.requests))
    loser = await gateway.register("c-1", DTT_2PHP_Auto_Confirm="true")
    assert (loser.status, loser.problem, loser.json["code"]) == (504, "still-processing", "ATTEMPT_COLLISION")
    release.set()
    assert (await winner).phase == "COMMITTED"
    assert (await gateway.register("c-1", DTT_2PHP_Auto_Confirm="true")).body == (await winner).body
    assert len(upstream.requests) == 1


async def test_rp_07_a_verification_that_fails_frees_nothing(make_gateway: MakeGateway, upstream: FakeUpstream) -> None:
    """RP-07, S3, REC-5: the key stays consumed; a fresh nonce gets the flagged result, and recreates nothing."""

    async def forgetful(wire: Wire) -> None:
        while True:
            seen = await wire.request()
            created = seen.line.startswith(b"POST")
            await wire.send(CREATED if created else b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    upstream.script = forgetful
    routes = [{**SIGNED[0], "verify": {"path": "/orders/{resource_id}"}}]
    gateway = await make_gateway(start=False, routes=routes, signatures=SIGNATURES)
    gateway.environment["TWOPHP_TEST_SIGNATURE_KEY"] = base64.b64encode(SECRET).decode()
    await gateway.start()
    registered = await late(gateway, "c-1")
    assert (await sign_and_confirm(gateway, "c-1", registered.server_id)).phase == "COMMITTED"

    async def flagged() -> bool:
        events = (await gateway.intent(registered.server_id))["events"]
        return any(event["code"] == "VERIFY_FAILED" for event in events)

    await eventually(flagged)
    again = await sign_and_confirm(gateway, "c-1", registered.server_id)
    assert again.headers["DTT-2PHP-Message"].startswith("verify_failed")
    assert (await gateway.register("c-1")).server_id == registered.server_id
    assert (await gateway.register("c-1", body=b"other")).json["code"] == "REPLAY_DUPLICATE"
    assert len([seen for seen in upstream.requests if seen.line.startswith(b"POST")]) == 1
