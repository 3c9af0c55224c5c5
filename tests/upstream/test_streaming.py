"""Bodies that flow: backpressure both ways, bounded memory, early answers, 100-continue."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest

from gateway.upstream import Upstream, UpstreamFailure
from gateway.upstream.exchange import BUFFER_BYTES_MAX
from tests.upstream.fake import OK, WAIT_S, FakeUpstream, Wire, body_of, get, send, until

CHUNKED = [(b"Transfer-Encoding", b"chunked")]
PIECE = b"0123456789abcdef" * 4096  # 64 KiB


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def test_a_streamed_body_is_framed_as_its_headers_say(fake: FakeUpstream, client: Upstream) -> None:
    exchange = await send(client, "POST", headers=CHUNKED, body=pieces(b"ab", b"", b"c" * 17))
    assert await body_of(exchange) == b"ok"
    assert fake.requests[0].body == b"2\r\nab\r\n11\r\n" + b"c" * 17 + b"\r\n0\r\n\r\n"
    exchange = await send(client, "POST", headers=[(b"Content-Length", b"5")], body=pieces(b"ab", b"cde"))
    assert await body_of(exchange) == b"ok"
    assert fake.requests[1].body == b"abcde"
    assert len(fake.wires) == 1


@pytest.mark.parametrize("body", [(b"abcd", b"ef"), (b"ab",)], ids=["too long", "too short"])
async def test_a_body_unlike_its_content_length_never_looks_whole(
    fake: FakeUpstream, client: Upstream, body: tuple[bytes, ...]
) -> None:
    with pytest.raises(ValueError, match="Content-Length"):
        await send(client, "POST", headers=[(b"Content-Length", b"5")], body=pieces(*body))
    await fake.wires[0].closed_by_peer()
    assert fake.requests[0].body == b""
    assert client.connections == 0


async def test_what_the_bodys_source_raises_ends_the_exchange(fake: FakeUpstream, client: Upstream) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"ab"
        raise LookupError("client has gone")

    with pytest.raises(LookupError, match="client has gone"):
        await send(client, "POST", headers=CHUNKED, body=broken())
    await fake.wires[0].closed_by_peer()
    assert fake.requests[0].body == b""
    assert client.connections == 0


async def test_a_body_whose_source_is_cancelled_ends_the_exchange(fake: FakeUpstream, client: Upstream) -> None:
    async def cancelled() -> AsyncIterator[bytes]:
        yield b"ab"
        raise asyncio.CancelledError

    with pytest.raises(UpstreamFailure) as failure:
        await send(client, "POST", headers=CHUNKED, body=cancelled())
    assert (failure.value.kind, failure.value.sent) == ("reset", True)
    assert client.connections == 0


async def test_a_large_buffered_body_arrives_whole(fake: FakeUpstream, client: Upstream) -> None:
    body = PIECE * 40 + b"end"
    for _ in range(2):
        await body_of(await send(client, "PUT", body=body))
    assert [seen.body == body for seen in fake.requests] == [True, True]
    assert len(fake.wires) == 1


@pytest.mark.parametrize("streamed", [False, True], ids=["in slices", "streamed"])
async def test_who_loses_the_right_to_send_within_a_body_sends_no_more_of_it(
    fake: FakeUpstream, client: Upstream, streamed: bool
) -> None:
    """REC-1, REC-2: a gateway that was frozen within an upload; part of it went out, so it is in doubt."""
    held = iter([True, True, True])  # the head and two parts of the body
    body = pieces(*[PIECE] * 40) if streamed else PIECE * 40
    headers = CHUNKED if streamed else []
    with pytest.raises(UpstreamFailure) as failure:
        await send(client, "PUT", headers=headers, body=body, before_send=lambda: next(held, False))
    assert (failure.value.kind, failure.value.sent) == ("lease", True)
    await fake.wires[0].closed_by_peer()
    assert client.connections == 0


async def test_a_chunked_body_is_not_ended_without_the_right_to_send(fake: FakeUpstream, client: Upstream) -> None:
    """REC-1: its end is what makes a request of it."""
    held = iter([True, True])
    with pytest.raises(UpstreamFailure) as failure:
        await send(client, "PUT", headers=CHUNKED, body=pieces(b"ab"), before_send=lambda: next(held, False))
    assert (failure.value.kind, failure.value.sent) == ("lease", True)
    await fake.wires[0].closed_by_peer()
    assert fake.requests[0].body == b""


async def test_a_large_answer_arrives_whole_by_reading_or_iterating(fake: FakeUpstream, client: Upstream) -> None:
    fake.answer(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(PIECE) * 40), PIECE * 40)
    assert await body_of(await get(client)) == PIECE * 40
    received = [chunk async for chunk in await get(client)]
    assert b"".join(received) == PIECE * 40
    assert len(fake.wires) == 1


async def test_reading_stops_at_the_limit_and_iteration_goes_on(fake: FakeUpstream, client: Upstream) -> None:
    """RPL-6: up to `max_response` is kept; what is larger is streamed from there."""
    total = 4 * 1024 * 1024
    fake.answer(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total, b"x" * total)
    exchange = await get(client)
    first, ended = await exchange.read(1000)
    assert (len(first), ended) == (1000, False)
    rest = 0
    async for chunk in exchange:
        rest += len(chunk)
    assert rest == total - 1000
    assert exchange.complete


async def test_a_body_of_exactly_the_limit_has_ended_within_it(fake: FakeUpstream, client: Upstream) -> None:
    fake.answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfour\r\n", b"0\r\n\r\n")
    assert await (await get(client)).read(4) == (b"four", True)
    exchange = await get(client)
    assert await exchange.read(3) == (b"fou", False)
    assert await exchange.read(3) == (b"r", True)
    assert await exchange.read(3) == (b"", True)


async def test_reading_with_a_bound_in_time_returns_what_has_come(fake: FakeUpstream, client: Upstream) -> None:
    """RPL-6: an answer unfinished a second after its head is streamed."""
    go = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
        await go.wait()
        await wire.send(b"data: 2\n\n")
        wire.close()

    fake.script = script
    exchange = await get(client)
    assert await exchange.read(1000, within_s=0.02) == (b"data: 1\n\n", False)
    go.set()
    assert [chunk async for chunk in exchange] == [b"data: 2\n\n"]
    assert exchange.complete


async def test_an_unread_answer_is_left_with_the_upstream(fake: FakeUpstream, client: Upstream) -> None:
    """A slow client costs one buffer of memory, and no timeout runs against the upstream meanwhile."""
    sent = 0
    total = 64 * 1024 * 1024
    go = asyncio.Event()

    async def script(wire: Wire) -> None:
        nonlocal sent
        await wire.request()
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        await go.wait()
        while sent < total:
            await wire.send(PIECE)
            sent += len(PIECE)

    fake.script = script
    exchange = await get(client, read_timeout_s=0.1)
    first = asyncio.ensure_future(anext(exchange))
    await asyncio.sleep(0)
    go.set()
    received = len(await first)
    stalled_at = -1
    while stalled_at != sent:  # the sender is stuck when it gets no further for longer than the read timeout
        stalled_at = sent
        await asyncio.sleep(0.15)
    assert sent < total
    assert BUFFER_BYTES_MAX <= exchange.buffered_bytes <= 2 * BUFFER_BYTES_MAX
    largest = 0
    async for chunk in exchange:
        received += len(chunk)
        largest = max(largest, len(chunk))
    assert received == total
    assert largest <= 2 * BUFFER_BYTES_MAX


async def test_an_upload_waits_for_a_slow_upstream(fake: FakeUpstream, client: Upstream) -> None:
    go = asyncio.Event()
    produced = 0
    total = 64 * 1024 * 1024

    async def source() -> AsyncIterator[bytes]:
        nonlocal produced
        while produced < total:
            produced += len(PIECE)
            yield PIECE

    async def script(wire: Wire) -> None:
        await wire.head()
        await go.wait()
        await wire.reader.readexactly(total)
        await wire.send(OK)

    fake.script = script
    pending = asyncio.ensure_future(
        send(client, "POST", headers=[(b"Content-Length", b"%d" % total)], body=source(), timeout_s=WAIT_S)
    )
    stalled_at = -1
    while stalled_at != produced or not produced:
        stalled_at = produced
        await asyncio.sleep(0.1)
    assert produced < total
    go.set()
    assert await body_of(await pending) == b"ok"
    assert client.idle_connections == 1


async def test_an_upstream_that_stops_taking_the_body_times_out(fake: FakeUpstream, client: Upstream) -> None:
    async def script(wire: Wire) -> None:
        await wire.head()
        await asyncio.Event().wait()

    closed = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield PIECE
        finally:
            closed.set()

    fake.script = script
    with pytest.raises(UpstreamFailure) as failure:
        await send(client, "POST", headers=CHUNKED, body=endless(), timeout_s=0.2)
    assert (failure.value.kind, failure.value.sent) == ("timeout", True)
    await asyncio.wait_for(closed.wait(), WAIT_S)
    assert client.connections == 0


async def test_the_clock_stands_still_while_the_source_is_slow(fake: FakeUpstream, client: Upstream) -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield b"a"
        await asyncio.sleep(0.3)
        yield b"b"

    exchange = await send(client, "POST", headers=CHUNKED, body=slow(), timeout_s=0.1)
    assert exchange.status == 200


@pytest.mark.parametrize("kind", ["iterator", "bytes"])
async def test_an_early_refusal_stops_the_upload(fake: FakeUpstream, client: Upstream, kind: str) -> None:
    """The answer is delivered, the rest of the body is not sent, the connection is not used again."""
    stopped = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield PIECE
        finally:
            stopped.set()

    async def script(wire: Wire) -> None:
        await wire.head()
        await wire.send(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\nbig")
        await wire.until_peer_closes()

    fake.script = script
    if kind == "iterator":
        exchange = await send(client, "POST", headers=CHUNKED, body=endless())
        await asyncio.wait_for(stopped.wait(), WAIT_S)
    else:
        exchange = await send(client, "POST", body=PIECE * 1024)
    assert exchange.status == 413
    assert await body_of(exchange) == b"big"
    assert client.connections == 0
    await fake.wires[0].closed_by_peer()


async def test_a_refusal_stops_the_upload_at_its_head(fake: FakeUpstream, client: Upstream) -> None:
    """Also if the upstream goes on reading: the rest of the body is of no use to anybody."""
    stopped = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x"
                await asyncio.sleep(0)
        finally:
            stopped.set()

    async def script(wire: Wire) -> None:
        await wire.head()
        await wire.send(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 4\r\n\r\n")
        await stopped.wait()
        await wire.send(b"nope")
        await wire.until_peer_closes()

    fake.script = script
    exchange = await send(client, "POST", headers=CHUNKED, body=endless())
    assert await body_of(exchange) == b"nope"
    assert client.connections == 0


async def test_a_refusal_that_has_arrived_is_read_before_more_is_sent(fake: FakeUpstream, client: Upstream) -> None:
    """Many upstreams refuse and close at once: writing on would meet the reset, and the refusal be lost."""
    taken = asyncio.Event()
    rest: list[bytes] = []

    async def source() -> AsyncIterator[bytes]:
        yield b"one"
        await taken.wait()
        refusal = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n"
        os.write(fake.wires[0].writer.get_extra_info("socket").fileno(), refusal)  # only the kernel knows of it
        yield b"two"

    async def script(wire: Wire) -> None:
        await wire.head()
        await wire.reader.readexactly(len(b"3\r\none\r\n"))
        taken.set()
        rest.append(await wire.reader.read(-1))

    fake.script = script
    assert (await send(client, "POST", headers=CHUNKED, body=source())).status == 413
    await until(lambda: rest == [b""])


@pytest.mark.parametrize("status", [200, 413])
async def test_a_connection_is_not_used_again_before_its_request_was_sent(
    fake: FakeUpstream, client: Upstream, status: int
) -> None:
    """The upstream waits for the rest of a body: it would take the next request for it."""

    async def stuck() -> AsyncIterator[bytes]:
        yield b"some"
        await asyncio.Event().wait()

    async def script(wire: Wire) -> None:
        await wire.head()
        await wire.reader.readexactly(9)
        await wire.send(b"HTTP/1.1 %d Early\r\nContent-Length: 2\r\n\r\nok" % status)
        await wire.until_peer_closes()

    fake.script = script
    assert await body_of(await send(client, "POST", headers=CHUNKED, body=stuck())) == b"ok"
    assert client.connections == 0
    await fake.wires[0].closed_by_peer()


async def test_an_answer_may_stream_along_with_the_upload(fake: FakeUpstream, client: Upstream) -> None:
    """Full duplex: an answer that is no refusal does not stop the body."""
    turns: asyncio.Queue[bytes] = asyncio.Queue()

    async def source() -> AsyncIterator[bytes]:
        while part := await turns.get():
            yield part

    async def script(wire: Wire) -> None:
        await wire.head()
        await wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while (line := await wire.reader.readline()) != b"0\r\n":
            data = await wire.reader.readexactly(int(line, 16) + 2)
            await wire.send(line + data.upper())
        await wire.reader.readline()
        await wire.send(b"0\r\n\r\n")
        await answer_rest(wire)

    async def answer_rest(wire: Wire) -> None:
        await wire.request()
        await wire.send(OK)

    fake.script = script
    exchange = await send(client, "POST", headers=CHUNKED, body=source(), timeout_s=0.5)
    for turn in (b"one", b"two"):
        turns.put_nowait(turn)
        assert await anext(exchange) == turn.upper()
    turns.put_nowait(b"")
    assert [chunk async for chunk in exchange] == []
    await get(client)
    assert len(fake.wires) == 1


EXPECT = (b"Expect", b"100-continue")


async def test_a_100_starts_the_body_and_is_told(fake: FakeUpstream, client: Upstream) -> None:
    """OPT-2: Expect: 100-continue is relayed."""
    told: list[str] = []

    async def source() -> AsyncIterator[bytes]:
        told.append("body asked for")
        yield b"body"

    async def script(wire: Wire) -> None:
        await wire.head()
        await wire.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert await wire.reader.readexactly(14) == b"4\r\nbody\r\n0\r\n\r\n"
        await wire.send(OK)

    fake.script = script
    exchange = await send(
        client, "POST", headers=[*CHUNKED, EXPECT], body=source(), on_continue=lambda: told.append("100")
    )
    assert exchange.status == 200
    assert sorted(told) == ["100", "body asked for"]


@pytest.mark.parametrize("status", [417, 200], ids=["417", "answered without the body"])
async def test_a_final_answer_instead_of_a_100_leaves_the_body_unread(
    fake: FakeUpstream, client: Upstream, status: int
) -> None:
    told: list[str] = []

    async def source() -> AsyncIterator[bytes]:
        told.append("body asked for")
        yield b"body"

    async def script(wire: Wire) -> None:
        await wire.head()
        await wire.send(b"HTTP/1.1 %d Whatever\r\nContent-Length: 2\r\n\r\n" % status)
        await wire.send(b"no")
        await wire.until_peer_closes()

    fake.script = script
    exchange = await send(
        client, "POST", headers=[*CHUNKED, EXPECT], body=source(), on_continue=lambda: told.append("100")
    )
    assert exchange.status == status
    assert await body_of(exchange) == b"no"
    assert told == []
    await fake.wires[0].closed_by_peer()  # the upstream waits for a body that does not come: no second request on it


@pytest.mark.parametrize("kind", ["iterator", "bytes"])
async def test_an_upstream_that_ignores_expect_gets_the_body_all_the_same(
    fake: FakeUpstream, client: Upstream, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.upstream.upload.CONTINUE_WAIT_S", 0.02)
    body = pieces(b"body") if kind == "iterator" else b"body"
    headers = [EXPECT, *([(b"Content-Length", b"4")] if kind == "iterator" else [])]
    exchange = await send(client, "POST", headers=headers, body=body)
    assert exchange.status == 200
    assert fake.requests[0].body == b"body"


async def test_100_is_told_once_and_without_being_asked_for_too(fake: FakeUpstream, client: Upstream) -> None:
    told: list[int] = []

    async def script(wire: Wire) -> None:
        await wire.request()
        for _ in range(3):
            await wire.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            await asyncio.sleep(0.01)
        await until(lambda: bool(told))
        await wire.send(OK)

    fake.script = script
    assert (await send(client, "POST", body=b"x", on_continue=lambda: told.append(100))).status == 200
    assert told == [100]
