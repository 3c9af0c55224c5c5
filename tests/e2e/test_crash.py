"""kill -9 at any moment: nothing acknowledged is lost, nothing is doubled (REC-1, RELIABILITY's crash points)."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from pathlib import Path

import aiohttp

from tests.e2e.conftest import CREATED, MakeGateway
from tests.e2e.harness import Gateway, Reply, database, eventually
from tests.upstream.fake import FakeUpstream, Wire


async def test_what_was_acknowledged_survives_a_kill(gateway: Gateway, upstream: FakeUpstream) -> None:
    """P1-3, RPL-1: Phase 1 with the same id and deadline, executed answers byte for byte."""
    waiting = await gateway.register("c-waiting")
    done = await gateway.register("c-done")
    answer = await gateway.confirm("c-done", done.server_id)
    await gateway.kill()
    await gateway.start()
    again = await gateway.register("c-waiting")
    assert again.server_id == waiting.server_id
    assert again.headers["DTT-2PHP-PONR-Deadline"] == waiting.headers["DTT-2PHP-PONR-Deadline"]
    replayed = await gateway.confirm("c-done", done.server_id)
    assert (replayed.status, replayed.body) == (answer.status, answer.body)
    assert list(replayed.raw_headers) == list(answer.raw_headers)
    assert (await gateway.confirm("c-waiting", waiting.server_id)).phase == "COMMITTED"
    assert len(upstream.requests) == 2


async def test_a_gateway_that_dies_after_the_ponr_leaves_an_intent_in_doubt(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    """REC-1, REC-2: the restarted one takes it over when the lease has run out, and sends nothing."""

    async def silence(wire: Wire) -> None:
        await wire.request()
        await wire.until_peer_closes()

    upstream.script = silence
    registered = await gateway.register("c-1")
    confirming = asyncio.create_task(gateway.confirm("c-1", registered.server_id))
    await eventually(lambda: bool(upstream.requests))
    await gateway.kill()
    await asyncio.gather(confirming, return_exceptions=True)
    upstream.answer(CREATED)
    await gateway.start()

    async def held() -> bool:
        return (await gateway.intent(registered.server_id))["in_doubt"] is not None

    await eventually(held)
    answer = await gateway.confirm("c-1", registered.server_id)
    assert (answer.status, answer.phase) == (202, "PROCESSING")
    assert len(upstream.requests) == 1


async def test_another_replica_takes_over(make_gateway: MakeGateway, upstream: FakeUpstream) -> None:
    """REC-1: no restart is needed, and confirmations waiting at the other replica hear of it."""

    async def silence(wire: Wire) -> None:
        await wire.request()
        await wire.until_peer_closes()

    upstream.script = silence
    dying, living = await make_gateway(), await make_gateway()
    registered = await dying.register("c-1")
    first = asyncio.create_task(dying.confirm("c-1", registered.server_id))
    await eventually(lambda: bool(upstream.requests))
    second = asyncio.create_task(living.confirm("c-1", registered.server_id))
    await dying.kill()
    await asyncio.gather(first, return_exceptions=True)
    answer = await second
    assert (answer.status, answer.phase) == (202, "PROCESSING")
    assert answer.headers["DTT-2PHP-Message"].startswith("Outcome in doubt")
    assert len(upstream.requests) == 1


async def test_a_worker_that_keeps_working_keeps_its_lease(
    gateway: Gateway, upstream: FakeUpstream, fresh_database: str
) -> None:
    """REC-1: work longer than the lease is not taken away."""
    release = asyncio.Event()

    async def slow(wire: Wire) -> None:
        await wire.request()
        await release.wait()
        await wire.send(CREATED)

    upstream.script = slow
    registered = await gateway.register("c-1")
    confirming = asyncio.create_task(gateway.confirm("c-1", registered.server_id))
    async with database(fresh_database) as store:

        async def two_leases_later() -> bool:
            passed: bool | None = await store.fetchval("SELECT now() > started_at + interval '5 seconds' FROM attempts")
            return bool(passed)

        await eventually(two_leases_later)
    release.set()
    answer = await confirming
    assert (answer.status, answer.phase) == (200, "COMMITTED")


async def test_a_frozen_worker_is_fenced_off(make_gateway: MakeGateway, upstream: FakeUpstream) -> None:
    """REC-1.

    SIGSTOP past the lease; its late outcome is refused and kept as evidence, and the intent stays in doubt.
    """
    release = asyncio.Event()

    async def slow(wire: Wire) -> None:
        await wire.request()
        await release.wait()
        await wire.send(CREATED)

    upstream.script = slow
    frozen, living = await make_gateway(), await make_gateway()
    registered = await frozen.register("c-1")
    confirming = asyncio.create_task(frozen.confirm("c-1", registered.server_id))
    await eventually(lambda: bool(upstream.requests))
    pids = await frozen.worker_pids()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)

    async def held() -> bool:
        return (await living.intent(registered.server_id))["in_doubt"] is not None

    await eventually(held)
    release.set()
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    answer = await confirming
    assert (answer.status, answer.phase) == (202, "PROCESSING")
    intent = await living.intent(registered.server_id)
    assert intent["phase"] == "PROCESSING"
    assert "EVIDENCE" in [event["code"] for event in intent["events"]]
    assert (await living.confirm("c-1", registered.server_id)).status == 202
    assert len(upstream.requests) == 1


async def test_random_kills_lose_nothing_and_double_nothing(
    make_gateway: MakeGateway, upstream: FakeUpstream, fresh_database: str
) -> None:
    """P1-3, P2-2, RPL-1, REC-1: several kills -9 under load; then client history x upstream's log x ledger."""

    async def apply(wire: Wire) -> None:
        while True:
            await wire.request()
            await wire.send(CREATED)

    upstream.script = apply
    gateway = await make_gateway()
    rng = random.Random(20261118)
    acknowledged: dict[str, str] = {}
    committed: dict[str, Reply] = {}
    stop = asyncio.Event()

    async def client(name: int) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            client_id = f"c-{name}-{number}"
            try:
                registered = await gateway.register(client_id, body=client_id.encode())
                if registered.status != 200:
                    continue
                acknowledged[client_id] = registered.server_id
                answer = await gateway.confirm(client_id, registered.server_id)
                if answer.status == 200:
                    committed[client_id] = answer
            except (aiohttp.ClientError, ConnectionError, TimeoutError):
                await asyncio.sleep(0.01)

    clients = [asyncio.create_task(client(name)) for name in range(16)]
    for _ in range(5):
        before = len(committed)
        await eventually(lambda before=before: len(committed) > before + rng.randint(20, 120))
        await gateway.kill()
        await gateway.start()
    stop.set()
    await asyncio.gather(*clients)

    async def settled() -> bool:
        async with database(fresh_database) as store:
            open_attempts: int = await store.fetchval("SELECT count(*) FROM attempts WHERE holder IS NOT NULL")
            return open_attempts == 0

    await eventually(settled)
    effects = Counter(seen.body.decode() for seen in upstream.requests)
    assert max(effects.values()) == 1
    assert len(acknowledged) > 100
    async with database(fresh_database) as store:
        rows = await store.fetch(
            "SELECT i.client_correlation_id AS id, i.server_correlation_id::text AS server_id, i.phase::text,"
            " d.reason FROM intents i LEFT JOIN in_doubt d USING (logical_key)"
        )
    ledger = {row["id"]: row for row in rows}
    for client_id, server_id in acknowledged.items():
        assert ledger[client_id]["server_id"] == server_id, "an acknowledged Phase 1 is not in the ledger"
    for client_id in effects:
        assert ledger[client_id]["phase"] in ("PROCESSING", "COMMITTED"), "an effect without a crossed PONR"
    for client_id, row in ledger.items():
        if row["phase"] == "COMMITTED":
            assert effects[client_id] == 1, "COMMITTED without an effect"
        if row["phase"] == "PROCESSING":
            assert row["reason"] is not None, "left neither settled nor in doubt"
    for client_id, answer in rng.sample(sorted(committed.items()), 25):
        assert ledger[client_id]["phase"] == "COMMITTED"
        replayed = await gateway.confirm(client_id, acknowledged[client_id])
        assert (replayed.status, replayed.body) == (200, answer.body)
        assert list(replayed.raw_headers) == list(answer.raw_headers)


