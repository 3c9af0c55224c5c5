"""REC-2: what waits for a verdict."""

from __future__ import annotations

from tests.operator.book import Book
from tests.operator.console import Console


async def test_intents_in_doubt_are_listed_oldest_first(console: Console, book: Book) -> None:
    """REC-2: with what an operator needs to judge, and nothing that is settled or in progress."""
    first = await book.doubt("first", "no answer from upstream in time")
    await book.doubt("second")
    await book.commit("committed")
    await book.claim(await book.register("in progress"))
    reply = (await console.ask("/v1/in-doubt")).json
    assert reply["next"] is None
    assert [item["client_correlation_id"] for item in reply["items"]] == ["first", "second"]
    item = reply["items"][0]
    intent = (await console.ask(f"/v1/intents/{first.server_correlation_id}")).json
    assert item == {
        "server_correlation_id": str(first.server_correlation_id),
        "client_correlation_id": "first",
        "since": intent["in_doubt"]["since"],
        "reason": "no answer from upstream in time",
        "next_at": intent["in_doubt"]["next_at"],
        "held": None,
        "asked": 0,
        "method": "POST",
        "path": "/orders",
        "attempts": 1,
        "policy": "hold",
    }
    assert item["next_at"] is not None


async def test_a_settled_intent_is_in_doubt_no_more(console: Console, book: Book) -> None:
    """REC-2: whatever is left in the queue, the phase decides."""
    new = await book.register("first")
    claimed = await book.claim(new)
    await book.owner.execute(
        "INSERT INTO in_doubt (bucket, logical_key, since, reason) VALUES (0, $1, now(), 'x')", new.key.logical
    )
    assert len((await console.ask("/v1/in-doubt")).json["items"]) == 1
    await book.settle(new, claimed)
    assert (await console.ask("/v1/in-doubt")).json["items"] == []
    assert (await console.ask(f"/v1/intents/{new.server_correlation_id}")).json["in_doubt"] is None


async def test_the_list_comes_in_pages(console: Console, book: Book) -> None:
    """Each once, in order, also where several came at the same moment."""
    for number in range(5):
        await book.doubt(f"order-{number}")
    await book.owner.execute("UPDATE in_doubt SET since = (SELECT min(since) FROM in_doubt)")
    whole = (await console.ask("/v1/in-doubt")).json["items"]
    found = []
    query = {"limit": "2"}
    for last in (False, False, True):
        page = (await console.ask("/v1/in-doubt", **query)).json
        found += page["items"]
        assert (page["next"] is None) == last
        query["after"] = page["next"]
    assert found == whole
    assert len(whole) == 5
