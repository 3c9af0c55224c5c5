"""Request bodies: limits, readable refusals, 100-continue, budgets, and streaming (P1-7, P1-9, decisions 13, 15)."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from gateway.ingress import Inbound
from gateway.protocol import problems
from gateway.protocol.messages import Answer
from tests.ingress.peer import Gateway, Peer, Serve

CHUNKED = b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
MIB = 2**20


def post(length: int, *headers: bytes) -> bytes:
    return b"\r\n".join([b"POST /x HTTP/1.1", b"Host: a", b"Content-Length: %d" % length, *headers]) + b"\r\n\r\n"


async def keep_sending(peer: Peer, piece: bytes, pieces: int) -> None:
    for _ in range(pieces):
        await peer.send(piece)


@pytest.mark.parametrize("pieces", [1, 2, 7])
async def test_bodies_arrive_whole_however_they_are_cut(gateway: Gateway, pieces: int) -> None:
    body = bytes(range(256)) * 1000
    step = -(-len(body) // pieces)
    for head, frame in ((post(len(body)), b"%b"), (CHUNKED, b"%x\r\n%b\r\n")):
        peer = await gateway.connect()
        await peer.send(head)
        for start in range(0, len(body), step):
            part = body[start : start + step]
            await peer.send(frame % ((len(part), part) if head is CHUNKED else part))
        if head is CHUNKED:
            await peer.send(b"0\r\n\r\n")
        assert (await peer.answer()).status == 200
        assert gateway.seen.pop().body == body


async def test_a_body_over_the_limit_is_refused_by_its_announced_length_alone(serve: Serve) -> None:
    """P1-7."""
    gateway = await serve(body_limit=1000)
    answer = await gateway.exchange(post(1001))
    assert (answer.status, answer.problem, answer.header("Connection")) == (413, "payload-too-large", "close")
    assert gateway.seen == []


@pytest.mark.parametrize("size", [1000, 1001])
@pytest.mark.parametrize("split", [False, True])
async def test_the_limit_holds_for_chunked_bodies_too(serve: Serve, size: int, split: bool) -> None:
    """P1-7."""
    gateway = await serve(body_limit=1000)
    peer = await gateway.connect()
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (size, bytes(size))
    await peer.send(CHUNKED + (b"" if split else body))
    if split:
        await peer.send(body)
    assert (await peer.answer()).status == (200 if size == 1000 else 413)


async def test_a_chunked_body_over_the_limit_is_not_read_on(serve: Serve) -> None:
    """P1-7: what was taken in is the limit and one read ahead, not what the client would send."""
    taken: list[int] = []

    async def handle(inbound: Inbound) -> Answer:
        try:
            await inbound.read_body(1000)
        finally:
            taken.append(inbound._payload.total_bytes)
        return Answer(200)

    gateway = await serve(handle)
    peer = await gateway.connect()
    answering = asyncio.ensure_future(peer.answer())
    await peer.send(CHUNKED)
    await keep_sending(peer, b"10000\r\n" + bytes(65536) + b"\r\n", 64)
    assert (await answering).problem == "payload-too-large"
    assert taken[0] < 512 * 1024


@pytest.mark.parametrize("head", [post(64 * MIB), CHUNKED], ids=["announced", "chunked"])
async def test_a_sender_that_keeps_sending_can_read_its_413(serve: Serve, head: bytes) -> None:
    """P1-9: input is discarded for a while, so that the answer is not lost to a reset."""
    gateway = await serve(body_limit=1000)
    peer = await gateway.connect()
    answering = asyncio.ensure_future(peer.answer())
    piece = b"10000\r\n" + bytes(65536) + b"\r\n" if head is CHUNKED else bytes(65536)
    await peer.send(head)
    await keep_sending(peer, piece, 12)
    answer = await answering
    assert (answer.status, answer.header("Connection"), answer.complete) == (413, "close", True)


async def test_discarding_ends_with_its_bytes(serve: Serve) -> None:
    """P1-9: 1 MiB; the time limit is far away here."""
    gateway = await serve(body_limit=1000, linger_s=1000, linger_bytes=MIB)
    peer = await gateway.connect()
    assert (await peer.exchange(post(64 * MIB))).status == 413
    sending = asyncio.ensure_future(keep_sending(peer, bytes(65536), 64))
    await gateway.connection_lost()
    await sending


async def test_discarding_ends_with_its_time(serve: Serve) -> None:
    """P1-9: a client that neither sends nor closes is closed."""
    gateway = await serve(body_limit=1000, linger_s=0.1)
    peer = await gateway.connect()
    assert (await peer.exchange(post(64 * MIB))).status == 413
    await gateway.connection_lost()


async def test_discarding_ends_when_the_client_closes(serve: Serve) -> None:
    gateway = await serve(body_limit=1000, linger_s=1000)
    peer = await gateway.connect()
    assert (await peer.exchange(post(64 * MIB))).status == 413
    await peer.close()
    await gateway.connection_lost()


async def test_an_answer_without_reading_a_body_that_is_not_here_ends_the_connection(serve: Serve) -> None:
    """P1-9: any refusal of a body."""

    async def handle(inbound: Inbound) -> Answer:
        raise problems.credentials_missing(b"Bearer")

    gateway = await serve(handle)
    peer = await gateway.connect()
    answer = await peer.exchange(post(5))
    assert (answer.status, answer.header("Connection")) == (401, "close")
    assert await peer.ended() == b""


async def test_an_answer_without_reading_a_body_that_is_here_keeps_the_connection(serve: Serve) -> None:
    async def handle(inbound: Inbound) -> Answer:
        return Answer(401, [], inbound.target)

    peer = await (await serve(handle)).connect()
    for _ in range(2):
        assert (await peer.exchange(post(5) + b"hello")).header("Connection") is None


# --- Expect: 100-continue ---


async def test_reading_the_body_sends_100_once(gateway: Gateway) -> None:
    """P1-9: else 100."""
    peer = await gateway.connect()
    assert (await peer.exchange(post(2, b"Expect: 100-continue"))).status == 100
    assert (await peer.exchange(b"ab")).status == 200
    assert gateway.seen[0].body == b"ab"
    assert (await peer.exchange(post(2) + b"ab")).status == 200


async def test_a_refusal_by_the_head_is_sent_instead_of_100(serve: Serve) -> None:
    """P1-9: 413 if the head decides it."""
    gateway = await serve(body_limit=1)
    answer = await gateway.exchange(post(2, b"Expect: 100-continue"))
    assert (answer.status, answer.header("Connection")) == (413, "close")


async def test_100_is_not_sent_to_who_did_not_ask_or_has_sent_the_body_already(gateway: Gateway) -> None:
    for request in (
        post(2) + b"ab",
        post(2, b"Expect: 100-continue") + b"ab",
        post(2, b"Expect: something-else") + b"ab",
        post(2, b"Expect: 100-continue").replace(b"HTTP/1.1", b"HTTP/1.0") + b"ab",
    ):
        assert (await gateway.exchange(request)).status == 200
    assert [seen.inbound.expects_continue for seen in gateway.seen] == [False, True, False, False]


async def test_a_streaming_handler_decides_when_100_is_sent(serve: Serve) -> None:
    """OPT-2: relayed from the upstream, so never before it says so."""
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def handle(inbound: Inbound) -> Answer:
        entered.set()
        await go_on.wait()
        inbound.send_continue()
        inbound.send_continue()
        return Answer(200, [], b"".join([part async for part in inbound.chunks()]))

    gateway = await serve(handle)
    peer = await gateway.connect()
    await peer.send(post(2, b"Expect: 100-continue"))
    await entered.wait()
    go_on.set()
    assert (await peer.answer()).status == 100
    assert (await peer.exchange(b"ab")).body == b"ab"


async def test_a_final_answer_in_place_of_100_ends_the_connection(serve: Serve) -> None:
    """OPT-2: the upstream's 417; whether the client sends the body after it is unknown."""

    async def handle(inbound: Inbound) -> Answer:
        return Answer(417)

    peer = await (await serve(handle)).connect()
    answer = await peer.exchange(post(2, b"Expect: 100-continue"))
    assert (answer.status, answer.header("Connection")) == (417, "close")
    assert await peer.ended() == b""


