"""The queue and a store that goes away: confirmed work is begun once, none of it is forgotten (ASY-1, REC-7).

On a real Postgres behind a proxy; the upstream records what it is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from gateway.flows.queued import QueueRunner
from gateway.protocol.faults import StoreAway, UpstreamFailure
from gateway.protocol.frames import pack
from gateway.protocol.records import NewIntent, Sealed
from gateway.runtime.tasks import Tasks
from gateway.store import queue as queue_store
from gateway.store.intents import IntentStore
from gateway.store.queue import QueueStore
from gateway.store.recovery import RecoveryStore
from tests.faults import FaultProxy, exactly, fault_proxy
from tests.store.rows import HOLDER, SERVICE, claim_of, new_intent, opened

PATIENCE_S = 20.0


class Plain:
    """A vault that seals nothing."""

    sealed_with = 1

    def seal(self, kind: bytes, row: bytes, plain: bytes) -> bytes:
        return plain

    def open(self, kind: bytes, row: bytes, sealed: bytes, number: int) -> bytes:
        return sealed


class Upstream:
    """Fails every request, after what the test does meanwhile."""

    def __init__(self, meanwhile: Callable[[], Awaitable[None]], failure: UpstreamFailure) -> None:
        self.sends = 0
        self._meanwhile = meanwhile
        self._failure = failure

    async def open(self, *_: Any, before_send: Callable[[], bool], **__: Any) -> None:
        assert before_send()
        self.sends += 1
        await self._meanwhile()
        raise self._failure


def runner_of(store: IntentStore, proxy: FaultProxy, upstream: Upstream, tasks: Tasks) -> tuple[QueueRunner, Any]:
    route = SimpleNamespace(path="/orders", recovery="hold", timeout_ms=1_000, verify=None, max_response_bytes=1 << 20)
    desk: Any = SimpleNamespace(
        intents=store,
        recoveries=RecoveryStore(proxy.url, service=SERVICE, buckets=1),
        vault=Plain(),
        upstream=upstream,
        spawn=tasks.spawn,
        queues=True,
        unwritten=set(),
        lease=SimpleNamespace(holder=HOLDER, surely_held=lambda holder: True),
        observe=SimpleNamespace(transition=lambda phase: None, upstream=lambda *_: None),
        credential_headers=frozenset(),
        in_doubt_statuses=(502, 504),
        read_timeout_s=5,
        route_of=lambda method, path: route,
    )
    return QueueRunner(desk, QueueStore(proxy.url, service=SERVICE, buckets=1)), desk


async def confirmed(store: IntentStore) -> NewIntent:
    new = new_intent("c-1", execution="async", payload=Sealed(pack([(b"Host", b"x")], b"{}"), 1))
    await store.register(new)
    await store.claim(claim_of(new))
    return new


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_work_whose_outcome_is_not_written_yet_is_not_begun_again(fresh_database: str) -> None:
    """REC-9, ASY-1: its doubt waits in memory while the store is away; to the store, the attempt still runs."""
    tasks = Tasks()
    async with fault_proxy(fresh_database) as proxy, opened(proxy.url) as store:
        await confirmed(store)
        upstream = Upstream(proxy.refuse, UpstreamFailure("timeout", sent=True, detail="no answer"))
        runner, desk = runner_of(store, proxy, upstream, tasks)
        assert await runner.run_once() == 1
        await until(lambda: bool(desk.unwritten))
        with pytest.raises(StoreAway):
            await runner.run_once()
        await proxy.listen()
        await runner.run_once()
        await tasks.drain(PATIENCE_S)
        assert upstream.sends == 1
        assert not desk.unwritten


async def test_work_that_a_lost_take_begins_late_is_found(fresh_database: str) -> None:
    """REC-7: the statement outlives the connection it was asked on, and commits after the first look for it."""
    tasks = Tasks()
    blocker = await asyncpg.connect(fresh_database)
    async with fault_proxy(fresh_database) as proxy, opened(proxy.url) as store:
        await confirmed(store)

        async def nothing() -> None:
            return

        upstream = Upstream(nothing, UpstreamFailure("refused", sent=False, detail="nobody there"))
        runner, _ = runner_of(store, proxy, upstream, tasks)
        stalled = blocker.transaction()
        await stalled.start()
        await blocker.execute(
            "INSERT INTO attempts (bucket, logical_key, number, attempt_id, fence, started_at, holder)"
            " SELECT 0, logical_key, 1, gen_random_uuid(), 1, now(), gen_random_uuid() FROM queue"
        )
        proxy.cut("during", exactly(queue_store.SQL["take"]))
        with pytest.raises(StoreAway):
            await runner.run_once()
        await runner.run_once()
        assert upstream.sends == 0
        await stalled.rollback()
        async with asyncio.timeout(PATIENCE_S):
            while not upstream.sends:
                await runner.run_once()
        await tasks.drain(PATIENCE_S)
        assert upstream.sends == 1
    await blocker.close()
