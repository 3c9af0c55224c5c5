"""Deliveries as operators see them: lists, the callback gap, and sending one again (ACM-3)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from uuid import UUID, uuid4

import asyncpg
import pytest

from gateway.background.dispatcher import Dispatched
from gateway.protocol.deliveries import State
from gateway.store.deliveries import SQL
from gateway.store.ledger import BadCursor
from gateway.store.lines import connect
from tests.delivery.office import Outbox
from tests.delivery.receiver import OK, Receiver, answer


@pytest.fixture
async def outbox(fresh_database: str) -> AsyncIterator[Outbox]:
    opened = await Outbox.open(fresh_database)
    yield opened
    await opened.close()


def url(receiver: Receiver) -> str:
    return f"http://127.0.0.1:{receiver.port}/hook?secret=canary"


async def all_of(outbox: Outbox, state: State | None, limit: int = 2) -> list[UUID]:
    """Every page of a list."""
    found: list[UUID] = []
    after: str | None = None
    while True:
        page = await outbox.lists.deliveries(state=state, after=after, limit=limit)
        found += [UUID(row["id"]) for row in page.rows]
        assert len(page.rows) <= limit
        if page.next is None:
            return found
        after = page.next


async def one_of_each(outbox: Outbox, receiver: Receiver) -> tuple[UUID, UUID, UUID]:
    """A delivered, a dead and a pending callback."""
    delivered = await outbox.callback(url(receiver))
    await outbox.post().dispatcher.run_once()
    receiver.behave = receiver.say(answer(410))
    dead = await outbox.callback(url(receiver))
    await outbox.post().dispatcher.run_once()
    return delivered, dead, await outbox.callback(url(receiver), due_in_ms=60_000)


async def test_deliveries_are_listed_in_order_by_state_and_in_pages(outbox: Outbox, receiver: Receiver) -> None:
    delivered, dead, pending = await one_of_each(outbox, receiver)
    more = sorted(await outbox.callbacks(url(receiver), 5, due_in_ms=60_000))  # of one moment: then by id
    assert await all_of(outbox, None) == [delivered, dead, pending, *more]
    assert await all_of(outbox, "delivered") == [delivered]
    assert await all_of(outbox, "dead") == [dead]
    assert await all_of(outbox, "pending") == [pending, *more]
    assert await all_of(outbox, None, limit=8) == [delivered, dead, pending, *more]


async def test_a_delivery_shows_everything_but_where_it_goes(outbox: Outbox, receiver: Receiver) -> None:
    """SEC-4: a URL may be a secret."""
    receiver.behave = receiver.say(answer(500))
    key, server_id, client_id = await outbox.intent()
    delivery = await outbox.add(key, url(receiver))
    await outbox.post().dispatcher.run_once()
    document = await outbox.lists.delivery(delivery)
    assert document is not None
    assert document.pop("created_at") < document.pop("next_at")
    assert document == {
        "id": str(delivery),
        "kind": "callback",
        "event": "PROCESSING",
        "state": "pending",
        "acknowledged": False,
        "attempts": 1,
        "settled_at": None,
        "last_status": 500,
        "last_error": "status 500",
        "server_correlation_id": str(server_id),
        "client_correlation_id": client_id,
        "phase": "PROCESSING",
    }
    assert await outbox.lists.of_intent(server_id) == [await outbox.lists.delivery(delivery)]
    assert await outbox.lists.delivery(uuid4()) is None


async def test_the_callback_gap_is_every_callback_that_nobody_acknowledged(outbox: Outbox, receiver: Receiver) -> None:
    """The draft's failure taxonomy: callback received or not, per intent."""
    delivered, dead, pending = await one_of_each(outbox, receiver)
    key, server_id, _ = await outbox.intent()
    await outbox.add(key, url(receiver), kind="compensation", event="FAILED", due_in_ms=60_000)
    gap = (await outbox.lists.callback_gap(after=None, limit=10)).rows
    assert [(row["id"], row["state"]) for row in gap] == [(str(dead), "dead"), (str(pending), "pending")]
    first = await outbox.lists.callback_gap(after=None, limit=1)
    rest = await outbox.lists.callback_gap(after=first.next, limit=1)
    assert [*first.rows, *rest.rows] == gap
    assert rest.next is None
    document = await outbox.lists.delivery(delivered)
    assert document is not None
    assert document["acknowledged"]
    assert [row["kind"] for row in await outbox.lists.of_intent(server_id)] == ["compensation"]


