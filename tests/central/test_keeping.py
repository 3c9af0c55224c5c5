"""Retention: per service, in small bites, and whole months at once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from gateway.protocol.faults import StoreAway
from tests.central.desk import Desk, now

DAY_S = 86_400
DAY_MS = DAY_S * 1000


async def left(desk: Desk) -> dict[str, int]:
    rows = await desk.owner.fetch("SELECT source, count(*) AS rows FROM entries GROUP BY source")
    return {row["source"]: row["rows"] for row in rows}


async def test_each_service_keeps_its_own_retention(desk: Desk) -> None:
    """LED-2: what is older is forgotten, with its place among the unpaired and in the figures."""
    for service in ("orders", "billing"):
        await desk.give(service, *(desk.entry(service, at=now(days * DAY_S)) for days in (1, 20, 80)))
    while await desk.sources.ingest.count_tallies(100):
        pass
    desk.keeper.use(default_ms=90 * DAY_MS, services_ms={"orders": 10 * DAY_MS})
    assert await desk.keeper.run_once() == 2
    assert await left(desk) == {"orders": 1, "billing": 3}
    assert await desk.owner.fetchval("SELECT count(*) FROM pairs WHERE source = 'orders'") == 1
    while await desk.sources.ingest.count_tallies(100):
        pass
    assert await desk.owner.fetchval("SELECT sum(rows) FROM tallies WHERE grain = 'minute' AND source = 'orders'") == 1


async def test_forgetting_is_done_in_bites(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks stay short, and the rest is for the next time."""
    monkeypatch.setattr("gateway.central.keeping.BITE", 3)
    await desk.give("orders", *(desk.entry("orders", at=now(100 * DAY_S)) for _ in range(5)))
    monkeypatch.setattr("gateway.central.keeping.BUDGET_S", -1.0)
    assert [await desk.keeper.run_once() for _ in range(3)] == [3, 2, 0]


async def test_a_month_past_every_retention_is_dropped_whole(desk: Desk) -> None:
    """And a late entry of it is taken all the same."""
    old = now(200 * DAY_S)
    await desk.give("orders", *(desk.entry("orders", at=old) for _ in range(5)))
    await desk.give("billing", desk.entry("billing", at=now(40 * DAY_S)))
    name = f"entries_{old:%Y_%m}"
    assert await desk.owner.fetchval(f"SELECT count(*) FROM {name}") == 5
    desk.keeper.use(default_ms=30 * DAY_MS, services_ms={"billing": 60 * DAY_MS})
    assert await desk.keeper.run_once() == 0
    assert await desk.owner.fetchval("SELECT to_regclass($1)", name) is None
    assert await left(desk) == {"billing": 1}
    assert await desk.owner.fetchval("SELECT count(*) FROM pairs") == 1
    await desk.give("orders", desk.entry("orders", at=old + timedelta(seconds=1)))
    assert await left(desk) == {"billing": 1, "orders": 1}


async def test_old_accesses_go_with_the_longest_retention(desk: Desk) -> None:
    """SEC-5: not before."""
    await desk.owner.execute("UPDATE access_log SET at = now() - interval '50 days'")
    desk.keeper.use(default_ms=30 * DAY_MS, services_ms={"orders": 60 * DAY_MS})
    await desk.keeper.run_once()
    assert await desk.owner.fetchval("SELECT count(*) FROM access_log") == 3
    desk.keeper.use(default_ms=30 * DAY_MS, services_ms={})
    await desk.keeper.run_once()
    assert await desk.owner.fetchval("SELECT count(*) FROM access_log") == 0


async def test_bites_go_on_while_they_are_full(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """LED-2: forgetting keeps up with what comes in."""
    monkeypatch.setattr("gateway.central.keeping.BITE", 3)
    for service in ("orders", "billing"):
        await desk.give(service, *(desk.entry(service, at=now(100 * DAY_S)) for _ in range(10)))
    assert await desk.keeper.run_once() == 20


async def test_a_month_that_somebody_reads_is_left_for_later(desk: Desk) -> None:
    """LED-2: and the rest is forgotten all the same."""
    read, free = now(300 * DAY_S), now(200 * DAY_S)  # the one that is read comes first
    await desk.give("orders", desk.entry("orders", at=read), desk.entry("orders", at=free))
    desk.keeper.use(default_ms=30 * DAY_MS, services_ms={})
    async with desk.owner.transaction():
        # Parted from the others, so that only its own drop has to wait.
        await desk.owner.execute(f"LOCK TABLE ONLY entries_{read:%Y_%m} IN ACCESS SHARE MODE")
        await desk.keeper.run_once()
        left_over = await desk.owner.fetch("SELECT to_regclass($1) AS name", f"entries_{free:%Y_%m}")
    assert left_over[0]["name"] is None


async def test_marks_of_one_minute_count_as_one(desk: Desk) -> None:
    """LED-6: figures are not held up by a minute that changed often."""
    minute = "date_trunc('minute', now()) - interval '1 minute' *"
    await desk.owner.execute(f"INSERT INTO touched SELECT 'minute', {minute} 60 FROM generate_series(1, 600)")
    await desk.owner.execute(f"INSERT INTO touched SELECT 'minute', {minute} m FROM generate_series(1, 30) m")
    assert await desk.sources.ingest.count_tallies(500) == 31


async def test_too_much_counting_at_once_is_halved(desk: Desk) -> None:
    """LED-6, OPS-3: a statement that does not end in time is tried with less."""
    ingest = desk.sources.ingest
    await desk.owner.execute(
        "INSERT INTO touched SELECT 'minute', date_trunc('minute', now()) - interval '1 minute' * m"
        " FROM generate_series(1, 8) m"
    )
    owner, asked = ingest._owner, []

    class Slow:
        async def fetch(self, sql: str, minutes: int) -> Any:
            asked.append(minutes)
            if minutes > 4:
                raise StoreAway("too slow")
            return await owner.fetch(sql, minutes)

    ingest._owner = Slow()  # type: ignore[assignment]
    try:
        with pytest.raises(StoreAway):
            await ingest.count_tallies(8)
        assert await ingest.count_tallies(8) == 4
    finally:
        ingest._owner = owner
    assert asked == [8, 4, 4]
