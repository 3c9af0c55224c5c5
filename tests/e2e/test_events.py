"""The live event stream: every transition, in order, resumable (LED-6)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp

from tests.e2e.conftest import MakeGateway
from tests.e2e.harness import PATIENCE_S, TOKENS, Gateway


async def read(
    gateway: Gateway, count: int, *, last: str | None = None, started: asyncio.Event | None = None
) -> list[Any]:
    """(id, event) of the next `count` events."""
    headers = {"Authorization": f"Bearer {TOKENS['audit']}"}
    if last is not None:
        headers["Last-Event-ID"] = last
    found: list[Any] = []
    assert gateway.session is not None
    async with asyncio.timeout(PATIENCE_S):
        async with gateway.session.get(gateway.operator_url + "/v1/events", headers=headers) as stream:
            assert stream.status == 200
            assert stream.headers["Content-Type"] == "text/event-stream"
            cursor = ""
            async for raw in stream.content:
                line = raw.decode().rstrip("\n")
                if line == ": following" and started is not None:
                    started.set()
                elif line.startswith("id: "):
                    cursor = line[4:]
                elif line.startswith("data: "):
                    found.append((cursor, json.loads(line[6:])))
                    if len(found) == count:
                        break
    return found


async def test_transitions_are_streamed_live_and_resumed(gateway: Gateway) -> None:
    """LED-6: with Last-Event-ID nothing is missed and nothing comes twice."""
    started = asyncio.Event()
    following = asyncio.create_task(read(gateway, 3, started=started))
    await started.wait()
    await asyncio.sleep(0)
    first = await gateway.handshake("c-1")
    events = await following
    assert [event["phase"] for _, event in events] == ["WAITING_CONFIRM", "PROCESSING", "COMMITTED"]
    assert {event["server_correlation_id"] for _, event in events} == {first.server_id}
    assert events[0][1]["client_correlation_id"] == "c-1"
    assert events[0][1]["path"] == "/orders"
    await gateway.handshake("c-2")
    resumed = await read(gateway, 4, last=events[1][0])
    assert [(event["client_correlation_id"], event["phase"]) for _, event in resumed] == [
        ("c-1", "COMMITTED"),
        ("c-2", "WAITING_CONFIRM"),
        ("c-2", "PROCESSING"),
        ("c-2", "COMMITTED"),
    ]


async def test_many_writers_and_one_follower_agree(make_gateway: MakeGateway) -> None:
    """LED-6: over two replicas, each event once."""
    first, second = await make_gateway(), await make_gateway()
    started = asyncio.Event()
    following = asyncio.create_task(read(first, 3 * 60, started=started))
    await started.wait()
    await asyncio.gather(*((first, second)[n % 2].handshake(f"c-{n}") for n in range(60)))
    events = await following
    assert len({cursor for cursor, _ in events}) == 180
    for number in range(60):
        phases = [event["phase"] for _, event in events if event["client_correlation_id"] == f"c-{number}"]
        assert phases == ["WAITING_CONFIRM", "PROCESSING", "COMMITTED"]


async def test_a_follower_needs_a_token_and_a_good_cursor(gateway: Gateway) -> None:
    """SEC-5, OPS-3."""
    assert (await gateway.operator("GET", "/v1/events", role="sync")).status == 403
    assert (await gateway.operator("GET", "/v1/events?after=nonsense")).status == 400
    assert gateway.session is not None
    async with gateway.session.get(gateway.operator_url + "/v1/events") as refused:
        assert refused.status == 401
    assert isinstance(gateway.session, aiohttp.ClientSession)
