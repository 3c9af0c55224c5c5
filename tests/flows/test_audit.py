"""REP-5: refusals are noted durably, beside the answer, and a flood of them stays a trickle in the store."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import pytest

from gateway.flows import audit
from gateway.flows.audit import PER_INTENT_MAX, WAITING_MAX, RefusalAudit
from gateway.protocol import problems
from gateway.protocol.faults import StoreAway
from gateway.protocol.identity import IntentKey

KEY = IntentKey(0, b"k" * 16)
CALLER = b"c" * 16


class Store:
    """Notes what it is told, unless it is away."""

    def __init__(self) -> None:
        self.events: list[tuple[IntentKey, str, dict[str, Any]]] = []
        self.away = False
        self.dropped = 0
        self._tasks: list[asyncio.Task[Any]] = []

    async def note(self, key: IntentKey, code: str, detail: dict[str, Any]) -> None:
        if self.away:
            raise StoreAway("away")
        self.events.append((key, code, detail))

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work, name=name))

    def unaudited(self, count: int) -> None:
        self.dropped += count

    async def written(self) -> None:
        await asyncio.gather(*self._tasks)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(audit, "EVENTS_PER_S_MAX", 10_000)
    return Store()


@pytest.fixture
def refusals(store: Store) -> RefusalAudit:
    return RefusalAudit(store.note, store.spawn, store.unaudited)


async def test_a_refusal_leaves_an_event_that_says_which_and_whose(store: Store, refusals: RefusalAudit) -> None:
    """REP-5: by its code, or REFUSED; kinds and digests, nothing that the caller sent."""
    unbound = problems.nonce_unbound()
    assert refusals.refused(KEY, unbound, CALLER, "why") is unbound
    refusals.refused(KEY, problems.other_caller(), CALLER)
    await store.written()
    caller = CALLER.hex()
    assert store.events == [
        (
            KEY,
            "NONCE_UNBOUND",
            {"refused": "nonce-unbound", "status": 403, "caller": caller, "times": 1, "reason": "why"},
        ),
        (KEY, "REFUSED", {"refused": "other-caller", "status": 403, "caller": caller, "times": 1}),
    ]


async def test_who_is_refused_again_and_again_leaves_one_event_with_a_count(
    store: Store, refusals: RefusalAudit
) -> None:
    """REP-5: a flood on one intent costs one write; another caller's refusal is its own."""
    for _ in range(1000):
        refusals.refused(KEY, problems.key_reused(), CALLER)
    refusals.refused(KEY, problems.key_reused(), b"other caller")
    await store.written()
    assert [detail["times"] for _, _, detail in store.events] == [1000, 1]
    assert store.dropped == 0


async def test_a_flood_on_many_intents_is_bounded_and_what_is_left_out_is_counted(
    store: Store, refusals: RefusalAudit
) -> None:
    """REP-5."""
    for number in range(WAITING_MAX + 100):
        refusals.refused(IntentKey(0, number.to_bytes(16, "big")), problems.key_reused(), CALLER)
    assert store.dropped == 100
    await store.written()
    assert len(store.events) == WAITING_MAX


async def test_refusals_do_not_bury_the_trail_of_one_intent(
    store: Store, refusals: RefusalAudit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REP-5: whoever refused callers claim to be, so many events a minute; other intents are not affected."""
    for number in range(20):
        refusals.refused(KEY, problems.other_caller(), bytes([number]) * 16)
    refusals.refused(IntentKey(0, b"other"), problems.other_caller(), CALLER)
    await store.written()
    assert Counter(key for key, _, _ in store.events) == {KEY: PER_INTENT_MAX, IntentKey(0, b"other"): 1}
    assert store.dropped == 20 - PER_INTENT_MAX
    monkeypatch.setattr(refusals, "_window_ends", 0.0)  # a minute later
    refusals.refused(KEY, problems.other_caller(), CALLER)
    await store.written()
    assert len(store.events) == PER_INTENT_MAX + 2


async def test_writes_keep_their_distance(
    store: Store, refusals: RefusalAudit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REP-5: so many events a second and worker, at most."""
    monkeypatch.setattr(audit, "EVENTS_PER_S_MAX", 50)
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def paused(delay_s: float) -> None:
        pauses.append(delay_s)
        await sleep(0)

    monkeypatch.setattr(audit.asyncio, "sleep", paused)
    for number in range(3):
        refusals.refused(IntentKey(0, bytes([number]) * 16), problems.key_reused(), CALLER)
    await store.written()
    assert pauses == [0.02, 0.02, 0.02]


async def test_what_a_store_that_is_away_cannot_note_is_counted(store: Store, refusals: RefusalAudit) -> None:
    """REP-5: and the next refusal is noted again once it is back."""
    store.away = True
    refusals.refused(KEY, problems.key_reused(), CALLER)
    refusals.refused(KEY, problems.key_reused(), CALLER)
    await store.written()
    assert (store.events, store.dropped) == ([], 2)
    store.away = False
    refusals.refused(KEY, problems.key_reused(), CALLER)
    await store.written()
    assert len(store.events) == 1
