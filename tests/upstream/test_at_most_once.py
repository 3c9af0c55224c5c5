"""REC-4, REC-8, P2-5: a request leaves at most once, and a failure says whether it may have been received."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

import pytest

from gateway.upstream import Upstream, UpstreamFailure
from tests.upstream.fake import OK, WAIT_S, FakeUpstream, Wire, body_of, get, send, until

METHODS = ["GET", "HEAD", "PUT", "DELETE", "POST", "PATCH", "OPTIONS"]


async def failure_of(awaitable: object) -> UpstreamFailure:
    with pytest.raises(UpstreamFailure) as failure:
        await awaitable  # type: ignore[misc]
    return failure.value


@pytest.mark.parametrize("warm", [False, True], ids=["new connection", "used connection"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("end", ["close", "reset"])
async def test_apply_and_drop_is_seen_once_and_is_in_doubt(
    fake: FakeUpstream, client: Upstream, method: str, warm: bool, end: str
) -> None:
    """REC-8: PUT and DELETE above all, which HTTP clients like to repeat."""
    applied: list[bytes] = []

    async def script(wire: Wire) -> None:
        while True:
            seen = await wire.request()
            if seen.line.split()[1] == b"/warm":
                await wire.send(OK)
                continue
            applied.append(seen.line)
            getattr(wire, end)()
            return

    fake.script = script
    if warm:
        await body_of(await get(client, b"/warm"))
    body = None if method in ("GET", "HEAD", "DELETE", "OPTIONS") else b"{}"
    failure = await failure_of(send(client, method, b"/thing", body=body))
    assert (failure.kind, failure.sent) == ("reset", True)
    assert applied == [method.encode() + b" /thing HTTP/1.1"]
    assert client.connections == 0
    await get(client, b"/warm")
    assert len(applied) == 1


async def test_half_an_answer_is_a_reset_after_sending(fake: FakeUpstream, client: Upstream) -> None:
    """RPL-6: a buffered answer cut before its end is in doubt."""
    fake.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", close=True)
    exchange = await send(client, "PUT", body=b"x")
    failure = await failure_of(exchange.read(100))
    assert (failure.kind, failure.sent) == ("reset", True)
    assert await failure_of(exchange.read(100)) is failure
    assert client.connections == 0


async def test_half_a_chunked_answer_gives_its_bytes_then_the_failure(fake: FakeUpstream, client: Upstream) -> None:
    fake.answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", close=True)
    exchange = await get(client)
    assert await anext(exchange) == b"half"
    failure = await failure_of(anext(exchange))
    assert (failure.kind, failure.sent) == ("reset", True)


async def test_a_reset_does_not_end_a_close_delimited_answer(fake: FakeUpstream, client: Upstream) -> None:
    go = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(b"HTTP/1.1 200 OK\r\n\r\npart")
        await go.wait()
        wire.reset()

    fake.script = script
    exchange = await get(client)
    go.set()
    failure = await failure_of(exchange.read(100))
    assert (failure.kind, failure.sent) == ("reset", True)


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000,
        b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
    ],
    ids=["not HTTP", "two lengths", "endless head", "101 unasked"],
)
async def test_an_invalid_answer_is_a_protocol_failure_after_sending(
    fake: FakeUpstream, client: Upstream, answer: bytes
) -> None:
    fake.answer(answer)
    failure = await failure_of(send(client, "PUT", body=b"x"))
    assert (failure.kind, failure.sent) == ("protocol", True)
    assert client.connections == 0
    assert len(fake.requests) == 1


async def test_an_invalid_body_is_a_protocol_failure_after_sending(fake: FakeUpstream, client: Upstream) -> None:
    fake.answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n", b"nonsense\r\n")

    async def whole_exchange() -> None:
        await (await get(client)).read(100)

    failure = await failure_of(whole_exchange())
    assert (failure.kind, failure.sent) == ("protocol", True)
    assert client.connections == 0


async def test_no_answer_in_time_is_a_timeout_after_sending(fake: FakeUpstream, client: Upstream) -> None:
    fake.answer()
    failure = await failure_of(send(client, "DELETE", timeout_s=0.05))
    assert (failure.kind, failure.sent) == ("timeout", True)
    assert client.connections == 0
    await fake.wires[0].closed_by_peer()
    assert len(fake.requests) == 1


async def test_a_timeout_also_ends_a_request_on_a_used_connection(
    fake: FakeUpstream, connect: Callable[..., Upstream]
) -> None:
    """The connection's one timer is set for its idle end first, and has to move on to the request's deadline."""

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(OK)
        await wire.until_peer_closes()

    fake.script = script
    client = connect(idle_s=0.1)
    await get(client)
    failure = await failure_of(send(client, "DELETE", timeout_s=0.2))
    assert (failure.kind, failure.sent) == ("timeout", True)
    assert len(fake.wires) == 1


async def test_an_unfinished_head_counts_as_no_answer(fake: FakeUpstream, client: Upstream) -> None:
    fake.answer(b"HTTP/1.1 102 Processing\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-")
    failure = await failure_of(get(client, timeout_s=0.05))
    assert (failure.kind, failure.sent) == ("timeout", True)


async def test_a_body_that_stops_is_a_timeout(fake: FakeUpstream, client: Upstream) -> None:
    fake.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
    exchange = await get(client, read_timeout_s=0.05)
    failure = await failure_of(exchange.read(100))
    assert (failure.kind, failure.sent) == ("timeout", True)


async def test_a_slow_but_living_body_is_no_timeout(fake: FakeUpstream, client: Upstream) -> None:
    """The read timeout is between bytes, not for the whole body."""

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n")
        for _ in range(20):
            await asyncio.sleep(0.03)
            await wire.send(b"x")

    fake.script = script
    exchange = await get(client, timeout_s=0.3, read_timeout_s=0.3)
    assert await body_of(exchange) == b"x" * 20


async def test_connection_refused_was_never_sent(connect: Callable[..., Upstream]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        client = connect(f"http://127.0.0.1:{unused.getsockname()[1]}")
        failure = await failure_of(send(client, "POST", body=b"x"))
    assert (failure.kind, failure.sent) == ("refused", False)
    assert client.connections == 0


async def test_an_unknown_name_was_never_sent(connect: Callable[..., Upstream]) -> None:
    client = connect("http://no-such-host.invalid")
    failure = await failure_of(send(client, "POST", body=b"x"))
    assert (failure.kind, failure.sent) == ("dns", False)
    assert client.connections == 0


async def test_a_refused_connection_is_tried_again_within_the_attempts(connect: Callable[..., Upstream]) -> None:
    """REC-4: what was certainly never sent may be retried."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    client = connect(f"http://127.0.0.1:{reserved.getsockname()[1]}", connect_attempts=100)
    pending = asyncio.ensure_future(send(client, "POST", body=b"x"))
    await until(lambda: client.connections == 1)
    seen = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        await reader.readuntil(b"\r\n\r\nx")
        seen += 1
        writer.write(OK)

    reserved.listen()
    reserved.setblocking(False)
    server = await asyncio.start_server(serve, sock=reserved)
    assert (await pending).status == 200
    assert seen == 1
    server.close()


