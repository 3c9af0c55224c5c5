"""DESIGN decision 3: one bucket routes everything. The whole life of intents, over sixteen of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.protocol.identity import bucket_of
from gateway.protocol.phases import Phase
from gateway.protocol.records import Registered
from gateway.store import recovery
from gateway.store.intents import IntentStore
from gateway.store.leases import Lease
from gateway.store.lines import Line, connect
from gateway.store.sweeps import Rescued, Retention, Sweeps
from tests.store.plans import REQUEST_PATH, fill, plan_of, vacuum, without_bucket
from tests.store.rows import (
    AN_HOUR_MS,
    Flushes,
    Superuser,
    claim_of,
    doubt_of,
    new_intent,
    observed,
    settlement_of,
)

BUCKETS = 16
ONE_BUCKET = {**REQUEST_PATH, **recovery.SQL}
ACROSS = {"pending"}  # P1-8 counts over all of them; asked before a registration, and never part of a transition


@pytest.fixture
def flushes() -> Flushes:
    return []


@pytest.fixture
async def store(fresh_database: str, flushes: Flushes) -> AsyncIterator[IntentStore]:
    made = observed(fresh_database, flushes, buckets=BUCKETS)
    yield made
    await made.close()


async def test_the_whole_life_of_intents_over_many_buckets(
    store: IntentStore, flushes: Flushes, superuser: Superuser, fresh_database: str
) -> None:
    """P1-3, P2-2, P2-4, REC-1, REC-2, TTL-2, RPL-4."""
    line = Line(fresh_database)
    lease = Lease(line, 60_000)
    await lease.enter()
    many = [new_intent(f"c-{number}", buckets=BUCKETS) for number in range(80)]
    assert {new.key.bucket for new in many} == set(range(BUCKETS))
    registered = await asyncio.gather(*(store.register(new) for new in many))
    assert all(isinstance(each, Registered) for each in registered)
    assert len(flushes) == BUCKETS  # one statement per bucket
    for new in many:
        assert bucket_of(new.server_correlation_id, buckets=BUCKETS) == new.key.bucket
        found = await store.read_by_server_id(new.server_correlation_id)
        assert found is not None
        assert (found.key, found.client_correlation_id) == (new.key, new.client_correlation_id)
    settled, doubted, lost, waiting = (many[start : start + 20] for start in range(0, 80, 20))
    claims = await asyncio.gather(
        *(store.claim(claim_of(new, holder=lease.holder)) for new in settled + doubted + lost)
    )
    claimed = [each for each in claims if each is not None]
    assert len(claimed) == 60
    assert all(await asyncio.gather(*(store.settle(settlement_of(each)) for each in claimed[:20])))
    assert all(await asyncio.gather(*(store.doubt(doubt_of(each)) for each in claimed[20:40])))
    sweeps = Sweeps(fresh_database, buckets=BUCKETS, lease_ms=0)
    await lease.hand_back()
    assert await sweeps.rescue() == Rescued(ended=20, in_doubt=20)
    for new in waiting:
        await superuser.age(new.key, 2 * AN_HOUR_MS)
    assert (await sweeps.expire(), await sweeps.abandon()) == (20, 20)
    for group, phase in ((settled, Phase.COMMITTED), (doubted + lost, Phase.PROCESSING), (waiting, Phase.ABANDONED)):
        for new in group:
            intent = await store.read(new.key)
            assert intent is not None
            assert (intent.phase, intent.in_doubt is not None) == (phase, phase is Phase.PROCESSING)
    for new in many:
        await superuser.age(new.key, 100 * AN_HOUR_MS)
    owner = Line(fresh_database, role=None)
    assert await Retention(owner, buckets=BUCKETS).retain() == 40
    assert await superuser.count("intents") == 40
    for each in (line, sweeps.line, owner):
        await each.close()


@pytest.mark.parametrize("name", sorted(set(ONE_BUCKET) - ACROSS))
async def test_a_request_path_statement_names_its_bucket_wherever_it_looks(
    superuser: Superuser, fresh_database: str, name: str
) -> None:
    """Decision 3: so that a distributed table sends it to one shard."""
    await fill(superuser.connection, 60)
    await vacuum(superuser.connection)
    connection = await connect(fresh_database)
    assert without_bucket(await plan_of(connection, ONE_BUCKET[name])) == []
    await connection.close()
