"""Auto-confirm and transparent mode: one round trip, the same ledger (ACM-1, ACM-5, TRN-1 .. TRN-3, RPL-6)."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.e2e.conftest import CREATED, MakeGateway
from tests.e2e.harness import Gateway, Reply, database, eventually
from tests.postgres import BackgroundPostgres
from tests.upstream.fake import FakeUpstream, Wire

TRANSPARENT = [{"path": "/orders/**", "mode": "transparent"}]


async def auto(gateway: Gateway, client_id: str | None = "c-1", **options: Any) -> Reply:
    return await gateway.register(client_id, DTT_2PHP_Auto_Confirm="true", **options)


async def test_auto_confirm_answers_with_the_upstreams_own_status(gateway: Gateway, upstream: FakeUpstream) -> None:
    """ACM-1: COMMITTED, both IDs, no second round trip; the audit trail shows both phases of one transaction."""
    answer = await auto(gateway)
    assert (answer.status, answer.phase, answer.body) == (201, "COMMITTED", b'{"id": "17"}')
    assert answer.headers["DTT-2PHP-Resource-ID"] == "17"
    intent = await gateway.intent(answer.server_id)
    assert intent["client_correlation_id"] == "c-1"
    assert [event["phase"] for event in intent["events"]] == ["WAITING_CONFIRM", "PROCESSING", "COMMITTED"]
    assert intent["phase_2_timestamp"] is not None
    (seen,) = upstream.requests
    assert seen.body == b'{"item": "book"}'
    assert f"Idempotency-Key: {answer.server_id}".encode() in seen.head


@pytest.mark.parametrize(
    ("status", "phase"), [(200, "COMMITTED"), (302, "COMMITTED"), (404, "FAILED"), (500, "FAILED"), (503, "FAILED")]
)
async def test_a_503_stays_503(gateway: Gateway, upstream: FakeUpstream, status: int, phase: str) -> None:
    """ACM-1."""
    upstream.answer(b"HTTP/1.1 %d Own Reason\r\nContent-Length: 2\r\n\r\nhi" % status)
    answer = await auto(gateway)
    assert (answer.status, answer.phase, answer.body) == (status, phase, b"hi")


async def test_an_exact_retry_gets_the_stored_answer(gateway: Gateway, upstream: FakeUpstream) -> None:
    """ACM-5: no second execution; another payload under the same ID is refused."""
    first = await auto(gateway)
    again = await auto(gateway)
    assert (again.status, again.body, again.server_id) == (first.status, first.body, first.server_id)
    assert [h for h in again.raw_headers if h[0] != b"Date"] == [h for h in first.raw_headers if h[0] != b"Date"]
    assert (await auto(gateway, body=b"other")).problem == "client-correlation-id-reused"
    assert len(upstream.requests) == 1


async def test_a_retry_waits_for_the_one_that_runs(gateway: Gateway, upstream: FakeUpstream) -> None:
    """ACM-5, P2-8."""
    release = asyncio.Event()

    async def slow(wire: Wire) -> None:
        await wire.request()
        await release.wait()
        await wire.send(CREATED)

    upstream.script = slow
    racing = [asyncio.create_task(auto(gateway)) for _ in range(10)]
    await eventually(lambda: bool(upstream.requests))
    release.set()
    answers = await asyncio.gather(*racing)
    assert {(a.status, a.phase, a.body) for a in answers} == {(201, "COMMITTED", b'{"id": "17"}')}
    assert len(upstream.requests) == 1


async def test_a_retry_that_cannot_wait_longer_is_told(make_gateway: MakeGateway, upstream: FakeUpstream) -> None:
    """ACM-5: 504 with PROCESSING after the upstream's timeout."""
    release = asyncio.Event()

    async def slow(wire: Wire) -> None:
        await wire.request()
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
        await release.wait()
        await wire.send(b"ok")

    upstream.script = slow
    gateway = await make_gateway(upstream={"url": upstream.url, "timeout": "400ms"})
    registered = await gateway.register("c-1")
    confirming = asyncio.create_task(gateway.confirm("c-1", registered.server_id))
    await eventually(lambda: bool(upstream.requests))
    waiting = await auto(gateway)
    assert (waiting.status, waiting.phase, waiting.problem) == (504, "PROCESSING", "still-processing")
    release.set()
    assert (await confirming).phase == "COMMITTED"
    assert (await auto(gateway)).status == 200
    assert len(upstream.requests) == 1


@pytest.mark.parametrize(("how", "status"), [("drop", 502), ("silence", 504)])
async def test_in_doubt_is_never_a_2xx(
    make_gateway: MakeGateway, upstream: FakeUpstream, how: str, status: int
) -> None:
    """ACM-1, REC-6: 502 or 504, PROCESSING, and the same for a retry."""

    async def script(wire: Wire) -> None:
        await wire.request()
        if how == "silence":
            await wire.until_peer_closes()
        wire.close()

    upstream.script = script
    gateway = await make_gateway(upstream={"url": upstream.url, "timeout": "300ms"})
    for _ in range(2):
        answer = await auto(gateway)
        assert (answer.status, answer.phase) == (status, "PROCESSING")
        assert answer.headers["DTT-2PHP-Message"].startswith("Outcome in doubt")
    assert len(upstream.requests) == 1
    assert (await gateway.intent(answer.server_id))["in_doubt"] is not None


