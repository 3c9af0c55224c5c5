"""REC-7: a commit whose acknowledgement was lost is resolved by the row itself before anybody is answered."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from gateway.protocol.faults import StoreAway, StoreLost
from gateway.protocol.phases import Phase
from gateway.protocol.records import Registered
from gateway.store import intents, lines
from gateway.store.intents import IntentStore
from tests.faults import FaultProxy, Moment, batched
from tests.store.rows import Superuser, claim_of, claimed_intent, doubt_of, new_intent, settlement_of

REGISTER, CLAIM, SETTLE, DOUBT, READ = (
    batched(name) for name in ("register", "claim", "settle", "doubt", "read_by_key")
)
MOMENTS: tuple[Moment, ...] = ("before", "during", "after")


def refusals(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[OSError]:
    """Every connection that a line was refused from now on."""
    refused: asyncio.Queue[OSError] = asyncio.Queue()
    connect = lines.connect

    async def noting(*args: Any, **options: Any) -> Any:
        try:
            return await connect(*args, **options)
        except OSError as error:
            refused.put_nowait(error)
            raise

    monkeypatch.setattr(lines, "connect", noting)
    return refused


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_registration_cut_off_is_registered_once_under_its_own_id(
    cut_store: IntentStore, proxy: FaultProxy, superuser: Superuser, moment: Moment
) -> None:
    """REC-7, P1-3: whether it was carried out or not."""
    new = new_intent("c-1")
    fault = proxy.cut(moment, REGISTER)
    found = await cut_store.register(new)
    assert fault.happened.is_set()
    assert isinstance(found, Registered)
    assert found.server_correlation_id == new.server_correlation_id
    assert await superuser.value("SELECT ponr_deadline FROM intents") == found.ponr_deadline
    assert [await superuser.count(table) for table in ("intents", "payloads", "events")] == [1, 1, 1]


async def test_a_registration_is_found_when_its_re_reading_is_cut_off_too(
    cut_store: IntentStore, proxy: FaultProxy
) -> None:
    """REC-7: the chase itself may lose connections."""
    new = new_intent("c-1")
    faults = [proxy.cut("after", REGISTER), proxy.cut("after", REGISTER), proxy.cut("before", READ)]
    found = await cut_store.register(new)
    assert all(fault.happened.is_set() for fault in faults)
    assert isinstance(found, Registered)
    assert found.server_correlation_id == new.server_correlation_id


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_claim_cut_off_crosses_the_ponr_once_under_its_own_attempt(
    cut_store: IntentStore, proxy: FaultProxy, superuser: Superuser, moment: Moment
) -> None:
    """REC-7, P2-2: one attempt row, one PONR event, and the sealed request is handed out."""
    new = new_intent("c-1")
    await cut_store.register(new)
    claim = claim_of(new)
    fault = proxy.cut(moment, CLAIM)
    claimed = await cut_store.claim(claim)
    assert fault.happened.is_set()
    assert claimed is not None
    assert (claimed.attempt_id, claimed.fence) == (claim.attempt_id, 1)
    assert (claimed.target, claimed.payload) == (b"/orders?a=1", new.payload)
    assert await superuser.connection.fetch("SELECT attempt_id, holder FROM attempts") == [
        (claim.attempt_id, claim.holder)
    ]
    assert await superuser.events(new.key) == [("OBL-001", "WAITING_CONFIRM"), ("PONR", "PROCESSING")]


async def test_a_claim_that_still_runs_behind_a_lost_connection_is_waited_for(
    cut_store: IntentStore, proxy: FaultProxy, superuser: Superuser, fresh_database: str
) -> None:
    """REC-7: the second write queues behind the lost first one, which wins when it is let go."""
    new = new_intent("c-1")
    await cut_store.register(new)
    claim = claim_of(new)
    blocker = await asyncpg.connect(fresh_database)
    transaction = blocker.transaction()
    await transaction.start()
    await blocker.execute("SELECT FROM intents FOR UPDATE")
    fault = proxy.cut("during", CLAIM)
    claiming = asyncio.create_task(cut_store.claim(claim))
    await fault.happened.wait()
    await superuser.until_blocked(2)
    await transaction.rollback()
    await blocker.close()
    claimed = await claiming
    assert claimed is not None
    assert (claimed.attempt_id, claimed.fence) == (claim.attempt_id, 1)
    assert await superuser.count("attempts") == 1


async def test_a_claim_asked_for_again_finds_what_its_attempt_has_claimed(store: IntentStore) -> None:
    """REC-7: whoever was told StoreLost may ask again, much later, under the same attempt."""
    new = new_intent("c-1")
    await store.register(new)
    claim = claim_of(new)
    assert await store.claim(claim) == await store.claim(claim)
    assert await store.claim(claim_of(new)) is None


async def test_a_claim_of_its_own_that_was_taken_over_is_not_handed_out(
    store: IntentStore, superuser: Superuser
) -> None:
    """REC-1, REC-7: a rescuer has raised the fence; the old holder must not send."""
    new = new_intent("c-1")
    await store.register(new)
    claim = claim_of(new)
    assert await store.claim(claim) is not None
    await superuser.connection.execute("UPDATE intents SET fence = fence + 1")
    assert await store.claim(claim) is None
    await superuser.connection.execute("UPDATE intents SET fence = fence - 1")
    await superuser.connection.execute("UPDATE attempts SET holder = NULL, ended_at = now()")
    assert await store.claim(claim) is None


async def test_a_claim_won_by_another_attempt_is_none_after_a_cut(
    cut_store: IntentStore, proxy: FaultProxy, other: IntentStore
) -> None:
    """P2-2, REC-7: the chase never takes another's PONR for its own."""
    new = new_intent("c-1")
    await other.register(new)
    assert await other.claim(claim_of(new)) is not None
    proxy.cut("before", CLAIM)
    assert await cut_store.claim(claim_of(new)) is None


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_settlement_cut_off_is_true_when_asked_again_and_written_once(
    cut_store: IntentStore, proxy: FaultProxy, superuser: Superuser, moment: Moment
) -> None:
    """REC-7, P2-4: its caller repeats it until it is durable."""
    claimed = await claimed_intent(cut_store, "c-1")
    settlement = settlement_of(claimed)
    fault = proxy.cut(moment, SETTLE)
    with pytest.raises(StoreLost):
        await cut_store.settle(settlement)
    assert fault.happened.is_set()
    assert await cut_store.settle(settlement) is True
    assert await cut_store.settle(settlement) is True
    assert await superuser.events(claimed.key) == [
        ("OBL-001", "WAITING_CONFIRM"),
        ("PONR", "PROCESSING"),
        ("OBL-002", "COMMITTED"),
    ]
    assert await superuser.count("responses") == 1


