"""A bucket that always has enough to do does not keep the others from theirs."""

from __future__ import annotations

from uuid import uuid4

from gateway.protocol.records import Sealed
from gateway.store.queue import QueueStore
from gateway.store.recovery import RecoveryStore
from gateway.store.turns import Turns
from tests.store.doubts import in_doubt
from tests.store.rows import SERVICE, claimed_intent, new_intent, opened, settlement_of

BUCKETS = 4
IDS = [f"c-{number}" for number in range(24)]


def test_each_bucket_comes_first_in_its_turn() -> None:
    turns = Turns(3)
    assert [list(turns) for _ in range(4)] == [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]


def test_the_ids_of_these_tests_fill_every_bucket() -> None:
    assert {new_intent(name, buckets=BUCKETS).key.bucket for name in IDS} == set(range(BUCKETS))


async def test_queued_work_of_every_bucket_is_begun(fresh_database: str) -> None:
    """ASY-1: whoever takes one at a time has begun one of each bucket after one round."""
    queue = QueueStore(fresh_database, service=SERVICE, buckets=BUCKETS)
    async with opened(fresh_database, buckets=BUCKETS) as store:
        for name in IDS:
            await claimed_intent(store, name, execution="async")
    taken = [(await queue.take(uuid4(), 1))[0].claimed.key.bucket for _ in range(BUCKETS)]
    assert sorted(taken) == list(range(BUCKETS))
    await queue.line.close()


async def test_doubts_and_verifications_of_every_bucket_are_looked_at(fresh_database: str) -> None:
    """REC-2, REC-5: also when what is due in the first fills the limit each time."""
    recoveries = RecoveryStore(fresh_database, service=SERVICE, buckets=BUCKETS)
    async with opened(fresh_database, buckets=BUCKETS) as store:
        for name in IDS:
            await in_doubt(store, name)
            claimed = await claimed_intent(store, f"verified {name}")
            await store.settle(settlement_of(claimed, verify=Sealed(b"sealed question", 1)))
    doubts, verifications = [], []
    for _ in range(BUCKETS):
        doubts.append((await recoveries.due(1, 0))[0].key.bucket)
        verifications.append((await recoveries.due_verifications(1, 0))[0].key.bucket)
    assert sorted(doubts) == sorted(verifications) == list(range(BUCKETS))
    await recoveries.line.close()
