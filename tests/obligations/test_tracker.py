"""OBL-1, OBL-2: reserve, commit and roll back, each whole or not at all, whoever races for it."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import pytest

from gateway.protocol.faults import StoreAway
from gateway.protocol.obligations import PAYLOAD_BYTES_MAX, BadObligation, ObligationError, Settled
from gateway.store.lines import connect
from gateway.store.obligations import SQL
from tests.faults import FaultProxy, Moment, exactly
from tests.obligations.conftest import Clock
from tests.obligations.desk import Desk

CANARY = "the-canary-in-the-payload"
RACERS = 10


async def reserved(desk: Desk, key: str = "batch-1", **options: int) -> UUID:
    return await desk.made.reserve("publish", key, {"secret": CANARY}, "trace-1", **options)


async def code_of(call: object) -> str:
    with pytest.raises(ObligationError) as caught:
        await call  # type: ignore[misc]
    return caught.value.code


async def test_a_reservation_is_durable_audited_and_sealed(desk: Desk, clock: Clock) -> None:
    """OBL-1, SEC-4: state, event OBL-001 and a payload that nobody without the key can read."""
    made = await reserved(desk)
    assert await clock.state(made) == "Reserved"
    assert await clock.codes(made) == ["OBL-001"]
    row = await clock.connection.fetchrow("SELECT o::text AS row, sealed FROM obligations o")
    event = await clock.connection.fetchval("SELECT e::text FROM obligation_events e")
    assert row is not None
    assert CANARY not in row["row"] + event
    assert CANARY.encode() not in row["sealed"]
    found = await desk.lists.obligation(made)
    assert found is not None
    assert found[1] is not None
    assert desk.made.reveal(made, found[1]) == {"secret": CANARY}


@pytest.mark.parametrize(
    ("settle", "state", "code"), [("commit", "Committed", "OBL-002"), ("rollback", "RolledBack", "OBL-003")]
)
async def test_what_is_settled_has_its_event_and_no_payload_any_more(
    desk: Desk, clock: Clock, settle: str, state: str, code: str
) -> None:
    """OBL-1: with the trace of who settled it."""
    made = await reserved(desk)
    assert await getattr(desk.made, settle)(made, "trace-2", by="ops") == Settled(made, state)  # type: ignore[arg-type]
    assert await clock.state(made) == state
    assert await clock.codes(made) == ["OBL-001", code]
    last = await clock.connection.fetchrow("SELECT trace_id, by FROM obligation_events ORDER BY id DESC LIMIT 1")
    assert tuple(last) == ("trace-2", "ops")  # type: ignore[arg-type]
    assert await clock.connection.fetchval("SELECT count(sealed) FROM obligations") == 0


async def test_every_wrong_step_has_its_code_and_changes_nothing(desk: Desk, clock: Clock) -> None:
    """OBL-2."""
    tracker = desk.made
    done, undone = await reserved(desk, "done"), await reserved(desk, "undone")
    await tracker.commit(done)
    await tracker.rollback(undone)
    assert await code_of(tracker.commit(done)) == "ERR_OBL_ALREADY_COMMITTED"
    assert await code_of(tracker.rollback(done)) == "ERR_OBL_ALREADY_COMMITTED"
    assert await code_of(tracker.commit(undone)) == "ERR_OBL_ALREADY_ROLLED_BACK"
    assert await tracker.rollback(undone) == Settled(undone, "RolledBack", "ERR_OBL_ALREADY_ROLLED_BACK")
    assert await code_of(tracker.commit(uuid4())) == "ERR_OBL_NOT_FOUND"
    assert await code_of(tracker.rollback(uuid4())) == "ERR_OBL_NOT_FOUND"
    assert (await clock.codes(done), await clock.codes(undone)) == (["OBL-001", "OBL-002"], ["OBL-001", "OBL-003"])


async def test_a_key_is_taken_while_reserved_or_committed_and_free_after_a_rollback(desk: Desk, peer: Desk) -> None:
    """OBL-3; another flow's key is another key."""
    first = await reserved(desk)
    with pytest.raises(ObligationError) as caught:
        await reserved(peer)
    assert (caught.value.code, caught.value.obligation) == ("ERR_OBL_DUPLICATE_RESERVE", first)
    await peer.made.reserve("revoke", "batch-1", None, "trace-1")
    await desk.made.rollback(first)
    second = await reserved(peer)
    await peer.made.commit(second)
    assert await code_of(reserved(desk)) == "ERR_OBL_DUPLICATE_RESERVE"


async def test_of_many_reservations_of_one_key_one_succeeds(desk: Desk, peer: Desk, clock: Clock) -> None:
    """OBL-3: also from two replicas at once."""
    results = await asyncio.gather(*(reserved(each) for each in (desk, peer) * RACERS), return_exceptions=True)
    won = [each for each in results if isinstance(each, UUID)]
    lost = {each.code for each in results if isinstance(each, ObligationError)}
    assert (len(won), lost, len(results)) == (1, {"ERR_OBL_DUPLICATE_RESERVE"}, 2 * RACERS)
    assert await clock.connection.fetchval("SELECT count(*) FROM obligation_events") == 1


