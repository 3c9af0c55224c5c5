"""OPS-3: whatever goes wrong, the answer is a problem document, comes in time, and repeats nothing of the request."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from datetime import UTC, datetime
from uuid import uuid4

import asyncpg
import pytest

from gateway.ingress.limits import EdgeLimits
from gateway.store.ledger import LINES, LedgerQueries, Moment, Position
from tests.operator.book import Book
from tests.operator.conftest import NOWHERE
from tests.operator.console import PATIENCE_S, Console, secret_of, until

TERMINATE_BLOCKED = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock'"""
A_POSITION = Position(1, 1).cursor()
A_MOMENT = Moment(datetime.now(UTC), b"k" * 16).cursor()


@pytest.mark.parametrize(
    "path", ["/", "/nothing", "/favicon.ico", "/healthz/", "/v1", "/v1/", "/v1/nothing", "/v1/intents/"]
)
async def test_an_unknown_path_is_a_404_problem(storeless: Console, path: str) -> None:
    """OPS-3."""
    reply = await storeless.ask(path)
    assert (reply.status, reply.problem) == (404, "path-unknown")


@pytest.mark.parametrize("line", [b"OPTIONS * HTTP/1.1", b"CONNECT other:80 HTTP/1.1"])
async def test_a_target_without_a_path_is_a_problem_too(storeless: Console, line: bytes) -> None:
    """OPS-3."""
    reply = await storeless.send(line + b"\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert reply.problem == "bad-target"


@pytest.mark.parametrize("path", ["/healthz", "/metrics", "/v1/in-doubt", "/v1/intents/x"])
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_another_method_is_a_405_problem(storeless: Console, method: str, path: str) -> None:
    """OPS-3."""
    reply = await storeless.ask(path, method=method)
    assert (reply.status, reply.problem) == (405, "method-not-allowed")
    assert reply.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    ("path", "query", "problem", "parameter"),
    [
        ("/v1/ledger/entries", "limit=0", "parameter-invalid", "limit"),
        ("/v1/ledger/entries", "limit=1001", "parameter-invalid", "limit"),
        ("/v1/ledger/entries", "limit=-1", "parameter-invalid", "limit"),
        ("/v1/ledger/entries", "limit=ten", "parameter-invalid", "limit"),
        ("/v1/ledger/entries", "limit=", "parameter-invalid", "limit"),
        ("/v1/ledger/entries", "limit=%D9%A1", "parameter-invalid", "limit"),  # an Arabic digit one
        ("/v1/ledger/entries", "limit=1&limit=2", "parameter-repeated", "limit"),
        ("/v1/ledger/entries", "after=zz", "parameter-invalid", "after"),
        ("/v1/ledger/entries", "after=%00", "parameter-invalid", "after"),
        ("/v1/ledger/entries", f"after={A_POSITION}A", "parameter-invalid", "after"),
        ("/v1/ledger/entries", f"after={A_MOMENT}", "parameter-invalid", "after"),
        ("/v1/ledger/entries", "phase=DONE", "parameter-invalid", "phase"),
        ("/v1/ledger/entries", "phase=committed", "parameter-invalid", "phase"),
        ("/v1/ledger/entries", "outcome=PROCESSING", "parameter-invalid", "outcome"),
        ("/v1/ledger/entries", "actor=nobody", "parameter-invalid", "actor"),
        ("/v1/ledger/entries", "source=a%20b", "parameter-invalid", "source"),
        ("/v1/ledger/entries", "server_correlation_id=7", "parameter-invalid", "server_correlation_id"),
        ("/v1/ledger/entries", "client_correlation_id=", "parameter-invalid", "client_correlation_id"),
        ("/v1/ledger/entries", "client_correlation_id=%C3%A9", "parameter-invalid", "client_correlation_id"),
        ("/v1/ledger/entries", "phases=COMMITTED", "parameter-unknown", None),
        ("/v1/ledger/entries", "phase=%FF", "query-malformed", None),
        ("/v1/ledger/entries", "&".join(["limit=1"] * 40), "query-malformed", None),
        ("/v1/intents", "", "parameter-missing", "client_correlation_id"),
        ("/v1/intents", "client_correlation_id=x&limit=101", "parameter-invalid", "limit"),
        ("/v1/intents", f"client_correlation_id=x&after={A_POSITION}", "parameter-invalid", "after"),
        (f"/v1/intents/{uuid4()}", "limit=1", "parameter-unknown", None),
        ("/v1/in-doubt", "phase=PROCESSING", "parameter-unknown", None),
        ("/v1/in-doubt", f"after={A_POSITION}", "parameter-invalid", "after"),
    ],
)
async def test_a_bad_query_parameter_is_named(
    storeless: Console, path: str, query: str, problem: str, parameter: str | None
) -> None:
    """OPS-3: a 400 before the store is even asked."""
    head = f"GET {path}?{query} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    reply = await storeless.send(f"{head}Authorization: Bearer {secret_of('audit')}\r\n\r\n".encode())
    assert (reply.status, reply.problem, reply.json.get("parameter")) == (400, problem, parameter)


