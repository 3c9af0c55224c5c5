"""Decision 4: a statement has one text and two forms, for one row and for many; both do and refuse the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.protocol.identity import new_attempt_id
from gateway.protocol.phases import Phase
from gateway.protocol.records import NOT_KEPT, Callback, Direct, NewIntent, Sealed
from gateway.store.direct import DirectStore
from gateway.store.intents import IntentStore
from gateway.store.statements import for_one
from tests.store.plans import BATCHES
from tests.store.rows import (
    AN_HOUR_MS,
    HOLDER,
    Flushes,
    Superuser,
    claim_of,
    claimed_intent,
    doubt_of,
    new_intent,
    observed,
    settlement_of,
)

SIZES = pytest.mark.parametrize("rows", [1, 3])


@pytest.fixture
def flushes() -> Flushes:
    return []


@pytest.fixture
async def store(fresh_database: str, flushes: Flushes) -> AsyncIterator[IntentStore]:
    store = observed(fresh_database, flushes)
    yield store
    await store.close()


def direct(new: NewIntent, *, kept: bool = False, callback: Callback | None = None) -> Direct:
    return Direct(new, new_attempt_id(), HOLDER, kept, callback)


@pytest.mark.parametrize("name", BATCHES)
def test_the_form_for_one_row_has_the_same_parameters_and_no_arrays_of_rows(name: str) -> None:
    batch = BATCHES[name]
    assert batch.one == for_one(batch.many) != batch.many
    assert batch.one.count("$") == batch.many.count("$")
    left = batch.one.count("[]")
    assert left <= (8 if name == "register" else 3)  # the groups of P1-8 and the keys that were won are arrays in both


@SIZES
async def test_a_direct_request_leaves_the_same_rows(
    store: IntentStore, superuser: Superuser, flushes: Flushes, rows: int
) -> None:
    """ACM-1, ACM-2: intent, attempt and two events; payload and callback only where they are asked for."""
    directs = DirectStore(store)
    plain = [direct(new_intent(f"plain-{n}", payload=NOT_KEPT)) for n in range(rows)]
    told = Callback(new_attempt_id(), Sealed(b"sealed URL", 1), 5000, 7)
    kept = [direct(new_intent(f"kept-{n}"), kept=True) for n in range(rows - 1)]
    kept.append(direct(new_intent("told", payload=NOT_KEPT), callback=told))
    for batch in (plain, kept):
        assert await asyncio.gather(*(directs.begin(each) for each in batch)) == [None] * rows
    assert flushes == [("begin", rows), ("begin", rows)]
    for each in plain + kept:
        assert await superuser.phase(each.key) is Phase.PROCESSING
        assert await superuser.events(each.key) == [("OBL-001", "WAITING_CONFIRM"), ("PONR", "PROCESSING")]
        assert await superuser.count("attempts", each.key) == 1
        assert await superuser.count("payloads", each.key) == each.payload_kept
        assert await superuser.count("deliveries", each.key) == (each.callback is not None)


@SIZES
async def test_a_consumed_key_begins_nothing(store: IntentStore, superuser: Superuser, rows: int) -> None:
    """ACM-5: whoever comes second gets the first one's intent, and leaves no row."""
    directs = DirectStore(store)
    first = [direct(new_intent(f"c-{n}"), kept=True) for n in range(rows)]
    await asyncio.gather(*(directs.begin(each) for each in first))
    for again in ([direct(each.intent) for each in first], [direct(each.intent, kept=True) for each in first]):
        found = await asyncio.gather(*(directs.begin(each) for each in again))
        assert [intent.attempt_id for intent in found if intent] == [each.attempt_id for each in first]
    assert await superuser.count("attempts") == await superuser.count("payloads") == rows
    assert await superuser.count("events") == 2 * rows


@SIZES
async def test_no_form_claims_after_the_deadline(store: IntentStore, superuser: Superuser, rows: int) -> None:
    """P2-2: the guard is in the text that both forms share."""
    many = [new_intent(f"c-{n}") for n in range(rows)]
    await asyncio.gather(*(store.register(new) for new in many))
    for new in many:
        await superuser.age(new.key, 2 * AN_HOUR_MS)
    assert await asyncio.gather(*(store.claim(claim_of(new)) for new in many)) == [None] * rows
    assert await superuser.count("attempts") == 0


@SIZES
@pytest.mark.parametrize("changes", [{}, {"payload_kept": False}, {"verify": Sealed(b"headers", 1)}], ids=str)
async def test_no_form_settles_over_a_higher_fence(
    store: IntentStore, superuser: Superuser, rows: int, changes: dict[str, Any]
) -> None:
    """REC-1: with and without the steps that only some rows need; and with the right fence each settles."""
    held = [await claimed_intent(store, f"c-{n}") for n in range(rows)]
    settled = [settlement_of(claimed, **changes) for claimed in held]
    await superuser.connection.execute("UPDATE intents SET fence = fence + 1")
    assert await asyncio.gather(*(store.settle(each) for each in settled)) == [False] * rows
    assert await superuser.count("responses") == 0
    assert not await store.doubt(doubt_of(held[0]))
    await superuser.connection.execute("UPDATE intents SET fence = fence - 1")
    assert await asyncio.gather(*(store.settle(each) for each in settled)) == [True] * rows
    assert await superuser.count("responses") == rows
    assert await superuser.count("payloads") == (rows if changes.get("payload_kept") is False else 0)
    assert await superuser.count("verifications") == (rows if "verify" in changes else 0)
