"""The two-phase handshake, end to end."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from uuid import UUID

import pytest

from tests.e2e.conftest import MakeGateway
from tests.e2e.harness import Gateway, database, eventually
from tests.upstream.fake import FakeUpstream, Wire


async def test_phase_1_registers_and_nothing_runs(gateway: Gateway, upstream: FakeUpstream) -> None:
    """P1-3, P1-4, SEC-1."""
    answer = await gateway.register("c-1")
    assert answer.status == 200
    assert UUID(answer.server_id).version == 4
    assert answer.phase == "WAITING_CONFIRM"
    assert answer.headers["DTT-2PHP-TTL"] == "30000"
    assert answer.headers["DTT-2PHP-Replay-Policy"] == "REJECT"
    assert "DTT-2PHP-Resource-ID" not in answer.headers
    deadline = answer.headers["DTT-2PHP-PONR-Deadline"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", deadline)
    left_s = (datetime.fromisoformat(deadline) - datetime.now(UTC)).total_seconds()
    assert 0 < left_s <= 30
    assert answer.json == {
        "server_correlation_id": answer.server_id,
        "client_correlation_id": "c-1",
        "phase_state": "WAITING_CONFIRM",
        "ttl_ms": 30000,
        "ponr_deadline": deadline,
        "replay_policy": "REJECT",
        "confirm": "/orders/confirm",
    }
    assert upstream.requests == []


async def test_phase_1_is_one_transaction(gateway: Gateway, fresh_database: str) -> None:
    """P1-3, LED-2, FSM-2: intent, payload and audit event carry one transaction's id."""
    await gateway.register("c-1")
    async with database(fresh_database) as store:
        rows = await store.fetch(
            "SELECT i.phase::text, i.xmin::text AS intent, p.xmin::text AS payload, e.xmin::text AS event, e.code"
            " FROM intents i JOIN payloads p USING (logical_key) JOIN events e USING (logical_key)"
        )
    assert len(rows) == 1
    assert rows[0]["phase"] == "WAITING_CONFIRM"
    assert rows[0]["intent"] == rows[0]["payload"] == rows[0]["event"]


async def test_phase_2_executes_and_answers_with_the_upstreams_answer(gateway: Gateway, upstream: FakeUpstream) -> None:
    """P2-1, P2-4, P2-6."""
    registered = await gateway.register("c-1")
    answer = await gateway.confirm("c-1", registered.server_id)
    assert answer.status == 200
    assert answer.phase == "COMMITTED"
    assert answer.headers["DTT-2PHP-Resource-ID"] == "17"
    assert answer.headers["DTT-2PHP-Upstream-Status"] == "201"
    assert answer.headers["X-Upstream"] == "yes"
    assert answer.headers["Location"] == "/orders/17"
    assert answer.body == b'{"id": "17"}'
    assert len(upstream.requests) == 1


async def test_the_forwarded_request_is_the_one_of_phase_1(gateway: Gateway, upstream: FakeUpstream) -> None:
    """P2-3, REC-3: method, raw target, headers and body byte for byte, and what identifies it."""
    body = bytes(range(256))
    assert gateway.session is not None
    registered = await gateway.register(
        "c-1", method="PUT", path="/orders/a%2Fb", body=body, X_Odd="ü".encode().decode("latin-1"), baggage="a=b"
    )
    confirmed = await gateway.confirm("c-1", registered.server_id, path="/orders/a%2Fb/confirm")
    assert confirmed.phase == "COMMITTED"
    (seen,) = upstream.requests
    assert seen.line == b"PUT /orders/a%2Fb HTTP/1.1"
    assert seen.body == body
    head = dict(line.split(b": ", 1) for line in seen.head.split(b"\r\n")[1:-2])
    assert head[b"Host"] == f"127.0.0.1:{gateway.port}".encode()
    assert head[b"Authorization"] == b"Bearer me"
    assert head[b"Content-Type"] == b"application/json"
    assert head[b"Content-Length"] == b"256"
    assert head[b"DTT-2PHP-Client-Correlation-ID"] == b"c-1"
    assert head[b"DTT-2PHP-Server-Correlation-ID"] == registered.server_id.encode()
    assert head[b"Idempotency-Key"] == registered.server_id.encode()
    assert UUID(head[b"DTT-2PHP-Attempt-ID"].decode()).version == 4
    assert head[b"baggage"] == b"a=b,2php-parent=c-1"
    assert b"DTT-2PHP-Enabled" not in head


