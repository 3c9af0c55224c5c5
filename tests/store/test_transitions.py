"""FSM-1: no other edge exists in the database; FSM-2: every transition is audited in its own transaction."""

from __future__ import annotations

import itertools

import asyncpg
import pytest

from gateway.protocol.phases import TRANSITIONS, Move, Phase
from gateway.store.intents import IntentStore
from gateway.store.sweeps import Sweeps
from tests.store.rows import AN_HOUR_MS, Superuser, claim_of, claimed_intent, doubt_of, new_intent, settlement_of

PAIRS = list(itertools.product(Phase, Phase))

# How a row gets to each phase by legal edges only.
WAYS: dict[Phase, list[Phase]] = {
    Phase.WAITING_CONFIRM: [],
    Phase.PROCESSING: [Phase.PROCESSING],
    Phase.COMMITTED: [Phase.PROCESSING, Phase.COMMITTED],
    Phase.FAILED: [Phase.PROCESSING, Phase.FAILED],
    Phase.TTL_EXPIRED: [Phase.TTL_EXPIRED],
    Phase.ABANDONED: [Phase.TTL_EXPIRED, Phase.ABANDONED],
}
EXECUTED = "phase_2_timestamp = now(), fence = 1, attempt_id = gen_random_uuid()"
NOT_EXECUTED = "phase_2_timestamp = NULL, fence = 0, attempt_id = NULL"


def legal(source: Phase, target: Phase, replay_policy: str) -> bool:
    return any(
        leads_to is target and (move is not Move.CONFIRM_LATE or replay_policy == "REUSE")
        for move, leads_to in TRANSITIONS[source].items()
    )


async def move(superuser: Superuser, target: Phase, *, came_from: str = "phase") -> None:
    """A raw update that says where it comes from and sets all that the other CHECKs ask for."""
    executed = target in (Phase.PROCESSING, Phase.COMMITTED, Phase.FAILED)
    settled = target in (Phase.COMMITTED, Phase.FAILED, Phase.ABANDONED)
    await superuser.connection.execute(
        f"UPDATE intents SET came_from = {came_from}, phase = $1::text::phase,"
        f" {EXECUTED if executed else NOT_EXECUTED}, settled_at = {'now()' if settled else 'NULL'}",
        target.value,
    )


@pytest.mark.parametrize("replay_policy", ["REJECT", "REUSE"])
@pytest.mark.parametrize(("source", "target"), PAIRS)
async def test_an_edge_exists_in_the_database_exactly_if_it_is_legal(
    store: IntentStore, superuser: Superuser, source: Phase, target: Phase, replay_policy: str
) -> None:
    """FSM-1: for a superuser's raw update, too; TTL_EXPIRED -> PROCESSING under REUSE only."""
    await store.register(new_intent("c-1", replay_policy=replay_policy))
    for step in WAYS[source]:
        await move(superuser, step)
    if legal(source, target, replay_policy):
        await move(superuser, target)
        return
    with pytest.raises(asyncpg.CheckViolationError) as refused:
        await move(superuser, target)
    assert refused.value.constraint_name == "intents_legal_edge"


@pytest.mark.parametrize("target", [phase for phase in Phase if phase is not Phase.WAITING_CONFIRM])
async def test_an_update_that_does_not_say_where_it_came_from_fails(
    store: IntentStore, superuser: Superuser, target: Phase
) -> None:
    """FSM-1: a statement that forgot its guard cannot pass."""
    await store.register(new_intent("c-1"))
    with pytest.raises(asyncpg.CheckViolationError) as refused:
        await move(superuser, target, came_from="came_from")
    assert refused.value.constraint_name == "intents_legal_edge"


@pytest.mark.parametrize(
    ("way", "change", "constraint"),
    [
        ([Phase.PROCESSING], "fence = 0", "intents_ponr"),
        ([Phase.PROCESSING], "attempt_id = NULL", "intents_ponr"),
        ([], "phase_2_timestamp = now(), fence = 1, attempt_id = gen_random_uuid()", "intents_ponr"),
        ([Phase.PROCESSING, Phase.FAILED], "settled_at = NULL", "intents_settled"),
        ([], "settled_at = now()", "intents_settled"),
        ([], "ponr_deadline = phase_1_timestamp", "intents_deadline"),
    ],
)
async def test_columns_are_tied_to_their_phase(
    store: IntentStore, superuser: Superuser, way: list[Phase], change: str, constraint: str
) -> None:
    """FSM-1: executed exactly when the PONR was crossed, settled exactly when terminal."""
    await store.register(new_intent("c-1"))
    for step in way:
        await move(superuser, step)
    with pytest.raises(asyncpg.CheckViolationError) as refused:
        await superuser.connection.execute(f"UPDATE intents SET {change}")
    assert refused.value.constraint_name == constraint


async def latest(superuser: Superuser) -> tuple[str, str | None]:
    """The newest event, which must have been written by the transaction that last wrote the intent."""
    row = await superuser.connection.fetchrow(
        "SELECT e.code, e.phase::text, e.xid::xid = i.xmin AS together, e.phase = i.phase AS same_phase"
        " FROM events e JOIN intents i USING (bucket, logical_key) ORDER BY e.id DESC LIMIT 1"
    )
    assert row is not None
    assert row["together"]
    assert row["same_phase"] in (True, None)
    return row["code"], row["phase"]


async def test_every_transition_leaves_its_event_in_the_same_transaction(
    store: IntentStore, superuser: Superuser
) -> None:
    """FSM-2: register, claim and settle."""
    new = new_intent("c-1")
    await store.register(new)
    assert await latest(superuser) == ("OBL-001", "WAITING_CONFIRM")
    claimed = await store.claim(claim_of(new))
    assert claimed is not None
    assert await latest(superuser) == ("PONR", "PROCESSING")
    await store.settle(settlement_of(claimed))
    assert await latest(superuser) == ("OBL-002", "COMMITTED")


async def test_a_failure_leaves_its_event_in_the_same_transaction(store: IntentStore, superuser: Superuser) -> None:
    """FSM-2."""
    claimed = await claimed_intent(store, "c-1")
    await store.settle(settlement_of(claimed, Phase.FAILED))
    assert await latest(superuser) == ("OBL-003", "FAILED")


async def test_expiry_leaves_its_events_in_the_same_transactions(
    store: IntentStore, superuser: Superuser, fresh_database: str
) -> None:
    """FSM-2, TTL-2."""
    new = new_intent("c-1")
    await store.register(new)
    sweeps = Sweeps(fresh_database, buckets=1, lease_ms=1)
    await superuser.age(new.key, AN_HOUR_MS)
    await sweeps.expire()
    assert await latest(superuser) == ("OBL-004", "TTL_EXPIRED")
    await superuser.age(new.key, AN_HOUR_MS)
    await sweeps.abandon()
    assert await latest(superuser) == ("OBL-003", "ABANDONED")
    await sweeps.line.close()


async def test_a_doubt_is_audited_and_is_no_transition(store: IntentStore, superuser: Superuser) -> None:
    """REC-2: the phase stays PROCESSING, and the event has none."""
    claimed = await claimed_intent(store, "c-1")
    await store.doubt(doubt_of(claimed))
    assert (await superuser.events(claimed.key))[-1] == ("IN_DOUBT", None)
    assert await superuser.phase(claimed.key) is Phase.PROCESSING
    assert await superuser.count("payloads", claimed.key) == 1
