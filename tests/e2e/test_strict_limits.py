"""Time, size and memory that a client may take of a gateway (P1-7, P1-8, P1-9, DESIGN decisions 13 and 15)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
from collections.abc import AsyncIterator

import pytest

from tests.e2e.harness import PATIENCE_S, eventually
from tests.e2e.malformed import CLIENT_ID, ENABLED, SERVER_ID, UUID
from tests.e2e.wire import Call, Message, Peer, Place, answering, module_place

pytestmark = pytest.mark.asyncio(loop_scope="module")
KIB = 1024
place = module_place(
    listen={"header_timeout": "400ms", "body_timeout": "400ms", "idle_timeout": "2s"},
    routes=[{"path": "/orders"}, {"path": "/few", "max_pending": 1}],
    defaults={"max_payload": "64KiB"},
)
budgeted = module_place(
    limits={"buffered": "256KiB"},
    routes=[{"path": "/orders"}],
    defaults={"max_payload": "64KiB", "max_response": "64KiB"},
)

CALLER = b"Authorization: Bearer me"
CHUNKED = b"Transfer-Encoding: chunked"
EXPECT = b"Expect: 100-continue"
CONTINUE = b"HTTP/1.1 100 Continue"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
_numbers = itertools.count(1)


def length(count: int) -> bytes:
    return b"Content-Length: %d" % count


def head(target: bytes, *lines: bytes) -> bytes:
    return b"\r\n".join([b"POST " + target + b" HTTP/1.1", b"Host: a", *lines]) + b"\r\n\r\n"


def phase_1(*lines: bytes, target: bytes = b"/orders") -> bytes:
    """A Phase 1 head of an intent of its own."""
    return head(target, ENABLED, CALLER, CLIENT_ID + b"c-%d" % next(_numbers), *lines)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@contextlib.asynccontextmanager
async def nothing_comes_of_it(place: Place) -> AsyncIterator[None]:
    """No row and no request upstream."""
    place.origin.seen.clear()
    before = await place.stored()
    yield
    assert await place.stored() == before
    assert place.origin.seen == []


# --- time


@pytest.mark.parametrize("start", [b"POST /orders", b"POST / HTTP/1.1\r\nHost: a\r\nX", phase_1(b"X-Slow: 1")[:-4]])
async def test_half_a_head_is_refused_in_time(place: Place, start: bytes) -> None:
    """RELIABILITY fact 3: 408, and the connection ends; one byte at a time buys no time."""
    for dribble in (False, True):
        async with nothing_comes_of_it(place):
            peer = await place.peer()
            await peer.send(start)
            coming = asyncio.create_task(peer.answer())
            while dribble and not coming.done():
                await peer.send(b"X")
                await asyncio.wait([coming], timeout=0.02)  # the pace of the slow sender
            answer = await coming
            assert (answer.status, answer.problem) == (408, "header-timeout")
            assert answer.header(b"connection") == b"close"
            assert await peer.ended() == b""
            peer.close()


@pytest.mark.parametrize("framing", [length(10), CHUNKED])
async def test_a_body_that_stops_is_refused_in_time_and_not_registered(place: Place, framing: bytes) -> None:
    """P1-9: 408, and the connection ends."""
    async with nothing_comes_of_it(place):
        peer = await place.peer()
        await peer.send(phase_1(framing) + (b"abc" if framing != CHUNKED else chunk(b"abc")))
        answer = await peer.answer()
        assert (answer.status, answer.problem) == (408, "body-timeout")
        assert await peer.ended() == b""
        peer.close()


@pytest.mark.parametrize("framing", [length(10), CHUNKED])
async def test_a_body_that_stops_on_its_way_upstream_is_cut_there(place: Place, framing: bytes) -> None:
    """OPT-2: the upstream never takes half a body for a whole one."""
    seen: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    async def behave(call: Call) -> None:
        await call.body()
        seen.set_result(call.message)

    place.origin.behave = behave
    peer = await place.peer()
    await peer.send(head(b"/plain", framing) + (b"abc" if framing != CHUNKED else chunk(b"abc")))
    answer = await peer.answer()
    assert (answer.status, answer.problem) == (408, "body-timeout")
    assert not (await asyncio.wait_for(seen, PATIENCE_S)).whole
    peer.close()


async def test_an_idle_connection_ends_without_a_word(place: Place) -> None:
    """`listen.idle_timeout`: before and after a request."""
    place.origin.behave = answering(OK)
    fresh, used = await place.peer(), await place.peer()
    await used.send(b"GET /plain HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (await used.answer()).status == 200
    assert [await fresh.ended(), await used.ended()] == [b"", b""]


async def test_a_client_that_takes_nothing_of_its_answer_is_cut_off(place: Place) -> None:
    """`listen.idle_timeout`: and the upstream is not kept waiting for it."""
    given_up = asyncio.Event()

    async def behave(call: Call) -> None:
        try:
            await call.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (64 * KIB * KIB), bytes(64 * KIB * KIB))
        finally:
            given_up.set()

    place.origin.behave = behave
    peer = await place.peer(receive_buffer=16 * KIB)
    peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await peer.send(b"GET /plain HTTP/1.1\r\nHost: a\r\n\r\n")
    async with asyncio.timeout(PATIENCE_S):
        await given_up.wait()
    peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
    assert not (await peer.answer()).whole
    peer.close()


# --- size


@pytest.mark.parametrize("framing", ["length", "chunked", "one byte per chunk"])
async def test_a_payload_at_the_limit_is_taken_and_one_past_it_is_not(place: Place, framing: str) -> None:
    """P1-7."""

    def request(size: int) -> bytes:
        if framing == "length":
            return phase_1(length(size)) + b"x" * size
        size_of_chunk = size if framing == "chunked" else 1
        return phase_1(CHUNKED) + chunk(b"x" * size_of_chunk) * (size // size_of_chunk) + b"0\r\n\r\n"

    assert (await place.through(request(64 * KIB))).status == 200
    async with nothing_comes_of_it(place):
        answer = await place.through(request(64 * KIB + 1))
        assert (answer.status, answer.problem) == (413, "payload-too-large")
        assert answer.header(b"connection") == b"close"
        assert json.loads(answer.body)["limit_bytes"] == 64 * KIB


def keep_sending(peer: socket.socket, block: bytes) -> int:
    """Send until the other side has closed; how much it took."""
    taken_bytes = 0
    with contextlib.suppress(ConnectionError):
        while True:
            taken_bytes += peer.send(block)
    return taken_bytes


def read_all(peer: socket.socket) -> Message:
    """The answer, up to the end that the gateway says behind it."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while part := peer.recv(1 << 16):
            data += part
    head_, _, body = data.partition(b"\r\n\r\n")
    message = Message.parse(head_, answers="POST")
    message.body = body
    return message


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("path", [b"/orders", b"/orders/confirm"])
async def test_a_sender_that_keeps_sending_can_read_its_413(place: Place, framing: str, path: bytes) -> None:
    """P1-7, P1-9: without reading on; input is discarded for a while, then the connection closes."""
    ids = (CLIENT_ID + b"c-413", SERVER_ID + UUID)
    request = phase_1() if path == b"/orders" else head(path, ENABLED, CALLER, *ids)
    block = b"x" * 64 * KIB if framing == "length" else chunk(b"x" * 64 * KIB)
    async with nothing_comes_of_it(place):
        with socket.create_connection(("127.0.0.1", place.gateway.port), timeout=PATIENCE_S) as peer:
            peer.sendall(request[:-2] + (length(1 << 40) if framing == "length" else CHUNKED) + b"\r\n\r\n")
            taken_bytes, answer = await asyncio.gather(
                asyncio.to_thread(keep_sending, peer, block), asyncio.to_thread(read_all, peer)
            )
        assert (answer.status, answer.problem) == (413, "payload-too-large")
        assert answer.header(b"connection") == b"close"
        assert taken_bytes < 16 * KIB * KIB  # 64 KiB, the 1 MiB that is discarded, and the kernel's buffers


