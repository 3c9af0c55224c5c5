"""LED-3: asking a gateway now, with the credentials it gave; and its own account of one transaction."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.central.desk import Desk, now

TOKEN = "the-pull-canary"


class Gateway:
    """The outside world: a gateway's operator listener, well-behaved or not."""

    def __init__(self) -> None:
        self.pages: dict[str, dict[str, Any]] = {}
        self.intents: dict[str, Any] = {}
        self.asked: list[str] = []
        self.tokens: set[str | None] = set()
        self.misbehave: web.Response | None = None
        self.hold: asyncio.Event | None = None
        self.url = ""

    def show(self, *pages: list[dict[str, Any]]) -> None:
        """Some pages of entries, and an end that stays where it is."""
        self.pages = {}
        for number, entries in enumerate([*pages, []]):
            after = "" if number == 0 else f"p{number}"
            more = f"p{number + 1}" if number < len(pages) else after
            self.pages[after] = {"entries": entries, "next": more}

    async def entries(self, request: web.Request) -> web.Response:
        self.asked.append(request.query.get("after", ""))
        self.tokens.add(request.headers.get("Authorization"))
        if self.hold is not None:
            await self.hold.wait()
        if self.misbehave is not None:
            return self.misbehave
        page = self.pages.get(request.query.get("after", ""))
        return web.json_response(page, status=200) if page is not None else web.Response(status=400)

    async def elsewhere(self, request: web.Request) -> web.Response:
        """Where a redirect leads: what is said here must not count."""
        return web.json_response({"entries": [], "next": ""})

    async def intent(self, request: web.Request) -> web.Response:
        self.tokens.add(request.headers.get("Authorization"))
        found = self.intents.get(request.match_info["id"])
        return web.json_response(found) if found is not None else web.Response(status=404)


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    gateway = Gateway()
    app = web.Application()
    app.router.add_get("/v1/ledger/entries", gateway.entries)
    app.router.add_get("/v1/intents/{id}", gateway.intent)
    app.router.add_get("/elsewhere", gateway.elsewhere)
    async with TestServer(app) as server:
        gateway.url = f"http://127.0.0.1:{server.port}"
        yield gateway


@pytest.fixture
async def reachable(desk: Desk, gateway: Gateway) -> Desk:
    """`orders` registered where it can be asked."""
    await desk.register("orders", operator_url=gateway.url, pull_token=TOKEN)
    return desk


async def pull(desk: Desk) -> Any:
    return await desk.ask(f"/v1/services/{desk.services['orders']}/pull", method="POST")


async def test_a_pull_stores_what_is_new_and_remembers_how_far_it_came(reachable: Desk, gateway: Gateway) -> None:
    """LED-3: pages until the end, each with the service's own token; the next pull goes on from there."""
    desk = reachable
    first, second = [desk.entry("orders") for _ in range(3)], [desk.entry("orders") for _ in range(2)]
    gateway.show(first, second)
    reply = await pull(desk)
    assert (reply.status, reply.json) == (200, {"received": 5, "stored": 5, "foreign": 0, "pages": 3, "complete": True})
    assert gateway.asked == ["", "p1", "p2"]
    assert gateway.tokens == {f"Bearer {TOKEN}"}
    gateway.asked.clear()
    assert (await pull(desk)).json["stored"] == 0
    assert gateway.asked == ["p2"]
    [service] = [one for one in (await desk.ask("/v1/services")).json["items"] if one["name"] == "orders"]
    assert service["last_pull_at"] is not None
    assert service["last_sync_at"] is None


async def test_what_was_pulled_is_not_stored_again_by_a_sync(reachable: Desk, gateway: Gateway) -> None:
    """LED-2, LED-3: one row, one version, whichever way it came."""
    rows = [reachable.entry("orders") for _ in range(4)]
    gateway.show(rows)
    await pull(reachable)
    assert (await reachable.sync("orders", rows)).json == {"received": 4, "stored": 0}


async def test_a_cursor_that_the_gateway_no_longer_knows_starts_over(reachable: Desk, gateway: Gateway) -> None:
    """LED-3: its store was made anew."""
    gateway.show([reachable.entry("orders")])
    await pull(reachable)
    await reachable.owner.execute("UPDATE services SET pull_cursor = 'lost'")
    assert (await pull(reachable)).json == {"received": 1, "stored": 0, "foreign": 0, "pages": 2, "complete": True}


async def test_rows_of_other_services_in_the_same_store_are_left_out(reachable: Desk, gateway: Gateway) -> None:
    """SEC-5: a gateway speaks for its own service only."""
    gateway.show([reachable.entry("orders"), reachable.entry("billing")])
    assert (await pull(reachable)).json["foreign"] == 1
    found = (await reachable.ask("/v1/ledger/entries")).json["entries"]
    assert [row["source"] for row in found] == ["orders"]


@pytest.mark.parametrize(
    "answer",
    [
        web.Response(status=401),
        web.Response(status=302, headers={"Location": "/elsewhere"}),
        web.Response(text="no json"),
        web.json_response([]),
        web.json_response({"entries": [{}], "next": "x"}),
        web.json_response({"entries": [], "next": None}),
    ],
    ids=["refused", "elsewhere", "text", "list", "bad entry", "no cursor"],
)
async def test_a_gateway_that_answers_something_else_is_a_502_that_says_why(
    desk: Desk, gateway: Gateway, answer: web.Response
) -> None:
    """LED-3: no redirect is followed, nothing is stored."""
    await desk.register("orders", operator_url=gateway.url, pull_token=TOKEN)
    gateway.misbehave = answer
    reply = await pull(desk)
    assert (reply.status, reply.problem) == (502, "gateway-away")
    assert "canary" not in reply.json["detail"]
    assert await desk.owner.fetchval("SELECT count(*) FROM entries") == 0


