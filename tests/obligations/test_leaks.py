"""OBL-3: what nobody settled in time is taken back, on the database's clock, whoever scans."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from gateway.obligations import LeakScan
from gateway.protocol.obligations import ObligationError, Settled
from gateway.store import obligations
from gateway.store.lines import Line
from tests.obligations.conftest import Clock
from tests.obligations.desk import Desk

OWN_LEASE_MS = 60_000


async def reserved(desk: Desk, key: str = "batch-1", lease_ms: int | None = None) -> UUID:
    return await desk.made.reserve("publish", key, None, "trace-1", lease_ms=lease_ms)


async def test_a_scan_takes_back_what_leaked_and_nothing_else(desk: Desk, clock: Clock) -> None:
    """OBL-3: OBL-004 for the leak, OBL-003 for the rollback; the key is free again."""
    leaked, fresh, done = [await reserved(desk, key) for key in ("leaked", "fresh", "done")]
    await desk.made.commit(done)
    await clock.pass_over(leaked)
    await clock.pass_over(done)
    assert await desk.book.take_back() == 1
    assert [await clock.state(each) for each in (leaked, fresh, done)] == ["RolledBack", "Reserved", "Committed"]
    assert await clock.codes(leaked) == ["OBL-001", "OBL-004", "OBL-003"]
    await reserved(desk, "leaked")
    assert await desk.book.take_back() == 0


async def test_committing_what_leaked_is_refused_before_and_after_the_scan(desk: Desk, clock: Clock) -> None:
    """OBL-2: the deadline decides, not who comes first; rolling it back is fine at any time."""
    made = await reserved(desk)
    await clock.pass_over(made)
    for _ in range(2):
        with pytest.raises(ObligationError, match="ERR_OBL_LEAK_TIMEOUT"):
            await desk.made.commit(made)
        await desk.book.take_back()
    assert await desk.made.rollback(made) == Settled(made, "RolledBack", "ERR_OBL_ALREADY_ROLLED_BACK")
    late = await reserved(desk, "late")
    await clock.pass_over(late)
    assert await desk.made.rollback(late) == Settled(late, "RolledBack")


async def test_a_reservation_leaks_after_the_configured_time(fresh_database: str, clock: Clock) -> None:
    """OBL-3: `leak_timeout` from the reservation on; for the gateway's own, after their lease."""
    desk = Desk(fresh_database, leak_timeout_ms=5_000)
    await reserved(desk, "theirs")
    await reserved(desk, "ours", OWN_LEASE_MS)
    rows = await clock.connection.fetch("SELECT leaks_at - reserved_at AS span FROM obligations ORDER BY reserved_at")
    assert [row["span"].total_seconds() for row in rows] == [5, 65]
    await desk.close()


async def test_the_gateways_own_move_on_with_their_lease(desk: Desk, clock: Clock) -> None:
    """OBL-3: renewed while Reserved, and never once taken back; those of others are not renewed."""
    ours, theirs = await reserved(desk, "ours", OWN_LEASE_MS), await reserved(desk, "theirs")
    before = await clock.connection.fetchval("SELECT leaks_at FROM obligations WHERE id = $1", ours)
    assert await desk.made.renew(ours, 2 * OWN_LEASE_MS)
    assert await clock.connection.fetchval("SELECT leaks_at FROM obligations WHERE id = $1", ours) > before
    assert not await desk.made.renew(theirs, OWN_LEASE_MS)
    await clock.pass_over(ours)
    assert not await desk.made.renew(ours, OWN_LEASE_MS)


async def test_scans_of_several_replicas_share_the_leaks(
    desk: Desk, peer: Desk, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OBL-3: each is taken back once."""
    monkeypatch.setattr(obligations, "ROWS_MAX", 3)
    made = [await reserved(desk, f"batch-{number}") for number in range(20)]
    for each in made:
        await clock.pass_over(each)
    counts = await asyncio.gather(desk.book.take_back(), peer.book.take_back(), desk.book.take_back())
    assert sum(counts) == len(made)
    assert {tuple(await clock.codes(each)) for each in made} == {("OBL-001", "OBL-004", "OBL-003")}


async def test_a_scan_waits_for_nobody_and_a_commit_being_written_comes_first(desk: Desk, clock: Clock) -> None:
    """OBL-3: a row that somebody else has locked is passed over."""
    made = await reserved(desk)
    await clock.pass_over(made)
    async with clock.connection.transaction():
        await clock.connection.execute("SELECT FROM obligations WHERE id = $1 FOR UPDATE", made)
        assert await desk.book.take_back() == 0
    assert await desk.book.take_back() == 1


async def test_every_scan_is_counted_and_one_that_found_something_leaves_an_event(desk: Desk, clock: Clock) -> None:
    """OBL-005: the last scan's time and counts; an idle gateway's audit trail does not grow."""
    scans, leaked = [], []
    scan = LeakScan(desk.book, lambda: scans.append(1), leaked.append)
    assert (await desk.last_scan()).completed_at is None
    await scan.run_once()
    await scan.run_once()
    assert await clock.connection.fetchval("SELECT count(*) FROM obligation_events") == 0
    made = await reserved(desk)
    await clock.pass_over(made)
    assert await scan.run_once() == 1
    last = await desk.last_scan()
    assert (last.leaked, last.scans_total, last.leaked_total) == (1, 3, 1)
    assert last.completed_at is not None
    assert (len(scans), leaked) == (3, [1])
    page = await desk.lists.events(after=None, limit=100)
    assert [(row["code"], row["obligation"]) for row in page.rows][-1] == ("OBL-005", None)
    assert page.rows[-1]["detail"] == {"leaked": 1}


async def test_what_the_gateway_settled_long_ago_is_forgotten_and_what_others_did_is_not(
    fresh_database: str, desk: Desk, clock: Clock
) -> None:
    """Batches come every few seconds; a key that somebody committed stays consumed."""
    ours, theirs, recent = (
        await reserved(desk, "ours", OWN_LEASE_MS),
        await reserved(desk, "theirs"),
        await reserved(desk, "recent", OWN_LEASE_MS),
    )
    for each in (ours, theirs, recent):
        await desk.made.commit(each)
    await clock.connection.execute(
        "UPDATE obligations SET settled_at = now() - interval '8 days' WHERE id <> $1", recent
    )
    owner = Line(fresh_database, role=None)
    assert await obligations.forget_own(owner, buckets=1) == 1
    await owner.close()
    rows = await clock.connection.fetch("SELECT key FROM obligations ORDER BY key")
    assert [row["key"] for row in rows] == ["recent", "theirs"]
    assert await clock.codes(ours) == []
