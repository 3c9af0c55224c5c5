"""P2-2: crossing the PONR is one conditional write, before the deadline on the database's clock, and only once."""

from __future__ import annotations

import asyncio
from uuid import uuid4

from gateway.protocol.phases import Phase
from gateway.protocol.records import Claimed, Registered
from gateway.store.intents import IntentStore
from tests.store.rows import (
    AN_HOUR_MS,
    HOLDER,
    Superuser,
    claim_of,
    claimed_intent,
    new_intent,
    random_ids,
    settlement_of,
)


async def test_a_claim_hands_out_what_was_registered(store: IntentStore, superuser: Superuser) -> None:
    """P2-3, REC-3: the request of Phase 1, and an attempt that is durable before anything is sent."""
    new = new_intent("c-1", path=b"/orders/%2F", query=None, execution="sync")
    await store.register(new)
    claim = claim_of(new)
    claimed = await store.claim(claim)
    assert claimed == Claimed(
        new.key, claim.attempt_id, claim.holder, 1, "POST", b"/orders/%2F", None, "sync", new.payload
    )
    row = await superuser.connection.fetchrow("SELECT * FROM attempts")
    assert row is not None
    assert (row["number"], row["attempt_id"], row["fence"], row["holder"]) == (1, claim.attempt_id, 1, HOLDER)
    assert (row["sent"], row["ended_at"]) == (None, None)


async def test_an_intent_is_claimed_once(store: IntentStore, superuser: Superuser) -> None:
    """P2-2, P2-8: all others get nothing, at once or later."""
    new = new_intent("c-1")
    await store.register(new)
    found = await asyncio.gather(*(store.claim(claim_of(new)) for _ in range(20)))
    assert len([each for each in found if each is not None]) == 1
    assert await store.claim(claim_of(new)) is None
    assert await superuser.count("attempts") == 1


async def test_a_claim_that_names_another_intent_or_path_gets_nothing(store: IntentStore, superuser: Superuser) -> None:
    """P2-1, P2-7: a wrong server id, a wrong path, an unknown key; the intent is untouched."""
    new = new_intent("c-1")
    await store.register(new)
    assert await store.claim(claim_of(new, server_correlation_id=uuid4())) is None
    assert await store.claim(claim_of(new, path=b"/other")) is None
    assert await store.claim(claim_of(new_intent("unknown"))) is None
    assert await superuser.phase(new.key) is Phase.WAITING_CONFIRM
    assert await store.claim(claim_of(new)) is not None


async def test_a_claim_at_the_deadline_is_too_late(store: IntentStore, superuser: Superuser) -> None:
    """P2-2, TTL-1: swept or not."""
    new = new_intent("c-1")
    await store.register(new)
    await superuser.age(new.key, AN_HOUR_MS)
    assert await store.claim(claim_of(new)) is None
    assert await superuser.count("attempts") == 0
    intent = await store.read(new.key)
    assert intent is not None
    assert (intent.stored_phase, intent.phase) == (Phase.WAITING_CONFIRM, Phase.TTL_EXPIRED)


async def test_the_databases_clock_decides_at_the_very_deadline(store: IntentStore, superuser: Superuser) -> None:
    """Decision 1, P2-2: with TTLs of milliseconds, exactly those claimed before their deadline were."""
    many = [new_intent(name, ttl_ms=1 + number) for number, name in enumerate(random_ids(60))]
    registered = await asyncio.gather(*(store.register(new) for new in many))
    assert all(isinstance(each, Registered) for each in registered)
    claimed = [await store.claim(claim_of(new)) for new in many]
    assert await superuser.value("SELECT count(*) FROM intents WHERE phase_2_timestamp >= ponr_deadline") == 0
    assert await superuser.value("SELECT count(*) FROM attempts") == len([each for each in claimed if each])
    late = [new for new, each in zip(many, claimed, strict=True) if each is None]
    for new in late:
        assert await superuser.value(
            "SELECT ponr_deadline <= now() AND phase = 'WAITING_CONFIRM' FROM intents WHERE logical_key = $1",
            new.key.logical,
        )


async def test_a_settlement_erases_the_payload_and_keeps_the_row(store: IntentStore, superuser: Superuser) -> None:
    """P2-4, RPL-1, decision 5: outcome, answer, end of the attempt; the row stays as a tombstone."""
    claimed = await claimed_intent(store, "c-1")
    settlement = settlement_of(claimed)
    assert await store.settle(settlement)
    assert await superuser.count("payloads") == 0
    intent = await store.read(claimed.key)
    assert intent is not None
    assert (intent.phase, intent.resource_id, intent.fence) == (Phase.COMMITTED, "17", 1)
    assert await store.response(claimed.key) == settlement.response
    row = await superuser.connection.fetchrow("SELECT * FROM attempts")
    assert row is not None
    assert (row["holder"], row["sent"], row["status"], row["error"]) == (None, True, 201, None)
    assert row["ended_at"] is not None


async def test_a_settlement_without_an_answer_stores_none(store: IntentStore) -> None:
    """P2-5: never sent."""
    claimed = await claimed_intent(store, "c-1")
    settlement = settlement_of(
        claimed, Phase.FAILED, response=None, resource_id=None, sent=False, error="refused", message="not reached"
    )
    assert await store.settle(settlement)
    assert await store.response(claimed.key) is None
    intent = await store.read(claimed.key)
    assert intent is not None
    assert (intent.phase, intent.message) == (Phase.FAILED, "not reached")


async def test_only_the_fence_that_was_given_settles(store: IntentStore, superuser: Superuser) -> None:
    """REC-1: a lower fence, or a higher one that nobody was given."""
    claimed = await claimed_intent(store, "c-1")
    for fence in (0, 2):
        assert await store.settle(settlement_of(claimed, fence=fence)) is False
    assert await superuser.phase(claimed.key) is Phase.PROCESSING
    assert await superuser.count("responses") == 0
    assert await store.settle(settlement_of(claimed)) is True


async def test_an_unclaimed_intent_is_not_settled(store: IntentStore, superuser: Superuser) -> None:
    """FSM-1: WAITING_CONFIRM never becomes COMMITTED."""
    new = new_intent("c-1")
    await store.register(new)
    never = Claimed(new.key, uuid4(), uuid4(), 0, "POST", new.path, None, "sync", new.payload)
    assert await store.settle(settlement_of(never)) is False
    assert await superuser.phase(new.key) is Phase.WAITING_CONFIRM
