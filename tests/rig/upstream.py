"""The service behind the gateways: sometimes slow, wrong or gone, and honest about it in a log of its own.

An effect happens when a request has come whole; what is answered, and whether, comes after. On `redrive` routes it
honours the Idempotency-Key: the same key is the same effect. On all others a second request is a second effect, so that
a doubled one shows. `GET /effects/<server correlation id>` tells whether there is one (probe).
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from typing import Any

from tests.rig.records import Seen

# What may happen to a request, and how often under chaos.
CHAOS = {
    "ok": 800,
    "slow": 60,
    "refused": 30,  # 409, no effect
    "broken": 30,  # 500, no effect
    "bad gateway, done": 15,  # 502 with an effect
    "bad gateway": 15,  # 502 without
    "timed out, done": 15,  # 504 with an effect
    "cut before": 15,  # no effect, no answer
    "cut after": 15,
    "silent": 3,  # an effect, and no answer ever
}
EFFECT = frozenset({"ok", "slow", "bad gateway, done", "timed out, done", "cut after", "silent"})
STATUS = {"refused": 409, "broken": 500, "bad gateway": 502, "bad gateway, done": 502, "timed out, done": 504}
SLOW_S = 0.8

Look = Callable[[str], Awaitable[bool | None]]


class RigUpstream:
    """`behaviour` names what happens to a request; `look` tells whether Postgres has an intent's PONR."""

    def __init__(self, rng: random.Random, look: Look | None = None) -> None:
        self.log: list[Seen] = []
        self.effects: dict[str, int] = {}  # Idempotency-Key -> status of its first answer
        self.behaviour: Callable[[str, str], str] = lambda method, path: "ok"
        self.on_request: Callable[[Seen], Awaitable[None]] | None = None  # told once the effect is there
        self.look_at = 1.0  # share of requests for which Postgres is looked at
        self._rng = rng
        self._look = look
        self._tasks: set[asyncio.Task[Any]] = set()

    def chaos(self, method: str, path: str) -> str:
        """A behaviour by the weights of CHAOS."""
        return self._rng.choices(list(CHAOS), list(CHAOS.values()))[0]

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1024)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                line, *fields = head.decode("latin-1").split("\r\n")
                headers = {name.lower(): value for name, _, value in (f.partition(": ") for f in fields)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                method, path, _ = line.split(" ")
                if method == "GET":
                    answer = self._probed(path)
                else:
                    answer = await self._apply(method, path, headers, body, reader)
                if answer is None:
                    self._reset(writer)
                    return
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    def _probed(self, path: str) -> bytes:
        return _answer(200 if path.rsplit("/", 1)[1] in self.effects else 404, b'{"probed": true}')

    async def _apply(
        self, method: str, path: str, headers: dict[str, str], body: bytes, reader: asyncio.StreamReader
    ) -> bytes | None:
        server_id, key = headers.get("dtt-2php-server-correlation-id", ""), headers.get("idempotency-key", "")
        seen = Seen(
            number=int(path.rsplit("/", 1)[1], 16),
            server_id=server_id,
            key=server_id if key == server_id else key,  # one string of two: a long run has many
            attempt=headers.get("dtt-2php-attempt-id", ""),
            body_sha256=hashlib.sha256(body).digest(),
            at=time.time(),
        )
        self.log.append(seen)
        behaviour = self.behaviour(method, path)
        done_before = self.effects.get(seen.key)
        if done_before is not None and "/redrive/" in path:
            if behaviour not in EFFECT:
                behaviour = "ok"  # it keeps its word: what it did, it did
        elif behaviour in EFFECT:
            seen.effect = True
            self.effects[seen.key] = 201 if method == "POST" else 200
        if self._look is not None and self._rng.random() < self.look_at:
            seen.durable = await self._look(seen.server_id)
        if self.on_request is not None:
            await self.on_request(seen)
        if behaviour in ("cut before", "cut after"):
            return None
        if behaviour == "silent":
            await reader.read(1)  # until the gateway gives up
            return None
        if behaviour == "slow":
            await asyncio.sleep(SLOW_S)
        seen.status = STATUS.get(behaviour) or self.effects[seen.key]
        return _answer(seen.status, b'{"id": "%x"}' % seen.number)

    def _reset(self, writer: asyncio.StreamWriter) -> None:
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()


def _answer(status: int, body: bytes) -> bytes:
    return (
        b"HTTP/1.1 %d Some Reason\r\nContent-Type: application/json\r\nX-Rig: upstream\r\nContent-Length: %d\r\n\r\n%s"
        % (status, len(body), body)
    )
