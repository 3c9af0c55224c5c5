"""Lanes (DESIGN decision 4), with a flush function in place of a database."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest

from gateway.protocol.faults import StoreAway, StoreLost
from gateway.protocol.identity import IntentKey
from gateway.store import batches
from gateway.store.batches import Lane
from gateway.store.errors import BadRow, StoreConflict


@dataclass(frozen=True)
class Item:
    key: IntentKey
    size_bytes: int = 1


def item(logical: bytes, *, bucket: int = 0, size_bytes: int = 1) -> Item:
    return Item(IntentKey(bucket, logical), size_bytes)


class Flushes:
    """A flush that stands still until it is let go, and notes what it was given."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, list[bytes]]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.entered = asyncio.Event()
        self.failures: list[Exception] = []
        self.bad: set[bytes] = set()

    async def __call__(self, bucket: int, rows: Sequence[Item]) -> Mapping[bytes, Any]:
        keys = [row.key.logical for row in rows]
        self.seen.append((bucket, keys))
        self.entered.set()
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        if self.bad.intersection(keys):
            raise asyncpg.CheckViolationError("a bad row")
        return {key: f"done {key.decode()}" for key in keys if not key.startswith(b"none")}


@pytest.fixture
def flushes() -> Flushes:
    return Flushes()


@pytest.fixture
def lane(flushes: Flushes) -> Lane[Item]:
    return Lane(flushes)


async def hold(lane: Lane[Item], flushes: Flushes) -> asyncio.Task[Any]:
    """A flush that is in flight until the gate is opened."""
    flushes.gate.clear()
    first = asyncio.create_task(lane.submit(item(b"first")))
    await flushes.entered.wait()
    return first


async def queue_up(lane: Lane[Item], *items: Item) -> list[asyncio.Task[Any]]:
    tasks = [asyncio.create_task(lane.submit(each)) for each in items]
    await asyncio.sleep(0)  # each runs up to its place in the queue
    return tasks


async def test_an_idle_lane_flushes_a_row_at_once(lane: Lane[Item], flushes: Flushes) -> None:
    """Decision 4: no timer, no added latency."""
    assert await lane.submit(item(b"a")) == "done a"
    assert await lane.submit(item(b"none")) is None
    assert flushes.seen == [(0, [b"a"]), (0, [b"none"])]


async def test_rows_that_arrive_during_a_flush_go_out_as_one_sorted_statement(
    lane: Lane[Item], flushes: Flushes
) -> None:
    """Decision 4: sorted by key, so that two replicas' batches never deadlock."""
    first = await hold(lane, flushes)
    waiting = await queue_up(lane, item(b"c"), item(b"a"), item(b"b"))
    flushes.gate.set()
    assert await asyncio.gather(first, *waiting) == ["done first", "done c", "done a", "done b"]
    assert flushes.seen == [(0, [b"first"]), (0, [b"a", b"b", b"c"])]


async def test_a_batch_holds_each_key_once(lane: Lane[Item], flushes: Flushes) -> None:
    first = await hold(lane, flushes)
    waiting = await queue_up(lane, item(b"a"), item(b"b"), item(b"a"), item(b"a"))
    flushes.gate.set()
    await asyncio.gather(first, *waiting)
    assert [keys for _, keys in flushes.seen[1:]] == [[b"a", b"b"], [b"a"], [b"a"]]


async def test_a_batch_names_one_bucket_and_buckets_take_turns(
    lane: Lane[Item], flushes: Flushes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "ROWS_MAX", 1)
    first = await hold(lane, flushes)
    waiting = await queue_up(lane, item(b"a", bucket=1), item(b"b", bucket=1), item(b"c", bucket=2))
    flushes.gate.set()
    await asyncio.gather(first, *waiting)
    assert flushes.seen[1:] == [(1, [b"a"]), (2, [b"c"]), (1, [b"b"])]


async def test_a_batch_is_bounded_in_rows(lane: Lane[Item], flushes: Flushes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "ROWS_MAX", 3)
    first = await hold(lane, flushes)
    waiting = await queue_up(lane, *(item(b"%d" % number) for number in range(7)))
    flushes.gate.set()
    await asyncio.gather(first, *waiting)
    assert [keys for _, keys in flushes.seen[1:]] == [[b"0", b"1", b"2"], [b"3", b"4", b"5"], [b"6"]]


async def test_a_batch_is_bounded_in_bytes_but_a_single_row_always_goes(
    lane: Lane[Item], flushes: Flushes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "BYTES_MAX", 10)
    first = await hold(lane, flushes)
    sizes = {b"a": 6, b"b": 4, b"c": 1, b"d": 99, b"e": 1}
    waiting = await queue_up(lane, *(item(key, size_bytes=size) for key, size in sizes.items()))
    flushes.gate.set()
    await asyncio.gather(first, *waiting)
    assert [keys for _, keys in flushes.seen[1:]] == [[b"a", b"b"], [b"c"], [b"d"], [b"e"]]


