"""REC-1, REC-2: what becomes of a doubt is one guarded statement each: one winner, whoever races."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from gateway.protocol.phases import Phase
from gateway.protocol.records import Doubted, Sealed
from gateway.store import recovery
from gateway.store.intents import IntentStore
from gateway.store.queue import QueueStore
from gateway.store.recovery import RecoveryStore
from gateway.store.sweeps import Rescued, Sweeps
from gateway.store.verdicts import Verdict, Verdicts
from tests.faults import FaultProxy, exactly
from tests.store.doubts import CLAIM_MS, COMMITTED, FAILED, in_doubt, rescued, server_id, the_due
from tests.store.rows import SERVICE, Superuser, claimed_intent, doubt_of, settlement_of


async def test_every_doubt_is_due_at_once_and_one_alone_gets_it(
    store: IntentStore, doubts: RecoveryStore, others: RecoveryStore
) -> None:
    """REC-2: the one that an attempt wrote; nobody else's while the claim lasts."""
    claimed = await in_doubt(store)
    found = await the_due(doubts)
    assert (found.key, found.fence, found.tries, found.sends) == (claimed.key, 1, 1, 1)
    assert (found.payload_kept, found.proven, found.asked) == (True, False, 0)
    assert await others.due(10, CLAIM_MS) == []


async def test_a_rescued_intent_is_due_at_once_too(
    store: IntentStore, doubts: RecoveryStore, superuser: Superuser, fresh_database: str
) -> None:
    """REC-1: whether anything was sent is not known; nothing of it was sent after the rescue."""
    await rescued(store, superuser, fresh_database)
    found = await the_due(doubts)
    assert (found.fence, found.sends) == (2, 1)
    assert found.ended_at is not None
    assert found.ended_at <= found.read_at


async def test_claims_racing_share_the_doubts(store: IntentStore, doubts: RecoveryStore, others: RecoveryStore) -> None:
    """REC-2: each doubt is looked at by one."""
    await asyncio.gather(*(in_doubt(store, f"c-{number}") for number in range(40)))
    shares = await asyncio.gather(*(side.due(7, CLAIM_MS) for side in (doubts, others) * 4))
    keys = [found.key for share in shares for found in share]
    assert len(keys) == len(set(keys)) == 40


async def test_a_claim_that_nobody_used_comes_again(
    store: IntentStore, doubts: RecoveryStore, others: RecoveryStore
) -> None:
    """REC-1: its worker died."""
    await in_doubt(store)
    assert len(await doubts.due(10, 0)) == 1
    assert len(await others.due(10, CLAIM_MS)) == 1


async def test_another_services_doubts_are_not_ours(fresh_database: str, store: IntentStore) -> None:
    """A store may serve several services, each with an upstream of its own."""
    await in_doubt(store)
    stranger = RecoveryStore(fresh_database, service="stock", buckets=1)
    assert await stranger.due(10, CLAIM_MS) == []
    await stranger.line.close()


async def test_what_is_held_is_not_due_and_says_why(
    store: IntentStore, doubts: RecoveryStore, superuser: Superuser
) -> None:
    """REC-2: an event only where it is not simply the route's policy."""
    plain, spent = await in_doubt(store, "c-1"), await in_doubt(store, "c-2")
    for found in await doubts.due(10, 0):
        await doubts.hold(found, "used up", news=found.key == spent.key)
    assert await doubts.due(10, CLAIM_MS) == []
    assert await superuser.value("SELECT count(*) FROM in_doubt WHERE held = 'used up' AND next_at IS NULL") == 2
    assert [code for code, _ in await superuser.events(spent.key)] == ["OBL-001", "PONR", "IN_DOUBT", "HELD"]
    assert [code for code, _ in await superuser.events(plain.key)] == ["OBL-001", "PONR", "IN_DOUBT"]


