"""SEC-4.

What callers send and upstreams answer is nowhere in the clear: not on disk, WAL included, not in logs or metrics.
"""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path

import asyncpg
import pytest

from tests.e2e.conftest import MakeGateway
from tests.e2e.harness import Gateway, Reply
from tests.upstream.fake import FakeUpstream, Wire

BODY, AUTHORIZATION, HEADER, ANSWER, ANSWER_HEADER = (
    b"canary-body-5f1c",
    b"canary-authorization-77aa",
    b"canary-header-c0de",
    b"canary-answer-9e3b",
    b"canary-answer-header-41d2",
)
CANARIES = (BODY, AUTHORIZATION, HEADER, ANSWER, ANSWER_HEADER)


def places(directory: Path) -> dict[str, list[bytes]]:
    """Which canaries stand in which files below a directory."""
    found: dict[str, list[bytes]] = {}
    for file in directory.rglob("*"):
        if file.is_file() and not file.name.endswith(".yaml"):
            content = file.read_bytes()
            hits = [canary for canary in CANARIES if canary in content]
            if hits:
                found[str(file.relative_to(directory))] = hits
    return found


async def drive(gateway: Gateway, upstream: FakeUpstream) -> list[Reply]:
    """Every kind of intent: waiting, committed, failed, in doubt."""
    answer = b"HTTP/1.1 %d X\r\nX-Secret: " + ANSWER_HEADER + b"\r\nContent-Length: 18\r\n\r\n" + ANSWER
    caller = "Bearer " + AUTHORIZATION.decode()

    async def one(client_id: str, *, confirm: bool = True) -> list[Reply]:
        replies = [await gateway.register(client_id, body=BODY * 200, caller=caller, X_Mine=HEADER.decode())]
        if confirm:
            replies.append(await gateway.confirm(client_id, replies[0].server_id, caller=caller))
        return replies

    replies = await one("c-waiting", confirm=False)
    upstream.answer(answer % 200, close=True)
    replies += await one("c-committed")
    upstream.answer(answer % 400, close=True)
    replies += await one("c-failed")

    async def drop(wire: Wire) -> None:
        await wire.request()
        wire.close()

    upstream.script = drop
    replies += await one("c-in-doubt")
    return replies


async def test_no_canary_reaches_the_disk_or_the_logs(data_dir: Path, upstream: FakeUpstream) -> None:
    """SEC-4: the whole data directory, WAL and Postgres' own log included; gateway logs at debug level; metrics."""
    gateway = Gateway(data_dir, upstream.url, None, environment={"TWOPHP_LOG_LEVEL": "debug"})
    try:
        await gateway.start()
        replies = await drive(gateway, upstream)
        assert [reply.status for reply in replies] == [200, 200, 200, 200, 400, 200, 202]
        metrics = await gateway.operator("GET", "/metrics", role=None)
        intents = [await gateway.operator("GET", f"/v1/intents/{reply.server_id}") for reply in replies]
        entries = await gateway.operator("GET", "/v1/ledger/entries")
        await gateway.stop()
    finally:
        await gateway.aclose()
    assert any(file.name.startswith("0000") for file in data_dir.rglob("pg_wal/*")), "no WAL was looked at"
    assert places(data_dir) == {}
    for told in (metrics, entries, *intents):
        assert told.status == 200
        assert not any(canary in told.body for canary in CANARIES)


async def test_the_canaries_would_be_found(tmp_path: Path) -> None:
    """The search itself works."""
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "y").write_bytes(b"..." + BODY)
    assert places(tmp_path) == {"x/y": [BODY]}


async def test_a_sealed_row_moved_to_another_intent_does_not_open(
    gateway: Gateway, upstream: FakeUpstream, fresh_database: str
) -> None:
    """SEC-4: bound to their row. The gateway says so instead of sending somebody else's payload."""
    first, second = await gateway.register("c-1", body=b"1"), await gateway.register("c-2", body=b"2")
    connection = await asyncpg.connect(fresh_database)
    try:
        await connection.execute(
            "UPDATE payloads p SET sealed = o.sealed FROM payloads o, intents i, intents j"
            " WHERE i.logical_key = p.logical_key AND i.client_correlation_id = 'c-1'"
            " AND j.logical_key = o.logical_key AND j.client_correlation_id = 'c-2'"
        )
    finally:
        await connection.close()
    answer = await gateway.confirm("c-1", first.server_id)
    assert (answer.status, answer.phase) == (500, "FAILED")
    assert upstream.requests == []
    assert (await gateway.confirm("c-2", second.server_id)).phase == "COMMITTED"


async def test_a_stored_answer_with_coded_content_is_replayed_as_it_was(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    """RPL-1: Content-Encoding is the upstream's business."""
    packed = gzip.compress(b"hello" * 100)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    upstream.answer(head + packed)
    registered = await gateway.register("c-1")
    first = await gateway.confirm("c-1", registered.server_id)
    again = await gateway.confirm("c-1", registered.server_id)
    assert first.body == again.body == packed


@pytest.mark.parametrize("size", [1024 * 1024 + 1, 3_000_000])
async def test_an_answer_too_large_to_keep_is_streamed_once(
    make_gateway: MakeGateway, upstream: FakeUpstream, size: int
) -> None:
    """RPL-6: its outcome is durable before it leaves; a replay gets status, headers and state, and is told."""
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    upstream.answer(b"HTTP/1.1 201 Created\r\nX-Big: yes\r\nContent-Length: %d\r\n\r\n" % size + body)
    gateway = await make_gateway()
    registered = await gateway.register("c-1")
    first = await gateway.confirm("c-1", registered.server_id)
    assert (first.status, first.phase, first.body == body) == (200, "COMMITTED", True)
    again = await gateway.confirm("c-1", registered.server_id)
    assert (again.status, again.phase, again.headers["X-Big"]) == (200, "COMMITTED", "yes")
    assert again.json["body_kept"] is False
    assert len(upstream.requests) == 1

    for _ in range(100):
        response = (await gateway.intent(registered.server_id))["response"]
        if response["bytes"] is not None:
            break
        await asyncio.sleep(0.02)
    assert (response["status"], response["bytes"], response["kept"]) == (201, size, False)
    assert len(response["sha256"]) == 64


async def test_a_large_answer_cut_in_mid_stream_cuts_the_client_and_leaves_an_event(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    """RPL-6: the outcome stays COMMITTED, the client sees that its answer is not whole."""
    import aiohttp

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\n" + b"x" * 2_000_000)
        wire.close()

    upstream.script = script
    registered = await gateway.register("c-1")
    with pytest.raises(aiohttp.ClientError):
        await gateway.confirm("c-1", registered.server_id)
    for _ in range(200):
        intent = await gateway.intent(registered.server_id)
        if "RESPONSE_CUT" in [event["code"] for event in intent["events"]]:
            break
        await asyncio.sleep(0.02)
    assert "RESPONSE_CUT" in [event["code"] for event in intent["events"]]
    assert intent["phase"] == "COMMITTED"
    assert (await gateway.confirm("c-1", registered.server_id)).json["body_kept"] is False
