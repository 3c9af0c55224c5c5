"""HTTP as bytes, for tests that compare bytes: a client and an origin that write what they are told and keep what they
get, and a gateway between them that serves all tests of a module."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from tests.e2e.harness import PATIENCE_S, Gateway
from tests.postgres import database_url
from tests.upstream.fake import OK, FakeUpstream, Wire

HEAD_BYTES_MAX = 1 << 20  # of what the tests read; far beyond what a gateway lets pass
PROBLEMS = "https://2php.dev/problems/"
TABLES = ("intents", "payloads", "attempts", "responses", "in_doubt", "events")

Header = tuple[bytes, bytes]


@dataclass
class Message:
    """A request or an answer as it was on the wire; the body without its framing, values without outer white space."""

    line: bytes
    headers: list[Header]
    framing: str  # none, length, chunked or close
    body: bytes = b""
    whole: bool = True  # False: cut before the end that its framing announced

    @classmethod
    def parse(cls, head: bytes, *, answers: str | None = None) -> Message:
        """A head as it came; `answers` is the method of the request that it answers, None for a request."""
        line, *fields = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
        headers = [(name, value.strip(b" \t")) for name, _, value in (field.partition(b":") for field in fields)]
        message = cls(line, headers, "none" if answers is None else "close")
        if answers == "HEAD" or (answers is not None and (message.status < 200 or message.status in (204, 304))):
            message.framing = "none"
        elif message.header(b"transfer-encoding") is not None:
            message.framing = "chunked"
        elif message.header(b"content-length") is not None:
            message.framing = "length"
        return message

    @property
    def status(self) -> int:
        return int(self.line.split(b" ", 2)[1])

    @property
    def method(self) -> str:
        return self.line.split(b" ", 1)[0].decode()

    @property
    def target(self) -> bytes:
        return self.line.split(b" ")[1]

    def header(self, name: bytes) -> bytes | None:
        """The one value of a header."""
        values = [value for key, value in self.headers if key.lower() == name]
        assert len(values) <= 1, f"{name!r} came {len(values)} times"
        return values[0] if values else None

    @property
    def problem(self) -> str:
        """The slug of a problem document, whose shape is checked on the way (OPS-3)."""
        assert self.header(b"content-type") == b"application/problem+json", (self.line, self.headers, self.body)
        document = json.loads(self.body)
        assert document["status"] == self.status
        assert document["title"]
        assert document["detail"].encode() == self.header(b"dtt-2php-message")
        return str(document["type"]).removeprefix(PROBLEMS)


async def read_head(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


async def read_body(reader: asyncio.StreamReader, message: Message) -> None:
    """Read the body that the head announced, or as much of it as comes."""
    try:
        if message.framing == "chunked":
            while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
                message.body += await reader.readexactly(size)
                assert await reader.readexactly(2) == b"\r\n"
            while await reader.readuntil(b"\r\n") != b"\r\n":
                pass  # trailers
        elif message.framing == "length":
            message.body = await reader.readexactly(int(message.header(b"content-length") or b""))
        elif message.framing == "close":
            while data := await reader.read(1 << 16):
                message.body += data
    except asyncio.IncompleteReadError as cut:
        message.body += cut.partial
        message.whole = False
    except ConnectionError:
        message.whole = False


class Peer:
    """One connection of a client that sends exactly the bytes it is given."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.interim: list[Message] = []  # the 1xx answers so far

    @classmethod
    async def connect(cls, port: int, *, receive_buffer: int | None = None) -> Peer:
        raw = socket.socket()
        raw.setblocking(False)
        if receive_buffer is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", port))
        return cls(*await asyncio.open_connection(sock=raw, limit=HEAD_BYTES_MAX))

    async def send(self, data: bytes, *, piece_bytes: int | None = None) -> None:
        """Write, in pieces if told so; a gateway that has closed meanwhile is what the test looks at next."""
        with contextlib.suppress(ConnectionError):
            for start in range(0, len(data), piece_bytes or len(data) or 1):
                self.writer.write(data[start : start + (piece_bytes or len(data))])
                await self.writer.drain()
                await asyncio.sleep(0)

    async def head(self, method: str = "GET") -> Message:
        """The head of the next final answer; interim ones are kept aside."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                message = Message.parse(await read_head(self.reader), answers=method)
                if message.status >= 200 or message.status == 101:
                    return message
                self.interim.append(message)

    async def answer(self, method: str = "GET") -> Message:
        """The next final answer."""
        message = await self.head(method)
        async with asyncio.timeout(PATIENCE_S):
            await read_body(self.reader, message)
        return message

    async def exactly(self, count: int) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.readexactly(count)

    async def chunk(self) -> bytes:
        """The next chunk of a chunked body."""
        async with asyncio.timeout(PATIENCE_S):
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            return (await self.reader.readexactly(size + 2))[:-2]

    async def ended(self) -> bytes:
        """What still came until the other side closed; a reset is an end too."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """Go away with a RST."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