async def test_a_redrive_is_the_next_attempt_under_a_higher_fence(
    store: IntentStore, doubts: RecoveryStore, superuser: Superuser
) -> None:
    """REC-2, REC-3: the doubt is over while it runs; its outcome settles the intent and erases the payload."""
    first = await in_doubt(store)
    attempt_id, holder = uuid4(), uuid4()
    taken = await doubts.redrive(await the_due(doubts), attempt_id, holder)
    assert taken is not None
    again = taken.claimed
    assert (again.attempt_id, again.fence, again.holder) == (attempt_id, 2, holder)
    assert (again.method, again.target, again.payload) == (first.method, first.target, first.payload)
    assert await superuser.count("in_doubt") == 0
    rows = await superuser.connection.fetch("SELECT number, attempt_id, fence, holder FROM attempts ORDER BY number")
    assert [tuple(row) for row in rows] == [(1, first.attempt_id, 1, None), (2, attempt_id, 2, holder)]
    assert await store.settle(settlement_of(first)) is False
    assert await store.settle(settlement_of(again)) is True
    assert await superuser.count("payloads") == 0
    assert [code for code, _ in await superuser.events(first.key)][2:] == ["IN_DOUBT", "REDRIVE", "OBL-002"]


async def test_redrives_racing_have_one_winner(
    store: IntentStore, doubts: RecoveryStore, others: RecoveryStore, superuser: Superuser
) -> None:
    """REC-2: requests per intent and attempt: one."""
    for number in range(10):
        await in_doubt(store, f"c-{number}")
    claims = await doubts.due(10, CLAIM_MS)
    taken = await asyncio.gather(
        *(side.redrive(found, uuid4(), uuid4()) for found in claims for side in (doubts, others))
    )
    assert sum(one is not None for one in taken) == 10
    assert await superuser.value("SELECT count(*) FROM attempts WHERE number = 2") == 10
    assert await superuser.value("SELECT max(number) FROM attempts") == 2


async def test_whose_claim_ran_out_redrives_nothing_and_holds_nothing(
    store: IntentStore, doubts: RecoveryStore, others: RecoveryStore, superuser: Superuser
) -> None:
    """REC-1: another looks at it now; what was decided under the old claim is void."""
    await in_doubt(store)
    (stale,) = await doubts.due(10, 0)
    fresh = await the_due(others)
    assert await doubts.redrive(stale, uuid4(), uuid4()) is None
    assert await doubts.postpone(stale, 0) is None
    await doubts.hold(stale, "used up", news=True)
    assert await superuser.value("SELECT held FROM in_doubt") is None
    assert await others.redrive(fresh, uuid4(), uuid4()) is not None


async def test_a_redrive_that_ends_without_an_answer_is_in_doubt_again(
    store: IntentStore, doubts: RecoveryStore
) -> None:
    """REC-2: counted; one that was never sent is not."""
    await in_doubt(store)
    taken = await doubts.redrive(await the_due(doubts), uuid4(), uuid4())
    assert taken is not None
    unsent = doubt_of(taken.claimed)
    unsent.sent = False
    assert await store.doubt(unsent)
    found = await the_due(doubts)
    assert (found.tries, found.sends, found.fence) == (2, 1, 2)
    taken = await doubts.redrive(found, uuid4(), uuid4())
    assert taken is not None
    assert await store.doubt(doubt_of(taken.claimed))
    found = await the_due(doubts)
    assert (found.tries, found.sends, found.fence) == (3, 2, 3)


async def test_a_recoverer_that_dies_in_a_redrive_is_rescued_like_any_other(
    store: IntentStore, doubts: RecoveryStore, superuser: Superuser, fresh_database: str
) -> None:
    """REC-1."""
    await in_doubt(store)
    holder = uuid4()
    await superuser.connection.execute(
        "INSERT INTO holders (holder, lease_until) VALUES ($1, now() - interval '1 second')", holder
    )
    assert await doubts.redrive(await the_due(doubts), uuid4(), holder) is not None
    sweeps = Sweeps(fresh_database, buckets=1, lease_ms=1)
    assert await sweeps.rescue() == Rescued(ended=1, in_doubt=1)
    await sweeps.line.close()
    found = await the_due(doubts)
    assert (found.tries, found.sends, found.fence) == (2, 2, 3)


