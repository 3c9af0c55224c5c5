"""LED-2: entries in order of change, none skipped, none read twice without a change."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import asyncpg
import pytest

from gateway.protocol.entries import FIELDS, SYNC_FIELDS
from gateway.protocol.phases import Phase
from gateway.store import ledger as ledger_module
from gateway.store.ledger import LedgerQueries
from tests.operator.book import ALICE, BOB, GRACE_MS, SERVICE, TTL_MS, Book
from tests.operator.console import Console

# A transition with its event, for a transaction that a test holds open.
EXPIRE = """
WITH expired AS (
    UPDATE intents SET came_from = phase, phase = 'TTL_EXPIRED' WHERE logical_key = $1 RETURNING bucket, logical_key
)
INSERT INTO events (bucket, logical_key, code, phase)
SELECT bucket, logical_key, 'OBL-004', 'TTL_EXPIRED' FROM expired"""
States = list[tuple[str, str]]


def states(page: dict[str, Any]) -> States:
    return [(entry["client_correlation_id"], entry["phase"]) for entry in page["entries"]]


async def walk(console: Console, **query: str) -> tuple[list[dict[str, Any]], str]:
    """Every entry from a cursor on, page after page, and the cursor of the end."""
    entries: list[dict[str, Any]] = []
    while True:
        page = (await console.ask("/v1/ledger/entries", **query)).json
        if page["next"] == query.get("after"):
            assert page["entries"] == []
            return entries, page["next"]
        entries += page["entries"]
        query["after"] = page["next"]


async def test_an_entry_has_exactly_the_sixteen_fields_and_what_sync_needs(console: Console, book: Book) -> None:
    """LED-1: in the draft's order, equal to what the intent itself tells; then its identity and version (LED-2)."""
    new = await book.commit("order-1")
    (entry,) = (await console.ask("/v1/ledger/entries")).json["entries"]
    assert tuple(entry) == FIELDS + SYNC_FIELDS
    intent = (await console.ask(f"/v1/intents/{new.server_correlation_id}")).json
    assert {field: entry[field] for field in FIELDS} == {field: intent[field] for field in FIELDS}
    assert entry["entry_id"] == entry["server_correlation_id"]
    assert (entry["in_doubt"], entry["callback"]) == (None, None)


async def test_every_intent_comes_once_in_its_current_state_at_its_latest_change(console: Console, book: Book) -> None:
    """LED-2: three intents, three changes of the first; the order is that of the last changes."""
    first = await book.register("first")
    claimed = await book.claim(first)
    await book.register("second")
    await book.doubt("third")
    await book.settle(first, claimed)
    page = (await console.ask("/v1/ledger/entries")).json
    assert states(page) == [("second", "WAITING_CONFIRM"), ("third", "PROCESSING"), ("first", "COMMITTED")]


async def test_the_end_can_always_be_continued_from(console: Console, book: Book) -> None:
    """LED-2: also the end of an empty ledger; only what changed since comes."""
    empty = (await console.ask("/v1/ledger/entries")).json
    assert empty["entries"] == []
    first = await book.register("first")
    await book.register("second")
    page = (await console.ask("/v1/ledger/entries", after=empty["next"])).json
    assert states(page) == [("first", "WAITING_CONFIRM"), ("second", "WAITING_CONFIRM")]
    end = (await console.ask("/v1/ledger/entries", after=page["next"])).json
    assert (end["entries"], end["next"]) == ([], page["next"])
    await book.claim(first)
    page = (await console.ask("/v1/ledger/entries", after=end["next"])).json
    assert states(page) == [("first", "PROCESSING")]


async def test_an_empty_cursor_is_the_beginning(console: Console, book: Book) -> None:
    """As the Contract writes the URL."""
    await book.register("first")
    assert len((await console.ask("/v1/ledger/entries?after=&limit=1")).json["entries"]) == 1


@pytest.mark.parametrize("limit", ["1", "3", "7", "1000"])
async def test_pages_of_any_size_tell_the_same(console: Console, book: Book, limit: str) -> None:
    """LED-2: registered in one transaction or in many, changed once or more."""
    made = await asyncio.gather(*(book.register(f"batched-{number}") for number in range(8)))
    for new in made[::3]:
        await book.claim(new)
    for number in range(3):
        await book.commit(f"single-{number}")
    whole = (await console.ask("/v1/ledger/entries")).json["entries"]
    assert len(whole) == 11
    entries, _ = await walk(console, limit=limit)
    assert entries == whole