async def test_another_outcome_of_the_same_attempt_is_not_taken_for_written(store: IntentStore) -> None:
    """REC-7: an acknowledged COMMITTED or FAILED never changes."""
    claimed = await claimed_intent(store, "c-1")
    assert await store.settle(settlement_of(claimed, Phase.FAILED)) is True
    assert await store.settle(settlement_of(claimed, Phase.COMMITTED)) is False


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_doubt_cut_off_is_written_once(
    cut_store: IntentStore, proxy: FaultProxy, superuser: Superuser, moment: Moment
) -> None:
    """REC-2, REC-7: held once, audited once, however often it is said."""
    claimed = await claimed_intent(cut_store, "c-1")
    proxy.cut(moment, DOUBT)
    with pytest.raises(StoreLost):
        await cut_store.doubt(doubt_of(claimed))
    assert await cut_store.doubt(doubt_of(claimed)) is True
    assert await superuser.count("in_doubt") == 1
    assert (await superuser.events(claimed.key))[2:] == [("IN_DOUBT", None)]


async def test_writes_of_many_callers_cut_in_one_batch_are_each_resolved(
    cut_store: IntentStore, proxy: FaultProxy, superuser: Superuser
) -> None:
    """REC-7: a batch is lost as a whole and found again row by row."""
    many = [new_intent(f"c-{number}") for number in range(50)]
    fault = proxy.cut("after", REGISTER)
    found = await asyncio.gather(*(cut_store.register(new) for new in many))
    assert fault.happened.is_set()
    assert [f.server_correlation_id for f in found if isinstance(f, Registered)] == [
        new.server_correlation_id for new in many
    ]
    assert await superuser.count("intents") == await superuser.count("payloads") == 50