def send_all_then_read(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * KIB)  # the kernel must not take it all at once
        peer.sendall(request)
        return peer.recv(1 << 16)


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_a_sender_that_reads_only_when_all_is_sent_gets_its_413(place: Place, framing: str) -> None:
    """P1-9: cut at once, a blocking client would get a reset in the middle of its sending instead."""
    body = b"x" * 700 * KIB
    for _ in range(10):
        if framing == "length":
            request = phase_1(length(len(body))) + body
        else:
            request = phase_1(CHUNKED) + chunk(body) + b"0\r\n\r\n"
        answer = await asyncio.to_thread(send_all_then_read, place.gateway.port, request)
        assert answer.startswith(b"HTTP/1.1 413 ")


# --- Expect: 100-continue on 2PHP requests


async def test_the_gateway_itself_says_100_and_the_upstream_never_sees_expect(place: Place) -> None:
    """P1-9: in both phases; the registered request is sent without it."""
    place.origin.behave = answering(OK)
    place.origin.seen.clear()
    peer = await place.peer()
    await peer.send(phase_1(EXPECT, length(4)))
    assert await peer.exactly(len(CONTINUE) + 4) == CONTINUE + b"\r\n\r\n"
    assert place.origin.seen == []
    await peer.send(b"body")
    registered = await peer.answer()
    assert registered.status == 200
    ids = json.loads(registered.body)
    client_id, server_id = ids["client_correlation_id"].encode(), ids["server_correlation_id"].encode()
    lines = (ENABLED, CALLER, CLIENT_ID + client_id, SERVER_ID + server_id, EXPECT, length(2))
    await peer.send(head(b"/orders/confirm", *lines))
    assert await peer.exactly(len(CONTINUE) + 4) == CONTINUE + b"\r\n\r\n"
    await peer.send(b"{}")
    confirmed = await peer.answer()
    assert (confirmed.status, confirmed.header(b"dtt-2php-phase-state")) == (200, b"COMMITTED")
    (seen,) = place.origin.seen
    assert (seen.header(b"expect"), seen.body) == (None, b"body")
    peer.close()