@pytest.mark.parametrize("segment", ["x", "123", str(uuid4())[:-1], f"urn:uuid:{uuid4()}", uuid4().hex])
async def test_a_malformed_server_id_is_a_400_problem(storeless: Console, segment: str) -> None:
    """OPS-3."""
    reply = await storeless.ask(f"/v1/intents/{segment}")
    assert (reply.status, reply.problem) == (400, "server-correlation-id-malformed")


async def test_a_store_that_is_away_is_a_503_problem(storeless: Console) -> None:
    """OPS-3: and tells when to come again."""
    for path in (f"/v1/intents/{uuid4()}", "/v1/intents?client_correlation_id=x", "/v1/ledger/entries", "/v1/in-doubt"):
        reply = await storeless.ask(path)
        assert (reply.status, reply.problem) == (503, "store-unavailable"), path
        assert reply.headers["retry-after"] == "1"


async def test_readers_beyond_the_lines_hear_503_and_later_ones_are_served(
    console: Console, ledger: LedgerQueries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPS-3: a busy ledger neither queues readers without end nor keeps a line that somebody gave up."""
    monkeypatch.setattr("gateway.store.ledger.LINE_WAIT_S", 0.05)
    taken = [ledger._free.get_nowait() for _ in range(ledger._free.qsize())]
    assert (await console.ask("/v1/in-doubt")).problem == "store-unavailable"
    for line in taken:
        ledger._free.put_nowait(line)
    assert (await console.ask("/v1/in-doubt")).status == 200


async def test_reading_goes_on_after_the_store_was_lost_again_and_again(
    console: Console, book: Book, fresh_database: str
) -> None:
    """OPS-3: each reader whose backend dies hears 503; no line is lost with it, however often."""
    killer = await asyncpg.connect(fresh_database)
    try:
        async with book.owner.transaction():
            await book.owner.execute("LOCK TABLE in_doubt IN ACCESS EXCLUSIVE MODE")
            for _ in range(LINES + 1):
                asking = asyncio.create_task(console.ask("/v1/in-doubt"))
                async with asyncio.timeout(PATIENCE_S):
                    while not await killer.fetchval(TERMINATE_BLOCKED):
                        pass
                assert (await asking).problem == "store-unavailable"
        assert (await console.ask("/v1/in-doubt")).status == 200
    finally:
        await killer.close()


async def test_an_answer_that_takes_too_long_is_given_up(
    console: Console, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPS-3: here a lock holds the ledger; once it is gone, the same lines work again."""
    monkeypatch.setattr("gateway.operator.listener.ANSWER_TIMEOUT_S", 0.2)
    async with book.owner.transaction():
        await book.owner.execute("LOCK TABLE in_doubt IN ACCESS EXCLUSIVE MODE")
        assert (await console.ask("/v1/in-doubt")).problem == "took-too-long"
    monkeypatch.setattr("gateway.operator.listener.ANSWER_TIMEOUT_S", PATIENCE_S)
    assert (await console.ask("/v1/in-doubt")).status == 200


async def test_a_failure_of_ours_is_a_500_problem_without_its_words(storeless: Console) -> None:
    """OPS-3."""
    storeless.failure = RuntimeError("the-canary")
    reply = await storeless.ask("/metrics")
    assert (reply.status, reply.problem) == (500, "internal-error")
    assert b"canary" not in reply.body


async def test_nothing_of_a_request_is_repeated(storeless: Console) -> None:
    """OPS-3."""
    for path in ("/canary", "/v1/canary", "/v1/intents/canary", "/v1/in-doubt?canary=1", "/v1/in-doubt?after=canary"):
        reply = await storeless.ask(path, headers=[("X-Canary", "canary")])
        assert reply.status in (400, 404)
        assert b"canary" not in reply.body, path


async def test_a_body_is_refused(storeless: Console) -> None:
    """No endpoint takes one."""
    reply = await storeless.ask("/v1/in-doubt", data=b"{}")
    assert (reply.status, reply.problem) == (400, "body-not-expected")


async def test_an_endless_body_is_refused_before_it_comes(storeless: Console) -> None:
    """The answer does not wait for it, and the connection ends."""
    head = b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n"
    reply = await storeless.send(head)
    assert (reply.status, reply.problem) == (400, "body-not-expected")


async def test_an_expectation_that_nobody_can_meet_is_refused(storeless: Console) -> None:
    """OPS-3: only 100-continue is known, and it is met where a body is taken."""
    reply = await storeless.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\nExpect: something\r\n\r\n")
    assert (reply.status, reply.problem) == (417, "expectation-failed")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"canary" * 1500 + b"\r\n\r\n", 431),
        (b"GET /" + b"canary" * 1500 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"X: canary\r\n" * 100 + b"\r\n", 431),
        (b"canary\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nCanary\r\n\r\n", 400),
    ],
)
async def test_a_head_that_is_too_large_or_broken_is_a_problem_that_repeats_nothing(
    storeless: Console, head: bytes, status: int
) -> None:
    """OPS-3: it never reaches an endpoint, and the connection ends."""
    reply = await storeless.send(head)
    assert reply.status == status
    assert reply.problem
    assert b"canary" not in reply.body.lower()


