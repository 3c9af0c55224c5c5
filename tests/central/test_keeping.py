"""Retention: per service, in small bites, and whole months at once."""

from __future__ import annotations

from datetime import timedelta

import pytest

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