async def test_an_unreached_upstream_is_what_any_proxy_says_and_failed(
    make_gateway: MakeGateway, upstream: FakeUpstream
) -> None:
    """ACM-1, P2-5."""
    await upstream.stop()
    gateway = await make_gateway()
    answer = await auto(gateway)
    assert (answer.status, answer.phase) == (502, "FAILED")


async def test_auto_confirm_without_an_id_gets_one(gateway: Gateway, upstream: FakeUpstream) -> None:
    """TRN-1: a server-made UUID; such a request cannot be deduplicated."""
    first, second = await auto(gateway, None), await auto(gateway, None)
    assert first.server_id != second.server_id
    assert UUID((await gateway.intent(first.server_id))["client_correlation_id"]).version == 4
    assert len(upstream.requests) == 2


async def test_a_registered_intent_can_be_confirmed_by_auto_confirm(gateway: Gateway, upstream: FakeUpstream) -> None:
    """ACM-5: the same request under the same ID, first registered and then auto-confirmed, runs once."""
    registered = await gateway.register("c-1")
    answer = await auto(gateway)
    assert (answer.status, answer.server_id) == (201, registered.server_id)
    assert (await gateway.confirm("c-1", registered.server_id)).phase == "COMMITTED"
    assert len(upstream.requests) == 1


async def test_a_transparent_route_changes_nothing_but_one_header(
    make_gateway: MakeGateway, upstream: FakeUpstream
) -> None:
    """TRN-2: full ledger for callers that send nothing of 2PHP, with or without credentials."""
    gateway = await make_gateway(routes=TRANSPARENT)
    for caller in ("Bearer me", None):
        answer = await gateway.request("POST", "/orders?q", body=b"x", caller=caller)
        ours = [header for header in answer.raw_headers if header[0].startswith(b"DTT-2PHP")]
        assert [name for name, _ in ours] == [b"DTT-2PHP-Server-Correlation-ID"]
        rest = [header for header in answer.raw_headers if header not in ours]
        assert rest[:4] == [
            (b"Content-Type", b"application/json"),
            (b"Location", b"/orders/17"),
            (b"X-Upstream", b"yes"),
            (b"Content-Length", b"12"),
        ]
        assert (answer.status, answer.body) == (201, b'{"id": "17"}')
        intent = await gateway.intent(answer.server_id)
        assert (intent["phase"], intent["response"]["status"], intent["response"]["kept"]) == ("COMMITTED", 201, True)
    assert (await gateway.request("GET", "/orders")).status == 201
    assert [seen.line for seen in upstream.requests[:2]] == [b"POST /orders?q HTTP/1.1"] * 2


async def test_the_one_header_can_be_left_out_and_2php_headers_go_their_own_way(make_gateway: MakeGateway) -> None:
    """TRN-2."""
    gateway = await make_gateway(routes=[{**TRANSPARENT[0], "reveal_id": False}])
    answer = await gateway.request("POST", "/orders", body=b"x")
    assert not [name for name in answer.headers if name.startswith("DTT-2PHP")]
    assert (await gateway.register("c-1")).phase == "WAITING_CONFIRM"
    entries = (await gateway.operator("GET", "/v1/ledger/entries")).json["entries"]
    assert [entry["phase"] for entry in entries] == ["COMMITTED", "WAITING_CONFIRM"]


async def test_transparent_failures_are_what_any_proxy_says(make_gateway: MakeGateway, upstream: FakeUpstream) -> None:
    """TRN-2, REC-6: 502 for a lost connection, the upstream's own 502 as it is; both in doubt in the ledger."""

    async def drop(wire: Wire) -> None:
        await wire.request()
        wire.close()

    gateway = await make_gateway(routes=TRANSPARENT)
    upstream.script = drop
    answer = await gateway.request("POST", "/orders", body=b"x")
    assert (answer.status, answer.problem) == (502, "upstream-unreachable")
    upstream.answer(b"HTTP/1.1 502 Mine\r\nX-Own: yes\r\nContent-Length: 2\r\n\r\nmy", close=True)
    answer = await gateway.request("POST", "/orders", body=b"x")
    assert (answer.status, answer.body, answer.headers["X-Own"]) == (502, b"my", "yes")
    assert len((await gateway.operator("GET", "/v1/in-doubt")).json["items"]) == 2


