"""TTL-2 and RPL-4 in the store: expiry, abandonment and retention, each on the database's clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import uuid4

import pytest

from gateway.protocol.phases import Phase
from gateway.protocol.records import NewIntent, Registered, Sealed
from gateway.store import sweeps as sweeping
from gateway.store.intents import IntentStore
from gateway.store.lines import Line
from gateway.store.sweeps import Retention, Sweeps
from tests.store.rows import (
    AN_HOUR_MS,
    Superuser,
    claim_of,
    claimed_intent,
    doubt_of,
    new_intent,
    random_ids,
    settlement_of,
)

A_MINUTE_MS = 60_000


@dataclass
class Sweepers:
    """Two replicas' sweepers, and the owner's retention."""

    one: Sweeps
    two: Sweeps
    retention: Retention


@pytest.fixture
async def sweepers(fresh_database: str) -> AsyncIterator[Sweepers]:
    one, two = (Sweeps(fresh_database, buckets=1, lease_ms=15_000) for _ in range(2))
    owner = Line(fresh_database, role=None)
    yield Sweepers(one, two, Retention(owner, buckets=1))
    for line in (one.line, two.line, owner):
        await line.close()


async def registered(store: IntentStore, count: int) -> list[NewIntent]:
    many = [new_intent(name) for name in random_ids(count)]
    await asyncio.gather(*(store.register(new) for new in many))
    return many


async def test_intents_expire_at_their_deadline_and_not_before(
    store: IntentStore, superuser: Superuser, sweepers: Sweepers
) -> None:
    """TTL-2."""
    [new] = await registered(store, 1)
    await superuser.age(new.key, AN_HOUR_MS - A_MINUTE_MS)
    assert await sweepers.one.expire() == 0
    await superuser.age(new.key, A_MINUTE_MS)
    assert await sweepers.one.expire() == 1
    assert await sweepers.one.expire() == 0
    assert await superuser.phase(new.key) is Phase.TTL_EXPIRED
    assert await superuser.count("payloads") == 1


async def test_never_before_the_deadline_with_ttls_of_milliseconds(
    store: IntentStore, superuser: Superuser, sweepers: Sweepers
) -> None:
    """TTL-2, decision 1: swept over and over while they run out; not one early, and all in the end."""
    many = [new_intent(name, ttl_ms=1 + number) for number, name in enumerate(random_ids(50))]
    await asyncio.gather(*(store.register(new) for new in many))
    swept = 0
    async with asyncio.timeout(30):
        while swept < len(many):
            swept += await sweepers.one.expire()
    early = """
        SELECT count(*) FROM events e JOIN intents i USING (bucket, logical_key)
        WHERE e.code = 'OBL-004' AND e.at < i.ponr_deadline"""
    assert await superuser.value(early) == 0
    assert swept == len(many)


async def test_expired_intents_are_abandoned_after_delta_and_their_payload_erased(
    store: IntentStore, superuser: Superuser, sweepers: Sweepers
) -> None:
    """TTL-2: the row is kept."""
    [new] = await registered(store, 1)
    await superuser.age(new.key, AN_HOUR_MS)
    await sweepers.one.expire()
    await superuser.age(new.key, AN_HOUR_MS - A_MINUTE_MS)
    assert await sweepers.one.abandon() == 0
    assert await superuser.count("payloads") == 1
    await superuser.age(new.key, A_MINUTE_MS)
    assert await sweepers.one.abandon() == 1
    assert await superuser.phase(new.key) is Phase.ABANDONED
    assert (await superuser.count("payloads"), await superuser.count("intents")) == (0, 1)
    assert await superuser.value("SELECT settled_by FROM intents") == "expiry"
    assert not isinstance(await store.register(new_intent(new.client_correlation_id)), Registered)  # still consumed


async def test_what_was_not_expired_is_not_abandoned(
    store: IntentStore, superuser: Superuser, sweepers: Sweepers
) -> None:
    """FSM-1: WAITING_CONFIRM never becomes ABANDONED in one step, however late the sweeper is."""
    [new] = await registered(store, 1)
    await superuser.age(new.key, 10 * AN_HOUR_MS)
    assert await sweepers.one.abandon() == 0
    assert (await sweepers.one.expire(), await sweepers.one.abandon()) == (1, 1)


async def test_confirmed_intents_never_expire(store: IntentStore, superuser: Superuser, sweepers: Sweepers) -> None:
    """RPL-2: running, in doubt or settled."""
    running = await claimed_intent(store, "running")
    doubtful = await claimed_intent(store, "in doubt")
    await store.doubt(doubt_of(doubtful))
    settled = await claimed_intent(store, "settled")
    await store.settle(settlement_of(settled))
    for claimed in (running, doubtful, settled):
        await superuser.age(claimed.key, 10 * AN_HOUR_MS)
    assert (await sweepers.one.expire(), await sweepers.one.abandon()) == (0, 0)
    assert await superuser.count("payloads") == 2


async def test_payloads_past_the_ponr_are_looked_at_by_one_sweep_only(
    store: IntentStore, superuser: Superuser, sweepers: Sweepers
) -> None:
    """TTL-2, P1-8: what runs or is held in doubt keeps its payload and leaves the way of expiry; others do not."""
    held, running = await claimed_intent(store, "held"), await claimed_intent(store, "running")
    await store.doubt(doubt_of(held))
    [waiting] = await registered(store, 1)
    for key in (held.key, running.key, waiting.key):
        await superuser.age(key, AN_HOUR_MS)
    assert await sweepers.one.set_aside() == 2
    assert await sweepers.two.set_aside() == 0
    aside = "SELECT count(*) FROM payloads WHERE ponr_deadline = 'infinity' AND pending_of = 0 AND logical_key = $1"
    assert [await superuser.value(aside, key.logical) for key in (held.key, running.key, waiting.key)] == [1, 1, 0]
    assert await sweepers.one.expire() == 1
    assert await store.settle(settlement_of(running)) is True
    assert await superuser.count("payloads", running.key) == 0


async def test_two_sweepers_at_once_share_the_rows(
    store: IntentStore, superuser: Superuser, sweepers: Sweepers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TTL-2: one winner per row, none left over, and every row audited once."""
    monkeypatch.setattr(sweeping, "ROWS_MAX", 7)
    for new in await registered(store, 100):
        await superuser.age(new.key, 3 * AN_HOUR_MS)
    assert sum(await asyncio.gather(sweepers.one.expire(), sweepers.two.expire())) <= 100
    await sweepers.one.expire()  # a row that both passed by while the other had it locked
    assert sum(await asyncio.gather(sweepers.one.abandon(), sweepers.two.abandon())) <= 100
    await sweepers.one.abandon()
    assert await superuser.value("SELECT count(*) FROM intents WHERE phase = 'ABANDONED'") == 100
    assert await superuser.count("events") == 300
    assert await superuser.count("payloads") == 0


