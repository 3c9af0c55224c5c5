"""Upgrades: a 101 hands the raw connection over as a tunnel (OPT-2, WebSocket)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from gateway.upstream import Exchange, Upstream, UpstreamFailure
from tests.upstream.fake import OK, WAIT_S, FakeUpstream, Wire, body_of, get, send, until

UPGRADE = [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"


def switching(fake: FakeUpstream, then: Callable[[Wire], object] | None = None, leftover: bytes = b"") -> None:
    async def script(wire: Wire) -> None:
        await wire.head()
        await wire.send(SWITCH + leftover)
        if then is not None:
            await then(wire)  # type: ignore[misc]

    fake.script = script


async def upgrade(client: Upstream) -> Exchange:
    exchange = await send(client, "GET", b"/chat", headers=UPGRADE)
    assert exchange.status == 101
    assert exchange.upgraded
    assert not exchange.complete
    return exchange


async def test_bytes_flow_both_ways_and_those_behind_the_101_come_first(fake: FakeUpstream, client: Upstream) -> None:
    async def echo(wire: Wire) -> None:
        while data := await wire.reader.read(1000):
            await wire.send(data.upper())

    switching(fake, echo, leftover=b"hello ")
    tunnel = (await upgrade(client)).tunnel()
    received = bytearray()
    tunnel.on_data(received.extend)
    assert received == b"hello "
    tunnel.feed(b"you\r\n\r\nHTTP/1.1 ")
    await until(lambda: bytes(received) == b"hello YOU\r\n\r\nHTTP/1.1 ")
    tunnel.close()


async def test_a_tunnel_holds_no_place_of_the_pool(fake: FakeUpstream, connect: Callable[..., Upstream]) -> None:
    async def stay(wire: Wire) -> None:
        await wire.until_peer_closes()

    switching(fake, stay)
    client = connect(pool_max=1)
    tunnel = (await upgrade(client)).tunnel()
    assert client.connections == 0
    fake.answer(OK)
    assert (await get(client)).status == 200
    closed: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    tunnel.on_close(closed.set_result)
    await client.close()  # but the client's end is the tunnel's
    await asyncio.wait_for(closed, WAIT_S)
    assert tunnel.closed
    await fake.wires[0].closed_by_peer()


async def test_nothing_is_read_before_somebody_listens_nor_while_paused(fake: FakeUpstream, client: Upstream) -> None:
    sent = 0
    total = 32 * 1024 * 1024

    async def flood(wire: Wire) -> None:
        nonlocal sent
        while sent < total:
            await wire.send(b"x" * 65536)
            sent += 65536

    async def stalled() -> int:
        before = -1
        while before != sent or not sent:
            before = sent
            await asyncio.sleep(0.05)
        return sent

    switching(fake, flood)
    tunnel = (await upgrade(client)).tunnel()
    received = 0

    def count(data: bytes) -> None:
        nonlocal received
        received += len(data)
        if received < 1024 * 1024:
            return
        tunnel.pause()

    assert await stalled() < total
    tunnel.on_data(count)
    await until(lambda: received >= 1024 * 1024)
    assert await stalled() < total
    paused_at = received
    tunnel.on_data(lambda data: None)
    await until(lambda: sent >= total)
    assert paused_at < 2 * 1024 * 1024
    tunnel.abort()


async def test_pressure_is_told_when_the_upstream_does_not_read(fake: FakeUpstream, client: Upstream) -> None:
    go = asyncio.Event()

    async def late(wire: Wire) -> None:
        await go.wait()
        await wire.until_peer_closes()

    switching(fake, late)
    tunnel = (await upgrade(client)).tunnel()
    pressure: list[bool] = []
    tunnel.on_pressure(pressure.append)
    while not pressure:
        tunnel.feed(b"x" * 1_000_000)
        await asyncio.sleep(0)
    go.set()
    await until(lambda: pressure == [True, False])
    tunnel.close()
    await fake.wires[0].closed_by_peer()


async def test_half_close_from_the_upstream_leaves_our_direction_open(fake: FakeUpstream, client: Upstream) -> None:
    late = bytearray()

    async def half(wire: Wire) -> None:
        await wire.send(b"last words")
        wire.writer.write_eof()
        late.extend(await wire.reader.readexactly(5))
        wire.close()

    switching(fake, half)
    tunnel = (await upgrade(client)).tunnel()
    ended, closed = asyncio.Event(), asyncio.Event()
    received = bytearray()
    tunnel.on_eof(ended.set)
    tunnel.on_close(lambda error: closed.set())
    tunnel.on_data(received.extend)
    await asyncio.wait_for(ended.wait(), WAIT_S)
    assert received == b"last words"
    tunnel.feed(b"reply")
    await until(lambda: late == b"reply")
    tunnel.close()
    await asyncio.wait_for(closed.wait(), WAIT_S)


async def test_half_close_towards_the_upstream(fake: FakeUpstream, client: Upstream) -> None:
    async def answer_after_eof(wire: Wire) -> None:
        data = await wire.reader.read(-1)
        await wire.send(b"got " + data)
        wire.close()

    switching(fake, answer_after_eof)
    tunnel = (await upgrade(client)).tunnel()
    closed = asyncio.Event()
    received = bytearray()
    tunnel.on_close(lambda error: closed.set())
    tunnel.on_data(received.extend)
    tunnel.feed(b"all")
    tunnel.feed_eof()
    await asyncio.wait_for(closed.wait(), WAIT_S)
    assert received == b"got all"
    tunnel.feed(b"too late")
    tunnel.feed_eof()
    tunnel.pause()
    tunnel.resume()
    tunnel.close()
    tunnel.abort()


async def test_an_upgrade_that_is_declined_is_an_ordinary_answer(fake: FakeUpstream, client: Upstream) -> None:
    fake.answer(b"HTTP/1.1 426 Upgrade Required\r\nContent-Length: 2\r\n\r\nno")
    exchange = await send(client, "GET", headers=UPGRADE)
    assert (exchange.status, exchange.upgraded) == (426, False)
    assert await body_of(exchange) == b"no"
    assert client.idle_connections == 1
    with pytest.raises(RuntimeError):
        exchange.tunnel()


async def test_a_101_before_the_end_of_the_body_is_a_protocol_failure(fake: FakeUpstream, client: Upstream) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 65536

    switching(fake)
    with pytest.raises(UpstreamFailure) as failure:
        await send(client, "POST", headers=[*UPGRADE, (b"Transfer-Encoding", b"chunked")], body=endless())
    assert (failure.value.kind, failure.value.sent) == ("protocol", True)
    assert client.connections == 0


async def test_an_upgraded_exchange_that_nobody_takes_is_aborted(fake: FakeUpstream, client: Upstream) -> None:
    async def stay(wire: Wire) -> None:
        await wire.until_peer_closes()

    switching(fake, stay)
    exchange = await upgrade(client)
    exchange.abort()
    await fake.wires[0].closed_by_peer()
