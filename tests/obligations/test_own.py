"""OBL-4: the gateway's own side effects are obligations, in the rows that they have anyway."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

from gateway.background.dispatcher import Dispatched
from gateway.store.leases import Lease
from gateway.store.lines import Line
from gateway.store.migrate import available
from gateway.store.sweeps import Sweeps
from tests.delivery.office import Outbox
from tests.delivery.receiver import Receiver, answer
from tests.obligations.conftest import Clock
from tests.obligations.desk import Desk

LEASE_MS = 15_000


@pytest.fixture
async def outbox(fresh_database: str) -> AsyncIterator[Outbox]:
    opened = await Outbox.open(fresh_database)
    yield opened
    await opened.close()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    started = await Receiver().start()
    yield started
    await started.stop()


async def listed(desk: Desk, flow: str | None, **wanted: Any) -> list[dict[str, Any]]:
    page = await desk.lists.obligations(**{"state": None, "after": None, "limit": 100, "flow": flow, **wanted})
    return page.rows


async def codes(desk: Desk, item: dict[str, Any]) -> list[str]:
    found = await desk.lists.obligation(UUID(item["id"]))
    assert found is not None
    return [event["code"] for event in found[0]["events"]]


async def test_a_delivery_is_reserved_until_it_is_acknowledged_or_given_up(
    desk: Desk, outbox: Outbox, receiver: Receiver
) -> None:
    """OBL-4: pending, delivered and dead, each with its events; a dead one is in quarantine too."""
    url = f"http://127.0.0.1:{receiver.port}/hook"
    key, server_id, client_id = await outbox.intent()
    kept = await outbox.add(key, url)
    (item,) = await listed(desk, "callback")
    assert (item["id"], item["state"], item["origin"]) == (str(kept), "Reserved", "gateway")
    assert (item["key"], item["trace_id"]) == (f"{server_id}/PROCESSING", client_id)
    assert item["leaks_at"] is not None
    assert await codes(desk, item) == ["OBL-001"]
    await outbox.post().dispatcher.run_once()
    (item,) = await listed(desk, "callback", state="Committed")
    assert await codes(desk, item) == ["OBL-001", "OBL-002"]
    receiver.behave = receiver.say(answer(500))
    given_up = await outbox.add(key, url, kind="compensation", event="FAILED")
    await outbox.post(schedule_ms=()).dispatcher.run_once()
    (item,) = await listed(desk, "compensation", state="RolledBack")
    assert item["id"] == str(given_up)
    assert await codes(desk, item) == ["OBL-001", "OBL-003"]
    assert [each["key"] for each in await listed(desk, "quarantine")] == [f"delivery/{given_up}"]
    assert await listed(desk, "compensation", state="Reserved") == []


async def test_a_delivery_whose_sender_was_lost_leaks_and_goes_back_to_its_queue(
    desk: Desk, outbox: Outbox, receiver: Receiver, clock: Clock
) -> None:
    """OBL-3: OBL-004, and it is delivered all the same. One that is due on schedule leaves none."""
    kept = await outbox.callback(f"http://127.0.0.1:{receiver.port}/hook")
    assert await outbox.post(forgetful=True).dispatcher.run_once() == Dispatched(claimed=1, delivered=1)
    for _ in range(2):  # twice: an outcome that was recorded ends the lease, and the next attempt is no leak
        await clock.connection.execute(
            "UPDATE deliveries SET leased_until = CASE leased_until WHEN next_at THEN now() ELSE leased_until END,"
            " next_at = now()"
        )
        receiver.behave = receiver.say(answer(500))
        await outbox.post().dispatcher.run_once()
    assert len(receiver.requests) == 3
    (item,) = await listed(desk, "callback")
    assert (item["id"], item["state"]) == (str(kept), "Reserved")
    assert await codes(desk, item) == ["OBL-001", "OBL-004"]


async def test_a_workers_lease_is_reserved_while_it_is_held(desk: Desk, fresh_database: str, clock: Clock) -> None:
    """OBL-4, fencing: handed back it is committed, run out it leaked."""
    line = Line(fresh_database)
    held, done, lost = [Lease(line, LEASE_MS) for _ in range(3)]
    for lease in (held, done, lost):
        await lease.enter()
    await done.hand_back()
    await clock.connection.execute(
        "UPDATE holders SET lease_until = now() - interval '1 s' WHERE holder = $1", lost.holder
    )
    sweeps = Sweeps(fresh_database, buckets=1, lease_ms=0)
    await sweeps.rescue()
    await lost.hand_back()
    found = {item["id"]: item for item in await listed(desk, "fencing")}
    states = [(found[str(lease.holder)]["state"], found[str(lease.holder)]["leaked"]) for lease in (held, done, lost)]
    assert states == [("Reserved", False), ("Committed", False), ("RolledBack", True)]
    assert await codes(desk, found[str(held.holder)]) == ["OBL-001"]
    assert await codes(desk, found[str(done.holder)]) == ["OBL-001", "OBL-002"]
    assert await codes(desk, found[str(lost.holder)]) == ["OBL-001", "OBL-004"]
    await sweeps.line.close()
    await line.close()


async def test_what_is_in_doubt_is_in_quarantine(desk: Desk, outbox: Outbox) -> None:
    """OBL-4: the move into quarantine is complete; who asks for what is still reserved does not see it."""
    key, server_id, client_id = await outbox.intent()
    await outbox.owner.execute("INSERT INTO in_doubt VALUES ($1, $2, now(), 'no answer')", key.bucket, key.logical)
    (item,) = await listed(desk, "quarantine")
    assert (item["id"], item["state"], item["trace_id"]) == (str(server_id), "Committed", client_id)
    assert await listed(desk, "quarantine", state="Reserved") == []


async def test_every_schema_step_is_a_migration_that_was_committed(desk: Desk) -> None:
    """OBL-4."""
    items = await listed(desk, "migration")
    assert [(item["key"], item["state"]) for item in items] == [(name, "Committed") for _, name, _ in available()]


async def test_one_list_has_them_all_in_order_and_each_once(desk: Desk, outbox: Outbox) -> None:
    """OBL-4: in pages of any size, also where a filter leaves little."""
    for number in range(5):
        await desk.made.reserve("publish", f"batch-{number}", None, "t", lease_ms=LEASE_MS)
        await outbox.callback("http://127.0.0.1:9/hook")
    key, *_ = await outbox.intent()
    await outbox.owner.execute("INSERT INTO in_doubt VALUES ($1, $2, now(), 'no answer')", key.bucket, key.logical)
    whole = [(item["flow"], item["id"]) for item in await listed(desk, None)]
    assert len(set(whole)) == len(whole) == len(available()) + 5 + 5 + 1
    for limit in (1, 2, 3, 7):
        for flow in (None, "callback", "publish", "quarantine"):
            found: list[tuple[str, str]] = []
            after = None
            while True:
                page = await desk.lists.obligations(state=None, flow=flow, after=after, limit=limit)
                assert len(page.rows) <= limit
                found += [(item["flow"], item["id"]) for item in page.rows]
                after = page.next
                if after is None:
                    break
            assert found == [each for each in whole if flow in (None, each[0])]


async def test_a_filter_that_passes_over_rows_neither_skips_nor_repeats_any(desk: Desk, fresh_database: str) -> None:
    """OBL-4: a page ends where the shortest look among the kinds of rows ended."""
    line = Line(fresh_database)
    leases = [Lease(line, LEASE_MS) for _ in range(4)]
    for lease in leases:
        await lease.enter()
    for lease in leases[2:]:
        await lease.hand_back()
    done = await desk.made.reserve("fencing", "theirs", None, "t")
    await desk.made.commit(done)
    found: list[str] = []
    after = None
    while True:
        page = await desk.lists.obligations(state="Committed", flow="fencing", after=after, limit=1)
        found += [item["id"] for item in page.rows]
        after = page.next
        if after is None:
            break
    assert found == [*(str(lease.holder) for lease in leases[2:]), str(done)]
    await line.close()
