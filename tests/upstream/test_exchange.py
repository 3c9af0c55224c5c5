"""Whole exchanges over a socket: bytes out, answers in, connections used again."""

from __future__ import annotations

import asyncio

import pytest

from gateway.upstream import Upstream, UpstreamFailure
from tests.upstream.fake import OK, WAIT_S, FakeUpstream, Wire, body_of, get, send, until


async def test_the_request_goes_out_byte_for_byte(fake: FakeUpstream, client: Upstream) -> None:
    """OPT-2, P2-3: raw target, header order, case and bytes, body bytes; nothing is added."""
    headers = [(b"host", b"a.test"), (b"X-b", b"\xff\x01"[:1]), (b"x-B", b""), (b"Content-Length", b"4")]
    exchange = await client.open(
        "POST", b"/a%2Fb/..;x?", headers, b"\x00\r\n\xff", timeout_s=WAIT_S, read_timeout_s=WAIT_S
    )
    assert await body_of(exchange) == b"ok"
    assert (
        fake.requests[0].head
        == b"POST /a%2Fb/..;x? HTTP/1.1\r\nhost: a.test\r\nX-b: \xff\r\nx-B: \r\nContent-Length: 4\r\n\r\n"
    )
    assert fake.requests[0].body == b"\x00\r\n\xff"


async def test_a_small_answer_is_complete_with_its_head(fake: FakeUpstream, client: Upstream) -> None:
    exchange = await get(client)
    assert exchange.complete
    assert client.idle_connections == 1
    reading = exchange.read(1024)
    with pytest.raises(StopIteration) as done:
        reading.send(None)  # it returns without waiting for anything
    assert done.value.value == (b"ok", True)


async def test_connections_are_used_again_the_latest_first(fake: FakeUpstream, client: Upstream) -> None:
    gate = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await gate.wait()
        await wire.send(OK)
        while True:
            await wire.request()
            await wire.send(OK)

    fake.script = script
    first, second = asyncio.ensure_future(get(client)), asyncio.ensure_future(get(client))
    await until(lambda: len(fake.requests) == 2)
    gate.set()
    await asyncio.gather(first, second)
    assert client.connections == client.idle_connections == 2
    for _ in range(5):
        await get(client)
    assert sorted(len(wire.requests) for wire in fake.wires) == [1, 6]


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                b"3\r\nabc\r\n",
                b"2\r\nde\r\n0\r\nX: y\r\n\r\n",
            ),
            b"abcde",
        ),
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", b"ab", b"cde"), b"abcde"),
        ((b"HTTP/1.1 204 No Content\r\n\r\n",), b""),
        ((b"HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n",), b""),
        ((b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", OK), b"ok"),
    ],
    ids=["chunked", "length", "204", "304", "103 first"],
)
async def test_every_framing_ends_where_it_should(
    fake: FakeUpstream, client: Upstream, answer: tuple[bytes, ...], body: bytes
) -> None:
    fake.answer(*answer)
    for _ in range(2):
        assert await body_of(await get(client)) == body
    assert len(fake.wires) == 1


async def test_head_ends_at_the_headers_and_keeps_the_connection(fake: FakeUpstream, client: Upstream) -> None:
    fake.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n")
    for _ in range(2):
        exchange = await send(client, "HEAD")
        assert exchange.complete
        assert exchange.content_length == 1234
        assert await exchange.read(10) == (b"", True)
    assert len(fake.wires) == 1


async def test_a_close_delimited_answer_ends_with_the_connection(fake: FakeUpstream, client: Upstream) -> None:
    fake.answer(b"HTTP/1.1 200 OK\r\n\r\n", b"until ", b"the end", close=True)
    exchange = await get(client)
    assert exchange.until_close
    assert await body_of(exchange) == b"until the end"
    assert client.connections == 0


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\nConnection: close\r\n", b"HTTP/1.0 200 OK\r\n"], ids=["close", "HTTP/1.0"]
)
async def test_a_connection_that_is_not_kept_is_not_used_again(
    fake: FakeUpstream, client: Upstream, head: bytes
) -> None:
    fake.answer(head + b"Content-Length: 2\r\n\r\nok")
    for _ in range(2):
        assert await body_of(await get(client)) == b"ok"
    assert [len(wire.requests) for wire in fake.wires] == [1, 1]


async def test_an_http_1_0_keep_alive_connection_is_used_again(fake: FakeUpstream, client: Upstream) -> None:
    fake.answer(b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 2\r\n\r\nok")
    for _ in range(2):
        exchange = await get(client)
        assert exchange.version == (1, 0)
    assert len(fake.wires) == 1


async def test_garbage_after_an_answer_spoils_the_connection_only(fake: FakeUpstream, client: Upstream) -> None:
    fake.answer(OK + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
    for _ in range(2):
        assert await body_of(await get(client)) == b"ok"
    assert [len(wire.requests) for wire in fake.wires] == [1, 1]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_an_answer_and_is_not_followed(fake: FakeUpstream, client: Upstream, status: int) -> None:
    """REC-8: redirect following is off."""
    location = fake.url.encode() + b"/elsewhere"
    fake.answer(b"HTTP/1.1 %d Moved\r\nLocation: %b\r\nContent-Length: 0\r\n\r\n" % (status, location))
    exchange = await send(client, "POST", b"/here", body=b"x")
    assert exchange.status == status
    assert (b"Location", location) in exchange.headers
    assert [seen.line for seen in fake.requests] == [b"POST /here HTTP/1.1"]


async def test_before_send_can_give_a_request_up_unsent(fake: FakeUpstream, client: Upstream) -> None:
    """A frozen gateway that lost its lease sends nothing more (RELIABILITY, crash points)."""
    await get(client)
    with pytest.raises(UpstreamFailure) as failure:
        await send(client, "PUT", body=b"x", before_send=lambda: False)
    assert (failure.value.kind, failure.value.sent) == ("lease", False)

    def broken() -> bool:
        raise LookupError

    with pytest.raises(LookupError):
        await send(client, "PUT", body=b"x", before_send=broken)
    assert client.connections == client.idle_connections == 1
    assert (await send(client, "PUT", body=b"x", before_send=lambda: True)).status == 200
    assert len(fake.requests) == 2


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ([(b"Content-Length", b"3")], b"four"),
        ([(b"Content-Length", b"3")], None),
        ([], b"four"),
        ([(b"Transfer-Encoding", b"chunked")], b"four"),
        ([(b"Content-Length", b"4"), (b"content-length", b"4")], b"four"),
        ([(b"Content-Length", b"4"), (b"Transfer-Encoding", b"chunked")], b"four"),
        ([(b"Content-Length", b"+4")], b"four"),
        ([(b"X", b"a\r\nInjected: b")], None),
        ([(b"X", b"a\nInjected: b")], None),
        ([(b"X", b"a\rb")], None),
    ],
)
async def test_a_request_that_would_be_misread_never_leaves(
    fake: FakeUpstream, client: Upstream, headers: list[tuple[bytes, bytes]], body: bytes | None
) -> None:
    with pytest.raises(ValueError):
        await client.open("POST", b"/", headers, body, timeout_s=1, read_timeout_s=1)
    with pytest.raises(ValueError):
        await client.open("POST", b"/ HTTP/1.1\r\nX: y", [], None, timeout_s=1, read_timeout_s=1)
    with pytest.raises(ValueError):
        await client.open("POST", b"/a b", [], None, timeout_s=1, read_timeout_s=1)
    assert fake.wires == []
