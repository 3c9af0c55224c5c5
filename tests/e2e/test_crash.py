"""kill -9 at any moment: nothing acknowledged is lost, nothing is doubled (REC-1, RELIABILITY's crash points)."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.delivery.receiver import black_hole
from tests.e2e.conftest import CREATED, MakeGateway
from tests.e2e.doubts import held, in_phase
from tests.e2e.harness import Gateway, database, eventually
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


@pytest.mark.parametrize("recovery", ["hold", "redrive"])
async def test_a_frozen_worker_is_fenced_off_and_what_it_knew_is_used(
    make_gateway: MakeGateway, upstream: FakeUpstream, recovery: str
) -> None:
    """REC-1, decision 7.

    SIGSTOP past the lease; its late outcome is refused and kept as evidence. Held, the intent is settled from it; sent
    again meanwhile, the later attempt decides, and the evidence stays what it is.
    """
    release = asyncio.Event()

    async def slow(wire: Wire) -> None:
        await wire.request()
        if len(upstream.requests) == 1:
            await release.wait()
        await wire.send(CREATED)

    upstream.script = slow
    changes: dict[str, Any] = {
        "routes": [{"path": "/orders/**", "recovery": recovery}],
        "recovery": {"lease": "2s", "interval": "200ms", "backoff": "50ms"},
    }
    frozen, living = await make_gateway(**changes), await make_gateway(**changes)
    registered = await frozen.register("c-1")
    confirming = asyncio.create_task(frozen.confirm("c-1", registered.server_id))
    await eventually(lambda: bool(upstream.requests))
    pids = await frozen.worker_pids()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    if recovery == "hold":
        await held(living, registered.server_id)
    else:
        await in_phase(living, registered.server_id, "COMMITTED")
    release.set()
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    answer = await confirming
    intent = await in_phase(living, registered.server_id, "COMMITTED")
    codes = [event["code"] for event in intent["events"]]
    if recovery == "hold":
        assert (answer.status, answer.phase) in {(202, "PROCESSING"), (200, "COMMITTED")}
        assert (intent["settled_by"], len(upstream.requests)) == ("evidence", 1)
        assert codes[-2:] == ["EVIDENCE", "OBL-002"]
        (attempt,) = intent["attempts"]
        assert (attempt["sent"], attempt["status"]) == (True, 201)
    else:
        assert (answer.status, answer.phase) == (200, "COMMITTED")
        assert (intent["settled_by"], len(upstream.requests)) == ("upstream", 2)

        async def noted() -> bool:
            return "EVIDENCE" in [event["code"] for event in (await living.intent(registered.server_id))["events"]]

        await eventually(noted)
    replayed = await living.confirm("c-1", registered.server_id)
    assert (replayed.status, replayed.phase, replayed.body) == (200, "COMMITTED", b'{"id": "17"}')


async def test_a_worker_frozen_before_the_first_byte_sends_nothing(
    make_gateway: MakeGateway, fresh_database: str
) -> None:
    """REC-1.

    Past the PONR, still connecting; SIGSTOP past the lease; then the connection is there, and the lease is not.
    """
    hole = black_hole()
    filling = [socket.socket() for _ in range(2)]  # its queue is full: whoever connects now waits
    for one in filling:
        one.setblocking(False)
        one.connect_ex(hole.getsockname())
    upstream = {"url": f"http://127.0.0.1:{hole.getsockname()[1]}", "connect_timeout": "25s", "timeout": "25s"}
    frozen, living = await make_gateway(upstream=upstream), await make_gateway(upstream=upstream)
    registered = await frozen.register("c-1")
    confirming = asyncio.create_task(frozen.confirm("c-1", registered.server_id))
    async with database(fresh_database) as store:
        await eventually(lambda: store.fetchval("SELECT count(*) = 1 FROM attempts"))
    pids = await frozen.worker_pids()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)

    async def held() -> bool:
        return (await living.intent(registered.server_id))["in_doubt"] is not None

    await eventually(held)
    received = asyncio.create_task(_everything(hole))
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    answer = await confirming
    assert answer.status != 200
    received.cancel()
    assert b"POST" not in await received
    for one in filling:
        one.close()


async def _everything(listening: socket.socket) -> bytes:
    """Accept whoever comes and read whatever they send, until cancelled."""
    taken = bytearray()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            taken.extend(data)
        writer.close()

    server = await asyncio.start_server(take, sock=listening)
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        pass
    finally:
        server.close()
    return bytes(taken)


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