# --- broken bodies ---


@pytest.mark.parametrize(
    ("pieces", "problem"),
    [
        ([b"3\r\nabc\r\n", b"zz\r\n"], "malformed-body"),
        ([b"3\r\nab", b"cdef\r\n"], "malformed-body"),
        ([b"1;%b\r\na\r\n" % bytes(200).replace(b"\0", b"x")] * 200, "chunk-overhead"),
        ([b"1;" + b"x" * 10_000, b"x" * 10_000], "chunk-overhead"),
        ([b"1\r\na\r\n", b"0\r\nX: " + b"x" * 10_000, b"x" * 10_000], "chunk-overhead"),
    ],
    ids=["size", "data", "extensions", "endless extension", "endless trailer"],
)
async def test_a_chunked_body_that_breaks_on_its_way_is_refused(
    gateway: Gateway, pieces: list[bytes], problem: str
) -> None:
    """Decision 13: the reader of the body is told, and nothing hangs."""
    peer = await gateway.connect()
    await peer.send(CHUNKED)
    for piece in pieces:
        await peer.send(piece)
    answer = await peer.answer()
    assert (answer.status, answer.problem, answer.header("Connection")) == (400, problem, "close")
    assert gateway.seen == []


async def test_chunks_of_one_byte_are_no_offence(gateway: Gateway) -> None:
    peer = await gateway.connect()
    await peer.send(CHUNKED)
    for _ in range(20):
        await peer.send(b"1\r\na\r\n" * 1000)
    assert (await peer.exchange(b"0\r\n\r\n")).status == 200
    assert gateway.seen[0].body == b"a" * 20_000


