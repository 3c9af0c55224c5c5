"""All that a run of the rig consists of: replicas on one Postgres, an upstream, clients, a receiver of callbacks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg

from tests.e2e.harness import Gateway
from tests.faults import FaultProxy
from tests.rig import ledger
from tests.rig.checker import Checker, Findings, Violation, exposed
from tests.rig.clients import Clients
from tests.rig.receiver import CALLBACKS, SIGNING_KEY, SIGNING_VARIABLE, CallbackReceiver
from tests.rig.records import CANARY, RECOVERIES
from tests.rig.upstream import RigUpstream

LEASE_S = 2.0
HEALING = ("redrive", "probe")  # recoveries that settle what is in doubt by themselves
HEALING_PATHS = f"/({'|'.join(HEALING)})/"
RESTART_PAUSE_S = 0.2
AWAY = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
DEADLINES = {"ttl": "1200ms", "max_ttl": "30s", "grace": "1s"}  # short for who asks for no more (P1-2)


def routes() -> list[dict[str, Any]]:
    """Every mode x every recovery."""
    found = []
    for mode in ("standard", "async", "transparent"):
        for recovery in RECOVERIES:
            route: dict[str, Any] = {"path": f"/{mode}/{recovery}/**", "recovery": recovery, **DEADLINES}
            if recovery == "probe":
                route["probe"] = {"path": "/effects/{server_correlation_id}"}
            if mode == "transparent":
                route["mode"] = "transparent"
            elif mode == "async":
                route["execution"] = "async"
            found.append(route)
    return found


class Replica(Gateway):
    """A gateway that is started again whenever it has ended, as an orchestrator would."""

    proxy: FaultProxy
    keeper: asyncio.Task[None] | None = None

    async def keep(self) -> None:
        """Start it, and again whenever it is gone. A port still held by an orphaned worker is a reason to try again."""
        while True:
            if self.process is None or self.process.returncode is not None:
                await self.start(wait_ready=False)
            assert self.process is not None
            await self.process.wait()
            await asyncio.sleep(RESTART_PAUSE_S)

    def signal(self, pids: list[int], number: int) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    async def ready(self) -> bool:
        """Whether it says so itself."""
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with asyncio.timeout(2):
                return (await self.operator("GET", "/readyz")).status == 200
        return False

    async def pids(self) -> list[int]:
        """The workers; none while it is down."""
        with contextlib.suppress(OSError):
            return await self.worker_pids()
        return []


class World:
    """One database, one upstream, clients, and replicas that each have a link of their own to the database."""

    def __init__(self, directory: Path, database_url: str, rng: random.Random) -> None:
        self.directory = directory
        self.database_url = database_url
        self.upstream = RigUpstream(rng, self._ponr_is_durable)
        self.receiver = CallbackReceiver(rng)
        self.replicas: list[Replica] = []
        self.urls: list[str] = []
        self.clients: Clients
        self._rng = rng
        self._eye: asyncpg.Pool[Any] | None = None

    async def open(self) -> None:
        await self.upstream.start()
        self.clients = Clients(self.urls, self._rng, await self.receiver.start())
        await self.clients.open()
        self._eye = await asyncpg.create_pool(self.database_url, min_size=0, max_size=4, timeout=2, command_timeout=2)

    async def close(self) -> None:
        for replica in self.replicas:
            if replica.keeper is not None:
                replica.keeper.cancel()
                await asyncio.gather(replica.keeper, return_exceptions=True)
            await replica.aclose()
            replica.proxy.pass_on()
            await replica.proxy.refuse()
        await self.clients.close()
        await self.receiver.stop()
        await self.upstream.stop()
        if self._eye is not None:
            self._eye.terminate()

    async def replica(self, **environment: str) -> Replica:
        """A gateway with a link of its own to the database; not started."""
        proxy = FaultProxy(self.database_url)
        await proxy.listen()
        changes: dict[str, Any] = {
            "routes": routes(),
            "upstream": {"timeout": "2s", "read_timeout": "2s"},
            "recovery": {"lease": f"{LEASE_S:g}s", "interval": "200ms", "backoff": "200ms", "attempts": 20},
            "callbacks": CALLBACKS,
            "drain": {"timeout": "5s"},
        }
        made = Replica(
            self.directory, self.upstream.url, proxy.url, changes, {SIGNING_VARIABLE: SIGNING_KEY, **environment}
        )
        made.proxy = proxy
        self.replicas.append(made)
        return made

    async def serve(self, count: int) -> None:
        """So many replicas, kept running, that clients use."""
        for _ in range(count):
            replica = await self.replica()
            await replica.start()
            replica.keeper = asyncio.create_task(replica.keep())
            self.urls.append(replica.url)

    async def at_rest(self) -> dict[str, int]:
        """What is not at rest yet; empty once all of it is and every replica is ready."""
        down = sum([not await replica.ready() for replica in self.replicas if replica.keeper is not None])
        if down:
            return {"replicas down": down}
        try:
            assert self._eye is not None
            async with self._eye.acquire() as connection:
                return await ledger.unrest(connection, HEALING_PATHS)
        except AWAY:
            return {"the store is away": 1}

    async def until_at_rest(self, within_s: float, report: Callable[[dict[str, int]], None] | None = None) -> float:
        """How long it took; the checker tells what is wrong if it took longer."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        while (left := await self.at_rest()) and loop.time() - started < within_s:
            if report is not None:
                report(left)
            await asyncio.sleep(0.05)
        return loop.time() - started

    async def findings(self) -> Findings:
        """What the checker says about everything that happened."""
        connection = await asyncpg.connect(self.database_url)
        try:
            checker = Checker(
                self.clients.operations,
                self.upstream.log,
                self.receiver.heard,
                now=datetime.now(UTC),
                healing=HEALING,
            )
            async for row in ledger.rows(connection):
                checker.row(row)
            found = checker.finish()
            found.violations += [
                Violation("no failure of the gateway's own", "-", what) for what in self.clients.broken
            ]
            async for text in ledger.texts(connection):
                found.violations += exposed([text], CANARY)
            found.violations += exposed((replica.logs() for replica in self.replicas), CANARY)
            return found
        finally:
            await connection.close()

    async def _ponr_is_durable(self, server_id: str) -> bool | None:
        """P2-2: the upstream reads Postgres itself. None while it cannot be asked."""
        try:
            assert self._eye is not None
            async with self._eye.acquire(timeout=2) as connection:
                phase = await connection.fetchval(
                    "SELECT phase::text FROM intents WHERE server_correlation_id = $1::text::uuid", server_id
                )
            return phase in ("PROCESSING", "COMMITTED", "FAILED")
        except AWAY:
            return None
