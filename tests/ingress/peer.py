"""A client that sends exactly the bytes it is told to, and a gateway edge with a handler of the test's choosing."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp.web_protocol import RequestHandler

from gateway.ingress import BufferBudget, EdgeLimits, EdgeServer, Inbound
from gateway.protocol.messages import Answer

PATIENCE_S = 20  # only a failing test waits this long


@dataclass
class Received:
    """One answer as it came over the wire."""

    status: int
    reason: str
    headers: list[tuple[str, str]]
    body: bytes = b""
    complete: bool = True

    def header(self, name: str) -> str | None:
        """The one value of a header."""
        values = [value for key, value in self.headers if key.lower() == name.lower()]
        assert len(values) <= 1, f"{name} came {len(values)} times"
        return values[0] if values else None

    @property
    def problem(self) -> str:
        """The slug of a problem document; the document's shape is checked on the way (OPS-3)."""
        assert self.header("Content-Type") == "application/problem+json"
        document = json.loads(self.body)
        assert document["status"] == self.status
        assert document["title"]
        assert document["detail"] == self.header("DTT-2PHP-Message")
        return str(document["type"]).removeprefix("https://2php.dev/problems/")


class Peer:
    """One connection to the edge."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        """Write bytes; a peer that has gone away meanwhile is what the test will look at next."""
        try:
            self.writer.write(data)
            await self.writer.drain()
        except (ConnectionError, RuntimeError):  # uvloop calls writing to a closed socket a RuntimeError
            pass
        for _ in range(3):  # the edge shares our loop: it reads what was sent as a segment of its own
            await asyncio.sleep(0)

    async def answer(self, *, head_only: bool = False) -> Received:
        """The next final or interim answer, framed as HTTP/1.1 says."""
        async with asyncio.timeout(PATIENCE_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            _, status, reason = head[0].split(" ", 2)
            headers = [(name, value) for name, _, value in (line.partition(": ") for line in head[1:-2])]
            received = Received(int(status), reason, headers)
            if not head_only and received.status not in (204, 304) and received.status >= 200:
                await self._read_body(received)
            return received

    async def _read_body(self, received: Received) -> None:
        length = received.header("Content-Length")
        try:
            if received.header("Transfer-Encoding") == "chunked":
                while size := int(await self.reader.readuntil(b"\r\n"), 16):
                    received.body += await self.reader.readexactly(size)
                    assert await self.reader.readexactly(2) == b"\r\n"
                assert await self.reader.readexactly(2) == b"\r\n"
            elif length is not None:
                received.body = await self.reader.readexactly(int(length))
            else:
                received.body = await self.reader.read()
        except asyncio.IncompleteReadError as cut:
            received.body += cut.partial
            received.complete = False

    async def ended(self) -> bytes:
        """What came before the edge closed its side; a reset counts as closed."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""

    async def exchange(self, data: bytes, *, head_only: bool = False) -> Received:
        """Send and read one answer."""
        await self.send(data)
        return await self.answer(head_only=head_only)

    async def close(self) -> None:
        """Close for good."""
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass

    def reset(self) -> None:
        """Go away with a reset, as a client that dies does."""
        linger_never = struct.pack("ii", 1, 0)
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_never)
        self.writer.transport.abort()


@dataclass
class Seen:
    """A request as the handler saw it."""

    method: str
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    inbound: Inbound = field(repr=False)


class WatchedServer(EdgeServer):
    """Tells when its connections are really closed."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.lost = asyncio.Event()

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self.lost.set()


@dataclass
class Gateway:
    """A running edge."""

    server: WatchedServer
    port: int
    buffers: BufferBudget
    seen: list[Seen]
    peers: list[Peer]
    listener: asyncio.Server

    async def connect(self) -> Peer:
        """A new connection."""
        peer = Peer(*await asyncio.open_connection("127.0.0.1", self.port, limit=2**20))
        self.peers.append(peer)
        return peer

    async def connection_lost(self) -> None:
        """Wait until the edge has closed a connection altogether, not only its sending side."""
        async with asyncio.timeout(PATIENCE_S):
            await self.server.lost.wait()

    async def exchange(self, data: bytes, *, head_only: bool = False) -> Received:
        """One request on a connection of its own."""
        return await (await self.connect()).exchange(data, head_only=head_only)


Serve = Callable[..., Awaitable[Gateway]]


def recorder(seen: list[Seen], limit: int = 2**20) -> Callable[[Inbound], Awaitable[Answer]]:
    """A handler that reads the body, notes the request and says its target back."""

    async def handle(inbound: Inbound) -> Answer:
        body = await inbound.read_body(limit)
        seen.append(Seen(inbound.method, inbound.target, inbound.raw_headers, body, inbound))
        return Answer(200, [(b"Content-Type", b"text/plain")], inbound.target)

    return handle


async def start(handler: Any = None, *, buffers: int = 2**26, body_limit: int = 2**20, **limits: Any) -> Gateway:
    """An edge on a port of its own; without a handler, a recorder."""
    seen: list[Seen] = []
    budget = BufferBudget(buffers)
    server = WatchedServer(handler or recorder(seen, body_limit), buffers=budget, limits=EdgeLimits(**limits))
    listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    return Gateway(server, port, budget, seen, [], listener)
