"""The edge over TLS, where a connection has no half-close (SEC-6)."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509

from tests.ingress.peer import Gateway, Peer, Serve
from tests.upstream.test_tls import self_signed

GET = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.fixture
async def secure(serve: Serve, tmp_path: Path) -> AsyncIterator[tuple[Gateway, Peer]]:
    """A peer that is connected over TLS."""
    file = self_signed(tmp_path, x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(file)
    gateway = await serve(body_limit=1000, idle_timeout_s=0.5, linger_s=0.2)
    listener = await asyncio.get_running_loop().create_server(gateway.server, "127.0.0.1", 0, ssl=server)
    port = listener.sockets[0].getsockname()[1]
    client = ssl.create_default_context(cafile=str(file))
    peer = Peer(*await asyncio.open_connection("127.0.0.1", port, ssl=client))
    gateway.peers.append(peer)
    yield gateway, peer
    listener.close()


async def test_requests_are_answered_and_known_to_be_secure(secure: tuple[Gateway, Peer]) -> None:
    gateway, peer = secure
    for _ in range(2):
        assert (await peer.exchange(GET)).body == b"/x"
    assert gateway.seen[0].inbound.secure
    assert gateway.seen[0].inbound.peer == "127.0.0.1"


async def test_an_idle_connection_is_closed(secure: tuple[Gateway, Peer]) -> None:
    gateway, peer = secure
    assert await peer.ended() == b""
    await gateway.connection_lost()


async def test_a_refusal_can_be_read_by_a_sender_that_keeps_sending(secure: tuple[Gateway, Peer]) -> None:
    """P1-9."""
    gateway, peer = secure
    answering = asyncio.ensure_future(peer.answer())
    await peer.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n")
    for _ in range(10):
        await peer.send(bytes(65536))
    answer = await answering
    assert (answer.status, answer.complete) == (413, True)
    await gateway.connection_lost()


async def test_draining_closes_it_when_idle(secure: tuple[Gateway, Peer]) -> None:
    """OPS-1."""
    gateway, peer = secure
    assert (await peer.exchange(GET)).status == 200
    gateway.server.drain()
    assert await peer.ended() == b""
