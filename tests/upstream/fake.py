"""An upstream on a raw socket: it records the bytes it gets and does what a script says, HTTP or not."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from gateway.upstream import Exchange, Upstream

WAIT_S = 10.0  # patience of a test, far beyond what anything takes
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass
class Seen:
    """One request as it came in."""

    head: bytes
    body: bytes

    @property
    def line(self) -> bytes:
        return self.head.split(b"\r\n", 1)[0]


@dataclass
class Wire:
    """One accepted connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    upstream: FakeUpstream
    requests: list[Seen] = field(default_factory=list)
    peer_closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def head(self) -> bytes:
        """The next request's head, its body left unread."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        self.requests.append(Seen(head, b""))
        self.upstream.requests.append(self.requests[-1])
        return head

    async def request(self) -> Seen:
        """The next request, whole. A chunked body is recorded with its framing."""
        head = await self.head()
        lower = head.lower()
        if b"\r\ntransfer-encoding: chunked\r\n" in lower:
            self.requests[-1].body = await self.reader.readuntil(b"0\r\n\r\n")
        elif b"\r\ncontent-length: " in lower:
            length = int(lower.partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0])
            self.requests[-1].body = await self.reader.readexactly(length)
        return self.requests[-1]

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def until_peer_closes(self) -> None:
        """For scripts: read on until the other side has closed, however it did."""
        while await self.reader.read(65536):
            pass
        raise ConnectionError

    async def closed_by_peer(self) -> None:
        """For tests: the script has found the connection closed."""
        async with asyncio.timeout(WAIT_S):
            await self.peer_closed.wait()

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """End with a RST instead of a FIN."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Script = Callable[[Wire], Awaitable[None]]


async def answer_ok(wire: Wire) -> None:
    while True:
        await wire.request()
        await wire.send(OK)


class FakeUpstream:
    """Runs `script` for every connection; `requests` and `wires` are what it saw."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.script: Script = answer_ok
        self.requests: list[Seen] = []
        self.wires: list[Wire] = []
        self._tls = tls
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, ssl=self._tls, limit=1 << 24)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for wire in self.wires:
            wire.writer.transport.abort()

    def answer(self, *parts: bytes, close: bool = False) -> None:
        """Answer every request with these bytes, each part a write of its own."""

        async def script(wire: Wire) -> None:
            while True:
                await wire.request()
                for part in parts:
                    await wire.send(part)
                if close:
                    wire.close()
                    return

        self.script = script

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        wire = Wire(reader, writer, self)
        self.wires.append(wire)
        try:
            await self.script(wire)
        except (asyncio.IncompleteReadError, ConnectionError):
            wire.peer_closed.set()
        except asyncio.CancelledError:
            pass  # the test has ended


async def get(client: Upstream, target: bytes = b"/", **options: Any) -> Exchange:
    return await send(client, "GET", target, **options)


async def send(
    client: Upstream,
    method: str,
    target: bytes = b"/",
    headers: Any = (),
    body: Any = None,
    **options: Any,
) -> Exchange:
    """Open an exchange with a Host header and, for bytes, a Content-Length."""
    final = [(b"Host", b"service.test"), *headers]
    if isinstance(body, bytes):
        final.append((b"Content-Length", b"%d" % len(body)))
    options = {"timeout_s": WAIT_S, "read_timeout_s": WAIT_S, **options}
    async with asyncio.timeout(WAIT_S):
        return await client.open(method, target, final, body, **options)


async def body_of(exchange: Exchange) -> bytes:
    async with asyncio.timeout(WAIT_S):
        data, ended = await exchange.read(1 << 24)
    assert ended
    return data


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until the condition holds."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - conditions are the state of code that has no event for them
            await asyncio.sleep(0.001)
