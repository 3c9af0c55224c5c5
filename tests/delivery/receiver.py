"""A receiver of deliveries that does whatever a test wants, on a real socket; and names that resolve as it wants."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def answer(status: int, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Some Reason", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass
class Received:
    """One request, as it came."""

    target: str
    headers: dict[str, str]
    body: bytes
    connection: int
    at: float = field(default_factory=lambda: asyncio.get_running_loop().time())


Answer = Callable[[Received, asyncio.StreamWriter], Awaitable[None]]


class Receiver:
    """Answers 200 until told otherwise."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Received] = []
        self.connections = 0
        self.behave: Answer = self.say(OK)
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._arrived = asyncio.Condition()
        self.released = asyncio.Event()  # what `hang` waits for
        self.port = 0

    @staticmethod
    def say(*replies: bytes) -> Answer:
        """The same bytes for every request; of several, one after the other and the last for ever."""
        left = list(replies)

        async def reply(request: Received, writer: asyncio.StreamWriter) -> None:
            writer.write(left.pop(0) if len(left) > 1 else left[0])

        return reply

    async def hang(self, request: Received, writer: asyncio.StreamWriter) -> None:
        """Take a request and say nothing."""
        await self.released.wait()

    async def drop(self, request: Received, writer: asyncio.StreamWriter) -> None:
        """Take a request and cut the connection."""
        writer.transport.abort()

    async def start(self) -> Receiver:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._tls, backlog=512)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        self.released.set()
        if self._server is not None:
            self._server.close()
        for writer in list(self._open):
            writer.transport.abort()
        if self._server is not None:
            await self._server.wait_closed()

    async def until(self, count: int) -> list[Received]:
        """Wait for so many requests."""
        async with asyncio.timeout(20), self._arrived:
            await self._arrived.wait_for(lambda: len(self.requests) >= count)
        return self.requests

    @property
    def ids(self) -> list[str]:
        return [request.headers["webhook-id"] for request in self.requests]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        connection = self.connections
        self._open.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                line, *fields = head.decode().split("\r\n")
                headers = {name.lower(): value for name, _, value in (f.partition(": ") for f in fields if f)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                method, target, _ = line.split(" ")
                assert method == "POST", line
                request = Received(target, headers, body, connection)
                async with self._arrived:
                    self.requests.append(request)
                    self._arrived.notify_all()
                await self.behave(request, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, OSError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()


class Names(AbstractResolver):
    """Each name's answers, one after the other and the last for ever."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self.answers = {name.replace("_", "."): list(list_) for name, list_ in answers.items()}
        self.asked: list[str] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.asked.append(host)
        if host not in self.answers:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        answers = self.answers[host]
        addresses = answers.pop(0) if len(answers) > 1 else answers[0]
        return [_resolved(host, address, port) for address in addresses]

    async def close(self) -> None:
        pass


def _resolved(host: str, address: str, port: int) -> Any:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=socket.AI_NUMERICHOST)


def black_hole() -> socket.socket:
    """A port that takes connections and never a byte: listening, nobody accepts, its queue is full."""
    hole = socket.socket()
    hole.bind(("127.0.0.1", 0))
    hole.listen(0)
    return hole
