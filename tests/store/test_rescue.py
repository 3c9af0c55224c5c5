"""REC-1: leases on the database's clock, and what becomes of the work of those who stop renewing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from gateway.protocol.faults import StoreAway
from gateway.protocol.phases import Phase
from gateway.store import sweeps as sweeping
from gateway.store.intents import SQL, IntentStore
from gateway.store.leases import Lease
from gateway.store.lines import Line
from gateway.store.sweeps import Rescued, Retention, Sweeps
from tests.faults import FaultProxy, exactly
from tests.store.rows import (
    Superuser,
    claim_of,
    claimed_intent,
    doubt_of,
    new_intent,
    random_ids,
    settlement_of,
    until_closed,
)

LEASE_MS = 60_000  # none runs out by itself while a test runs; tests turn the clock of its row


class Clock:
    """A monotonic clock that stands still."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def line(fresh_database: str) -> AsyncIterator[Line]:
    made = Line(fresh_database)
    yield made
    await made.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def lease(line: Line, clock: Clock) -> Lease:
    held = Lease(line, LEASE_MS, clock=clock)
    await held.enter()
    return held


@pytest.fixture
async def sweeps(fresh_database: str) -> AsyncIterator[Sweeps]:
    made = Sweeps(fresh_database, buckets=1, lease_ms=1)  # the server is older than a millisecond
    yield made
    await made.line.close()


async def lapse(superuser: Superuser, holder: UUID) -> None:
    """A whole lease passes without a renewal."""
    await superuser.connection.execute(
        "UPDATE holders SET lease_until = now() - interval '1 millisecond' WHERE holder = $1", holder
    )


async def test_a_holder_that_renews_is_never_taken_over(
    store: IntentStore, lease: Lease, sweeps: Sweeps, superuser: Superuser
) -> None:
    """REC-1: a gateway that keeps working keeps its lease; a lapsed one that nobody took can still be renewed."""
    claimed = await claimed_intent(store, "c-1", holder=lease.holder)
    await lapse(superuser, lease.holder)
    assert await lease.renew() is True
    assert await sweeps.rescue() == Rescued()
    assert await store.settle(settlement_of(claimed)) is True


async def test_a_holder_that_stopped_is_declared_dead_and_its_work_is_in_doubt(
    store: IntentStore, lease: Lease, sweeps: Sweeps, superuser: Superuser
) -> None:
    """REC-1, REC-2: a higher fence, the attempt ended, held, audited, the payload kept; nothing is sent or guessed."""
    claimed = await claimed_intent(store, "c-1", holder=lease.holder)
    assert await sweeps.rescue() == Rescued()
    await lapse(superuser, lease.holder)
    assert await sweeps.rescue() == Rescued(ended=1, in_doubt=1)
    intent = await store.read(claimed.key)
    assert intent is not None
    assert (intent.phase, intent.fence, intent.attempt_id) == (Phase.PROCESSING, 2, claimed.attempt_id)
    assert intent.in_doubt is not None
    row = await superuser.connection.fetchrow("SELECT * FROM attempts")
    assert row is not None
    assert (row["holder"], row["fence"], row["sent"]) == (None, 1, None)
    assert row["error"] == "the gateway that ran this attempt was lost"
    assert (await superuser.events(claimed.key))[-1] == ("IN_DOUBT", None)
    assert await superuser.count("payloads") == 1
    assert await sweeps.rescue() == Rescued()


async def test_a_zombies_late_outcome_is_refused(
    store: IntentStore, lease: Lease, sweeps: Sweeps, superuser: Superuser
) -> None:
    """REC-1: by its fence; neither settled nor doubted nor claimed again."""
    new = new_intent("c-1")
    await store.register(new)
    claim = claim_of(new, holder=lease.holder)
    claimed = await store.claim(claim)
    assert claimed is not None
    await lapse(superuser, lease.holder)
    await sweeps.rescue()
    assert await store.settle(settlement_of(claimed)) is False
    assert await store.doubt(doubt_of(claimed)) is False
    assert await store.claim(claim) is None
    assert await superuser.phase(claimed.key) is Phase.PROCESSING
    assert (await superuser.count("responses"), await superuser.count("in_doubt")) == (0, 1)


async def test_a_dead_holder_goes_on_under_a_new_name(
    lease: Lease, sweeps: Sweeps, superuser: Superuser, clock: Clock
) -> None:
    """REC-1: once declared dead it can never renew; two who find out take one name together."""
    old = lease.holder
    await lapse(superuser, old)
    await sweeps.rescue()
    assert sorted(await asyncio.gather(lease.renew(), lease.renew())) == [False, True]
    assert lease.holder != old
    assert await superuser.value("SELECT count(*) FROM holders WHERE NOT dead") == 1
    assert lease.surely_held()


async def test_a_lease_is_surely_held_for_no_longer_than_it_was_asked_for(lease: Lease, clock: Clock) -> None:
    """REC-1: counted from before the asking; a worker that was frozen knows it before it sends."""
    assert lease.surely_held()
    clock.now += LEASE_MS / 1000 - 0.001
    assert lease.surely_held()
    await lease.renew()
    clock.now += LEASE_MS / 1000
    assert not lease.surely_held()