async def exchange(port: int, request: bytes, *, piece_bytes: int | None = None) -> Message:
    """One request on a connection of its own."""
    peer = await Peer.connect(port)
    try:
        sending = asyncio.create_task(peer.send(request, piece_bytes=piece_bytes))
        answer = await peer.answer(request.lstrip(b"\r\n").split(b" ", 1)[0].decode("latin-1"))
        await sending
        return answer
    finally:
        peer.close()


@dataclass
class Call:
    """One request at the origin, its body read when asked for."""

    wire: Wire
    message: Message
    read: bool = False
    _left_bytes: int = 0  # of the chunk being read

    async def body(self) -> bytes:
        """All of the body."""
        if not self.read:
            self.read = True
            await read_body(self.wire.reader, self.message)
        return self.message.body

    async def some(self, count: int) -> bytes:
        """The next `count` bytes of the body; fewer only at its end. For bodies that are read bit by bit."""
        self.read = True
        if self.message.framing != "chunked":
            return await self.wire.reader.readexactly(count)
        data = b""
        while len(data) < count:
            if not self._left_bytes:
                self._left_bytes = int(await self.wire.reader.readuntil(b"\r\n"), 16)
                if not self._left_bytes:
                    assert await self.wire.reader.readexactly(2) == b"\r\n"
                    break
            part = await self.wire.reader.readexactly(min(count - len(data), self._left_bytes))
            data += part
            self._left_bytes -= len(part)
            if not self._left_bytes:
                assert await self.wire.reader.readexactly(2) == b"\r\n"
        return data

    async def send(self, *parts: bytes) -> None:
        for part in parts:
            await self.wire.send(part)


Behaviour = Callable[[Call], Awaitable[None]]


def answering(*parts: bytes, close: bool = False) -> Behaviour:
    """Read the request, then answer with these bytes, each part a write of its own."""

    async def behave(call: Call) -> None:
        await call.body()
        await call.send(*parts)
        if close:
            call.wire.close()

    return behave


class Origin(FakeUpstream):
    """Behaves as told at the time of each request, also on connections that a gateway kept; `seen` is what it got."""

    def __init__(self) -> None:
        super().__init__()
        self.script = self._follow
        self.seen: list[Message] = []
        self.behave: Behaviour = answering(OK)

    async def _follow(self, wire: Wire) -> None:
        wire.reader._limit = HEAD_BYTES_MAX  # type: ignore[attr-defined]
        while not wire.writer.is_closing():
            call = Call(wire, Message.parse(await read_head(wire.reader)))
            self.seen.append(call.message)
            await self.behave(call)
            await call.body()


@dataclass
class Place:
    """A gateway, the origin behind it, and a look into its store."""

    gateway: Gateway
    origin: Origin
    store: asyncpg.Connection[asyncpg.Record] = field(repr=False)

    async def through(self, request: bytes, **options: Any) -> Message:
        """The gateway's answer."""
        return await exchange(self.gateway.port, request, **options)

    async def direct(self, request: bytes, **options: Any) -> Message:
        """The origin's own answer."""
        return await exchange(self.origin.port, request, **options)

    async def peer(self, **options: Any) -> Peer:
        return await Peer.connect(self.gateway.port, **options)

    async def stored(self) -> dict[str, int]:
        """How many rows each table of intents has."""
        counts = ", ".join(f"(SELECT count(*) FROM {table}) AS {table}" for table in TABLES)
        return dict(await self.store.fetchrow(f"SELECT {counts}") or {})

    async def worker_kib(self, key: str = "VmRSS") -> int:
        """A worker's memory, from the kernel."""
        (pid,) = await self.gateway.worker_pids()
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return int(status[key].split()[0])


@contextlib.asynccontextmanager
async def serving(directory: Path, server_url: str, template: str, changes: dict[str, Any]) -> AsyncIterator[Place]:
    """A gateway on a database of its own; its log must show no failure of ours at the end."""
    name = f"twophp_test_{os.getpid()}_{directory.name}".replace("-", "_")
    admin = await asyncpg.connect(server_url)
    await admin.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    origin = Origin()
    await origin.start()
    gateway = Gateway(directory, origin.url, database_url(server_url, name), changes)
    try:
        await gateway.start()
        store = await asyncpg.connect(database_url(server_url, name))
        yield Place(gateway, origin, store)
        await store.close()
        assert "handler failed" not in gateway.logs(), gateway.logs()
        assert "Traceback" not in gateway.logs(), gateway.logs()
    finally:
        await gateway.aclose()
        await origin.stop()
        await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
        await admin.close()


def module_place(**changes: Any) -> Any:
    """A fixture: one place for all tests of a module, which then run on the module's event loop."""

    @pytest_asyncio.fixture(scope="module", loop_scope="module")
    async def place(
        request: pytest.FixtureRequest,
        tmp_path_factory: pytest.TempPathFactory,
        postgres_url: str,
        template_database: str,
    ) -> AsyncIterator[Place]:
        directory = tmp_path_factory.mktemp(request.module.__name__.rpartition(".")[2])
        async with serving(directory, postgres_url, template_database, changes) as made:
            yield made

    return place
