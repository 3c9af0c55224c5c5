"""Asynchronous mode: 202, a provisional ID, a poll, and work that survives a restart (ASY-1 .. ASY-3)."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.conftest import CREATED, MakeGateway
from tests.e2e.harness import Gateway, Reply, database, eventually
from tests.upstream.fake import FakeUpstream, Wire

ASYNC = [{"path": "/orders/**", "execution": "async"}]


async def until_settled(gateway: Gateway, path: str) -> Reply:
    async def settled() -> Reply | None:
        answer = await gateway.request("GET", path)
        return answer if answer.phase in ("COMMITTED", "FAILED") else None

    found: Reply = await eventually(settled)
    return found


async def test_a_confirmation_is_accepted_and_its_outcome_is_polled(
    make_gateway: MakeGateway, upstream: FakeUpstream
) -> None:
    """ASY-1, ASY-2, ASY-3."""
    release = asyncio.Event()

    async def slow(wire: Wire) -> None:
        await wire.request()
        await release.wait()
        await wire.send(CREATED)

    upstream.script = slow
    gateway = await make_gateway(routes=ASYNC)
    registered = await gateway.register("c-1")
    accepted = await gateway.confirm("c-1", registered.server_id)
    assert (accepted.status, accepted.phase) == (202, "PROCESSING")
    provisional = accepted.headers["DTT-2PHP-Resource-ID"]
    assert accepted.headers["Location"] == f"/orders/{provisional}"
    assert accepted.headers["Retry-After"]
    running = await gateway.request("GET", accepted.headers["Location"])
    assert (running.status, running.phase) == (202, "PROCESSING")
    await eventually(lambda: bool(upstream.requests))
    release.set()
    done = await until_settled(gateway, accepted.headers["Location"])
    assert (done.status, done.phase, done.body) == (200, "COMMITTED", b'{"id": "17"}')
    assert done.headers["DTT-2PHP-Resource-ID"] == "17"
    replayed = await gateway.confirm("c-1", registered.server_id)
    assert (replayed.status, replayed.phase) == (202, "COMMITTED")
    assert replayed.headers["DTT-2PHP-Resource-ID"] == provisional
    assert len(upstream.requests) == 1


@pytest.mark.parametrize(("status", "told"), [(409, 409), (500, 500), (503, 500)])
async def test_a_failure_is_what_a_synchronous_confirmation_would_answer(
    make_gateway: MakeGateway, upstream: FakeUpstream, status: int, told: int
) -> None:
    """ASY-2."""
    upstream.answer(b"HTTP/1.1 %d No\r\nContent-Length: 2\r\n\r\nno" % status)
    gateway = await make_gateway(routes=ASYNC)
    registered = await gateway.register("c-1")
    accepted = await gateway.confirm("c-1", registered.server_id)
    assert accepted.status == 202
    done = await until_settled(gateway, accepted.headers["Location"])
    assert (done.status, done.phase, done.body) == (told, "FAILED", b"no")


async def test_confirmed_work_that_nobody_began_survives_a_kill(
    make_gateway: MakeGateway, upstream: FakeUpstream, fresh_database: str
) -> None:
    """ASY-1: it is in the queue, with the credentials of its confirmation, and whoever comes next runs it, once."""
    gateway = await make_gateway(routes=ASYNC, identity={"method": "api_key", "header": "X-Api-Key"})
    registered = await gateway.register("c-1", caller="Bearer old", X_Api_Key="me")
    async with database(fresh_database) as store:
        await store.execute("REVOKE DELETE ON queue FROM twophp_request")  # confirming adds to it, nobody can take
        accepted = await gateway.confirm("c-1", registered.server_id, caller="Bearer new", X_Api_Key="me")
        assert accepted.status == 202
        await gateway.kill()
        assert await store.fetchval("SELECT count(*) FROM queue") == 1
        assert await store.fetchval("SELECT count(*) FROM attempts") == 0
        assert upstream.requests == []
        await store.execute("GRANT DELETE ON queue TO twophp_request")
        await gateway.start()

        async def committed() -> bool:
            phase: str = await store.fetchval("SELECT phase::text FROM intents")
            return phase == "COMMITTED"

        await eventually(committed)
    assert len(upstream.requests) == 1
    assert b"Authorization: Bearer new\r\n" in upstream.requests[0].head


async def test_a_row_left_in_the_queue_is_run_by_a_restarted_gateway(
    make_gateway: MakeGateway, upstream: FakeUpstream, fresh_database: str
) -> None:
    """ASY-1: past the PONR, queued, never begun: the restarted gateway begins it."""
    gateway = await make_gateway(routes=ASYNC)
    registered = await gateway.register("c-1")
    await gateway.stop()
    async with database(fresh_database) as store:
        await store.execute(
            "WITH crossed AS (UPDATE intents SET came_from = phase, phase = 'PROCESSING', phase_2_timestamp = now(),"
            " fence = 1, attempt_id = gen_random_uuid() RETURNING bucket, logical_key)"
            " INSERT INTO queue (bucket, logical_key, queued_at) SELECT bucket, logical_key, now() FROM crossed"
        )
    await gateway.start()
    done = await until_settled(gateway, f"/orders/{registered.server_id}")
    assert (done.status, done.phase) == (200, "COMMITTED")
    assert len(upstream.requests) == 1


async def test_work_begun_by_a_gateway_that_died_is_in_doubt(make_gateway: MakeGateway, upstream: FakeUpstream) -> None:
    """ASY-1, REC-2: what may have been sent is never sent again."""

    async def silence(wire: Wire) -> None:
        await wire.request()
        await wire.until_peer_closes()

    upstream.script = silence
    gateway = await make_gateway(routes=ASYNC)
    registered = await gateway.register("c-1")
    await gateway.confirm("c-1", registered.server_id)
    await eventually(lambda: bool(upstream.requests))
    await gateway.kill()
    await gateway.start()

    async def held() -> bool:
        return (await gateway.intent(registered.server_id))["in_doubt"] is not None

    await eventually(held)
    polled = await gateway.request("GET", f"/orders/{registered.server_id}")
    assert (polled.status, polled.phase) == (202, "PROCESSING")
    assert polled.headers["DTT-2PHP-Message"].startswith("Outcome in doubt")
    assert len(upstream.requests) == 1


async def test_many_confirmations_run_once_each(make_gateway: MakeGateway, upstream: FakeUpstream) -> None:
    """ASY-1: more than one worker runs at a time, over two replicas."""
    first, second = await make_gateway(routes=ASYNC), await make_gateway(routes=ASYNC)

    async def one(number: int) -> str:
        gateway = (first, second)[number % 2]
        registered = await gateway.register(f"c-{number}", body=str(number).encode())
        accepted = await gateway.confirm(f"c-{number}", registered.server_id)
        assert accepted.status == 202
        return str(accepted.headers["Location"])

    paths = await asyncio.gather(*(one(number) for number in range(150)))
    for path in paths:
        assert (await until_settled(first, path)).phase == "COMMITTED"
    assert sorted(int(seen.body) for seen in upstream.requests) == list(range(150))


async def test_auto_confirming_asynchronous_work_never_sends_it_twice(
    make_gateway: MakeGateway, upstream: FakeUpstream
) -> None:
    """ACM-5, ASY-1: the queue runs it; the auto-confirming caller waits for that result."""
    release = asyncio.Event()

    async def slow(wire: Wire) -> None:
        await wire.request()
        await release.wait()
        await wire.send(CREATED)

    upstream.script = slow
    gateway = await make_gateway(routes=ASYNC)
    registered = await gateway.register("c-1")
    waiting = asyncio.create_task(gateway.register("c-1", DTT_2PHP_Auto_Confirm="true"))
    await eventually(lambda: bool(upstream.requests))
    await asyncio.wait([waiting], timeout=2.5)  # time enough for the queue to send a second one
    release.set()
    answer = await waiting
    assert (answer.status, answer.phase, answer.server_id) == (201, "COMMITTED", registered.server_id)
    assert len(upstream.requests) == 1
