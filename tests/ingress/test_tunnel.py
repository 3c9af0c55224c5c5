"""Upgrades: a WebSocket through the edge and our own upstream connection, byte for byte (OPT-2)."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.client import connect as websocket
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as websocket_server

from gateway.ingress import Inbound
from gateway.protocol.messages import Answer
from gateway.upstream import Upstream
from tests.ingress.peer import Gateway, Peer, Serve

UPGRADE = b"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"

Streams = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def proxy(upstream: Upstream) -> Callable[[Inbound], Awaitable[Answer | None]]:
    """The least handler that relays an upgrade."""

    async def handle(inbound: Inbound) -> Answer | None:
        assert inbound.websocket
        exchange = await upstream.open(
            inbound.method, inbound.target, inbound.raw_headers, None, timeout_s=10, read_timeout_s=10
        )
        if not exchange.upgraded:
            body, _ = await exchange.read(1000)
            return Answer(exchange.status, [], body)
        await inbound.tunnel(exchange.status, exchange.reason, exchange.headers, exchange.tunnel())
        return None

    return handle


@asynccontextmanager
async def tunnelled(serve: Serve, upstream_side: Streams, **limits: float) -> AsyncIterator[tuple[Gateway, Peer]]:
    """A peer that has been switched through to `upstream_side`."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SWITCH)
        try:
            await upstream_side(reader, writer)
        finally:
            writer.close()

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    upstream = Upstream(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", connect_timeout_s=5)
    gateway = await serve(proxy(upstream), **limits)
    peer = await gateway.connect()
    assert (await peer.exchange(UPGRADE)).status == 101
    try:
        yield gateway, peer
    finally:
        listener.close()
        await peer.close()
        await upstream.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


async def test_a_real_websocket_talks_through_the_edge(serve: Serve) -> None:
    async def shout(connection: ServerConnection) -> None:
        async for message in connection:
            assert isinstance(message, str)
            await connection.send(message.upper())

    async with websocket_server(shout, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        upstream = Upstream(f"http://127.0.0.1:{port}", connect_timeout_s=5)
        gateway = await serve(proxy(upstream))
        async with websocket(f"ws://127.0.0.1:{gateway.port}/ws", proxy=None) as client:
            for message in ("hello", "x" * 200_000):
                await client.send(message)
                assert await client.recv() == message.upper()
        await gateway.connection_lost()
        await upstream.close()


async def test_the_switch_is_relayed_with_its_headers(serve: Serve) -> None:
    async with tunnelled(serve, echo) as (gateway, _):
        answer = await gateway.exchange(UPGRADE)
        assert answer.reason == "Switching Protocols"
        assert (answer.header("Connection"), answer.header("Upgrade")) == ("Upgrade", "websocket")


async def test_bytes_sent_along_with_the_upgrade_are_not_lost(serve: Serve) -> None:
    async with tunnelled(serve, echo) as (gateway, _):
        eager = await gateway.connect()
        assert (await eager.exchange(UPGRADE + b"early")).status == 101
        await eager.send(b" and late")
        assert await eager.reader.readexactly(14) == b"early and late"


async def test_bytes_that_come_along_with_the_101_are_not_lost(serve: Serve) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"welcome")
        await reader.read()

    async with tunnelled(serve, greet) as (_, peer):
        assert await peer.reader.readexactly(7) == b"welcome"


async def test_a_client_that_ends_its_side_still_hears_the_rest(serve: Serve) -> None:
    async def answer_at_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"heard " + await reader.read())

    async with tunnelled(serve, answer_at_end) as (gateway, peer):
        await peer.send(b"everything")
        peer.writer.write_eof()
        assert await peer.ended() == b"heard everything"
        await gateway.connection_lost()


