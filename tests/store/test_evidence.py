"""REC-1, DESIGN decision 7: what a fenced gateway knew is kept, and settles the intent if nothing was sent since."""

from __future__ import annotations

from uuid import uuid4

from gateway.protocol.phases import Phase
from gateway.protocol.records import Sealed
from gateway.store.intents import IntentStore
from gateway.store.recovery import RecoveryStore
from gateway.store.verdicts import Verdicts
from tests.store.doubts import CLAIM_MS, COMMITTED, rescued, server_id, the_due
from tests.store.rows import Superuser, doubt_of, settlement_of


async def test_a_zombies_outcome_is_kept_and_settles_what_was_held(
    store: IntentStore, doubts: RecoveryStore, superuser: Superuser, fresh_database: str
) -> None:
    """REC-1: phase, resource and answer as the zombie had them, audited as evidence, once."""
    zombie = await rescued(store, superuser, fresh_database)
    await doubts.hold(await the_due(doubts), "recovery: hold", news=False)
    assert await doubts.due(10, CLAIM_MS) == []
    settlement = settlement_of(zombie)
    assert await store.settle(settlement) is False
    for _ in range(2):
        await doubts.keep_evidence(settlement)
    found = await the_due(doubts)
    assert found.proven
    assert await doubts.settle_from_evidence(found) is Phase.COMMITTED
    assert await doubts.settle_from_evidence(found) is None
    row = await superuser.connection.fetchrow("SELECT phase::text, settled_by, resource_id FROM intents")
    assert row == ("COMMITTED", "evidence", "17")
    answer = await store.response(zombie.key)
    assert answer == settlement.response
    assert (await superuser.count("in_doubt"), await superuser.count("payloads")) == (0, 0)
    assert (await superuser.events(zombie.key))[-2:] == [("EVIDENCE", None), ("OBL-002", "COMMITTED")]
    attempt = await superuser.connection.fetchrow("SELECT sent, status FROM attempts")
    assert attempt == (True, 201)


async def test_a_success_that_is_known_from_evidence_is_verified_like_any_other(
    store: IntentStore, doubts: RecoveryStore, superuser: Superuser, fresh_database: str
) -> None:
    """REC-5: what to ask with was known to the zombie."""
    zombie = await rescued(store, superuser, fresh_database)
    await doubts.keep_evidence(settlement_of(zombie, verify=Sealed(b"sealed question", 1)))
    assert await doubts.settle_from_evidence(await the_due(doubts)) is Phase.COMMITTED
    (verification,) = await doubts.due_verifications(10, CLAIM_MS)
    assert (verification.key, verification.headers) == (zombie.key, Sealed(b"sealed question", 1))


async def test_evidence_that_a_later_send_may_contradict_stays_evidence(
    store: IntentStore, doubts: RecoveryStore, superuser: Superuser, fresh_database: str
) -> None:
    """Decision 7: the later attempt decides, or an operator."""
    zombie = await rescued(store, superuser, fresh_database)
    taken = await doubts.redrive(await the_due(doubts), uuid4(), uuid4())
    assert taken is not None
    await doubts.keep_evidence(settlement_of(zombie, Phase.FAILED))
    await store.doubt(doubt_of(taken.claimed))
    found = await the_due(doubts)
    assert not found.proven
    assert await doubts.settle_from_evidence(found) is None
    assert await superuser.count("evidence") == 1
    assert await superuser.phase(zombie.key) is Phase.PROCESSING


async def test_a_later_attempt_that_was_never_sent_contradicts_nothing(
    store: IntentStore, doubts: RecoveryStore, superuser: Superuser, fresh_database: str
) -> None:
    """Decision 7: "if no later attempt was sent"."""
    zombie = await rescued(store, superuser, fresh_database)
    taken = await doubts.redrive(await the_due(doubts), uuid4(), uuid4())
    assert taken is not None
    unsent = doubt_of(taken.claimed)
    unsent.sent = False
    await store.doubt(unsent)
    await doubts.keep_evidence(settlement_of(zombie))
    found = await the_due(doubts)
    assert found.proven
    assert await doubts.settle_from_evidence(found) is Phase.COMMITTED


async def test_evidence_comes_before_a_redrive(
    store: IntentStore, doubts: RecoveryStore, superuser: Superuser, fresh_database: str
) -> None:
    """REC-2: no second send of what is known; also when it became known after the look."""
    zombie = await rescued(store, superuser, fresh_database)
    found = await the_due(doubts)
    await doubts.keep_evidence(settlement_of(zombie))
    await superuser.connection.execute("UPDATE in_doubt SET next_at = $1", found.token)  # the claim, still
    assert await doubts.redrive(found, uuid4(), uuid4()) is None
    assert await superuser.value("SELECT max(number) FROM attempts") == 1


async def test_evidence_that_comes_while_a_doubt_is_being_held_is_not_overlooked(
    store: IntentStore, doubts: RecoveryStore, superuser: Superuser, fresh_database: str
) -> None:
    """REC-1: the hold was decided without it, and finds its claim gone."""
    zombie = await rescued(store, superuser, fresh_database)
    found = await the_due(doubts)
    await doubts.keep_evidence(settlement_of(zombie))
    await doubts.hold(found, "recovery: hold", news=False)
    assert (await the_due(doubts)).proven


async def test_evidence_after_a_verdict_changes_nothing(
    store: IntentStore, doubts: RecoveryStore, verdicts: Verdicts, superuser: Superuser, fresh_database: str
) -> None:
    """REC-2: what was told stays told; the contradiction is in the audit trail."""
    zombie = await rescued(store, superuser, fresh_database)
    await verdicts.resolve(await server_id(superuser, zombie), COMMITTED)
    await doubts.keep_evidence(settlement_of(zombie, Phase.FAILED))
    assert await doubts.due(10, CLAIM_MS) == []
    assert await superuser.phase(zombie.key) is Phase.COMMITTED
    assert (await superuser.events(zombie.key))[-1] == ("EVIDENCE", None)


async def test_evidence_of_a_keys_earlier_use_is_none(
    store: IntentStore, doubts: RecoveryStore, superuser: Superuser, fresh_database: str
) -> None:
    """REC-1, RPL-4: an earlier release forgot an intent and left its evidence; the attempt is not this intent's."""
    zombie = await rescued(store, superuser, fresh_database)
    await superuser.connection.execute(
        "INSERT INTO evidence (bucket, logical_key, fence, attempt_id, phase) VALUES (0, $1, 7, $2, 'FAILED')",
        zombie.key.logical,
        uuid4(),
    )
    found = await the_due(doubts)
    assert not found.proven
    assert await doubts.settle_from_evidence(found) is None
    await doubts.keep_evidence(settlement_of(zombie))
    found = await the_due(doubts)
    assert found.proven
    assert await doubts.settle_from_evidence(found) is Phase.COMMITTED


async def test_evidence_of_a_keys_earlier_use_hinders_no_redrive(
    store: IntentStore, doubts: RecoveryStore, superuser: Superuser, fresh_database: str
) -> None:
    """REC-2."""
    zombie = await rescued(store, superuser, fresh_database)
    await superuser.connection.execute(
        "INSERT INTO evidence (bucket, logical_key, fence, attempt_id, phase) VALUES (0, $1, 7, $2, 'FAILED')",
        zombie.key.logical,
        uuid4(),
    )
    assert await doubts.redrive(await the_due(doubts), uuid4(), uuid4()) is not None