async def test_a_claim_that_stays_unresolved_is_lost_and_never_none(
    cut_store: IntentStore, proxy: FaultProxy, superuser: Superuser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REC-7: the PONR may have been crossed; None would say that it was not."""
    monkeypatch.setattr(intents, "RESOLVE_FOR_S", 0.2)
    new = new_intent("c-1")
    await cut_store.register(new)
    claim = claim_of(new)
    fault = proxy.cut("after", CLAIM)
    claiming = asyncio.create_task(cut_store.claim(claim))
    await fault.happened.wait()
    await proxy.refuse()
    with pytest.raises(StoreLost):
        await claiming
    assert await superuser.phase(new.key) is Phase.PROCESSING
    await proxy.listen()
    claimed = await cut_store.claim(claim)
    assert claimed is not None
    assert claimed.attempt_id == claim.attempt_id


async def test_a_store_that_is_back_in_time_is_found_by_the_chase(
    cut_store: IntentStore, proxy: FaultProxy, superuser: Superuser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REC-7: refused connections in between do not end it: the first write may have been carried out."""
    refused = refusals(monkeypatch)
    new = new_intent("c-1")
    await cut_store.register(new)
    claim = claim_of(new)
    fault = proxy.cut("after", CLAIM)
    claiming = asyncio.create_task(cut_store.claim(claim))
    await fault.happened.wait()
    await proxy.refuse()
    await refused.get()
    await refused.get()
    await proxy.listen()
    claimed = await claiming
    assert claimed is not None
    assert claimed.attempt_id == claim.attempt_id
    assert await superuser.count("attempts") == 1


async def test_a_store_that_is_gone_is_away_at_once_and_nothing_is_written(
    cut_store: IntentStore, proxy: FaultProxy, superuser: Superuser
) -> None:
    """P1-3: a refused connection is certainly nothing done: StoreAway, and not lost."""
    await proxy.refuse()
    with pytest.raises(StoreAway) as refused:
        await cut_store.register(new_intent("c-1"))
    assert not isinstance(refused.value, StoreLost)
    assert await superuser.count("intents") == 0
    await proxy.listen()
    assert isinstance(await cut_store.register(new_intent("c-1")), Registered)


@pytest.mark.parametrize("connected", [False, True])
async def test_a_store_that_swallows_everything_is_away_within_bounded_time(
    cut_store: IntentStore, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, connected: bool
) -> None:
    """REC-9, P1-3: half-open connections neither hold a request for ever nor everything behind it."""
    monkeypatch.setattr(lines, "CONNECT_TIMEOUT_S", 0.1)
    monkeypatch.setattr(lines, "STATEMENT_TIMEOUT_S", 0.3)
    monkeypatch.setattr(intents, "RESOLVE_FOR_S", 0.2)
    if connected:
        await cut_store.register(new_intent("before"))
    proxy.swallow()
    async with asyncio.timeout(30):
        found = await asyncio.gather(
            *(cut_store.register(new_intent(f"c-{number}")) for number in range(600)), return_exceptions=True
        )
    assert {type(f) for f in found} <= {StoreAway, StoreLost}
    proxy.pass_on()
    assert isinstance(await cut_store.register(new_intent("after")), Registered)
