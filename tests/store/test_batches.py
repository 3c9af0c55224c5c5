"""Batches on a real Postgres (DESIGN decision 4): one statement, one commit, one winner per key."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import asyncpg
import pytest

from gateway.protocol.phases import Phase
from gateway.protocol.records import Claimed, Registered, Sealed, StoredResponse
from gateway.store.errors import BadRow
from gateway.store.intents import LARGE_BYTES, IntentStore
from tests.store.rows import (
    Flushes,
    Superuser,
    claim_of,
    claimed_intent,
    new_intent,
    observed,
    random_ids,
    settlement_of,
)


@pytest.fixture
def flushes() -> Flushes:
    return []


@pytest.fixture
async def store(fresh_database: str, flushes: Flushes) -> AsyncIterator[IntentStore]:
    made = observed(fresh_database, flushes)
    yield made
    await made.close()


async def test_concurrent_registrations_go_out_as_one_statement(store: IntentStore, flushes: Flushes) -> None:
    """Decision 4: the first alone, and all that arrived while it was in flight together."""
    found = await asyncio.gather(*(store.register(new_intent(name)) for name in random_ids(100)))
    assert all(isinstance(each, Registered) for each in found)
    assert flushes == [("register", 100)]  # all were queued before the lane first ran
    await store.register(new_intent("alone"))
    assert flushes[1:] == [("register", 1)]


async def test_a_whole_handshake_of_many_costs_three_statements(store: IntentStore, flushes: Flushes) -> None:
    many = [new_intent(name) for name in random_ids(60)]
    await asyncio.gather(*(store.register(new) for new in many))
    claimed = await asyncio.gather(*(store.claim(claim_of(new)) for new in many))
    assert all(await asyncio.gather(*(store.settle(settlement_of(each)) for each in claimed if each is not None)))
    assert flushes == [("register", 60), ("claim", 60), ("settle", 60)]


async def test_the_same_key_twice_at_once_is_registered_once(
    store: IntentStore, flushes: Flushes, superuser: Superuser
) -> None:
    """P1-5, REP-1: each key once per batch; the later ones find the first."""
    twins = [new_intent("c-1") for _ in range(5)]
    found = await asyncio.gather(*(store.register(new) for new in twins))
    winners = [each for each in found if isinstance(each, Registered)]
    assert len(winners) == 1
    assert {each.server_correlation_id for each in found if each is not None} == {winners[0].server_correlation_id}
    assert [rows for name, rows in flushes if name == "register"] == [1, 1, 1, 1, 1]
    assert await superuser.count("intents") == 1


@pytest.mark.parametrize(
    "change",
    [
        {"client_correlation_id": "nul \0 byte"},  # refused by the server
        {"payload": Sealed(b"", 40_000)},  # refused by the driver: no smallint
        {"client_correlation_id": "lone \ud800"},  # refused by the driver: no UTF-8
        {"ttl_ms": 0},  # refused by a CHECK
        {"ttl_ms": 2**62},  # overflows a timestamp
    ],
)
async def test_a_bad_row_never_fails_its_neighbours(
    store: IntentStore, superuser: Superuser, change: dict[str, object]
) -> None:
    """Decision 4: bisected down to the one at fault."""
    names = random_ids(20)
    many = [new_intent(name, **(change if number == 7 else {})) for number, name in enumerate(names)]
    found = await asyncio.gather(*(store.register(new) for new in many), return_exceptions=True)
    assert [number for number, each in enumerate(found) if not isinstance(each, Registered)] == [7]
    assert isinstance(found[7], BadRow)
    assert await superuser.count("intents") == await superuser.count("payloads") == 19


async def test_a_bad_settlement_never_fails_its_neighbours(store: IntentStore, superuser: Superuser) -> None:
    """Decision 4, P2-4."""
    claimed = [await claimed_intent(store, name) for name in random_ids(8)]
    settlements = [settlement_of(each) for each in claimed]
    settlements[3] = settlement_of(claimed[3], resource_id="nul \0 byte")
    outcomes = await asyncio.gather(*(store.settle(each) for each in settlements), return_exceptions=True)
    assert [outcome is True for outcome in outcomes] == [number != 3 for number in range(8)]
    assert await superuser.phase(claimed[3].key) is Phase.PROCESSING


async def test_a_real_deadlock_is_retried_and_never_seen(
    store: IntentStore, superuser: Superuser, fresh_database: str
) -> None:
    """Decision 4: 40P01. A stranger locks two rows of a batch in the other order."""
    many = sorted((new_intent(name) for name in random_ids(2)), key=lambda new: new.key.logical)
    await asyncio.gather(*(store.register(new) for new in many))
    stranger = await asyncpg.connect(fresh_database)
    await stranger.execute("SET deadlock_timeout = '10s'")  # it is the batch that finds the deadlock, and gives way
    transaction = stranger.transaction()
    await transaction.start()
    lock = "SELECT FROM intents WHERE logical_key = $1 FOR UPDATE"
    await stranger.execute(lock, many[1].key.logical)
    claiming = asyncio.gather(*(store.claim(claim_of(new)) for new in many))
    await superuser.until_blocked()
    await stranger.execute(lock, many[0].key.logical)  # had by the batch until it gave way
    await transaction.rollback()
    await stranger.close()
    assert all(isinstance(each, Claimed) for each in await claiming)


async def test_large_payloads_travel_on_a_line_of_their_own(store: IntentStore, flushes: Flushes) -> None:
    """Decision 4: they must not hold up small ones."""
    large = Sealed(bytes(LARGE_BYTES + 1), 1)
    many = [new_intent(f"small-{number}") for number in range(5)]
    many += [new_intent(f"large-{number}", payload=large) for number in range(5)]
    await asyncio.gather(*(store.register(new) for new in many))
    assert sorted(flushes) == [("register", 5), ("register", 5)]
    claimed = await asyncio.gather(*(store.claim(claim_of(new)) for new in many))
    flushes.clear()
    answer = StoredResponse(200, 3, b"s" * 32, True, large)
    settlements = [
        settlement_of(each, response=answer) if new.payload is large else settlement_of(each)
        for new, each in zip(many, claimed, strict=True)
        if each is not None
    ]
    assert all(await asyncio.gather(*(store.settle(each) for each in settlements)))
    assert sorted(flushes) == [("settle", 5), ("settle", 5)]
    stored = await store.response(many[-1].key)
    assert stored is not None
    assert stored.sealed == large


async def test_two_replicas_in_different_orders_have_one_winner_per_key(
    fresh_database: str, superuser: Superuser
) -> None:
    """P2-2, REP-1, REP-3: the same keys registered, claimed and settled by both at once; no deadlock comes up."""
    replicas = [observed(fresh_database, []) for _ in range(2)]
    names = random_ids(120)

    async def one_round(act: str, items: list[list[object]]) -> list[list[object]]:
        """Each replica acts on its own copies, in an order of its own; results in the order of `names`."""

        async def at(replica: IntentStore, mine: list[object]) -> list[object]:
            order = random.sample(range(len(mine)), len(mine))
            results = await asyncio.gather(*(getattr(replica, act)(mine[place]) for place in order))
            return [result for _, result in sorted(zip(order, results, strict=True), key=lambda pair: pair[0])]

        return list(await asyncio.gather(*(at(*pair) for pair in zip(replicas, items, strict=True))))

    new = [[new_intent(name) for name in names] for _ in replicas]
    registered = await one_round("register", [list(each) for each in new])
    won = [[isinstance(each, Registered) for each in column] for column in zip(*registered, strict=True)]
    assert all(sorted(pair) == [False, True] for pair in won)
    first = [pair[mine.index(True)] for pair, mine in zip(zip(*new, strict=True), won, strict=True)]
    claims = await one_round("claim", [[claim_of(each) for each in first] for _ in replicas])
    winners = [[each for each in column if isinstance(each, Claimed)] for column in zip(*claims, strict=True)]
    assert all(len(each) == 1 for each in winners)
    settled = await one_round("settle", [[settlement_of(each[0]) for each in winners] for _ in replicas])
    assert settled == [[True] * 120, [True] * 120]  # the second one finds the very same outcome
    for table, rows in {"intents": 120, "attempts": 120, "responses": 120, "payloads": 0, "events": 360}.items():
        assert await superuser.count(table) == rows
    for replica in replicas:
        await replica.close()
