"""P1-8: at most `max_pending` unconfirmed intents per caller and route."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gateway.protocol.intents import Intent
from gateway.protocol.records import Registered, Sealed
from gateway.store.intents import LARGE_BYTES, IntentStore
from gateway.store.sweeps import Sweeps
from tests.store.rows import (
    ALICE,
    AN_HOUR_MS,
    BOB,
    Superuser,
    claim_of,
    doubt_of,
    new_intent,
    random_ids,
    settlement_of,
)

LIMIT = 3


async def register(store: IntentStore, name: str, **changes: object) -> Registered | Intent | None:
    return await store.register(new_intent(name, **({"max_pending": LIMIT} | changes)))  # type: ignore[arg-type]


async def fill(store: IntentStore, **changes: object) -> None:
    """Use up the limit."""
    for number in range(LIMIT):
        assert isinstance(await register(store, f"fill-{number}", **changes), Registered)
    assert await register(store, "one too many", **changes) is None


async def test_the_limit_is_exact_and_a_refusal_stores_nothing(store: IntentStore, superuser: Superuser) -> None:
    """P1-8: the last one in is the limit's."""
    await fill(store)
    for table in ("intents", "payloads", "events"):
        assert await superuser.count(table) == LIMIT


async def test_an_exact_retry_is_not_refused_at_the_limit(store: IntentStore) -> None:
    """P1-5 before P1-8: it registers nothing new."""
    await fill(store)
    again = await register(store, "fill-1")
    assert isinstance(again, Intent)
    assert again.client_correlation_id == "fill-1"


async def test_repeats_in_a_batch_take_no_room_from_what_is_new(store: IntentStore) -> None:
    """P1-5, P1-8: two are pending, one place is left, and it goes to the one new key among the repeats."""
    names = random_ids(LIMIT)
    for name in names[:-1]:
        await register(store, name)
    found = await asyncio.gather(*(register(store, name) for name in names))
    assert [type(each) for each in found] == [Intent, Intent, Registered]


async def test_other_callers_and_other_routes_have_their_own_limits(store: IntentStore) -> None:
    """P1-8: per caller and route."""
    await fill(store)
    assert isinstance(await register(store, "b-1", caller=BOB), Registered)
    assert isinstance(await register(store, "r-1", route="/returns"), Registered)


async def test_groups_of_one_batch_are_counted_apart(store: IntentStore, superuser: Superuser) -> None:
    """P1-8: callers and routes that share a statement do not share a limit."""
    await asyncio.gather(
        *(register(store, f"a-{name}") for name in random_ids(8)),
        *(register(store, f"b-{name}", caller=BOB) for name in random_ids(8)),
        *(register(store, f"r-{name}", route="/returns", max_pending=5) for name in random_ids(8)),
    )
    rows = await superuser.connection.fetch(
        "SELECT caller, route, count(*) FROM intents GROUP BY caller, route ORDER BY caller, route"
    )
    assert [tuple(row) for row in rows] == [(ALICE, "/orders", 3), (ALICE, "/returns", 5), (BOB, "/orders", 3)]


async def test_a_confirmed_intent_makes_room(store: IntentStore) -> None:
    """P1-8: PROCESSING, settled or in doubt is not unconfirmed."""
    await fill(store)
    claims = []
    for number in range(LIMIT):
        intent = await store.read(new_intent(f"fill-{number}").key)
        assert intent is not None
        claim = claim_of(new_intent(f"fill-{number}", server_correlation_id=intent.server_correlation_id))
        claims.append(await store.claim(claim))
    assert isinstance(await register(store, "n-1"), Registered)
    assert await store.settle(settlement_of(claims[0]))  # type: ignore[arg-type]
    assert await store.doubt(doubt_of(claims[1]))  # type: ignore[arg-type]
    assert isinstance(await register(store, "n-2"), Registered)
    assert isinstance(await register(store, "n-3"), Registered)
    assert await register(store, "n-4") is None


async def test_an_expired_intent_makes_room_swept_or_not(
    store: IntentStore, superuser: Superuser, fresh_database: str
) -> None:
    """P1-8, TTL-2: at its deadline, on the database's clock."""
    await fill(store)
    await superuser.age(new_intent("fill-0").key, AN_HOUR_MS)
    assert isinstance(await register(store, "n-1"), Registered)
    assert await register(store, "n-2") is None
    sweeps = Sweeps(fresh_database, buckets=1, lease_ms=1)
    assert await sweeps.expire() == 1
    await sweeps.line.close()
    assert await register(store, "n-2") is None
    await superuser.age(new_intent("fill-1").key, 3 * AN_HOUR_MS)
    assert isinstance(await register(store, "n-2"), Registered)


async def test_one_process_never_overshoots(store: IntentStore, superuser: Superuser) -> None:
    """P1-8: however many arrive at once; those refused may simply come again."""
    for limit in (1, 50, 300):
        caller = limit.to_bytes(2, "big") * 16
        found = await asyncio.gather(
            *(register(store, name, caller=caller, max_pending=limit) for name in random_ids(400))
        )
        assert sum(isinstance(each, Registered) for each in found) == limit
        assert await superuser.value("SELECT count(*) FROM intents WHERE caller = $1", caller) == limit


async def test_two_replicas_overshoot_by_a_batch_at_most(
    store: IntentStore, other: IntentStore, superuser: Superuser
) -> None:
    """P1-8: concurrent requests may, by what was in flight together, and never by more."""
    batch = 20
    for _ in range(10):  # ten times one batch of each replica at once
        await asyncio.gather(
            *(register(store, name, max_pending=30) for name in random_ids(batch)),
            *(register(other, name, max_pending=30) for name in random_ids(batch)),
        )
    assert 30 <= await superuser.count("intents") <= 30 + batch


async def test_large_payloads_are_counted_with_the_small(store: IntentStore, superuser: Superuser) -> None:
    """P1-8: they travel apart, but there is one limit."""
    large = Sealed(bytes(LARGE_BYTES), 1)
    await fill(store)
    assert await store.register(replace(new_intent("large", payload=large), max_pending=LIMIT)) is None
    assert await superuser.count("intents") == LIMIT


@pytest.mark.parametrize("buckets", [1, 16])
async def test_pending_counts_over_every_bucket_and_no_further_than_the_limit(
    fresh_database: str, buckets: int
) -> None:
    """P1-8, P1-9: asked before a body is read, and with several buckets before every registration."""
    store = IntentStore(fresh_database, service="orders", buckets=buckets, observe=lambda *_: None)
    many = [new_intent(name, buckets=buckets) for name in random_ids(40)]
    await asyncio.gather(*(store.register(new) for new in many))
    if buckets > 1:
        assert len({new.key.bucket for new in many}) > 4
    assert await store.pending(ALICE, "/orders", 1000) == 40
    assert await store.pending(ALICE, "/orders", 10) == 10
    assert await store.pending(ALICE, "/returns", 10) == await store.pending(BOB, "/orders", 10) == 0
    assert await store.claim(claim_of(many[0])) is not None
    assert await store.pending(ALICE, "/orders", 1000) == 39
    await store.close()
