"""COR-4: the egress side of a whole gateway: crashes between its steps, several workers, drain."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.harness import Gateway, Reply, eventually, free_port
from tests.upstream.fake import FakeUpstream, Wire

CREATED = b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n" + b'{"id": 1}'


@pytest.fixture
async def stock(tmp_path: Path, upstream: FakeUpstream, fresh_database: str) -> AsyncIterator[Gateway]:
    """The called service, behind a gateway of its own; both share a store, each under its own name."""
    gateway = Gateway(tmp_path, upstream.url, fresh_database, {"service": {"name": "stock"}})
    await gateway.start()
    yield gateway
    await gateway.aclose()


class Caller:
    """A gateway whose application calls stock."""

    def __init__(self, gateway: Gateway, port: int) -> None:
        self.gateway = gateway
        self.port = port

    async def call(self, path: str = "/orders", **headers: str) -> Reply:
        assert self.gateway.session is not None
        sent = {"Authorization": "Bearer app", **{name.replace("_", "-"): value for name, value in headers.items()}}
        async with self.gateway.session.post(f"http://127.0.0.1:{self.port}{path}", data=b"x", headers=sent) as answer:
            return Reply(answer.status, answer.headers, await answer.read())

    async def rows(self, actor: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.gateway.operator("GET", f"/v1/ledger/entries?actor={actor}")).json[
            "entries"
        ]
        return found


@pytest.fixture
async def caller(tmp_path: Path, upstream: FakeUpstream, stock: Gateway, fresh_database: str) -> AsyncIterator[Caller]:
    port = free_port()
    changes = {
        "workers": 2,
        "egress": [{"listen": f"127.0.0.1:{port}", "target": "stock", "url": stock.url}],
    }
    gateway = Gateway(tmp_path, upstream.url, fresh_database, changes)
    await gateway.start()
    yield Caller(gateway, port)
    await gateway.aclose()


async def test_both_sides_of_a_call_are_registered(caller: Caller, stock: Gateway, upstream: FakeUpstream) -> None:
    """COR-1, COR-4: one plain request, two rows with one pair of IDs, one effect."""
    answer = await caller.call()
    assert answer.status == 201
    (client,) = await caller.rows("client")
    (server,) = await caller.rows("server")
    for field in ("client_correlation_id", "server_correlation_id", "service_endpoint", "phase", "ttl_ms"):
        assert client[field] == server[field]
    assert (client["source"], client["target"]) == ("orders", "stock")
    assert (server["source"], server["target"]) == ("stock", None)
    assert answer.headers["DTT-2PHP-Server-Correlation-ID"] == server["server_correlation_id"]
    assert len(upstream.requests) == 1


async def test_a_caller_that_dies_after_the_confirmation_leaves_a_row_and_its_retry_doubles_nothing(
    caller: Caller, stock: Gateway, upstream: FakeUpstream
) -> None:
    """COR-4, REC: kill -9 while the called service works; the row is stalled, and the retry gets the one outcome."""
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(wire: Wire) -> None:
        while True:
            await wire.request()
            arrived.set()
            await go_on.wait()
            await wire.send(CREATED)

    upstream.script = slowly
    first = asyncio.create_task(caller.call(Idempotency_Key="pay-17"))
    await arrived.wait()
    await caller.gateway.kill()
    with contextlib.suppress(aiohttp.ClientError):
        await first
    go_on.set()
    await caller.gateway.start()
    (stalled,) = await caller.rows("client")
    assert stalled["phase"] == "PROCESSING"
    again = await caller.call(Idempotency_Key="pay-17")
    assert (again.status, again.body) == (201, b'{"id": 1}')
    (row,) = await caller.rows("client")
    assert (row["entry_id"], row["phase"]) == (stalled["entry_id"], "COMMITTED")
    assert len(upstream.requests) == 1


@pytest.mark.parametrize(
    ("place", "left"),
    [
        ("egress.opened", "WAITING_CONFIRM"),
        ("egress.phase_1_answered", "WAITING_CONFIRM"),
        ("egress.confirming", "PROCESSING"),
        ("egress.answered", "PROCESSING"),
    ],
)
async def test_a_call_goes_on_from_wherever_it_died(
    caller: Caller, stock: Gateway, upstream: FakeUpstream, place: str, left: str
) -> None:
    """COR-4, RELIABILITY "crash points": the row tells how far it came, and a retry has one effect in all."""
    await caller.gateway.stop()
    caller.gateway.environment = {"TWOPHP_TEST_CRASH_AT": place}
    await caller.gateway.start()
    with pytest.raises(aiohttp.ClientError):
        await caller.call(Idempotency_Key="pay-17")
    await caller.gateway.kill()
    caller.gateway.environment = {}
    await caller.gateway.start()
    (row,) = await caller.rows("client")
    assert row["phase"] == left
    assert (await caller.call(Idempotency_Key="pay-17")).status == 201
    (row,) = await caller.rows("client")
    assert row["phase"] == "COMMITTED"
    assert len(await caller.rows("server")) == 1
    assert len(upstream.requests) == 1


async def test_a_call_in_flight_is_finished_by_a_drain(caller: Caller, stock: Gateway, upstream: FakeUpstream) -> None:
    """OPS-1: SIGTERM waits for the outcome and writes it."""
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(wire: Wire) -> None:
        while True:
            await wire.request()
            arrived.set()
            await go_on.wait()
            await wire.send(CREATED)

    upstream.script = slowly
    call = asyncio.create_task(caller.call())
    await arrived.wait()
    stopping = asyncio.create_task(caller.gateway.stop())
    await eventually(lambda: "draining" in caller.gateway.logs())
    go_on.set()
    assert (await call).status == 201
    assert await stopping == 0
    rows = (await stock.operator("GET", "/v1/ledger/entries?actor=client")).json["entries"]
    assert [row["phase"] for row in rows] == ["COMMITTED"]


async def test_a_port_that_is_taken_is_named_at_start(caller: Caller, tmp_path: Path, upstream: FakeUpstream) -> None:
    """OPS-2: nobody else gets the application's calls."""
    changes = {"egress": [{"listen": f"127.0.0.1:{caller.port}", "target": "stock", "url": upstream.url}]}
    other = Gateway(tmp_path, upstream.url, caller.gateway.store_url, changes)
    await other.start(wait_ready=False)
    assert other.process is not None
    assert await other.process.wait() != 0
    assert f"cannot listen on 127.0.0.1:{caller.port}" in other.logs()
    await other.aclose()
