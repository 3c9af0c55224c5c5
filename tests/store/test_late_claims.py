"""Late confirmations with proof, in the store: one winner, one use of a nonce (RPL-3, REP-2, REC-7)."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from gateway.protocol.faults import NonceConsumed, StoreLost
from gateway.protocol.phases import Phase
from gateway.protocol.records import Claim, Claimed, NewIntent, Sealed
from gateway.store import intents
from gateway.store.intents import IntentStore
from gateway.store.lines import Line
from gateway.store.replay import SQL, ReplayStore
from gateway.store.sweeps import Retention, Sweeps
from tests.faults import FaultProxy, Moment, exactly
from tests.store.rows import AN_HOUR_MS, Superuser, claim_of, new_intent, opened, settlement_of

NONCE = b"n" * 32
LATE = exactly(SQL["claim_late"])
INSIDE_MS = AN_HOUR_MS + AN_HOUR_MS // 2  # past the deadline, before the deadline + delta


async def late_intent(store: IntentStore, superuser: Superuser, client_id: str = "c-1", **changes: Any) -> NewIntent:
    """Registered under REUSE and past its deadline; nobody has swept it yet."""
    new = new_intent(client_id, buckets=store.buckets, **({"replay_policy": "REUSE"} | changes))
    await store.register(new)
    await superuser.age(new.key, INSIDE_MS)
    return new


@pytest.fixture
def replays(store: IntentStore) -> ReplayStore:
    return ReplayStore(store)


@pytest.fixture
async def sweeps(fresh_database: str) -> Any:
    made = Sweeps(fresh_database, buckets=1, lease_ms=15_000)
    yield made
    await made.line.close()


@pytest.mark.parametrize("swept", [False, True])
async def test_a_late_claim_goes_through_ttl_expired_and_spends_its_nonce(
    store: IntentStore, replays: ReplayStore, sweeps: Sweeps, superuser: Superuser, swept: bool
) -> None:
    """RPL-3, FSM-1: the edge is TTL_EXPIRED -> PROCESSING, whether or not a sweep has written the first half."""
    new = await late_intent(store, superuser)
    if swept:
        assert await sweeps.expire() == 1
    claim = claim_of(new)
    assert await store.claim(claim) is None
    claimed = await replays.claim_late(claim, NONCE)
    assert claimed is not None
    assert (claimed.attempt_id, claimed.fence, claimed.payload) == (claim.attempt_id, 1, new.payload)
    assert await superuser.value("SELECT came_from::text FROM intents") == "TTL_EXPIRED"
    assert await superuser.events(new.key) == [
        ("OBL-001", "WAITING_CONFIRM"),
        ("OBL-004", "TTL_EXPIRED"),
        ("PONR", "PROCESSING"),
    ]
    spent = await superuser.connection.fetchrow("SELECT nonce, logical_key, attempt_id FROM nonces")
    assert tuple(spent) == (NONCE, new.key.logical, claim.attempt_id)
    assert await superuser.count("attempts") == 1
    assert await store.settle(settlement_of(claimed))
    assert await superuser.phase(new.key) is Phase.COMMITTED


@pytest.mark.parametrize(
    ("changes", "age_ms"),
    [
        ({"replay_policy": "REJECT"}, INSIDE_MS),
        ({}, 0),  # in time: the ordinary claim's
        ({}, 2 * AN_HOUR_MS),  # past delta
        ({"grace_ms": 0}, INSIDE_MS),
    ],
)
async def test_a_late_claim_is_for_reuse_inside_delta_alone(
    store: IntentStore, replays: ReplayStore, superuser: Superuser, changes: dict[str, Any], age_ms: int
) -> None:
    """RPL-3: on the database's clock, by the row's own policy; a nonce that authorized nothing is not spent."""
    new = new_intent("c-1", **({"replay_policy": "REUSE"} | changes))
    await store.register(new)
    await superuser.age(new.key, age_ms)
    assert await replays.claim_late(claim_of(new), NONCE) is None
    assert await superuser.phase(new.key) is Phase.WAITING_CONFIRM
    assert await superuser.count("nonces") == await superuser.count("attempts") == 0


async def test_another_intents_ids_claim_nothing(
    store: IntentStore, replays: ReplayStore, superuser: Superuser
) -> None:
    """P2-1, P2-7: pair and path are in the guard."""
    new = await late_intent(store, superuser)
    other = new_intent("c-2")
    assert await replays.claim_late(claim_of(new, path=b"/elsewhere"), NONCE) is None
    wrong = claim_of(new, server_correlation_id=other.server_correlation_id)
    assert await replays.claim_late(wrong, NONCE) is None


async def test_a_nonce_authorizes_once(store: IntentStore, replays: ReplayStore, superuser: Superuser) -> None:
    """RP-03, REP-2: for another intent it is consumed, and that intent is untouched."""
    first = await late_intent(store, superuser, "c-1")
    second = await late_intent(store, superuser, "c-2")
    assert await replays.claim_late(claim_of(first), NONCE) is not None
    with pytest.raises(NonceConsumed):
        await replays.claim_late(claim_of(second), NONCE)
    assert await superuser.phase(second.key) is Phase.WAITING_CONFIRM
    assert await superuser.events(second.key) == [("OBL-001", "WAITING_CONFIRM")]
    assert await superuser.count("nonces") == await superuser.count("attempts") == 1
    assert await replays.claim_late(claim_of(second), b"m" * 32) is not None


async def test_a_nonce_consumed_in_another_bucket_is_consumed(fresh_database: str, superuser: Superuser) -> None:
    """REP-2, decision 3: the primary key sees one bucket; the others are asked."""
    async with opened(fresh_database, buckets=16) as store:
        replays = ReplayStore(store)
        made: dict[int, NewIntent] = {}
        for number in range(100):
            new = new_intent(f"c-{number}", buckets=16, replay_policy="REUSE")
            made.setdefault(new.key.bucket, new)
        one, two = list(made.values())[:2]
        for new in (one, two):
            await store.register(new)
            await superuser.age(new.key, INSIDE_MS)
        claim = claim_of(one)
        claimed = await replays.claim_late(claim, NONCE)
        assert claimed is not None
        assert await replays.claim_late(claim, NONCE) == claimed  # REC-7: its own nonce is no obstacle
        with pytest.raises(NonceConsumed):
            await replays.claim_late(claim_of(two), NONCE)


async def test_of_many_late_claims_on_one_intent_one_wins(
    store: IntentStore, other: IntentStore, superuser: Superuser
) -> None:
    """RP-09, P2-2: two replicas, the same nonce and different ones."""
    new = await late_intent(store, superuser)
    replicas = [ReplayStore(store), ReplayStore(other)]
    found = await asyncio.gather(
        *(replicas[n % 2].claim_late(claim_of(new), NONCE if n % 3 else bytes([n]) * 32) for n in range(20)),
        return_exceptions=True,
    )
    assert sum(isinstance(one, Claimed) for one in found) == 1
    assert {type(one) for one in found} <= {Claimed, type(None)}
    assert await superuser.count("attempts") == await superuser.count("nonces") == 1


async def test_of_many_intents_with_one_nonce_one_wins(
    store: IntentStore, other: IntentStore, superuser: Superuser
) -> None:
    """REP-2: the race is decided by the primary key, not by who looked first."""
    many = [await late_intent(store, superuser, f"c-{n}") for n in range(10)]
    replicas = [ReplayStore(store), ReplayStore(other)]
    found = await asyncio.gather(
        *(replicas[n % 2].claim_late(claim_of(new), NONCE) for n, new in enumerate(many)), return_exceptions=True
    )
    assert sum(isinstance(one, Claimed) for one in found) == 1
    assert sum(isinstance(one, NonceConsumed) for one in found) == 9
    assert await superuser.count("attempts") == 1


async def test_a_late_claim_that_meets_the_sweeper_finds_the_intent_abandoned(
    store: IntentStore, replays: ReplayStore, superuser: Superuser, fresh_database: str
) -> None:
    """RPL-3, TTL-2: cleanup has happened, also when it ends while the claim waits for the row."""
    new = await late_intent(store, superuser)
    sweeper = await asyncpg.connect(fresh_database)
    async with sweeper.transaction():
        await sweeper.execute("UPDATE intents SET came_from = phase, phase = 'TTL_EXPIRED'")
        await sweeper.execute(
            "UPDATE intents SET came_from = phase, phase = 'ABANDONED', settled_at = now(), settled_by = 'expiry'"
        )
        claiming = asyncio.create_task(replays.claim_late(claim_of(new), NONCE))
        await superuser.until_blocked()
    assert await claiming is None
    assert await superuser.phase(new.key) is Phase.ABANDONED
    assert await superuser.count("nonces") == await superuser.count("attempts") == 0
    await sweeper.close()


async def test_the_sweeper_leaves_what_was_claimed_late(
    store: IntentStore, replays: ReplayStore, sweeps: Sweeps, superuser: Superuser
) -> None:
    """RPL-3, TTL-2: past delta, too: it runs, and needs its payload."""
    new = await late_intent(store, superuser)
    assert await replays.claim_late(claim_of(new), NONCE) is not None
    await superuser.age(new.key, AN_HOUR_MS)
    assert (await sweeps.expire(), await sweeps.abandon()) == (0, 0)
    assert await superuser.phase(new.key) is Phase.PROCESSING
    assert await superuser.count("payloads") == 1


async def test_asynchronous_work_is_queued_late_too(
    store: IntentStore, replays: ReplayStore, superuser: Superuser
) -> None:
    """ASY-1: the queue's row, with the credentials of the confirmation, and no attempt yet."""
    new = await late_intent(store, superuser, execution="async")
    claimed = await replays.claim_late(claim_of(new, credentials=Sealed(b"credentials", 1)), NONCE)
    assert claimed is not None
    assert await superuser.count("attempts") == 0
    assert await superuser.value("SELECT sealed FROM queue") == b"credentials"