async def test_a_lost_lease_is_not_surely_held_while_no_new_name_can_be_had(
    proxy: FaultProxy, sweeps: Sweeps, superuser: Superuser
) -> None:
    """REC-1: declared dead, and the store goes away before a new name is taken."""
    line = Line(proxy.url)
    lease = Lease(line, LEASE_MS)
    await lease.enter()
    await lapse(superuser, lease.holder)
    await sweeps.rescue()
    proxy.cut("before", exactly(sweeping.SQL["enter"]))
    with pytest.raises(StoreAway):
        await lease.renew()
    assert not lease.surely_held()
    assert await lease.renew() is False
    assert lease.surely_held()
    await line.close()


async def test_handed_back_work_is_taken_at_once(
    store: IntentStore, lease: Lease, sweeps: Sweeps, superuser: Superuser
) -> None:
    """REC-1: a worker that drained does not make others wait for its lease to run out."""
    await claimed_intent(store, "c-1", holder=lease.holder)
    await lease.hand_back()
    assert not lease.surely_held()
    assert await sweeps.rescue() == Rescued(ended=1, in_doubt=1)


async def test_handing_back_to_a_store_that_is_away_is_no_error(proxy: FaultProxy) -> None:
    """REC-1: the lease runs out by itself."""
    line = Line(proxy.url)
    lease = Lease(line, LEASE_MS)
    await lease.enter()
    await proxy.refuse()
    await lease.hand_back()
    await line.close()


async def test_only_the_work_of_the_dead_is_taken(
    store: IntentStore, line: Line, lease: Lease, sweeps: Sweeps, superuser: Superuser
) -> None:
    """REC-1: living holders, settled work and doubts already held are left alone."""
    living = Lease(line, LEASE_MS)
    await living.enter()
    mine = await claimed_intent(store, "living", holder=living.holder)
    settled = await claimed_intent(store, "settled", holder=lease.holder)
    await store.settle(settlement_of(settled))
    doubted = await claimed_intent(store, "doubted", holder=lease.holder)
    await store.doubt(doubt_of(doubted))
    await claimed_intent(store, "lost", holder=lease.holder)
    await lapse(superuser, lease.holder)
    assert await sweeps.rescue() == Rescued(ended=1, in_doubt=1)
    assert await store.settle(settlement_of(mine)) is True
    assert await superuser.phase(settled.key) is Phase.COMMITTED


async def test_a_late_outcome_that_is_being_written_comes_before_the_rescue(
    store: IntentStore, lease: Lease, sweeps: Sweeps, superuser: Superuser, fresh_database: str
) -> None:
    """REC-1, decision 7: neither waits for the other; the rescuer passes the row by and later finds nothing to do."""
    claimed = await claimed_intent(store, "c-1", holder=lease.holder)
    await lapse(superuser, lease.holder)
    writer: asyncpg.Connection[Any] = await asyncpg.connect(fresh_database)
    transaction = writer.transaction()
    await transaction.start()
    await writer.execute("SELECT FROM intents FOR UPDATE")  # where every outcome begins
    assert await sweeps.rescue() == Rescued()
    settling = asyncio.create_task(store.settle(settlement_of(claimed)))
    await transaction.rollback()
    await writer.close()
    assert await settling is True
    assert await sweeps.rescue() == Rescued()
    row = await superuser.connection.fetchrow("SELECT sent, error FROM attempts")
    assert row == (True, None)


async def test_outcomes_and_rescuers_racing_have_one_winner_per_intent(
    store: IntentStore, lease: Lease, fresh_database: str, superuser: Superuser
) -> None:
    """REC-1: two rescuers and the zombie itself at once: settled or in doubt, never both, and no deadlock."""
    claimed = [await claimed_intent(store, name, holder=lease.holder) for name in random_ids(60)]
    await lapse(superuser, lease.holder)
    rescuers = [Sweeps(fresh_database, buckets=1, lease_ms=1) for _ in range(2)]
    for rescuer in rescuers:
        await rescuer.line.fetch("SELECT 1")

    async def settle_one_by_one() -> list[bool]:
        return [await store.settle(settlement_of(each)) for each in claimed]

    settled, *_ = await asyncio.gather(settle_one_by_one(), *(rescuer.rescue() for rescuer in rescuers))
    for rescuer in rescuers:
        await rescuer.rescue()
        await rescuer.line.close()
    doubts = await superuser.count("in_doubt")
    assert settled.count(True) + doubts == 60
    assert await superuser.value("SELECT count(*) FROM intents WHERE phase = 'COMMITTED' AND fence = 1") == (
        settled.count(True)
    )
    assert await superuser.value("SELECT count(*) FROM intents WHERE phase = 'PROCESSING' AND fence = 2") == doubts
    assert await superuser.value("SELECT count(*) FROM attempts WHERE holder IS NOT NULL") == 0