async def test_no_connection_in_time_was_never_sent(connect: Callable[..., Upstream]) -> None:
    """The time is one for all attempts together."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        fillers = [socket.socket() for _ in range(4)]  # a full backlog leaves further SYNs unanswered
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        client = connect(f"http://127.0.0.1:{address[1]}", connect_timeout_s=0.1, connect_attempts=5)
        async with asyncio.timeout(WAIT_S):
            failure = await failure_of(send(client, "POST", body=b"x"))
        for filler in fillers:
            filler.close()
    assert (failure.kind, failure.sent) == ("connect_timeout", False)
    assert client.connections == 0


def stale_close(wire: Wire) -> None:
    with socket.socket(fileno=os.dup(wire.writer.get_extra_info("socket").fileno())) as raw:
        raw.shutdown(socket.SHUT_WR)


def stale_bytes(wire: Wire) -> None:
    os.write(wire.writer.get_extra_info("socket").fileno(), b"HTTP/1.1 408 Request Timeout\r\n\r\n")


@pytest.mark.parametrize("spoil", [stale_close, stale_bytes])
async def test_a_stale_idle_connection_is_noticed_before_anything_is_sent(
    fake: FakeUpstream, client: Upstream, spoil: Callable[[Wire], None]
) -> None:
    """REC-4: the event loop has not heard of it yet; a request on it would be in doubt for nothing."""
    await get(client)
    spoil(fake.wires[0])  # no await from here to the next request: only the kernel knows
    exchange = await send(client, "PUT", body=b"x")
    assert await body_of(exchange) == b"ok"
    assert [len(wire.requests) for wire in fake.wires] == [1, 1]


async def test_an_idle_connection_closed_by_the_upstream_leaves_the_pool(
    fake: FakeUpstream, connect: Callable[..., Upstream]
) -> None:
    client = connect(idle_s=60)
    await get(client)
    fake.wires[0].close()
    await until(lambda: client.connections == 0)
    assert (await get(client)).status == 200


async def test_unasked_bytes_on_an_idle_connection_close_it(
    fake: FakeUpstream, connect: Callable[..., Upstream]
) -> None:
    client = connect(idle_s=60)
    await get(client)
    await fake.wires[0].send(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
    await until(lambda: client.connections == 0)
    await fake.wires[0].closed_by_peer()