async def test_a_clients_own_idempotency_key_is_kept(gateway: Gateway, upstream: FakeUpstream) -> None:
    """P2-3."""
    await gateway.handshake(Idempotency_Key="mine")
    assert upstream.requests[0].head.lower().count(b"idempotency-key") == 1
    assert b"Idempotency-Key: mine\r\n" in upstream.requests[0].head


async def test_credentials_are_taken_from_phase_2_when_it_has_them(
    make_gateway: MakeGateway, upstream: FakeUpstream
) -> None:
    """P2-3: a token refreshed in between works where the identity is not the token."""
    gateway = await make_gateway(identity={"method": "api_key", "header": "X-Api-Key"})
    registered = await gateway.register("c-1", caller="Bearer old", X_Api_Key="me", Cookie="a=1")
    answer = await gateway.confirm("c-1", registered.server_id, caller="Bearer new", X_Api_Key="me")
    assert answer.phase == "COMMITTED"
    head = upstream.requests[0].head
    assert b"Authorization: Bearer new\r\n" in head
    assert b"Bearer old" not in head
    assert b"Cookie: a=1\r\n" in head


async def test_an_exact_retry_registers_nothing_new(gateway: Gateway, fresh_database: str) -> None:
    """P1-5, REP-1: the same ID and deadline, what is left of the TTL, the current state."""
    first = await gateway.register("c-1")
    again = await gateway.register("c-1")
    assert again.server_id == first.server_id
    assert again.headers["DTT-2PHP-PONR-Deadline"] == first.headers["DTT-2PHP-PONR-Deadline"]
    assert 0 < int(again.headers["DTT-2PHP-TTL"]) <= 30000
    assert again.phase == "WAITING_CONFIRM"
    await gateway.confirm("c-1", first.server_id)
    assert (await gateway.register("c-1")).phase == "COMMITTED"
    async with database(fresh_database) as store:
        assert await store.fetchval("SELECT count(*) FROM intents") == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"body": b"{}"},
        {"method": "PUT"},
        {"path": "/orders?x"},
        {"path": "/orders/1"},
        {"Content_Type": "text/plain"},
        {"Content_Encoding": "gzip"},
    ],
    ids=lambda changed: next(iter(changed)),
)
async def test_the_same_id_with_another_request_is_refused(
    gateway: Gateway, changed: dict[str, str], fresh_database: str
) -> None:
    """P1-6: 422, nothing stored, the first intent untouched."""
    first = await gateway.register("c-1")
    refused = await gateway.register("c-1", **changed)
    assert (refused.status, refused.problem) == (422, "client-correlation-id-reused")
    async with database(fresh_database) as store:
        assert await store.fetchval("SELECT count(*) FROM intents") == 1
        assert await store.fetchval("SELECT count(*) FROM payloads") == 1
    assert (await gateway.confirm("c-1", first.server_id)).phase == "COMMITTED"


async def test_two_callers_never_collide(gateway: Gateway, upstream: FakeUpstream) -> None:
    """P1-6: the key is scoped by caller."""
    mine = await gateway.register("c-1", body=b"1")
    yours = await gateway.register("c-1", body=b"2", caller="Bearer you")
    assert mine.server_id != yours.server_id
    assert (await gateway.confirm("c-1", yours.server_id, caller="Bearer you")).phase == "COMMITTED"
    assert [seen.body for seen in upstream.requests] == [b"2"]


async def test_a_replayed_confirmation_gets_the_stored_answer(gateway: Gateway, upstream: FakeUpstream) -> None:
    """RPL-1: status, headers and body; no second execution."""
    registered = await gateway.register("c-1")
    first = await gateway.confirm("c-1", registered.server_id)
    again = await gateway.confirm("c-1", registered.server_id)
    assert (again.status, again.body, list(again.raw_headers)) == (first.status, first.body, list(first.raw_headers))
    assert len(upstream.requests) == 1


