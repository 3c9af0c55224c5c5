"""Slow and silent clients (RELIABILITY fact 3, decision 13). Timeouts are small; tests wait for what they cause."""

from __future__ import annotations

import asyncio

import pytest

from gateway.ingress import Inbound
from gateway.protocol.messages import Answer
from gateway.protocol.problems import Problem
from tests.ingress.peer import Gateway, Serve

GET = b"GET /%b HTTP/1.1\r\nHost: a\r\n\r\n"
FAR_S = 1000.0


async def quick(serve: Serve, handler: object = None, **timeouts: float) -> Gateway:
    """An edge on which only the named timeouts are near."""
    far = {"header_timeout_s": FAR_S, "body_timeout_s": FAR_S, "idle_timeout_s": FAR_S}
    return await serve(handler, **{**far, **timeouts})


@pytest.mark.parametrize("part", [b"G", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nX: "])
async def test_half_a_head_is_answered_with_408_and_closed(serve: Serve, part: bytes) -> None:
    gateway = await quick(serve, header_timeout_s=0.1)
    peer = await gateway.connect()
    answer = await peer.exchange(part)
    assert (answer.status, answer.problem, answer.header("Connection")) == (408, "header-timeout", "close")
    assert await peer.ended() == b""
    assert gateway.seen == []


async def test_a_dripping_head_gains_no_time(serve: Serve) -> None:
    gateway = await quick(serve, header_timeout_s=0.2)
    peer = await gateway.connect()
    answering = asyncio.ensure_future(peer.answer())
    await peer.send(b"GET / HTTP/1.1\r\nX: ")
    while not answering.done():
        await peer.send(b"x")
        await asyncio.wait([answering], timeout=0.02)
    assert (await answering).problem == "header-timeout"


async def test_the_head_of_the_second_request_is_timed_too(serve: Serve) -> None:
    gateway = await quick(serve, header_timeout_s=0.1)
    peer = await gateway.connect()
    assert (await peer.exchange(GET % b"a")).status == 200
    assert (await peer.exchange(b"GET /b")).problem == "header-timeout"


async def test_half_a_head_behind_a_slow_request_is_answered_after_it(serve: Serve) -> None:
    release = asyncio.Event()

    async def handle(inbound: Inbound) -> Answer:
        await release.wait()
        return Answer(200, [], b"first")

    gateway = await quick(serve, handle, header_timeout_s=0.1)
    peer = await gateway.connect()
    await peer.send(GET % b"a")
    await peer.send(b"GET /b")
    asyncio.get_running_loop().call_later(0.4, release.set)
    assert (await peer.answer()).body == b"first"
    assert (await peer.answer()).problem == "header-timeout"


async def test_a_connection_without_a_request_is_closed_silently(serve: Serve) -> None:
    gateway = await quick(serve, idle_timeout_s=0.1)
    assert await (await gateway.connect()).ended() == b""


async def test_a_kept_connection_is_closed_silently_once_idle(serve: Serve) -> None:
    gateway = await quick(serve, idle_timeout_s=0.2)
    peer = await gateway.connect()
    assert (await peer.exchange(GET % b"a")).status == 200
    assert await peer.ended() == b""


async def test_a_request_at_the_last_moment_of_idleness_is_answered(gateway: Gateway) -> None:
    peer = await gateway.connect()
    assert (await peer.exchange(GET % b"a")).status == 200
    (connection,) = gateway.server.connections
    connection.data_received(GET % b"b")  # and before anybody could take it, the sweep comes by
    connection.look_at_clock(float("inf"))  # type: ignore[attr-defined]
    assert (await peer.answer()).body == b"/b"


async def test_empty_lines_do_not_begin_a_request(serve: Serve) -> None:
    gateway = await quick(serve, header_timeout_s=0.05, idle_timeout_s=0.3)
    peer = await gateway.connect()
    assert (await peer.exchange(GET % b"a" + b"\r\n")).status == 200
    await peer.send(b"\r\n")
    assert await peer.ended() == b"", "idle, not half a head"


async def test_a_body_that_stops_is_answered_with_408_and_closed(serve: Serve) -> None:
    gateway = await quick(serve, body_timeout_s=0.1)
    for head in (b"Content-Length: 10\r\n\r\nabc", b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"):
        peer = await gateway.connect()
        answer = await peer.exchange(b"POST / HTTP/1.1\r\nHost: a\r\n" + head)
        assert (answer.status, answer.problem, answer.header("Connection")) == (408, "body-timeout", "close")
        assert await peer.ended() == b""
    assert gateway.seen == []


async def test_chunk_extensions_alone_are_no_progress(serve: Serve) -> None:
    gateway = await quick(serve, body_timeout_s=0.2)
    peer = await gateway.connect()
    answering = asyncio.ensure_future(peer.answer())
    await peer.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;")
    while not answering.done():
        await peer.send(b"x")
        await asyncio.wait([answering], timeout=0.02)
    assert (await answering).problem == "body-timeout"


async def test_writing_an_answer_does_not_stop_the_clock_of_the_body(serve: Serve) -> None:
    """Both directions may stream at once; each has its own time."""

    async def handle(inbound: Inbound) -> None:
        body = asyncio.ensure_future(anext(inbound.chunks()))
        await asyncio.sleep(0)
        await inbound.start(200, None, [])
        for _ in range(500):
            await inbound.write(bytes(65536))
        with pytest.raises(Problem, match="body-timeout"):
            await body
        await inbound.write(b"the body stopped")
        await inbound.finish()

    gateway = await quick(serve, handle, body_timeout_s=0.3)
    answer = await gateway.exchange(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n")
    assert answer.body.endswith(b"the body stopped")


async def test_a_body_is_only_timed_while_somebody_reads_it(serve: Serve) -> None:
    """A handler that waits for its upstream must not blame the client."""
    stalled = asyncio.Event()

    async def handle(inbound: Inbound) -> Answer:
        await stalled.wait()
        return Answer(200, [], await inbound.read_body(100))

    gateway = await quick(serve, handle, body_timeout_s=0.1)
    peer = await gateway.connect()
    await peer.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nab")
    asyncio.get_running_loop().call_later(0.3, stalled.set)
    await stalled.wait()
    assert (await peer.exchange(b"cd")).body == b"abcd"


async def test_a_slow_handler_is_not_the_clients_fault(serve: Serve) -> None:
    release = asyncio.Event()

    async def handle(inbound: Inbound) -> Answer:
        await release.wait()
        return Answer(200, [], b"late")

    gateway = await quick(serve, handle, header_timeout_s=0.1, body_timeout_s=0.1, idle_timeout_s=0.1)
    peer = await gateway.connect()
    await peer.send(GET % b"")
    asyncio.get_running_loop().call_later(0.4, release.set)
    assert (await peer.answer()).body == b"late"


async def test_a_client_that_takes_nothing_of_a_streamed_answer_is_cut_off(serve: Serve) -> None:
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def handle(inbound: Inbound) -> None:
        await inbound.start(200, None, [])
        try:
            while True:
                await inbound.write(bytes(65536))
        except ConnectionError as gone:
            ended.set_result(type(gone).__name__)
            raise

    gateway = await quick(serve, handle, idle_timeout_s=0.2)
    peer = await gateway.connect()
    peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
    await peer.send(GET % b"")
    async with asyncio.timeout(20):
        assert await ended
