"""A TCP proxy that listens in: every byte goes on as it came, and is read on the way as HTTP.

One tap stands before the client, one before the upstream, so that neither has to know that it is watched.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

from tests.e2e.harness import eventually
from tests.e2e.wire import Header, Message, read_body

READ_BYTES = 1 << 16
HEAD_BYTES_MAX = 1 << 20


def lines_of(head: bytes) -> list[bytes]:
    """The lines of a head as they were on the wire, but for white space around values."""
    line, *fields = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    parts = (field.partition(b":") for field in fields)
    return [line, *(name + b": " + value.strip(b" \t") for name, _, value in parts)]


@dataclass
class Exchange:
    """One request and its answer, with the bytes of both heads."""

    request_head: bytes
    request: Message
    interim: list[bytes] = field(default_factory=list)
    answer_head: bytes = b""
    answer: Message | None = None
    over: bool = False

    @property
    def line(self) -> bytes:
        """Method and target."""
        return self.request.line.rpartition(b" ")[0]

    @property
    def whole(self) -> Message:
        """The answer, which must have come to its end."""
        assert self.answer is not None, f"no answer to {self.line!r}"
        assert self.answer.whole, f"the answer to {self.line!r} was cut"
        return self.answer

    def header(self, name: bytes) -> bytes | None:
        """One value of the answer's."""
        return self.whole.header(name)


def named(headers: list[Header], name: bytes) -> list[bytes]:
    return [value for key, value in headers if key.lower() == name]


class Tap:
    """Goes to `target`, a port of loopback; `exchanges` is what passed, in the order of the requests."""

    def __init__(self) -> None:
        self.target = 0
        self.exchanges: list[Exchange] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def settled(self) -> list[Exchange]:
        """What passed since the last time; waits for exchanges that are still going on."""

        async def all_over() -> bool:
            return all(exchange.over for exchange in self.exchanges)

        await eventually(all_over)
        exchanges, self.exchanges = self.exchanges, []
        return exchanges

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):  # the test has ended, or nobody is there
            await self._connect(reader, writer)
        writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_target = await asyncio.open_connection("127.0.0.1", self.target)
        requests = asyncio.StreamReader(limit=HEAD_BYTES_MAX)
        answers = asyncio.StreamReader(limit=HEAD_BYTES_MAX)
        try:
            async with asyncio.TaskGroup() as connection:
                connection.create_task(_pass_on(reader, to_target[1], requests))
                connection.create_task(_pass_on(to_target[0], writer, answers))
                connection.create_task(self._listen(requests, answers))
        finally:
            to_target[1].transport.abort()

    async def _listen(self, requests: asyncio.StreamReader, answers: asyncio.StreamReader) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                head = await requests.readuntil(b"\r\n\r\n")
                exchange = Exchange(head, Message.parse(head))
                self.exchanges.append(exchange)
                try:
                    async with asyncio.TaskGroup() as both:  # an answer may come before the end of its request
                        both.create_task(read_body(requests, exchange.request))
                        both.create_task(_read_answer(answers, exchange))
                finally:
                    exchange.over = True


async def _read_answer(answers: asyncio.StreamReader, exchange: Exchange) -> None:
    while True:
        try:
            head = await answers.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return  # none came: `whole` says so
        answer = Message.parse(head, answers=exchange.request.method)
        if answer.status >= 200:
            break
        exchange.interim.append(head)
    exchange.answer_head, exchange.answer = head, answer
    await read_body(answers, answer)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: asyncio.StreamReader) -> None:
    """Bytes, the end of them and a reset, in one direction; the record has them before the other side has."""
    try:
        while data := await reader.read(READ_BYTES):
            record.feed_data(data)
            writer.write(data)
            await writer.drain()
        record.feed_eof()
        if not writer.transport.is_closing():
            writer.write_eof()
    except OSError:  # a reset, or nobody there any more
        record.feed_eof()
        writer.transport.abort()