async def test_a_payload_too_large_to_keep_is_refused_or_passed_on(
    make_gateway: MakeGateway, upstream: FakeUpstream
) -> None:
    """TRN-2, P1-7: `oversize: stream` records its digest and size, and that it was not kept."""
    body = b"0123456789" * 30_000
    refusing = await make_gateway(routes=[{**TRANSPARENT[0], "max_payload": "100KiB"}])
    assert (await refusing.request("POST", "/orders", body=body)).status == 413
    assert upstream.requests == []
    passing = await make_gateway(routes=[{**TRANSPARENT[0], "max_payload": "100KiB", "oversize": "stream"}])

    async def chunked() -> Any:
        for start in range(0, len(body), 50_000):
            yield body[start : start + 50_000]

    for sent in (body, chunked()):
        answer = await passing.request("POST", "/orders", body=sent)
        assert answer.status == 201

        async def noted(server_id: str = answer.server_id) -> Any:
            intent = await passing.intent(server_id)
            return intent if intent["payload_sha256"] is not None else None

        intent = await eventually(noted)
        assert intent["payload_sha256"] == hashlib.sha256(body).hexdigest()
        assert intent["phase"] == "COMMITTED"
    assert upstream.requests[0].body == body


async def test_a_live_answer_is_streamed_and_kept_when_small(make_gateway: MakeGateway, upstream: FakeUpstream) -> None:
    """RPL-6: text/event-stream is passed on as it comes; the outcome is durable first."""
    go_on = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\ndata: 1\n\n")
        await go_on.wait()
        await wire.send(b"data: 2\n\n")
        wire.close()

    upstream.script = script
    gateway = await make_gateway(routes=TRANSPARENT)
    assert gateway.session is not None
    async with gateway.session.post(gateway.url + "/orders", data=b"x") as answer:
        assert await answer.content.readany() == b"data: 1\n\n"
        server_id = answer.headers["DTT-2PHP-Server-Correlation-ID"]
        assert (await gateway.intent(server_id))["phase"] == "COMMITTED"
        go_on.set()
        assert await answer.content.read() == b"data: 2\n\n"

    async def kept() -> bool:
        response = (await gateway.intent(server_id))["response"]
        return bool(response["kept"])

    await eventually(kept)
    assert (await gateway.intent(server_id))["response"]["bytes"] == 18


async def test_the_store_is_away_on_a_transparent_route(data_dir: Path, upstream: FakeUpstream) -> None:
    """TRN-3: 503 by default; `bypass` passes the request on, counted and logged."""
    server = BackgroundPostgres(data_dir / "private")
    url = server.start()
    routes = [
        {"path": "/orders/strict", "mode": "transparent"},
        {"path": "/orders/**", "mode": "transparent", "ledger_outage": "bypass"},
    ]
    gateway = Gateway(data_dir, upstream.url, url, {"routes": routes})
    try:
        await gateway.start()
        server.stop()
        refused = await gateway.request("POST", "/orders/strict", body=b"x")
        assert (refused.status, refused.problem) == (503, "store-unavailable")
        assert upstream.requests == []
        passed = await gateway.request("POST", "/orders", body=b"passed")
        assert (passed.status, passed.body) == (201, b'{"id": "17"}')
        assert [seen.body for seen in upstream.requests] == [b"passed"]
        metrics = (await gateway.operator("GET", "/metrics", role=None)).body.decode()
        assert "twophp_bypassed_total 1.0" in metrics
        assert "without a ledger row" in gateway.logs()
    finally:
        await gateway.aclose()


async def test_a_direct_intent_is_written_in_one_transaction(
    gateway: Gateway, upstream: FakeUpstream, fresh_database: str
) -> None:
    """ACM-1, FSM-2: intent, both events and the attempt, before the first byte."""
    found: list[Any] = []

    async def script(wire: Wire) -> None:
        await wire.request()
        async with database(fresh_database) as store:
            found.extend(
                await store.fetch(
                    "SELECT i.phase::text, i.xmin = e.xmin AND e.xmin = a.xmin AS one, e.phase::text AS told"
                    " FROM intents i JOIN events e USING (logical_key) JOIN attempts a USING (logical_key)"
                    " ORDER BY e.id"
                )
            )
        await wire.send(CREATED)

    upstream.script = script
    assert (await auto(gateway)).status == 201
    assert [tuple(row) for row in found] == [
        ("PROCESSING", True, "WAITING_CONFIRM"),
        ("PROCESSING", True, "PROCESSING"),
    ]


@pytest.mark.parametrize(("recovery", "kept"), [("hold", 0), ("redrive", 1)])
async def test_a_payload_is_kept_only_where_it_may_be_sent_again(
    make_gateway: MakeGateway, upstream: FakeUpstream, fresh_database: str, recovery: str, kept: int
) -> None:
    """REC-2, TTL-2: with `hold` nobody would ever read it; its size and digest are in the ledger all the same."""
    arrived, answered = asyncio.Event(), asyncio.Event()

    async def slow(wire: Wire) -> None:
        await wire.request()
        arrived.set()
        await answered.wait()
        await wire.send(CREATED)

    upstream.script = slow
    gateway = await make_gateway(routes=[{"path": "/orders/**", "recovery": recovery}])
    asking = asyncio.create_task(auto(gateway))
    await arrived.wait()
    async with database(fresh_database) as store:
        assert await store.fetchval("SELECT count(*) FROM payloads") == kept
        assert await store.fetchval("SELECT payload_bytes FROM intents") == len(b'{"item": "book"}')
        answered.set()
        assert (await asking).status == 201
        assert await store.fetchval("SELECT count(*) FROM payloads") == 0