async def test_a_gateway_that_cannot_be_reached_or_was_never_named(desk: Desk) -> None:
    """LED-3."""
    assert (await pull(desk)).problem == "pull-not-possible"
    await desk.register("orders", operator_url="http://127.0.0.1:1", pull_token=TOKEN)
    assert (await pull(desk)).problem == "gateway-away"
    assert (await desk.ask(f"/v1/services/{uuid4()}/pull", method="POST")).status == 404
    assert (await desk.ask("/v1/services/7/pull", method="POST")).status == 400


async def test_two_pulls_at_once_take_turns(reachable: Desk, gateway: Gateway) -> None:
    """LED-3: the second goes on where the first ended."""
    gateway.show([reachable.entry("orders") for _ in range(3)])
    replies = await asyncio.gather(pull(reachable), pull(reachable))
    assert sorted(reply.json["stored"] for reply in replies) == [0, 3]


async def test_a_transaction_is_told_by_its_gateway_or_by_its_rows(reachable: Desk, gateway: Gateway) -> None:
    """LED-5: the gateway's own account; without it, the entry's facts and the reason."""
    row = reachable.entry("orders")
    server_id = row["server_correlation_id"]
    await reachable.give("orders", row)
    path = f"/v1/transactions/{server_id}"
    found = (await reachable.ask(path, as_="audit")).json
    assert (found["from_gateway"], found["intent"]) == (False, None)
    assert "replay horizon" in found["why"]
    assert found["entries"][0]["entry_id"] == server_id
    gateway.intents[server_id] = {"server_correlation_id": server_id, "events": [], "in_doubt": None}
    found = (await reachable.ask(path, as_="audit")).json
    assert (found["from_gateway"], found["why"], found["intent"]["events"]) == (True, None, [])
    gateway.intents[server_id] = {"server_correlation_id": "another"}
    assert (await reachable.ask(path)).json["from_gateway"] is False
    assert (await reachable.ask(f"/v1/transactions/{uuid4()}")).problem == "transaction-unknown"


@pytest.mark.parametrize("cursor", ["x" * 129, "\0", "a b"], ids=["long", "nul", "space"])
async def test_a_cursor_that_no_gateway_gives_is_not_kept(reachable: Desk, gateway: Gateway, cursor: str) -> None:
    """LED-3, OPS-3."""
    gateway.misbehave = web.json_response({"entries": [], "next": cursor})
    assert (await pull(reachable)).problem == "gateway-away"
    assert await reachable.owner.fetchval("SELECT pull_cursor FROM services WHERE name = 'orders'") is None


async def test_a_pull_starts_over_once(reachable: Desk, gateway: Gateway) -> None:
    """LED-3: a gateway that refuses its own cursors is not asked for ever."""
    gateway.pages = {"": {"entries": [], "next": "refused"}}
    assert (await pull(reachable)).problem == "gateway-away"
    assert gateway.asked == ["", "refused", "", "refused"]


@pytest.mark.parametrize(
    "more",
    [{"x": json.loads("[" * 260 + "]" * 260)}, {"events": 7}, {"attempts": [7]}, {"in_doubt": "x"}],
    ids=["deep", "number", "list of numbers", "text"],
)
async def test_an_account_in_another_form_is_said_to_be_one(reachable: Desk, gateway: Gateway, more: Any) -> None:
    """LED-5, OPS-3: the transaction is told by its rows then."""
    await reachable.give("orders", reachable.entry("orders", server_id="s1"))
    gateway.intents["s1"] = {"server_correlation_id": "s1", "events": [], **more}
    reply = await reachable.ask("/v1/transactions/s1")
    assert (reply.status, reply.json["why"]) == (200, "its gateway answered with something else")


async def test_the_gateway_of_whom_the_client_called_is_asked(reachable: Desk, gateway: Gateway) -> None:
    """LED-5, SEC-5: no other service speaks for it; where it cannot be known, nobody does."""
    desk, ids = reachable, {"client_id": "k", "server_id": "s2"}
    gateway.intents["s2"] = {"server_correlation_id": "s2", "events": []}
    await desk.register("billing", operator_url="http://127.0.0.1:1", pull_token=TOKEN)
    await desk.give("orders", desk.entry("orders", **ids))
    await desk.give("billing", desk.entry("billing", **ids, at=now(100)))
    assert "several servers" in (await desk.ask("/v1/transactions/s2")).json["why"]
    await desk.give("inventory", desk.entry("inventory", actor="client", target="orders", **ids))
    assert (await desk.ask("/v1/transactions/s2")).json["from_gateway"] is True


async def test_a_token_is_not_sent_in_the_open(desk: Desk) -> None:
    """LED-3, SEC-6: http is for loopback, unless `pull.allow_http` says otherwise."""
    await desk.register("orders", operator_url="http://gateway.invalid:1", pull_token=TOKEN)
    reply = await pull(desk)
    assert (reply.problem, "pull.allow_http" in reply.json["detail"]) == ("pull-not-possible", True)
    desk.sources.puller._allow_http = True
    assert (await pull(desk)).problem == "gateway-away"