async def test_a_dead_delivery_is_sent_again_with_its_whole_schedule_before_it(
    outbox: Outbox, receiver: Receiver
) -> None:
    """ACM-3: re-drivable, under the same id, and audited."""
    _, dead, _ = await one_of_each(outbox, receiver)
    receiver.behave = receiver.say(answer(500), OK)
    assert await outbox.lists.retry(dead, by="ops")
    post = outbox.post()
    assert await post.dispatcher.run_once() == Dispatched(claimed=1, pending=1)
    assert (await outbox.row(dead))["attempts"] == 1
    assert await outbox.lists.retry(dead, by="ops")  # a pending one: now, and its attempts still count
    assert await post.dispatcher.run_once() == Dispatched(claimed=1, delivered=1)
    assert (await outbox.row(dead))["attempts"] == 2
    assert receiver.ids.count(str(dead)) == 3
    events = await outbox.events(dead)
    assert [code for code, _ in events] == ["OBL-003", "OBL-001", "OBL-001", "OBL-002"]
    assert events[1][1]["retried_by"] == "ops"


async def test_what_was_delivered_or_never_was_cannot_be_sent_again(outbox: Outbox, receiver: Receiver) -> None:
    delivered = await outbox.callback(url(receiver))
    await outbox.post().dispatcher.run_once()
    assert not await outbox.lists.retry(delivered, by="ops")
    assert not await outbox.lists.retry(uuid4(), by="ops")
    assert await outbox.state(delivered) == "delivered"
    assert [code for code, _ in await outbox.events(delivered)] == ["OBL-002"]


@pytest.mark.parametrize("cursor", ["x", "!!!!", "AAAA"])
async def test_a_cursor_that_is_none_is_refused(outbox: Outbox, cursor: str) -> None:
    with pytest.raises(BadCursor):
        await outbox.lists.deliveries(state=None, after=cursor, limit=10)


async def test_the_request_role_cannot_forget_or_redirect_a_delivery(outbox: Outbox, receiver: Receiver) -> None:
    """DESIGN decision 11: what is promised stays promised, to whom it was promised."""
    await outbox.callback(url(receiver))
    connection = await connect(outbox.url)
    try:
        for statement in (
            "DELETE FROM deliveries",
            "UPDATE deliveries SET sealed = ''",
            "UPDATE deliveries SET id = id",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(statement)
    finally:
        await connection.close()


@pytest.mark.parametrize(
    ("name", "arguments", "index"),
    [
        ("claim", [0, [7], [8], [3], 8, 128, 10_000, "orders"], "deliveries_next"),
        ("record", [0, [b"k"], [uuid4()], [0], ["dead"], [None], [500], ["x"]], "deliveries_id"),
        ("retry", [uuid4(), "ops"], "deliveries_id"),
        ("one", [uuid4()], "deliveries_id"),
        ("of_intent", [0, uuid4()], "deliveries_pkey"),
        ("list", [datetime.now(UTC), uuid4(), 10, None], "deliveries_created"),
        ("open", [datetime.now(UTC), uuid4(), 10, None, "callback"], "deliveries_open"),
    ],
)
async def test_statements_find_their_rows_by_index(
    outbox: Outbox, receiver: Receiver, name: str, arguments: list[object], index: str
) -> None:
    """PERFORMANCE 4: pinned plans, also on a table that was empty when they were made."""
    await outbox.callbacks(url(receiver), 20, due_in_ms=60_000)
    connection = await connect(outbox.url)
    try:
        plan = await connection.fetchval(f"EXPLAIN (FORMAT JSON) {SQL[name]}", *arguments)
    finally:
        await connection.close()
    assert index in plan
    scans = [node for node in _nodes(json.loads(plan)[0]["Plan"]) if node["Node Type"] == "Seq Scan"]
    assert scans == []


def _nodes(plan: dict[str, object]) -> list[dict[str, object]]:
    inner = plan.get("Plans", [])
    assert isinstance(inner, list)
    return [plan, *(node for child in inner for node in _nodes(child))]