async def test_a_client_that_never_finishes_its_head_is_cut_off(
    ledger: LedgerQueries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RELIABILITY fact 3: half a head does not stay."""
    monkeypatch.setattr("gateway.operator.listener.LIMITS", EdgeLimits(header_timeout_s=0.2, idle_timeout_s=0.2))
    console = await Console.open(ledger, NOWHERE)
    try:
        reader, writer = await console.connect()
        writer.write(b"GET /healthz HTTP/1.1\r\nHo")
        async with asyncio.timeout(PATIENCE_S):
            assert (await reader.read()).startswith(b"HTTP/1.1 408")
        reader, writer = await console.connect()
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /healthz HTTP/1.1\r\nHo")
        async with asyncio.timeout(PATIENCE_S):
            assert (await reader.read()).count(b"HTTP/1.1 200") == 1
    finally:
        await console.close()


async def test_a_client_that_does_not_take_its_answer_is_cut_off(
    ledger: LedgerQueries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stalled reader does not keep an answer in memory."""
    monkeypatch.setattr("gateway.operator.listener.LIMITS", EdgeLimits(idle_timeout_s=0.2))
    console = await Console.open(ledger, NOWHERE)
    console.metrics = b"x" * 32_000_000  # more than the sockets' buffers hold
    try:
        with socket.create_connection(("127.0.0.1", console.port)) as stalled:
            stalled.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            edge = console.listener._edge
            assert edge is not None
            await until(lambda: bool(edge.connections))
            await until(lambda: not edge.connections)
            received = 0
            with contextlib.suppress(ConnectionResetError):
                while chunk := stalled.recv(1 << 20):
                    received += len(chunk)
            assert received < len(console.metrics)
    finally:
        await console.close()