async def test_a_payload_that_was_not_kept_is_never_redriven(
    store: IntentStore, doubts: RecoveryStore, superuser: Superuser
) -> None:
    """REC-2: there are no bytes to send."""
    await in_doubt(store)
    await superuser.connection.execute("DELETE FROM payloads")
    found = await the_due(doubts)
    assert found.payload_kept is False
    assert await doubts.redrive(found, uuid4(), uuid4()) is None
    assert await superuser.count("in_doubt") == 1


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_redrive_whose_acknowledgement_was_lost_is_found_again(
    proxy: FaultProxy, store: IntentStore, superuser: Superuser, when: str
) -> None:
    """REC-7: begun once, under one attempt id, whichever side of the commit was cut."""
    await in_doubt(store)
    cut = RecoveryStore(proxy.url, service=SERVICE, buckets=1)
    found = await the_due(cut)
    attempt_id, holder = uuid4(), uuid4()
    proxy.cut(when, exactly(recovery.SQL["redrive"]))  # type: ignore[arg-type]
    taken = await cut.redrive(found, attempt_id, holder)
    assert taken is not None
    assert taken.claimed.attempt_id == attempt_id
    assert await superuser.value("SELECT count(*) FROM attempts WHERE number = 2") == 1
    assert await superuser.value("SELECT max(number) FROM attempts") == 2
    await cut.line.close()


async def test_the_queue_never_takes_a_redrive_for_its_own(
    store: IntentStore, doubts: RecoveryStore, fresh_database: str
) -> None:
    """REC-7: what a worker holds after a lost `take` is its first attempts alone; a repeat runs once."""
    queue = QueueStore(fresh_database, service=SERVICE, buckets=1)
    await claimed_intent(store, "c-1", execution="async")
    holder = uuid4()
    (taken,) = await queue.take(holder, 1)
    assert len(await queue.held(holder)) == 1
    assert await store.doubt(doubt_of(taken.claimed))
    assert await doubts.redrive(await the_due(doubts), uuid4(), holder) is not None
    assert await queue.held(holder) == []
    await queue.line.close()


async def test_credentials_of_the_confirmation_come_back_with_a_redrive(
    store: IntentStore, doubts: RecoveryStore, superuser: Superuser
) -> None:
    """P2-3: and are erased with the payload."""
    claimed = await claimed_intent(store, "c-1")
    await doubts.keep_credentials(claimed.key, Sealed(b"sealed credentials", 1))
    assert await store.doubt(doubt_of(claimed))
    assert await doubts.payload(claimed.key) == (claimed.payload, Sealed(b"sealed credentials", 1))
    taken = await doubts.redrive(await the_due(doubts), uuid4(), uuid4())
    assert taken is not None
    assert taken.credentials == Sealed(b"sealed credentials", 1)
    await store.settle(settlement_of(taken.claimed))
    assert await superuser.count("payloads") == 0


# --- probes and verdicts


async def probed(doubts: RecoveryStore, found: Doubted, phase: Phase = Phase.COMMITTED) -> bool:
    return await doubts.settle_probed(found, phase, "17", "asked", {"settled_by": "probe"})


async def test_a_probe_settles_under_the_fence_it_looked_at(
    store: IntentStore, doubts: RecoveryStore, superuser: Superuser
) -> None:
    """REC-2, REC-6: once; not after a redrive has begun."""
    claimed = await in_doubt(store)
    found = await the_due(doubts)
    assert await probed(doubts, found) is True
    assert await probed(doubts, found, Phase.FAILED) is False
    row = await superuser.connection.fetchrow("SELECT phase::text, settled_by, resource_id, message FROM intents")
    assert row == ("COMMITTED", "probe", "17", "asked")
    assert (await superuser.count("in_doubt"), await superuser.count("payloads")) == (0, 0)
    assert (await superuser.events(claimed.key))[-1] == ("OBL-002", "COMMITTED")
    await in_doubt(store, "c-2")
    found = await the_due(doubts)
    taken = await doubts.redrive(found, uuid4(), uuid4())
    assert taken is not None
    assert await probed(doubts, found) is False
    assert await store.doubt(doubt_of(taken.claimed))  # in doubt again, and no longer the doubt that was asked about
    assert await probed(doubts, found, Phase.FAILED) is False