async def test_of_commits_rollbacks_and_the_leak_scan_one_wins(desk: Desk, peer: Desk, clock: Clock) -> None:
    """OBL-1, INV-OBL-ATOMIC-COMMIT: exactly one event after the reservation, and everybody hears the same story."""
    for number in range(RACERS):
        made = await reserved(desk, f"batch-{number}")
        if number % 2:
            await clock.pass_over(made)
        first, second = (desk, peer) if number % 4 < 2 else (peer, desk)
        committed, rolled_back, *_ = await asyncio.gather(
            first.made.commit(made),
            second.made.rollback(made),
            desk.book.take_back(),
            peer.book.take_back(),
            return_exceptions=True,
        )
        state, codes = await clock.state(made), (await clock.codes(made))[1:]
        assert codes in (["OBL-002"], ["OBL-003"], ["OBL-004", "OBL-003"])
        assert (state == "Committed") == (codes == ["OBL-002"]) == isinstance(committed, Settled)
        assert isinstance(rolled_back, Settled) == (state == "RolledBack")
        if codes[0] == "OBL-004":
            assert isinstance(committed, ObligationError)
            assert committed.code == "ERR_OBL_LEAK_TIMEOUT"


@pytest.mark.parametrize("settle", ["commit", "rollback"])
async def test_of_many_calls_that_settle_one_obligation_one_leaves_its_event(
    desk: Desk, peer: Desk, clock: Clock, settle: str
) -> None:
    """OBL-2: two commits; two rollbacks."""
    made = await reserved(desk)
    calls = [getattr(each.made, settle)(made) for each in (desk, peer) * RACERS]
    results = await asyncio.gather(*calls, return_exceptions=True)
    changed = [each for each in results if isinstance(each, Settled) and each.code is None]
    assert len(changed) == 1
    assert len(await clock.codes(made)) == 2


@pytest.mark.parametrize("moment", ["before", "during", "after"])
@pytest.mark.parametrize("statement", ["reserve", "commit", "rollback"])
async def test_a_lost_acknowledgement_is_resolved_by_the_row(
    fresh_database: str, proxy: FaultProxy, clock: Clock, statement: str, moment: Moment
) -> None:
    """REC-7: whether it was carried out or not, once, and with the answer that belongs to it."""
    desk = Desk(proxy.url)
    try:
        fault = proxy.cut(moment, exactly(SQL[statement]))
        made = await reserved(desk)
        if statement != "reserve":
            settled = await getattr(desk.made, statement)(made)
            assert settled.code is None
        assert fault.happened.is_set()
        assert len(await clock.codes(made)) == (1 if statement == "reserve" else 2)
        assert await clock.connection.fetchval("SELECT count(*) FROM obligations") == 1
    finally:
        await desk.close()


async def test_without_a_store_nothing_is_reserved(proxy: FaultProxy) -> None:
    desk = Desk(proxy.url)
    await proxy.refuse()
    with pytest.raises(StoreAway):
        await reserved(desk)
    await desk.close()


@pytest.mark.parametrize(
    ("flow", "key", "trace_id", "payload", "member"),
    [
        ("", "k", "t", None, "flow"),
        ("a flow", "k", "t", None, "flow"),
        ("f" * 64, "k", "t", None, "flow"),
        ("f", "", "t", None, "key"),
        ("f", "k\n", "t", None, "key"),
        ("f", "k" * 256, "t", None, "key"),
        ("f", 7, "t", None, "key"),
        ("f", "k", "", None, "trace_id"),
        ("f", "k", "t" * 256, None, "trace_id"),
        ("f", "k", "t", "x" * PAYLOAD_BYTES_MAX, "payload"),
        ("f", "k", "t", object(), "payload"),
    ],
)
async def test_what_is_no_reservation_is_refused_before_anything_is_written(
    desk: Desk, clock: Clock, flow: str, key: str, trace_id: str, payload: object, member: str
) -> None:
    with pytest.raises(BadObligation) as caught:
        await desk.made.reserve(flow, key, payload, trace_id)
    assert caught.value.member == member
    assert await clock.connection.fetchval("SELECT count(*) FROM obligations") == 0


FORBIDDEN = [
    *(
        f"UPDATE obligations SET {column} = {column}"
        for column in ("bucket", "id", "flow", "key", "trace_id", "reserved_by", "own", "reserved_at", "payload_sha256")
    ),
    "DELETE FROM obligations",
    "TRUNCATE obligations",
    *(f"UPDATE obligation_events SET {column} = {column}" for column in ("at", "code", "trace_id", "by", "detail")),
    "DELETE FROM obligation_events",
    "TRUNCATE obligation_events",
    "DELETE FROM leak_scans",
    "INSERT INTO leak_scans (name) VALUES ('mine')",
]


@pytest.mark.parametrize("statement", FORBIDDEN)
async def test_the_request_role_may_not_rewrite_obligations_or_their_audit(fresh_database: str, statement: str) -> None:
    """REP-6, INV-OBL-AUDIT-COMPLETE: append-only in the database itself."""
    connection = await connect(fresh_database)
    try:
        with pytest.raises(Exception, match="permission denied"):
            await connection.execute(statement)
    finally:
        await connection.close()