async def test_a_worker_that_dies_is_replaced(gateway: Gateway) -> None:
    """OPS-1: the supervisor starts another, and the metrics tell."""
    (pid,) = await gateway.worker_pids()
    os.kill(pid, signal.SIGKILL)

    async def replaced() -> bool:
        pids = await gateway.worker_pids()
        return bool(pids) and pid not in pids

    await eventually(replaced)
    await gateway.until_ready()
    assert (await gateway.handshake()).phase == "COMMITTED"
    metrics = (await gateway.operator("GET", "/metrics", role=None)).body.decode()
    assert "twophp_worker_restarts_total 1.0" in metrics


async def test_the_embedded_store_survives_a_kill_of_everything(data_dir: Path, upstream: FakeUpstream) -> None:
    """P1-3, RPL-1: `store.url: embedded`, kill -9 of the gateway and of Postgres itself."""
    gateway = Gateway(data_dir, upstream.url, None)
    try:
        await gateway.start()
        registered = await gateway.register("c-1")
        answer = await gateway.confirm("c-1", registered.server_id)
        postmaster = int(next((data_dir / "store").rglob("postmaster.pid")).read_text().split()[0])
        await gateway.kill()
        os.kill(postmaster, signal.SIGKILL)
        await gateway.start()
        replayed = await gateway.confirm("c-1", registered.server_id)
        assert (replayed.status, replayed.body) == (200, answer.body)
        assert len(upstream.requests) == 1
        assert await gateway.stop() == 0
    finally:
        await gateway.aclose()