@pytest.mark.parametrize("query", [{}, {"client_correlation_id": "shared"}], ids=["all", "by-id"])
async def test_a_change_that_commits_late_is_not_skipped(
    console: Console, book: Book, fresh_database: str, query: dict[str, str]
) -> None:
    """LED-2, DESIGN decision 5: what began first and commits last holds the order up, then comes first."""
    late, early = [await book.register("shared", caller=caller) for caller in (ALICE, BOB)]
    start = (await console.ask("/v1/ledger/entries", **query)).json
    assert states(start) == [("shared", "WAITING_CONFIRM")] * 2
    slow = await asyncpg.connect(fresh_database)
    try:
        transaction = slow.transaction()
        await transaction.start()
        await slow.execute(EXPIRE, late.key.logical)
        await book.claim(early)
        held = (await console.ask("/v1/ledger/entries", after=start["next"], **query)).json
        assert held["entries"] == []
        await transaction.commit()
        page = (await console.ask("/v1/ledger/entries", after=held["next"], **query)).json
        assert states(page) == [("shared", "TTL_EXPIRED"), ("shared", "PROCESSING")]
    finally:
        await slow.close()


async def test_a_state_above_the_horizon_is_told_now_and_again_when_its_change_comes(
    console: Console, book: Book, fresh_database: str
) -> None:
    """LED-2: an older transaction elsewhere hides no state for good, and makes none up."""
    first = await book.register("first")
    other = await asyncpg.connect(fresh_database)
    try:
        transaction = other.transaction()
        await transaction.start()
        await other.execute("SELECT pg_current_xact_id()")
        await book.claim(first)
        page = (await console.ask("/v1/ledger/entries")).json
        assert states(page) == [("first", "PROCESSING")]
        await transaction.rollback()
        page = (await console.ask("/v1/ledger/entries", after=page["next"])).json
        assert states(page) == [("first", "PROCESSING")]
    finally:
        await other.close()


async def test_readers_beside_writers_miss_nothing(console: Console, book: Book) -> None:
    """LED-2: whoever follows the cursor ends with the last state of every intent."""
    writing = True
    seen: dict[str, str] = {}

    async def follow() -> None:
        cursor = ""
        while True:
            last = not writing
            page = (await console.ask("/v1/ledger/entries", after=cursor, limit="17")).json
            seen.update(states(page))
            if last and page["next"] == cursor:
                return
            cursor = page["next"]

    follower = asyncio.create_task(follow())
    await asyncio.gather(*(book.commit(f"order-{number}") for number in range(300)))
    writing = False
    await follower
    assert seen == {f"order-{number}": "COMMITTED" for number in range(300)}


@pytest.mark.parametrize("query", [{}, {"client_correlation_id": "first"}], ids=["all", "by-id"])
async def test_a_change_of_knowledge_alone_is_no_new_entry(console: Console, book: Book, query: dict[str, str]) -> None:
    """LED-2: evidence and refusals leave the sixteen fields as they are."""
    new = await book.register("first")
    page = (await console.ask("/v1/ledger/entries", **query)).json
    await book.owner.execute(
        "INSERT INTO events (bucket, logical_key, code, detail) VALUES (0, $1, 'EVIDENCE', '{}')", new.key.logical
    )
    after = (await console.ask("/v1/ledger/entries", after=page["next"], **query)).json
    assert after["entries"] == []
    assert states((await console.ask("/v1/ledger/entries", **query)).json) == [("first", "WAITING_CONFIRM")]