async def test_one_huge_segment_of_tiny_chunks_is_no_offence_to_a_slow_reader(serve: Serve) -> None:
    """While the parser is held back, what it has not read yet does not count as overhead."""
    start = asyncio.Event()

    async def handle(inbound: Inbound) -> Answer:
        await start.wait()
        return Answer(200, [], b"%d" % len(await inbound.read_body(MIB)))

    gateway = await serve(handle, read_buffer_bytes=1024)
    peer = await gateway.connect()
    await peer.send(CHUNKED)
    await peer.send(b"1\r\na\r\n" * 40_000 + b"0\r\n\r\n")
    start.set()
    assert (await peer.answer()).body == b"40000"


async def test_a_client_that_ends_before_its_body_does_is_told(gateway: Gateway) -> None:
    peer = await gateway.connect()
    await peer.send(post(10) + b"abc")
    peer.writer.write_eof()
    answer = await peer.answer()
    assert (answer.status, answer.problem) == (400, "incomplete-body")
    assert gateway.seen == []


async def test_a_client_that_vanishes_amid_its_body_leaves_no_reader_waiting(serve: Serve) -> None:
    failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def handle(inbound: Inbound) -> Answer:
        try:
            await inbound.read_body(1000)
        except problems.Problem as problem:
            failed.set_result(problem.slug)
            raise
        return Answer(200)

    gateway = await serve(handle)
    peer = await gateway.connect()
    await peer.send(post(10) + b"abc")
    peer.reset()
    async with asyncio.timeout(10):
        assert await failed == "incomplete-body"


# --- memory ---


async def test_the_buffer_budget_sends_new_bodies_away_and_is_given_back(serve: Serve) -> None:
    """Decision 15: 503 past `limits.buffered`."""
    entered, release = asyncio.Event(), asyncio.Event()

    async def handle(inbound: Inbound) -> Answer:
        await inbound.read_body(MIB)
        if inbound.target == b"/x":
            entered.set()
            await release.wait()
        return Answer(200)

    gateway = await serve(handle, buffers=1000)
    holder, other = await gateway.connect(), await gateway.connect()
    await holder.send(post(800) + bytes(800))
    await entered.wait()
    for request in (post(300) + bytes(300), CHUNKED + b"12c\r\n" + bytes(300) + b"\r\n0\r\n\r\n"):
        answer = await gateway.exchange(request.replace(b"/x", b"/y"))
        assert (answer.status, answer.problem, answer.header("Retry-After")) == (503, "buffers-full", "1")
    assert (await other.exchange((post(200) + bytes(200)).replace(b"/x", b"/y"))).status == 200
    release.set()
    assert (await holder.answer()).status == 200
    assert gateway.buffers.held_bytes == 0
    assert (await other.exchange((post(300) + bytes(300)).replace(b"/x", b"/y"))).status == 200


async def test_a_full_budget_is_told_before_100(serve: Serve) -> None:
    gateway = await serve(buffers=100)
    assert (await gateway.exchange(post(200, b"Expect: 100-continue"))).problem == "buffers-full"


async def test_an_announced_body_holds_nothing_before_it_arrives(serve: Serve) -> None:
    gateway = await serve(buffers=1000)
    slow, quick = await gateway.connect(), await gateway.connect()
    await slow.send(post(1000))
    assert (await quick.exchange(post(900) + bytes(900))).status == 200


async def test_a_large_upload_streams_at_flat_memory(serve: Serve) -> None:
    """OPT-2: 64 MiB through a reader that keeps nothing."""
    received = 0

    async def handle(inbound: Inbound) -> Answer:
        nonlocal received
        async for part in inbound.chunks():
            received += len(part)
        return Answer(200)

    gateway = await serve(handle)
    peer = await gateway.connect()
    await peer.send(post(64 * MIB))
    tracemalloc.start()
    await keep_sending(peer, bytes(MIB), 64)
    assert (await peer.answer()).status == 200
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert received == 64 * MIB
    assert peak < 8 * MIB


async def test_a_reader_that_does_not_read_holds_the_client_back(serve: Serve) -> None:
    """Backpressure: the socket is left alone, the edge's memory is not filled."""
    entered, start = asyncio.Event(), asyncio.Event()
    inbounds: list[Inbound] = []

    async def handle(inbound: Inbound) -> Answer:
        inbounds.append(inbound)
        entered.set()
        await start.wait()
        return Answer(200, [], b"%d" % sum([len(part) async for part in inbound.chunks()]))

    gateway = await serve(handle)
    peer = await gateway.connect()
    await peer.send(post(32 * MIB))
    sending = asyncio.ensure_future(keep_sending(peer, bytes(MIB), 32))
    await entered.wait()
    done, _ = await asyncio.wait([sending], timeout=0.3)
    assert not done, "everything was taken in"
    assert inbounds[0]._payload.total_bytes < MIB
    start.set()
    assert (await peer.answer()).body == b"%d" % (32 * MIB)
    await sending
