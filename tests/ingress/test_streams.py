"""Streamed answers: framing for every kind of client, flow in time, backpressure, and honest ends (OPT-2)."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Awaitable, Callable

import pytest

from gateway.ingress import ClientGone, Inbound
from gateway.protocol.messages import Header
from tests.ingress.peer import Serve

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
MIB = 2**20


def streaming(
    *parts: bytes, status: int = 200, reason: bytes | None = None, headers: list[Header] | None = None
) -> Callable[[Inbound], Awaitable[None]]:
    async def handle(inbound: Inbound) -> None:
        await inbound.start(status, reason, headers or [])
        for part in parts:
            await inbound.write(part)
        await inbound.finish()

    return handle


async def test_a_body_of_unknown_length_is_chunked_and_the_connection_kept(serve: Serve) -> None:
    peer = await (await serve(streaming(b"one", b"", b"two"))).connect()
    for _ in range(2):
        answer = await peer.exchange(GET)
        assert (answer.body, answer.header("Transfer-Encoding")) == (b"onetwo", "chunked")
        assert (answer.header("Content-Length"), answer.header("Connection")) == (None, None)


async def test_a_known_length_frames_the_body_and_headers_keep_their_place(serve: Serve) -> None:
    headers = [(b"x-B", b"2"), (b"content-LENGTH", b"6"), (b"Date", b"then"), (b"x-b", b"1")]
    peer = await (await serve(streaming(b"one", b"two", headers=headers, reason=b"Sure Thing"))).connect()
    answer = await peer.exchange(GET)
    assert (answer.body, answer.reason) == (b"onetwo", "Sure Thing")
    assert answer.headers == [("x-B", "2"), ("content-LENGTH", "6"), ("Date", "then"), ("x-b", "1")]
    assert (await peer.exchange(GET)).status == 200


async def test_http_1_0_gets_an_unknown_length_until_the_connection_ends(serve: Serve) -> None:
    gateway = await serve(streaming(b"one", b"two"))
    peer = await gateway.connect()
    answer = await peer.exchange(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert (answer.body, answer.header("Transfer-Encoding"), answer.header("Connection")) == (b"onetwo", None, "close")


async def test_http_1_0_keeps_the_connection_with_a_known_length(serve: Serve) -> None:
    peer = await (await serve(streaming(b"abc", headers=[(b"Content-Length", b"3")]))).connect()
    for _ in range(2):
        answer = await peer.exchange(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert (answer.body, answer.header("Connection")) == (b"abc", "keep-alive")


async def test_head_gets_the_head_alone(serve: Serve) -> None:
    for headers, length in (([], None), ([(b"Content-Length", b"6")], "6")):
        peer = await (await serve(streaming(b"onetwo", headers=headers))).connect()
        for _ in range(2):
            answer = await peer.exchange(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", head_only=True)
            assert (answer.header("Content-Length"), answer.header("Transfer-Encoding")) == (length, None)


@pytest.mark.parametrize(("status", "length"), [(204, None), (304, "6")])
async def test_answers_that_have_no_body_end_at_their_head(serve: Serve, status: int, length: str | None) -> None:
    peer = await (await serve(streaming(status=status, headers=[(b"Content-Length", b"6")]))).connect()
    for _ in range(2):
        answer = await peer.exchange(GET)
        assert (answer.status, answer.header("Content-Length")) == (status, length)


async def test_each_part_can_be_read_before_the_next_is_written(serve: Serve) -> None:
    """OPT-2: `text/event-stream`."""
    taken = asyncio.Event()

    async def handle(inbound: Inbound) -> None:
        await inbound.start(200, None, [(b"Content-Type", b"text/event-stream")])
        for _ in range(3):
            await inbound.write(b"data: x\n\n")
            await taken.wait()
            taken.clear()
        await inbound.finish()

    peer = await (await serve(handle)).connect()
    await peer.send(GET)
    await peer.reader.readuntil(b"\r\n\r\n")
    for _ in range(3):
        async with asyncio.timeout(10):
            assert await peer.reader.readuntil(b"\n\n\r\n") == b"9\r\ndata: x\n\n\r\n"
        taken.set()


async def test_an_answer_can_begin_while_its_request_is_still_arriving(serve: Serve) -> None:
    async def handle(inbound: Inbound) -> None:
        await inbound.start(200, None, [])
        async for part in inbound.chunks():
            await inbound.write(part.upper())
        await inbound.finish()

    peer = await (await serve(handle)).connect()
    await peer.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    await peer.reader.readuntil(b"\r\n\r\n")
    for word in (b"abc", b"def"):
        await peer.send(b"3\r\n" + word + b"\r\n")
        assert await peer.reader.readexactly(8) == b"3\r\n" + word.upper() + b"\r\n"
    await peer.send(b"0\r\n\r\n" + GET)
    assert await peer.reader.readexactly(5) == b"0\r\n\r\n"


@pytest.mark.parametrize(
    ("how", "headers"),
    [
        ("abort", []),
        ("raise", []),
        ("return", []),
        ("abort", [(b"Content-Length", b"100")]),
        ("raise", [(b"Content-Length", b"100")]),
        ("return", [(b"Content-Length", b"100")]),
        ("finish early", [(b"Content-Length", b"100")]),
    ],
)
async def test_an_answer_that_breaks_off_is_seen_to_be_incomplete(
    serve: Serve, headers: list[Header], how: str
) -> None:
    async def handle(inbound: Inbound) -> None:
        await inbound.start(200, None, headers)
        await inbound.write(b"some")
        if how == "abort":
            inbound.abort()
        elif how == "raise":
            raise RuntimeError("the upstream died")
        elif how == "finish early":
            await inbound.finish()

    peer = await (await serve(handle)).connect()
    await peer.send(GET)
    try:
        answer = await peer.answer()
    except (ConnectionError, asyncio.IncompleteReadError):
        return  # cut before anything could be read
    assert not answer.complete
    assert await peer.ended() == b""


async def test_a_body_longer_than_announced_never_runs_into_the_next_answer(serve: Serve) -> None:
    gateway = await serve(streaming(b"123456", headers=[(b"Content-Length", b"3")]))
    peer = await gateway.connect()
    await peer.send(GET + GET)
    assert b"456" not in await peer.ended()


async def test_a_writer_hears_that_its_client_has_gone(serve: Serve) -> None:
    heard: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def handle(inbound: Inbound) -> None:
        await inbound.start(200, None, [])
        try:
            while True:
                await inbound.write(bytes(1000))
                await asyncio.sleep(0)
        except ClientGone:
            heard.set_result(inbound.client_left)
            raise

    gateway = await serve(handle)
    peer = await gateway.connect()
    await peer.send(GET)
    peer.reset()
    async with asyncio.timeout(10):
        assert await heard


async def test_a_large_download_streams_at_flat_memory_as_fast_as_it_is_read(serve: Serve) -> None:
    """OPT-2: 64 MiB, and a reader that rests holds the writer back."""
    written = 0

    async def handle(inbound: Inbound) -> None:
        nonlocal written
        await inbound.start(200, None, [(b"Content-Length", b"%d" % (64 * MIB))])
        piece = bytes(65536)
        for _ in range(1024):
            await inbound.write(piece)
            written += len(piece)
        await inbound.finish()

    gateway = await serve(handle)
    peer = await gateway.connect()
    peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
    await peer.send(GET)
    (connection,) = gateway.server.connections
    ended, _ = await asyncio.wait([connection.task], timeout=0.3)  # type: ignore[attr-defined]
    assert not ended
    assert written < 32 * MIB
    peer.reader._transport.resume_reading()  # type: ignore[attr-defined]
    await peer.reader.readuntil(b"\r\n\r\n")
    tracemalloc.start()
    received = 0
    while received < 64 * MIB:
        received += len(await peer.reader.read(65536))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * MIB


async def test_draining_marks_streamed_answers_too(serve: Serve) -> None:
    """OPS-1."""
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def handle(inbound: Inbound) -> None:
        entered.set()
        await go_on.wait()
        await inbound.start(200, None, [])
        await inbound.write(b"x")
        await inbound.finish()

    gateway = await serve(handle)
    peer = await gateway.connect()
    await peer.send(GET)
    await entered.wait()
    gateway.server.drain()
    go_on.set()
    answer = await peer.answer()
    assert (answer.body, answer.header("Connection")) == (b"x", "close")
    assert await peer.ended() == b""