async def test_a_body_that_does_not_wait_for_its_100_gets_none(place: Place) -> None:
    """P1-9: it is there already."""
    peer = await place.peer()
    await peer.send(phase_1(EXPECT, length(4)) + b"body")
    assert (await peer.answer()).status == 200
    assert peer.interim == []
    peer.close()


async def test_what_the_head_decides_is_said_instead_of_100(place: Place) -> None:
    """P1-9: 400, 401, 413 and 429; the client keeps its body, and the connection closes."""
    assert (await place.through(phase_1(length(0), target=b"/few"))).status == 200
    refused = [
        (head(b"/orders", ENABLED, CALLER, EXPECT, length(4)), 400, "client-correlation-id-missing"),
        (head(b"/orders", ENABLED, CALLER, EXPECT, CHUNKED), 400, "client-correlation-id-missing"),
        (head(b"/orders", ENABLED, CLIENT_ID + b"c", EXPECT, length(4)), 401, "credentials-missing"),
        (head(b"/orders", ENABLED, CLIENT_ID + b"c", EXPECT, CHUNKED), 401, "credentials-missing"),
        (phase_1(EXPECT, length(4), target=b"/few"), 429, "too-many-pending"),
        (phase_1(EXPECT, CHUNKED, target=b"/few"), 429, "too-many-pending"),
        (phase_1(EXPECT, length(64 * KIB + 1)), 413, "payload-too-large"),
        (head(b"/orders%2fconfirm", EXPECT, length(4)), 400, "ambiguous-path"),
    ]
    for request, status, problem in refused:
        async with nothing_comes_of_it(place):
            peer = await place.peer()
            await peer.send(request)
            answer = await peer.answer()
            assert (answer.status, answer.problem, peer.interim) == (status, problem, [])
            assert answer.header(b"connection") == b"close"
            assert await peer.ended() == b""
            peer.close()


# --- memory


@contextlib.asynccontextmanager
async def memory_spent(place: Place) -> AsyncIterator[list[Peer]]:
    """Four bodies that have almost arrived hold 240 of 256 KiB; at the end those still there are completed."""
    holders = [await place.peer() for _ in range(4)]
    for holder in holders:
        await holder.send(phase_1(length(64 * KIB)) + b"x" * 60 * KIB)

    async def held() -> bool:
        text = (await place.gateway.operator("GET", "/metrics")).body.decode()
        values = [float(line.split()[1]) for line in text.splitlines() if line.startswith("twophp_buffered_bytes ")]
        return values == [4 * 60 * KIB]

    await eventually(held)
    yield holders
    for holder in holders:
        if holder.writer.is_closing():
            continue
        await holder.send(b"x" * 4 * KIB)
        assert (await holder.answer()).status == 200
        holder.close()


@pytest.mark.parametrize("framing", ["length", "chunked", "expecting"])
async def test_a_body_beyond_the_budget_is_sent_away_until_the_budget_is_back(budgeted: Place, framing: str) -> None:
    """Decision 15: 503 with Retry-After and without a 100; nobody who holds memory is disturbed; then 200."""
    body = b"y" * 60 * KIB
    requests = {
        "length": phase_1(length(len(body))) + body,
        "chunked": phase_1(CHUNKED) + chunk(body) + b"0\r\n\r\n",
        "expecting": phase_1(EXPECT, length(len(body))),
    }
    async with memory_spent(budgeted):
        async with nothing_comes_of_it(budgeted):
            peer = await budgeted.peer()
            await peer.send(requests[framing])
            answer = await peer.answer()
            assert (answer.status, answer.problem, peer.interim) == (503, "buffers-full", [])
            assert answer.header(b"retry-after") == b"1"
            assert answer.header(b"connection") == b"close"
            peer.close()
    assert (await budgeted.through(phase_1(length(len(body))) + body)).status == 200


async def test_a_client_that_leaves_gives_its_share_of_the_budget_back(budgeted: Place) -> None:
    """Decision 15."""
    async with memory_spent(budgeted) as holders:
        for holder in holders:
            holder.reset()
    body = b"y" * 60 * KIB

    async def taken() -> bool:
        return (await budgeted.through(phase_1(length(len(body))) + body)).status == 200

    await eventually(taken)


async def test_what_is_passed_through_needs_no_budget(budgeted: Place) -> None:
    """OPT-2: a full memory is 2PHP's matter. Nor is a body refused that is larger than all of the budget."""
    budgeted.origin.behave = answering(OK)
    async with memory_spent(budgeted):
        for size in (1, 60 * KIB, 300 * KIB):
            assert (await budgeted.through(head(b"/plain", length(size)) + b"x" * size)).status == 200
            assert len(budgeted.origin.seen[-1].body) == size
