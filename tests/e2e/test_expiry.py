"""TTL expiry on the database's clock (TTL-1 .. TTL-4, P1-2, RPL-2)."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

from tests.e2e.conftest import MakeGateway
from tests.e2e.harness import Gateway, Reply, database, eventually
from tests.upstream.fake import FakeUpstream

SHORT = [{"path": "/orders/**", "ttl": "150ms", "grace": "400ms", "max_ttl": "10s"}]


async def until_phase(gateway: Gateway, server_id: str, phase: str) -> Any:
    async def seen() -> Any:
        intent = await gateway.intent(server_id)
        return intent if intent["phase"] == phase else None

    return await eventually(seen)


async def test_a_late_confirmation_is_refused_and_nothing_runs(
    make_gateway: MakeGateway, upstream: FakeUpstream
) -> None:
    """TTL-1, TTL-2: 408, and the ledger follows to ABANDONED with the payload erased and the row kept."""
    gateway = await make_gateway(routes=SHORT)
    registered = await gateway.register("c-1")
    await until_phase(gateway, registered.server_id, "TTL_EXPIRED")
    late = await gateway.confirm("c-1", registered.server_id)
    assert (late.status, late.phase, late.problem) == (408, "TTL_EXPIRED", "ttl-expired")
    assert late.headers["DTT-2PHP-Message"] == "Request TTL exceeded. Re-submit as new request."
    assert (await gateway.register("c-1")).status == 408
    abandoned = await until_phase(gateway, registered.server_id, "ABANDONED")
    assert abandoned["outcome"] == "ABANDONED"
    late = await gateway.confirm("c-1", registered.server_id)
    assert (late.status, late.phase) == (408, "TTL_EXPIRED")
    assert upstream.requests == []


async def test_the_payload_of_an_abandoned_intent_is_erased(make_gateway: MakeGateway, fresh_database: str) -> None:
    """TTL-2, FSM-2: the row and its audit trail stay."""
    gateway = await make_gateway(routes=SHORT)
    await gateway.register("c-1")
    async with database(fresh_database) as store:

        async def swept() -> bool:
            return await store.fetchval("SELECT phase::text FROM intents") == "ABANDONED"

        await eventually(swept)
        assert await store.fetchval("SELECT count(*) FROM payloads") == 0
        rows = await store.fetch("SELECT phase::text FROM events ORDER BY id")
        assert [row["phase"] for row in rows] == ["WAITING_CONFIRM", "TTL_EXPIRED", "ABANDONED"]


async def test_delta_is_told_to_nobody(make_gateway: MakeGateway) -> None:
    """TTL-3: in no header and no body on the data port, before and after expiry."""
    gateway = await make_gateway(routes=[{"path": "/orders/**", "ttl": "200ms", "grace": "7654ms"}])
    answers: list[Reply] = [await gateway.register("c-1")]
    server_id = answers[0].server_id
    answers.append(await gateway.request("GET", "/.well-known/2php/intents/c-1"))
    await until_phase(gateway, server_id, "TTL_EXPIRED")
    answers += [
        await gateway.confirm("c-1", server_id),
        await gateway.register("c-1"),
        await gateway.request("GET", "/.well-known/2php/intents/c-1"),
        await gateway.request("GET", f"/orders/{server_id}"),
    ]
    for answer in answers:
        told = json.dumps([list(map(str, answer.raw_headers)), answer.body.decode()])
        assert "7654" not in told
        assert "grace" not in told.lower()
        assert "delta" not in told.lower()


async def test_an_executed_intent_never_answers_408(
    make_gateway: MakeGateway, upstream: FakeUpstream, fresh_database: str
) -> None:
    """RPL-2: the stored answer after the TTL too, since re-submitting would double the effect."""
    gateway = await make_gateway(routes=[{"path": "/orders/**", "ttl": "1s", "grace": "10ms"}])
    registered = await gateway.register("c-1")
    first = await gateway.confirm("c-1", registered.server_id)
    assert first.status == 200
    async with database(fresh_database) as store:

        async def over() -> bool:
            passed: bool = await store.fetchval("SELECT now() > ponr_deadline + interval '100 ms' FROM intents")
            return passed

        await eventually(over)
    again = await gateway.confirm("c-1", registered.server_id)
    assert (again.status, again.phase, again.body) == (200, "COMMITTED", first.body)
    assert len(upstream.requests) == 1


async def test_confirming_right_at_the_deadline_executes_or_is_refused_never_both(
    make_gateway: MakeGateway, upstream: FakeUpstream, fresh_database: str
) -> None:
    """TTL-1, P2-2: 500 intents at a tiny TTL; every 200 has exactly one effect, every 408 none."""
    gateway = await make_gateway(
        routes=[{"path": "/orders/**", "ttl": "60ms", "grace": "1ms"}], upstream={"url": upstream.url}
    )

    async def one(number: int) -> tuple[str, int]:
        client_id = f"c-{number}"
        registered = await gateway.register(client_id, body=client_id.encode())
        await asyncio.sleep((number % 50) / 400)  # spread around the deadline; the result decides nothing by itself
        return client_id, (await gateway.confirm(client_id, registered.server_id)).status

    results: list[tuple[str, int]] = []
    for start in range(0, 500, 50):
        results += await asyncio.gather(*(one(number) for number in range(start, start + 50)))
    effects = Counter(seen.body.decode() for seen in upstream.requests)
    statuses = Counter(status for _, status in results)
    assert set(statuses) <= {200, 408}
    assert statuses[200] > 0
    assert statuses[408] > 0
    for client_id, status in results:
        assert effects[client_id] == (1 if status == 200 else 0), client_id
    async with database(fresh_database) as store:
        committed = await store.fetchval("SELECT count(*) FROM intents WHERE phase = 'COMMITTED'")
    assert committed == statuses[200]


async def test_profiles_and_requested_ttls(make_gateway: MakeGateway) -> None:
    """TTL-4, P1-2: each route's own values; a request may raise them up to the maximum and never shortens them."""
    gateway = await make_gateway(
        routes=[
            {"path": "/orders/fast", "profile": "low-latency"},
            {"path": "/orders/slow", "profile": "long-running", "max_ttl": "4m"},
            {"path": "/orders/own", "ttl": "7s", "grace": "1s", "max_ttl": "9s"},
            {"path": "/orders/**"},
        ]
    )

    async def granted(client_id: str, path: str, requested: str | None = None) -> str:
        headers = {} if requested is None else {"DTT_2PHP_Requested_TTL": requested}
        return str((await gateway.register(client_id, path=path, **headers)).headers["DTT-2PHP-TTL"])

    assert await granted("c-1", "/orders/fast") == "5000"
    assert await granted("c-2", "/orders/x") == "30000"
    assert await granted("c-3", "/orders/slow") == "120000"
    assert await granted("c-4", "/orders/own") == "7000"
    assert await granted("c-5", "/orders/own", "8000") == "8000"
    assert await granted("c-6", "/orders/own", "99000") == "9000"
    assert await granted("c-7", "/orders/own", "1") == "7000"
    assert await granted("c-8", "/orders/slow", "200000") == "200000"
