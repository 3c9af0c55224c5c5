"""A proxy in front of Postgres that loses connections at a chosen statement: before it is sent, while it runs, or after
it was carried out but before its answer came back. It can also swallow everything, or be gone.

It reads the client's messages as far as it must: which SQL a prepared statement's name stands for. Plain text only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

from gateway.store import direct, intents

Moment = Literal["before", "during", "after"]
Match = Callable[[str], bool]

CHUNK_BYTES = 65536
SSL_REQUEST, CANCEL_REQUEST = 80877103, 80877102


def exactly(text: str) -> Match:
    """One statement of ours."""
    return lambda sql: sql == text


def batched(name: str) -> Match:
    """A batched statement of the request path in any of its forms: for one row or many, with or without its steps."""
    forms = {
        form
        for each, batch in {**intents.BATCHES, **direct.BATCHES}.items()
        if each == name or each.startswith(name + "_")
        for form in (batch.one, batch.many)
    }
    assert forms, name
    return lambda sql: sql in forms


@dataclass
class Fault:
    """One fault, waiting for its statement."""

    moment: Moment
    match: Match
    happened: asyncio.Event = field(default_factory=asyncio.Event)


class FaultProxy:
    """Stands between a store and its Postgres; `url` leads through it."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._port = 0
        self._faults: list[Fault] = []
        self._links: set[_Link] = set()
        self._open = asyncio.Event()
        self._open.set()
        self.delay_s = 0.0  # a slow link: what every message waits, either way
        self.connections = 0
        self.statements: list[str] = []

    @property
    def url(self) -> str:
        parts = urlsplit(self._target)
        user = parts.netloc.rpartition("@")[0]
        kept = {key: value[0] for key, value in parse_qs(parts.query).items() if key not in ("host", "port", "sslmode")}
        query = urlencode(kept | {"sslmode": "disable"})
        return urlunsplit(parts._replace(netloc=f"{user}@127.0.0.1:{self._port}", query=query))

    def cut(self, moment: Moment, match: Match) -> Fault:
        """Lose the connection at the next matching statement, once."""
        fault = Fault(moment, match)
        self._faults.append(fault)
        return fault

    def swallow(self) -> None:
        """Accept and read everything, pass on nothing."""
        self._open.clear()

    def pass_on(self) -> None:
        """End `swallow`."""
        self._open.set()

    async def refuse(self) -> None:
        """Be gone: connections are cut, new ones refused."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.cut_all()

    async def listen(self) -> None:
        """Be there, always at the same address."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    def cut_all(self) -> None:
        """Lose every connection at once."""
        for link in list(self._links):
            link.cut()

    def interject(self, sqlstate: str) -> None:
        """Say on every idle connection, unasked, that the server goes down; its end comes later, or never."""
        fields = b"SFATAL\0VFATAL\0C" + sqlstate.encode() + b"\0Mgoing down\0\0"
        for link in self._links:
            link.say(b"E" + (len(fields) + 4).to_bytes(4, "big") + fields)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        link = _Link(self, reader, writer)
        self._links.add(link)
        try:
            await link.run(*await self._dial())
        except (OSError, asyncio.IncompleteReadError, RuntimeError):  # uvloop's word for a transport that is closed
            pass
        finally:
            self._links.discard(link)
            link.cut()

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self._target)
        query = parse_qs(parts.query)
        host = parts.hostname or query.get("host", ["127.0.0.1"])[0]
        port = parts.port or int(query.get("port", ["5432"])[0])
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)

    async def passable(self) -> None:
        """Wait while everything is swallowed, and on a slow link."""
        await self._open.wait()
        if self.delay_s:
            await asyncio.sleep(self.delay_s)

    def fault_at(self, sql: str) -> Fault | None:
        """The fault that this statement sets off."""
        self.statements.append(sql)
        for fault in self._faults:
            if fault.match(sql):
                self._faults.remove(fault)
                return fault
        return None


class _Link:
    """One connection through the proxy."""

    def __init__(self, proxy: FaultProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._client_reader, self._client_writer = reader, writer
        self._server_writer: asyncio.StreamWriter | None = None
        self._sql: dict[bytes, str] = {}
        self._losing: Fault | None = None  # the answer to come is not passed on

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._server_writer = writer
        back = asyncio.create_task(self._backward(reader))
        try:
            await self._forward(writer)
        finally:
            if self._losing is not None:  # the statement runs on behind the lost connection, to its end
                with contextlib.suppress(OSError):
                    await back
            back.cancel()

    def say(self, message: bytes) -> None:
        self._client_writer.write(message)

    def cut(self) -> None:
        self._client_writer.transport.abort()
        if self._server_writer is not None and self._losing is None:
            self._server_writer.transport.abort()

    async def _forward(self, writer: asyncio.StreamWriter) -> None:
        started = False
        while True:
            head = await self._client_reader.readexactly(1 if started else 0)
            length = await self._client_reader.readexactly(4)
            body = await self._client_reader.readexactly(int.from_bytes(length, "big") - 4)
            await self._proxy.passable()
            if not started:
                started = int.from_bytes(body[:4], "big") not in (SSL_REQUEST, CANCEL_REQUEST)
            elif (fault := self._fault(head, body)) is not None:
                if fault.moment == "before":
                    fault.happened.set()
                    return
                self._losing = fault
            writer.write(head + length + body)
            await writer.drain()
            if head == b"S" and self._losing is not None and self._losing.moment == "during":
                self._client_writer.transport.abort()
                self._losing.happened.set()
                return

    def _fault(self, head: bytes, body: bytes) -> Fault | None:
        if head == b"P":
            name, sql = body.split(b"\0", 2)[:2]
            self._sql[name] = sql.decode()
        elif head == b"B":
            return self._proxy.fault_at(self._sql[body.split(b"\0", 2)[1]])
        return None

    async def _backward(self, reader: asyncio.StreamReader) -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            await self._proxy.passable()
            if self._losing is None:
                self._client_writer.write(chunk)
            elif chunk[-6:-1] == b"Z\0\0\0\x05":  # ready for the next query: this one is committed
                self._losing.happened.set()
                break
        self._client_writer.transport.abort()
        if self._server_writer is not None:
            self._server_writer.transport.abort()


@contextlib.asynccontextmanager
async def fault_proxy(target: str) -> AsyncIterator[FaultProxy]:
    """A proxy that is there, and gone after the test."""
    proxy = FaultProxy(target)
    await proxy.listen()
    try:
        yield proxy
    finally:
        proxy.pass_on()
        await proxy.refuse()