async def test_filters_choose_by_the_phase_of_this_moment(console: Console, book: Book) -> None:
    """TTL-2: a waiting intent past its deadline is found as expired, and no longer as waiting."""
    _, expired, abandoned = [await book.register(name) for name in ("waiting", "expired", "abandoned")]
    await book.age(expired, TTL_MS)
    await book.age(abandoned, TTL_MS + GRACE_MS)
    await book.commit("committed")
    failed = await book.register("failed")
    await book.settle(failed, await book.claim(failed), Phase.FAILED)

    async def found(**query: str) -> list[str]:
        return [entry["client_correlation_id"] for entry in (await walk(console, **query))[0]]

    assert await found(phase="WAITING_CONFIRM") == ["waiting"]
    assert await found(phase="TTL_EXPIRED") == ["expired"]
    assert await found(phase="ABANDONED") == ["abandoned"]
    assert await found(outcome="TTL_EXPIRED") == ["expired"]
    assert await found(outcome="ABANDONED") == ["abandoned"]
    assert await found(outcome="COMMITTED") == ["committed"]
    assert await found(outcome="FAILED", phase="FAILED") == ["failed"]
    assert await found(outcome="FAILED", phase="COMMITTED") == []


async def test_filters_choose_by_source_actor_and_ids(console: Console, book: Book) -> None:
    """LED-2."""
    mine = await book.commit("order-1", caller=ALICE)
    await book.register("order-1", caller=BOB)
    await book.register("order-2")

    async def count(**query: str) -> int:
        return len((await walk(console, **query))[0])

    assert await count(source=SERVICE) == 3
    assert await count(source="another") == 0
    assert await count(actor="server") == 3
    assert await count(actor="client") == 0
    assert await count(client_correlation_id="order-1") == 2
    assert await count(client_correlation_id="order-1", phase="COMMITTED") == 1
    assert await count(client_correlation_id="order-1", limit="1") == 2
    assert await count(client_correlation_id="unused") == 0
    server_id = str(mine.server_correlation_id)
    assert await count(server_correlation_id=server_id) == 1
    assert await count(server_correlation_id=server_id.upper()) == 1
    assert await count(server_correlation_id=server_id, client_correlation_id="order-2") == 0
    assert await count(server_correlation_id=str(uuid.uuid4())) == 0


async def test_a_single_intent_can_be_followed(console: Console, book: Book) -> None:
    """LED-2: with an ID as the filter, the cursor goes on as without."""
    new = await book.register("order-1")
    await book.register("order-2")
    query = {"client_correlation_id": "order-1"}
    entries, cursor = await walk(console, **query)
    assert [entry["phase"] for entry in entries] == ["WAITING_CONFIRM"]
    claimed = await book.claim(new)
    await book.settle(new, claimed)
    entries, _ = await walk(console, after=cursor, **query)
    assert [entry["phase"] for entry in entries] == ["COMMITTED"]


async def test_an_id_shared_by_very_many_callers_is_found_by_scanning(
    console: Console, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LED-2: bounded look-ups leave nothing out."""
    monkeypatch.setattr(ledger_module, "KEYS_MAX", 3)
    for number in range(5):
        await book.register("shared", caller=bytes([number]) * 32)
        await book.register(f"own-{number}")
    entries, _ = await walk(console, client_correlation_id="shared", limit="2")
    assert len(entries) == 5


async def test_a_filter_that_matches_little_gives_short_pages_and_a_way_on(
    ledger: LedgerQueries, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LED-2: work per request is bounded, and following `next` still finds the one that matches."""
    monkeypatch.setattr(ledger_module, "SCANS_MAX", 1)
    await asyncio.gather(*(book.register(f"order-{number}") for number in range(1500)))
    await book.commit("needle")
    cursor, pages = None, []
    while not pages or pages[-1].next != cursor:
        cursor = pages[-1].next if pages else None
        pages.append(await ledger.entries({"phase": "COMMITTED"}, after=cursor, limit=5))
    assert len(pages) > 2
    assert pages[0].rows == []
    assert [row["client_correlation_id"] for page in pages for row in page.rows] == ["needle"]


async def test_an_intent_that_retention_forgot_is_not_told(console: Console, book: Book) -> None:
    """RPL-4: events without their intent would be a bug; a reader that meets them goes on."""
    await book.commit("first")
    second = await book.commit("second")
    await book.owner.execute("DELETE FROM intents WHERE client_correlation_id = 'first'")
    page = (await console.ask("/v1/ledger/entries")).json
    assert [entry["server_correlation_id"] for entry in page["entries"]] == [str(second.server_correlation_id)]