@pytest.mark.parametrize("moment", ["before", "during", "after"])
async def test_a_late_claim_cut_off_is_found_again_and_spends_one_nonce(
    cut_store: IntentStore, proxy: FaultProxy, superuser: Superuser, moment: Moment
) -> None:
    """REC-7: carried out or not, asked again under the same attempt it is ours; its own nonce is no obstacle."""
    new = await late_intent(cut_store, superuser)
    fault = proxy.cut(moment, LATE)
    claim = claim_of(new)
    claimed = await ReplayStore(cut_store).claim_late(claim, NONCE)
    assert fault.happened.is_set()
    assert claimed is not None
    assert (claimed.attempt_id, claimed.fence) == (claim.attempt_id, 1)
    assert await superuser.count("nonces") == await superuser.count("attempts") == 1
    assert [code for code, _ in await superuser.events(new.key)] == ["OBL-001", "OBL-004", "PONR"]


async def test_a_late_claim_that_stays_unresolved_is_lost_and_never_none(
    cut_store: IntentStore, proxy: FaultProxy, superuser: Superuser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REC-7: the PONR may have been crossed; None would say that it was not."""
    monkeypatch.setattr(intents, "RESOLVE_FOR_S", 0.2)
    new = await late_intent(cut_store, superuser)
    claim: Claim = claim_of(new)
    replays = ReplayStore(cut_store)
    fault = proxy.cut("after", LATE)
    claiming = asyncio.create_task(replays.claim_late(claim, NONCE))
    await fault.happened.wait()
    await proxy.refuse()
    with pytest.raises(StoreLost):
        await claiming
    assert await superuser.phase(new.key) is Phase.PROCESSING
    await proxy.listen()
    found = await replays.claim_late(claim, NONCE)
    assert found is not None
    assert found.attempt_id == claim.attempt_id


async def test_a_nonce_is_forgotten_with_its_intent_and_not_before(
    store: IntentStore, replays: ReplayStore, superuser: Superuser, fresh_database: str
) -> None:
    """RP-08, RPL-4: staleness frees nothing; retention ends it, as the owner."""
    new = await late_intent(store, superuser)
    claimed = await replays.claim_late(claim_of(new), NONCE)
    assert claimed is not None
    await store.settle(settlement_of(claimed))
    retention = Retention(Line(fresh_database, role=None), buckets=1)
    assert await retention.retain() == 0
    assert await superuser.count("nonces") == 1
    await superuser.age(new.key, 3 * AN_HOUR_MS)
    assert await retention.retain() == 1
    assert await superuser.count("nonces") == await superuser.count("intents") == 0
    await retention._line.close()
