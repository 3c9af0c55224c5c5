"""Clients that behave as clients do: they retry with the same ID, confirm twice, race, come late or never confirm.

They write down what they were told (`Operation`) and judge nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import aiohttp

from tests.e2e.harness import Reply
from tests.rig.records import FINAL, METHODS, MODES, RECOVERIES, Operation

TRIES_MAX = 12
PAUSE_S = 0.25
TIMEOUT_S = 10.0
SHORT_TTL_S = 1.2  # the routes' own; whoever wants to confirm asks for more
LONG_TTL_MS = 30_000
CALLED_BACK = 5  # one in so many auto-confirmed operations asks for a callback
# What a client that makes a handshake does besides it, and how often.
HABITS = {"plain": 60, "again": 10, "race": 10, "leave": 7, "abandon": 4, "late": 4, "stranger": 5}
LOST = (aiohttp.ClientError, ConnectionError, TimeoutError)


class Clients:
    """Operations against any of several replicas. `urls` may be answered or not at any time."""

    def __init__(self, urls: Sequence[str], rng: random.Random, callback_url: str) -> None:
        self.operations: dict[int, Operation] = {}
        self.answered = 0
        self.broken: list[str] = []  # answers that say that the gateway itself has failed
        self._urls = urls
        self._rng = rng
        self._callback_url = callback_url
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)
        # RELIABILITY fact 1: a client of ours that sends twice by itself would be seen as a doubled effect.
        self._session._retry_connection = False

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def new(self, mode: str | None = None, recovery: str | None = None, method: str | None = None) -> Operation:
        """The next operation, as chosen or by chance."""
        rng = self._rng
        made = Operation(
            len(self.operations) + 1,
            mode or rng.choice(MODES),  # type: ignore[arg-type]
            recovery or rng.choice(RECOVERIES),  # type: ignore[arg-type]
            method or rng.choice(METHODS),
        )
        self.operations[made.number] = made
        return made

    async def run(self, operation: Operation, habit: str | None = None, *, tries: int = TRIES_MAX) -> None:
        """One operation, from its first request to whatever its client makes of it."""
        match operation.mode:
            case "transparent":
                await self._transparent(operation)
            case "auto":
                operation.confirmed = True
                operation.callback |= operation.number % CALLED_BACK == 0
                await self._insist(lambda: self._auto(operation), tries)
                if self._rng.random() < 0.1:
                    await self._insist(lambda: self._auto(operation), tries)
            case _:
                habit = habit or self._rng.choices(list(HABITS), list(HABITS.values()))[0]
                await self._handshake(operation, habit, tries)

    async def ask_again(self, operation: Operation) -> None:
        """A replay, whenever it is asked for (RPL-1, RPL-2)."""
        if operation.server_id is None or not operation.confirmed or operation.mode == "transparent":
            return
        if operation.mode == "auto":
            await self._insist(lambda: self._auto(operation), TRIES_MAX)
        elif operation.mode == "async":
            await self._insist(lambda: self._poll(operation), TRIES_MAX)
        else:
            await self._insist(lambda: self._confirm(operation), TRIES_MAX)

    async def _handshake(self, operation: Operation, habit: str, tries: int) -> None:
        ttl_ms = None if habit in ("late", "abandon") else LONG_TTL_MS
        await self._insist(lambda: self._register(operation, ttl_ms), tries)
        if operation.server_id is None or habit == "abandon":
            return
        if habit == "again":
            await self._register(operation, ttl_ms)
        if habit == "late":
            await asyncio.sleep(SHORT_TTL_S * self._rng.uniform(0.8, 1.4))
        if habit == "stranger":
            await self._stranger(operation)
        operation.confirmed = True
        if habit == "leave":  # P2-9: a client that goes does not stop the work
            await self._confirm(operation, timeout_s=self._rng.uniform(0.001, 0.05))
        if habit == "race":
            await asyncio.gather(*(self._confirm(operation) for _ in range(3)))
        await self._insist(lambda: self._confirm(operation), tries)
        if operation.mode == "async":
            await self._insist(lambda: self._poll(operation), tries * 2)
        if habit == "again":
            await self.ask_again(operation)

    async def _insist(self, step: Callable[[], Awaitable[bool]], tries: int) -> bool:
        for attempt in range(tries):
            if await step():
                return True
            if attempt + 1 < tries:
                await asyncio.sleep(PAUSE_S * self._rng.uniform(0.5, 1.5))
        return False

    # --- one request each; True once there is nothing more to ask

    async def _register(self, operation: Operation, ttl_ms: int | None = None) -> bool:
        headers = {"DTT-2PHP-Requested-TTL": str(ttl_ms)} if ttl_ms is not None else {}
        reply = await self._send(operation, operation.method, operation.path, body=operation.body, **headers)
        if reply is None:
            return False
        if reply.status == 200:
            operation.registered(reply.server_id, reply.headers["DTT-2PHP-PONR-Deadline"])
        return self._heard(operation, reply, final=False) or reply.status == 200

    async def _confirm(self, operation: Operation, timeout_s: float | None = None) -> bool:
        reply = await self._send(
            operation,
            "POST",
            f"{operation.path}/confirm",
            timeout_s=timeout_s,
            **{"DTT-2PHP-Server-Correlation-ID": str(operation.server_id)},
        )
        if reply is None:
            return False
        accepted = operation.mode == "async" and reply.status == 202
        return self._heard(operation, reply, final=operation.mode != "async") or accepted

    async def _stranger(self, operation: Operation) -> None:
        """SEC-2: whoever else confirms is refused, and nothing is executed."""
        reply = await self._send(
            operation,
            "POST",
            f"{operation.path}/confirm",
            caller="Bearer a-stranger",
            **{"DTT-2PHP-Server-Correlation-ID": str(operation.server_id)},
        )
        if reply is not None and reply.status not in (403, 503):
            operation.contradictions.append(f"a stranger got {reply.status} {reply.body[:200]!r}")

    async def _poll(self, operation: Operation) -> bool:
        reply = await self._send(operation, "GET", f"{operation.path}/{operation.server_id}")
        return reply is not None and self._heard(operation, reply, final=True)

    async def _auto(self, operation: Operation) -> bool:
        headers = {"DTT-2PHP-Auto-Confirm": "true"}
        if operation.callback:
            headers["DTT-2PHP-Callback"] = f"{self._callback_url}/{operation.number:x}"
        reply = await self._send(operation, operation.method, operation.path, body=operation.body, **headers)
        return reply is not None and self._heard(operation, reply, final=True)

    async def _transparent(self, operation: Operation) -> None:
        """TRN-2: it knows nothing of 2PHP, so it cannot ask again."""
        operation.confirmed = True
        reply = await self._ask(operation.method, operation.path, {}, operation.body, operation.caller)
        if reply is None or "DTT-2PHP-Server-Correlation-ID" not in reply.headers:
            return
        operation.registered(reply.server_id, None)
        if reply.status in (502, 504):
            operation.doubtful = True
        elif "X-Rig" in reply.headers:
            outcome = "COMMITTED" if reply.status < 400 else "FAILED"
            operation.settled(outcome, reply.status, reply.raw_headers, reply.body)

    def _heard(self, operation: Operation, reply: Reply, *, final: bool) -> bool:
        """Write an answer down; whether it leaves nothing to ask."""
        if reply.status == 408:
            operation.expired = True
            return True
        if "DTT-2PHP-Server-Correlation-ID" in reply.headers:
            operation.registered(reply.server_id, None)
        if final and reply.phase in FINAL:
            operation.settled(str(reply.phase), reply.status, reply.raw_headers, reply.body)
            return True
        if str(reply.headers.get("DTT-2PHP-Message", "")).startswith("Outcome in doubt"):
            operation.doubtful = True
            return True
        return False

    async def _send(
        self,
        operation: Operation,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        caller: str | None = None,
        timeout_s: float | None = None,
        **headers: str,
    ) -> Reply | None:
        headers["DTT-2PHP-Enabled"] = "true"
        headers["DTT-2PHP-Client-Correlation-ID"] = operation.client_id
        return await self._ask(method, path, headers, body, caller or operation.caller, timeout_s)

    async def _ask(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        body: bytes | None,
        caller: str,
        timeout_s: float | None = None,
    ) -> Reply | None:
        assert self._session is not None
        options: dict[str, Any] = {}
        if timeout_s is not None:
            options["timeout"] = aiohttp.ClientTimeout(total=timeout_s)
        headers = {"Authorization": caller, "Content-Type": "application/json", **headers}
        url = self._rng.choice(self._urls) + path
        try:
            async with self._session.request(
                method, url, headers=headers, data=body or None, allow_redirects=False, **options
            ) as answer:
                reply = Reply(answer.status, answer.headers, await answer.read(), answer.raw_headers)
        except LOST:
            return None
        self.answered += 1
        if reply.status == 500 and reply.phase is None and "X-Rig" not in reply.headers:
            self.broken.append(f"{method} {path}: {reply.body[:200]!r}")
        return reply