async def test_a_sweep_does_not_wait_for_a_locked_row(
    store: IntentStore, superuser: Superuser, sweepers: Sweepers
) -> None:
    """Decision 7: what somebody holds is passed by, and swept the next time."""
    for new in await registered(store, 3):
        await superuser.age(new.key, AN_HOUR_MS)
    async with superuser.connection.transaction():
        await superuser.connection.execute("SELECT FROM intents ORDER BY logical_key LIMIT 1 FOR UPDATE")
        assert await sweepers.one.expire() == 2
    assert await sweepers.one.expire() == 1


async def test_sweeps_and_claims_racing_at_the_deadline_have_one_winner_per_row(
    store: IntentStore, other: IntentStore, superuser: Superuser, sweepers: Sweepers
) -> None:
    """P2-2, TTL-2: an intent is either confirmed or expired, never both, and never neither."""
    many = [new_intent(name, ttl_ms=1 + number // 2) for number, name in enumerate(random_ids(200))]
    await asyncio.gather(*(store.register(new) for new in many))

    async def sweep() -> None:
        swept = 0
        while await superuser.value("SELECT count(*) FROM intents WHERE phase = 'WAITING_CONFIRM'"):
            swept += await sweepers.one.expire() + await sweepers.two.expire()

    async with asyncio.timeout(60):
        *claimed, _ = await asyncio.gather(
            *(replica.claim(claim_of(new)) for new in many for replica in (store, other)), sweep()
        )
    won = len([each for each in claimed if each is not None])
    phases = dict(
        await superuser.connection.fetch("SELECT phase::text, count(*) FROM intents GROUP BY phase")  # type: ignore[arg-type]
    )
    assert phases.get("PROCESSING", 0) == won == await superuser.count("attempts")
    assert phases.get("TTL_EXPIRED", 0) == 200 - won
    assert await superuser.count("events") == 400


async def test_retention_forgets_everything_of_an_intent_past_its_horizon_and_not_before(
    store: IntentStore, superuser: Superuser, sweepers: Sweepers
) -> None:
    """RPL-4: settled, and the horizon has passed since then."""
    claimed = await claimed_intent(store, "c-1")
    await store.settle(settlement_of(claimed, verify=Sealed(b"sealed question", 1)))
    await superuser.connection.execute(
        "INSERT INTO evidence (bucket, logical_key, fence, attempt_id, phase)"
        " SELECT bucket, logical_key, fence, attempt_id, 'FAILED' FROM intents"
    )
    await superuser.age(claimed.key, AN_HOUR_MS - A_MINUTE_MS)
    assert await sweepers.retention.retain() == 0
    await superuser.age(claimed.key, AN_HOUR_MS)  # past settled_at + horizon, but not yet past ttl + horizon
    assert await sweepers.retention.retain() == 0
    await superuser.age(claimed.key, A_MINUTE_MS)
    assert await sweepers.retention.retain() == 1
    for table in ("intents", "payloads", "attempts", "responses", "in_doubt", "events", "evidence", "verifications"):
        assert await superuser.count(table) == 0, table
    assert isinstance(await store.register(new_intent("c-1")), Registered)


async def test_retention_waits_for_the_horizon_of_a_late_settlement(
    store: IntentStore, superuser: Superuser, sweepers: Sweepers
) -> None:
    """RPL-4: one that was in doubt for days stays known for a whole horizon after its verdict."""
    claimed = await claimed_intent(store, "c-1")
    await superuser.age(claimed.key, 100 * AN_HOUR_MS)
    await store.settle(settlement_of(claimed))
    assert await sweepers.retention.retain() == 0
    await superuser.connection.execute("UPDATE intents SET settled_at = settled_at - interval '61 minutes'")
    assert await sweepers.retention.retain() == 1


async def test_retention_never_touches_what_is_not_settled(
    store: IntentStore, superuser: Superuser, sweepers: Sweepers
) -> None:
    """RPL-4, REC-2: staleness frees nothing that may still have an effect or an outcome."""
    await claimed_intent(store, "running")
    await store.doubt(doubt_of(await claimed_intent(store, "in doubt")))
    await store.register(new_intent("waiting"))
    await store.register(new_intent("expired"))
    for name in ("running", "in doubt", "expired"):
        await superuser.age(new_intent(name).key, 1000 * AN_HOUR_MS)
    await sweepers.one.expire()
    assert await sweepers.retention.retain() == 0
    assert await superuser.count("intents") == 4


async def test_retention_waits_for_what_is_still_to_be_delivered(
    store: IntentStore, superuser: Superuser, sweepers: Sweepers
) -> None:
    """ACM-3, RPL-4: a short horizon loses no callback."""
    claimed = await claimed_intent(store, "c-1")
    await store.settle(settlement_of(claimed))
    await superuser.connection.execute(
        "INSERT INTO deliveries (bucket, logical_key, id, kind, event, next_at, sealed_with, sealed)"
        " VALUES (0, $1, $2, 'callback', 'PROCESSING', now(), 1, '')",
        claimed.key.logical,
        uuid4(),
    )
    await superuser.age(claimed.key, 100 * AN_HOUR_MS)
    assert await sweepers.retention.retain() == 0
    await superuser.connection.execute("UPDATE deliveries SET state = 'delivered', next_at = NULL, settled_at = now()")
    assert await sweepers.retention.retain() == 1
    assert await superuser.count("deliveries") == 0


async def test_retention_takes_small_bites(
    store: IntentStore, superuser: Superuser, sweepers: Sweepers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RPL-4: its locks are short."""
    monkeypatch.setattr(sweeping, "ROWS_MAX", 2)
    for name in random_ids(5):
        claimed = await claimed_intent(store, name)
        await store.settle(settlement_of(claimed))
        await superuser.age(claimed.key, 100 * AN_HOUR_MS)
    assert [await sweepers.retention.retain() for _ in range(4)] == [2, 2, 1, 0]