async def test_a_rescue_of_many_goes_in_bites_and_two_rescuers_share_them(
    store: IntentStore, lease: Lease, superuser: Superuser, fresh_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REC-1: none is left over, none is taken twice."""
    monkeypatch.setattr(sweeping, "ROWS_MAX", 7)
    many = [new_intent(name) for name in random_ids(100)]
    await asyncio.gather(*(store.register(new) for new in many))
    await asyncio.gather(*(store.claim(claim_of(new, holder=lease.holder)) for new in many))
    await lease.hand_back()
    rescuers = [Sweeps(fresh_database, buckets=1, lease_ms=1) for _ in range(2)]
    done = [*await asyncio.gather(*(rescuer.rescue() for rescuer in rescuers)), await rescuers[0].rescue()]
    assert sum(each.in_doubt for each in done) == sum(each.ended for each in done) == 100
    assert await superuser.value("SELECT count(*) FROM intents WHERE fence = 2") == 100
    assert await superuser.count("in_doubt") == 100
    for rescuer in rescuers:
        await rescuer.line.close()


async def test_nobody_is_declared_dead_within_one_lease_of_the_servers_start(
    store: IntentStore, lease: Lease, superuser: Superuser, fresh_database: str
) -> None:
    """Decision 7: after an outage nobody could renew; holders with a known outcome go first."""
    await claimed_intent(store, "c-1", holder=lease.holder)
    await lapse(superuser, lease.holder)
    age_ms = await superuser.value("SELECT extract(epoch FROM now() - pg_postmaster_start_time()) * 1000")
    young = Sweeps(fresh_database, buckets=1, lease_ms=int(age_ms) + 3_600_000)
    assert await young.rescue() == Rescued()
    assert await superuser.value("SELECT dead FROM holders") is False
    await young.line.close()


@pytest.mark.parametrize("outage", ["noticed", "unnoticed"])
async def test_nobody_rescues_within_one_lease_of_a_reconnect(
    store: IntentStore, lease: Lease, superuser: Superuser, proxy: FaultProxy, outage: str
) -> None:
    """Decision 7: counted from when the store is back, whether the rescuer saw it go or found its line dead later."""
    await claimed_intent(store, "c-1", holder=lease.holder)
    rescuer = Sweeps(proxy.url, buckets=1, lease_ms=600_000)
    rescuer._lease_ms = 0  # of the server's start, which this test is not about
    assert await rescuer.rescue() == Rescued()
    rescuer._lease_ms = 600_000
    if outage == "noticed":
        await proxy.refuse()
        with pytest.raises(StoreAway):
            await rescuer.rescue()
        await proxy.listen()
    else:
        proxy.cut_all()
        await until_closed(rescuer.line)
    await lease.hand_back()
    assert await rescuer.rescue() == Rescued()
    assert await superuser.count("in_doubt") == 0
    rescuer._lease_ms = 0  # that time has passed
    assert await rescuer.rescue() == Rescued(ended=1, in_doubt=1)
    await rescuer.line.close()


async def test_a_rescue_cut_in_the_middle_is_finished_by_the_next(
    store: IntentStore, lease: Lease, superuser: Superuser, proxy: FaultProxy
) -> None:
    """REC-1, REC-7: any replica can die at any line."""
    await claimed_intent(store, "c-1", holder=lease.holder)
    await lease.hand_back()
    rescuer = Sweeps(proxy.url, buckets=1, lease_ms=0)
    for moment in ("before", "after"):
        proxy.cut(moment, exactly(sweeping.SQL["rescue"]))  # type: ignore[arg-type]
        with pytest.raises(StoreAway):
            await rescuer.rescue()
    await rescuer.rescue()
    assert (await superuser.count("in_doubt"), await superuser.value("SELECT fence FROM intents")) == (1, 2)
    assert SQL["settle"] not in proxy.statements
    await rescuer.line.close()


async def test_names_of_the_long_dead_are_forgotten_unless_they_still_hold_something(
    store: IntentStore, lease: Lease, superuser: Superuser, fresh_database: str
) -> None:
    """REC-1: the table of holders does not grow for ever, and never loses one with work."""
    await claimed_intent(store, "c-1", holder=lease.holder)
    await superuser.connection.execute(
        "INSERT INTO holders (holder, lease_until, dead) VALUES ($1, now() - interval '2 days', true),"
        " ($2, now() - interval '1 hour', true)",
        uuid4(),
        uuid4(),
    )
    await superuser.connection.execute(
        "UPDATE holders SET dead = true, lease_until = now() - interval '2 days' WHERE holder = $1", lease.holder
    )
    owner = Line(fresh_database, role=None)
    await Retention(owner, buckets=1).retain()
    assert await superuser.count("holders") == 2
    assert await superuser.value("SELECT count(*) FROM holders WHERE holder = $1", lease.holder) == 1
    await owner.close()


async def test_what_an_older_name_held_is_never_surely_held_again(lease: Lease) -> None:
    """REC-1: a worker that was declared dead goes on under a new name, and must not send what the old one claimed."""
    before = lease.holder
    assert lease.surely_held(before)
    await lease.hand_back()
    assert await lease.renew() is False
    assert lease.holder != before
    assert lease.surely_held(lease.holder)
    assert not lease.surely_held(before)
    assert await lease.renew(before) is False
    assert await lease.renew(lease.holder) is True
