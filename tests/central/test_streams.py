"""Entries as they arrive, and as a file (LED-5, LED-6, SEC-5)."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import ClientResponse

from gateway.central.live import WAITING_MAX, Live
from gateway.central.rows import WIRE_FIELDS
from tests.central.desk import PATIENCE_S, Desk, now, token, value_of


@contextlib.asynccontextmanager
async def following(desk: Desk, as_: str) -> AsyncIterator[ClientResponse]:
    """A stream that has begun."""
    url = f"http://127.0.0.1:{desk.port}/v1/events"
    async with asyncio.timeout(PATIENCE_S):
        async with desk.session.get(url, headers={"Authorization": f"Bearer {value_of(as_)}"}) as response:
            assert response.headers["Content-Type"] == "text/event-stream"
            assert await response.content.readline() == b": following\n"
            yield response


async def next_event(response: ClientResponse) -> tuple[str, Any]:
    event = ""
    async for line in response.content:
        if line.startswith(b"event: "):
            event = line[7:].strip().decode()
        if line.startswith(b"data: "):
            return event, json.loads(line[6:])
    raise AssertionError("the stream ended")


async def test_followers_see_entries_as_they_are_stored(desk: Desk) -> None:
    """LED-6: new ones and raised ones, not those that were there already."""
    async with following(desk, "audit") as stream:
        row = desk.entry("orders", phase="PROCESSING")
        await desk.give("orders", row)
        await desk.give("orders", row)
        await desk.give("orders", row | {"phase": "FAILED", "outcome": "FAILED", "version": row["version"] + 1})
        seen = [await next_event(stream) for _ in range(2)]
        assert [(event, entry["phase"]) for event, entry in seen] == [("entry", "PROCESSING"), ("entry", "FAILED")]
        assert list(seen[0][1]) == list(WIRE_FIELDS)


async def test_a_restricted_follower_sees_its_own_service_only(desk: Desk) -> None:
    """SEC-5."""
    async with following(desk, "orders-audit") as stream:
        await desk.give("billing", desk.entry("billing"))
        await desk.give("orders", desk.entry("orders"))
        assert (await next_event(stream))[1]["source"] == "orders"


async def test_a_large_batch_is_told_as_its_newest_and_a_number(desk: Desk) -> None:
    """LED-6: a page need not drown."""
    async with following(desk, "audit") as stream:
        await desk.give("orders", *(desk.entry("orders", at=now(300 - n)) for n in range(150)))
        events = [await next_event(stream) for _ in range(101)]
        assert [event for event, _ in events].count("entry") == 100
        assert ("skipped", {"skipped": 50}) in events


async def test_a_stream_ends_with_its_token(desk: Desk) -> None:
    """SEC-5: at the next thing it would have told."""
    async with following(desk, "audit") as stream:
        desk.access.replace_tokens([token("orders-sync", "sync", "orders")])
        await desk.give("orders", desk.entry("orders"))
        assert b"entry" not in await stream.content.read()


async def test_a_follower_that_does_not_keep_up_hears_how_much_it_missed() -> None:
    """LED-6: and holds up nobody."""
    live = Live()
    follow = live.follow(None)
    waiting = asyncio.ensure_future(anext(follow))
    await asyncio.sleep(0)
    for n in range(WAITING_MAX + 30):
        live.publish("orders", {"n": n})
    seen = [await waiting] + [await anext(follow) for _ in range(WAITING_MAX)]
    assert seen[:WAITING_MAX] == [("entry", {"n": n}) for n in range(WAITING_MAX)]
    assert seen[-1] == ("skipped", {"skipped": 30})
    await follow.aclose()
    assert not live.followed


@pytest.mark.parametrize("form", ["csv", "ndjson"])
async def test_an_export_has_every_entry_that_was_asked_for(
    desk: Desk, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEC-5: for compliance, over several pages."""
    monkeypatch.setattr("gateway.central.export.PAGE_ROWS", 7)
    rows = [desk.entry("orders", at=now(100 - n), phase="FAILED" if n % 2 else "COMMITTED") for n in range(30)]
    await desk.give("orders", *rows)
    reply = await desk.ask("/v1/ledger/export", as_="compliance", format=form, outcome="FAILED")
    assert reply.headers["content-disposition"] == f'attachment; filename="ledger.{form}"'
    text = reply.body.decode()
    found = (
        list(csv.DictReader(io.StringIO(text))) if form == "csv" else [json.loads(line) for line in text.splitlines()]
    )
    assert list(found[0]) == list(WIRE_FIELDS)
    assert [row["entry_id"] for row in found] == [row["entry_id"] for row in reversed(rows) if row["phase"] == "FAILED"]


async def test_a_formula_in_an_id_is_inert_in_csv_and_itself_in_ndjson(desk: Desk) -> None:
    """SEC-5: callers choose their IDs, and spreadsheets run what starts with an equals sign."""
    await desk.give("orders", desk.entry("orders", client_id="=HYPERLINK(1)"))
    [row] = csv.DictReader(
        io.StringIO((await desk.ask("/v1/ledger/export?format=csv", as_="compliance")).body.decode())
    )
    assert row["client_correlation_id"] == "'=HYPERLINK(1)"
    exact = json.loads((await desk.ask("/v1/ledger/export?format=ndjson", as_="compliance")).body)
    assert exact["client_correlation_id"] == "=HYPERLINK(1)"
    assert (await desk.ask("/v1/ledger/export", as_="compliance")).problem == "parameter-missing"