async def test_an_upstream_that_ends_its_side_still_hears_the_rest(serve: Serve) -> None:
    heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def end_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"over")
        writer.write_eof()
        heard.set_result(await reader.read())

    async with tunnelled(serve, end_first) as (gateway, peer):
        assert await peer.ended() == b"over"
        await peer.send(b"and out")
        peer.writer.write_eof()
        async with asyncio.timeout(10):
            assert await heard == b"and out"
        await gateway.connection_lost()


async def test_the_loss_of_the_client_ends_the_upstreams_side(serve: Serve) -> None:
    ended = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        except ConnectionError:
            pass
        ended.set()

    async with tunnelled(serve, wait) as (_, peer):
        peer.reset()
        async with asyncio.timeout(10):
            await ended.wait()


async def test_the_loss_of_the_upstream_ends_the_clients_side(serve: Serve) -> None:
    async def vanish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        linger_never = struct.pack("ii", 1, 0)  # close with a reset
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_never)
        writer.transport.abort()

    async with tunnelled(serve, vanish) as (gateway, peer):
        await peer.send(b"x")
        assert await peer.ended() == b""
        await gateway.connection_lost()


async def test_a_tunnel_with_one_silent_direction_left_comes_to_an_end(serve: Serve) -> None:
    async def vanish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)  # and close, of which the client takes no notice

    async with tunnelled(serve, vanish, idle_timeout_s=0.2) as (gateway, peer):
        await peer.send(b"x")
        assert await peer.ended() == b""
        await gateway.connection_lost()


async def test_a_tunnel_may_be_silent_for_longer_than_any_timeout(serve: Serve) -> None:
    limits = {"idle_timeout_s": 0.1, "header_timeout_s": 0.1, "body_timeout_s": 0.1}
    async with tunnelled(serve, echo, **limits) as (gateway, peer):
        silent, _ = await asyncio.wait([asyncio.ensure_future(gateway.server.lost.wait())], timeout=0.4)
        assert not silent
        await peer.send(b"x")
        assert await peer.reader.readexactly(1) == b"x"


@pytest.mark.parametrize("direction", ["up", "down"])
async def test_a_side_that_does_not_read_holds_the_other_back(serve: Serve, direction: str) -> None:
    total = 32 * 2**20
    sent = 0
    start_reading, received = asyncio.Event(), 0
    done = asyncio.Event()

    async def send(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        while sent < total:
            writer.write(bytes(65536))
            await writer.drain()
            sent += 65536

    async def receive(reader: asyncio.StreamReader) -> None:
        nonlocal received
        await start_reading.wait()
        while received < total:
            received += len(await reader.read(65536))
        done.set()

    async def upstream_side(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await (receive(reader) if direction == "up" else send(writer))
        await done.wait()

    async with tunnelled(serve, upstream_side) as (_, peer):
        ours = asyncio.ensure_future(send(peer.writer) if direction == "up" else receive(peer.reader))
        before = -1
        while before != sent:  # until the sender is at rest
            before = sent
            await asyncio.wait([ours], timeout=0.2)
        assert 0 < sent < total, "everything was taken in"
        start_reading.set()
        async with asyncio.timeout(20):
            await done.wait()
        await ours


async def test_an_upgrade_that_the_upstream_declines_is_answered_and_closed(serve: Serve) -> None:
    async def decline(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")
        writer.close()

    listener = await asyncio.start_server(decline, "127.0.0.1", 0)
    upstream = Upstream(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", connect_timeout_s=5)
    peer = await (await serve(proxy(upstream))).connect()
    answer = await peer.exchange(UPGRADE + b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (answer.status, answer.body, answer.header("Connection")) == (403, b"no", "close")
    assert await peer.ended() == b""
    listener.close()
    await upstream.close()


async def test_shutdown_ends_tunnels(serve: Serve) -> None:
    """OPS-1: a tunnel has no end of its own; it gets the drain time and is then cut."""
    async with tunnelled(serve, echo) as (gateway, peer):
        await peer.send(b"x")
        assert await peer.reader.readexactly(1) == b"x"
        await gateway.server.shutdown(0.05)
        assert await peer.ended() == b""