@pytest.mark.parametrize("verdict", [COMMITTED, FAILED], ids=["committed", "failed"])
async def test_a_verdict_settles_exactly_once_and_is_audited(
    store: IntentStore, verdicts: Verdicts, superuser: Superuser, verdict: Verdict
) -> None:
    """REC-2: who, what and why, the refused second one too."""
    claimed = await in_doubt(store)
    intent = await server_id(superuser, claimed)
    first = await verdicts.resolve(intent, verdict)
    assert first is not None
    assert first[0] is True
    second = await verdicts.resolve(intent, COMMITTED)
    assert second is not None
    assert (second[0], second[1].phase, second[1].settled_by) == (False, verdict.phase, "verdict:ops")
    assert await superuser.phase(claimed.key) is verdict.phase
    details = await superuser.connection.fetch("SELECT code, detail->>'reason' FROM events ORDER BY id DESC LIMIT 2")
    code = "OBL-002" if verdict is COMMITTED else "OBL-003"
    assert [tuple(row) for row in details] == [("VERDICT_REFUSED", COMMITTED.reason), (code, verdict.reason)]


@pytest.mark.parametrize("state", ["waiting", "running", "settled"])
async def test_a_verdict_on_what_is_not_in_doubt_changes_nothing(
    store: IntentStore, verdicts: Verdicts, superuser: Superuser, state: str
) -> None:
    """REC-2: FSM-1."""
    claimed = await claimed_intent(store, "c-1")
    if state == "settled":
        await store.settle(settlement_of(claimed))
    if state == "waiting":
        await superuser.connection.execute(
            "UPDATE intents SET phase = 'WAITING_CONFIRM', came_from = NULL, phase_2_timestamp = NULL, fence = 0,"
            " attempt_id = NULL"
        )
    before = await superuser.phase(claimed.key)
    found = await verdicts.resolve(await server_id(superuser, claimed), FAILED)
    assert found is not None
    assert found[0] is False
    assert await superuser.phase(claimed.key) is before
    assert await verdicts.resolve(uuid4(), FAILED) is None


async def test_verdicts_redrives_and_probes_racing_have_one_winner(
    store: IntentStore, doubts: RecoveryStore, others: RecoveryStore, verdicts: Verdicts, superuser: Superuser
) -> None:
    """REC-2: either settled once, or sent once more with nothing settled."""
    claimed = [await in_doubt(store, f"c-{number}") for number in range(20)]
    ids = {one.key: await server_id(superuser, one) for one in claimed}
    for found in await doubts.due(20, CLAIM_MS):
        redriven, told, ruled = await asyncio.gather(
            doubts.redrive(found, uuid4(), uuid4()), probed(others, found), verdicts.resolve(ids[found.key], FAILED)
        )
        assert ruled is not None
        assert [redriven is not None, told, ruled[0]].count(True) == 1
        phase = await superuser.phase(found.key)
        assert phase is (Phase.PROCESSING if redriven else Phase.COMMITTED if told else Phase.FAILED)
        assert await superuser.count("in_doubt", found.key) == 0


async def test_a_verdict_that_waited_for_a_redrive_finds_no_doubt(
    store: IntentStore, verdicts: Verdicts, superuser: Superuser, fresh_database: str
) -> None:
    """REC-2: read committed looks again after a lock: the doubt that it saw is gone."""
    claimed = await in_doubt(store)
    intent = await server_id(superuser, claimed)
    redriver: asyncpg.Connection[Any] = await asyncpg.connect(fresh_database)
    token = await superuser.value("SELECT next_at FROM in_doubt")
    transaction = redriver.transaction()
    await transaction.start()
    rows = await redriver.fetch(recovery.SQL["redrive"], *claimed.key, 1, token, uuid4(), uuid4())
    assert len(rows) == 1
    ruling = asyncio.create_task(verdicts.resolve(intent, FAILED))
    await superuser.until_blocked()
    await transaction.commit()
    await redriver.close()
    found = await ruling
    assert found is not None
    assert found[0] is False
    assert await superuser.phase(claimed.key) is Phase.PROCESSING


async def test_a_verification_counts_what_was_asked_and_nothing_else(store: IntentStore, doubts: RecoveryStore) -> None:
    """REC-5: looked at again without a question, it has as many tries before it as before."""
    claimed = await claimed_intent(store, "c-1")
    await store.settle(settlement_of(claimed, verify=Sealed(b"sealed question", 1)))
    counts = []
    for asked in (0, 1, 0):
        (verification,) = await doubts.due_verifications(10, CLAIM_MS)
        counts.append(verification.asked)
        await doubts.verify_later(verification, 0, asked=asked)
    (verification,) = await doubts.due_verifications(10, CLAIM_MS)
    assert [*counts, verification.asked] == [0, 0, 1, 1]