async def test_a_failure_is_replayed_too(gateway: Gateway, upstream: FakeUpstream) -> None:
    """P2-5, RPL-1: an upstream's 4xx is the same 4xx, body and headers, FAILED."""
    upstream.answer(b"HTTP/1.1 409 Taken\r\nX-Why: taken\r\nContent-Length: 5\r\n\r\ntaken")
    registered = await gateway.register("c-1")
    for _ in range(2):
        answer = await gateway.confirm("c-1", registered.server_id)
        assert (answer.status, answer.phase, answer.body, answer.headers["X-Why"]) == (409, "FAILED", b"taken", "taken")
    assert len(upstream.requests) == 1


async def test_an_upstreams_5xx_is_a_500_that_says_which(gateway: Gateway, upstream: FakeUpstream) -> None:
    """P2-5."""
    upstream.answer(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy")
    answer = await gateway.handshake("c-1")
    assert (answer.status, answer.phase) == (500, "FAILED")
    assert answer.headers["DTT-2PHP-Message"] == "Upstream answered 503."
    assert answer.headers["DTT-2PHP-Upstream-Status"] == "503"
    assert answer.body == b"busy"


async def test_an_upstream_that_was_never_reached_is_a_known_failure(
    make_gateway: MakeGateway, upstream: FakeUpstream
) -> None:
    """P2-5, REC-4: refused; provably nothing was sent."""
    await upstream.stop()
    gateway = await make_gateway()
    registered = await gateway.register("c-1")
    answer = await gateway.confirm("c-1", registered.server_id)
    assert (answer.status, answer.phase) == (500, "FAILED")
    assert "refused" in answer.headers["DTT-2PHP-Message"]
    assert answer.problem == "upstream-failed"
    intent = await gateway.intent(registered.server_id)
    assert [attempt["sent"] for attempt in intent["attempts"]] == [False]


async def test_fifty_racing_confirmations_execute_once(gateway: Gateway, upstream: FakeUpstream) -> None:
    """P2-8, REP-3: the upstream sees one request, all fifty get the same answer."""
    release = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await release.wait()
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nonce")

    upstream.script = script
    registered = await gateway.register("c-1")
    racing = [asyncio.create_task(gateway.confirm("c-1", registered.server_id)) for _ in range(50)]
    await eventually(lambda: len(upstream.requests) == 1)
    release.set()
    answers = await asyncio.gather(*racing)
    assert {(a.status, a.phase, a.body, a.server_id) for a in answers} == {
        (200, "COMMITTED", b"once", registered.server_id)
    }
    assert len(upstream.requests) == 1


async def test_racing_confirmations_at_two_replicas_execute_once(
    make_gateway: MakeGateway, upstream: FakeUpstream
) -> None:
    """P2-2, P2-8: whatever number of replicas race."""
    first, second = await make_gateway(), await make_gateway()
    for number in range(20):
        registered = await first.register(f"c-{number}")
        answers = await asyncio.gather(
            *(gateway.confirm(f"c-{number}", registered.server_id) for gateway in (first, second) for _ in range(5))
        )
        assert {(a.status, a.phase, a.body) for a in answers} == {(200, "COMMITTED", b'{"id": "17"}')}
        assert len(upstream.requests) == number + 1


async def test_the_ponr_is_durable_before_the_first_byte(
    gateway: Gateway, upstream: FakeUpstream, fresh_database: str
) -> None:
    """P2-2: the upstream itself asks Postgres on arrival."""
    found: list[tuple[str, bool]] = []

    async def script(wire: Wire) -> None:
        seen = await wire.request()
        server_id = re.search(rb"DTT-2PHP-Server-Correlation-ID: (\S+)", seen.head)
        assert server_id
        async with database(fresh_database) as store:
            row = await store.fetchrow(
                "SELECT i.phase::text, a.attempt_id = i.attempt_id AS mine"
                " FROM intents i JOIN attempts a USING (logical_key)"
                " WHERE i.server_correlation_id = $1",
                server_id[1].decode(),
            )
        assert row is not None
        found.append((row["phase"], row["mine"]))
        await wire.send(b"HTTP/1.1 204 No Content\r\n\r\n")
        wire.close()

    upstream.script = script
    answers = await asyncio.gather(*(gateway.handshake() for _ in range(20)))
    assert found == [("PROCESSING", True)] * 20
    assert {(answer.status, answer.phase, answer.body) for answer in answers} == {(200, "COMMITTED", b"")}


async def test_a_client_that_leaves_does_not_stop_the_work(gateway: Gateway, upstream: FakeUpstream) -> None:
    """P2-9: the outcome is recorded, and a replay gets it."""
    release = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await release.wait()
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone")

    upstream.script = script
    registered = await gateway.register("c-1")
    leaving = asyncio.create_task(gateway.confirm("c-1", registered.server_id))
    await eventually(lambda: len(upstream.requests) == 1)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    release.set()
    answer = await gateway.confirm("c-1", registered.server_id)
    assert (answer.status, answer.phase, answer.body) == (200, "COMMITTED", b"done")
    assert len(upstream.requests) == 1


@pytest.mark.parametrize(
    ("change", "status", "slug"),
    [
        ({"server_id": "0c9e1a1e-58ab-4c3e-9d0a-1d3a5e0f7abc"}, 404, "intent-unknown"),
        ({"client_id": "c-unknown"}, 404, "intent-unknown"),
        ({"client_id": "c-2"}, 404, "intent-unknown"),
        ({"caller": "Bearer you"}, 403, "other-caller"),
        ({"caller": None}, 401, "credentials-missing"),
        ({"path": "/orders/1/confirm"}, 400, "confirm-mismatch"),
        ({"path": "/orders"}, 400, "confirm-mismatch"),
        ({"path": "/elsewhere/confirm"}, 400, "confirm-mismatch"),
        ({"method": "PUT"}, 400, "confirm-mismatch"),
        ({"server_id": "not-a-uuid"}, 400, "server-correlation-id-malformed"),
    ],
    ids=str,
)
async def test_a_wrong_confirmation_is_refused(
    gateway: Gateway, upstream: FakeUpstream, change: dict[str, str], status: int, slug: str
) -> None:
    """P2-1, P2-7, SEC-2: and the intent is untouched."""
    registered = await gateway.register("c-1")
    await gateway.register("c-2")
    arguments = {"client_id": "c-1", "server_id": registered.server_id, **change}
    refused = await gateway.confirm(arguments.pop("client_id"), arguments.pop("server_id"), **arguments)
    assert (refused.status, refused.problem) == (status, slug)
    assert upstream.requests == []
    assert (await gateway.confirm("c-1", registered.server_id)).phase == "COMMITTED"


async def test_look_before_you_retry(gateway: Gateway) -> None:
    """RPL-5: the caller's own intents, nobody else's."""
    registered = await gateway.register("c/1 %".replace(" ", ""))
    path = "/.well-known/2php/intents/c%2F1%25"
    from yarl import URL

    assert gateway.session is not None

    async def look(caller: str) -> tuple[int, dict[str, object]]:
        url = URL(gateway.url + path, encoded=True)
        async with gateway.session.get(url, headers={"Authorization": caller}) as answer:  # type: ignore[union-attr]
            return answer.status, await answer.json(content_type=None)

    status, state = await look("Bearer me")
    assert status == 200
    assert state["server_correlation_id"] == registered.server_id
    assert state["phase_state"] == "WAITING_CONFIRM"
    assert state["ponr_deadline"] == registered.headers["DTT-2PHP-PONR-Deadline"]
    assert state["resource_id"] is None
    await gateway.confirm("c/1%", registered.server_id)
    _, state = await look("Bearer me")
    assert (state["phase_state"], state["resource_id"]) == ("COMMITTED", "17")
    assert (await look("Bearer you"))[0] == 404