async def test_a_bad_row_never_fails_its_neighbours(lane: Lane[Item], flushes: Flushes) -> None:
    """Decision 4: data errors are bisected."""
    first = await hold(lane, flushes)
    flushes.bad = {b"03", b"11"}
    waiting = await queue_up(lane, *(item(b"%02d" % number) for number in range(16)))
    flushes.gate.set()
    await first
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert {number for number, outcome in enumerate(outcomes) if isinstance(outcome, BadRow)} == {3, 11}
    assert [outcome for outcome in outcomes if not isinstance(outcome, BadRow)] == [
        f"done {number:02d}" for number in range(16) if number not in (3, 11)
    ]


async def test_a_conflict_is_retried_whole(lane: Lane[Item], flushes: Flushes) -> None:
    """Decision 4: 40P01 and 40001."""
    first = await hold(lane, flushes)
    waiting = await queue_up(lane, item(b"a"), item(b"b"))
    flushes.failures = [StoreConflict("40P01"), StoreConflict("40001")]
    flushes.gate.set()
    assert await asyncio.gather(first, *waiting) == ["done first", "done a", "done b"]
    assert [keys for _, keys in flushes.seen] == [[b"first"], [b"first"], [b"first"], [b"a", b"b"]]


async def test_a_conflict_that_does_not_end_is_the_store_away(lane: Lane[Item], flushes: Flushes) -> None:
    """Decision 4, P1-3: bounded tries, then 503: nothing was written."""
    flushes.failures = [StoreConflict("40P01") for _ in range(batches.TRIES_MAX)]
    with pytest.raises(StoreAway):
        await lane.submit(item(b"a"))
    assert len(flushes.seen) == batches.TRIES_MAX
    assert await lane.submit(item(b"a")) == "done a"


async def test_a_lost_store_fails_its_batch_and_not_what_waits_behind_it(lane: Lane[Item], flushes: Flushes) -> None:
    first = await hold(lane, flushes)
    waiting = await queue_up(lane, item(b"a"))
    flushes.failures = [StoreLost("cut")]
    flushes.gate.set()
    with pytest.raises(StoreLost):
        await first
    assert await asyncio.gather(*waiting) == ["done a"]


async def test_past_its_bound_the_queue_is_the_store_away(
    lane: Lane[Item], flushes: Flushes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1-3: the queue never grows without bound, and takes rows again once it has drained."""
    monkeypatch.setattr(batches, "WAITING_MAX", 2)
    first = await hold(lane, flushes)
    waiting = await queue_up(lane, item(b"a"), item(b"b"))
    with pytest.raises(StoreAway):
        await lane.submit(item(b"c"))
    flushes.gate.set()
    await asyncio.gather(first, *waiting)
    assert await lane.submit(item(b"c")) == "done c"


async def test_a_row_that_waited_too_long_unsent_hears_that_the_store_is_away(
    lane: Lane[Item], flushes: Flushes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1-3: a store that hardly moves does not keep requests for minutes."""
    monkeypatch.setattr(batches, "WAIT_MAX_S", -1.0)  # everything in the queue has waited longer than that
    first = asyncio.create_task(lane.submit(item(b"a")))
    with pytest.raises(StoreAway) as refused:
        await first
    assert not isinstance(refused.value, StoreLost)
    assert flushes.seen == []
    monkeypatch.undo()
    assert await lane.submit(item(b"a")) == "done a"


async def test_a_row_whose_caller_has_gone_is_not_sent(lane: Lane[Item], flushes: Flushes) -> None:
    first = await hold(lane, flushes)
    waiting = await queue_up(lane, item(b"a"), item(b"b"))
    waiting[0].cancel()
    flushes.gate.set()
    await asyncio.gather(first, *waiting, return_exceptions=True)
    assert [keys for _, keys in flushes.seen] == [[b"first"], [b"b"]]


async def test_a_bug_in_a_flush_reaches_its_callers_and_the_lane_goes_on(lane: Lane[Item], flushes: Flushes) -> None:
    flushes.failures = [ZeroDivisionError()]
    with pytest.raises(ZeroDivisionError):
        await lane.submit(item(b"a"))
    assert await lane.submit(item(b"a")) == "done a"


async def test_a_cancelled_worker_leaves_nobody_waiting(lane: Lane[Item], flushes: Flushes) -> None:
    """At the end of a process: what was sent is lost, what was not is away."""
    first = await hold(lane, flushes)
    waiting = await queue_up(lane, item(b"a"), item(b"b"))
    assert lane._worker is not None
    lane._worker.cancel()
    outcomes = await asyncio.gather(first, *waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StoreLost, StoreAway, StoreAway]
