"""The workers of a gateway: started, told, restarted when they die, drained."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gateway.runtime.channel import Channel
from gateway.runtime.worker import EXIT_REFUSED
from gateway.settings import Settings
from gateway.telemetry.aggregation import Totals
from gateway.telemetry.metrics import Metrics, Snapshot

log = logging.getLogger(__name__)

RESTART_MIN_S = 0.1
RESTART_MAX_S = 10.0
STEADY_S = 30.0  # a worker that lived this long is restarted without a pause
SNAPSHOT_WAIT_S = 1.0
KILL_GRACE_S = 5.0  # beyond the drain's own time


@dataclass(slots=True)
class Member:
    """One worker process and what it has said."""

    number: int
    process: asyncio.subprocess.Process | None = None
    channel: Channel | None = None
    listening: bool = False
    opened: bool = False
    reloaded: asyncio.Future[str | None] | None = None


@dataclass(slots=True)
class Launch:
    """What a worker is told first."""

    settings: Settings
    store_url: str
    owner_url: str
    log_level: str


class Crew:
    """All workers of one gateway."""

    def __init__(self, launch: Launch, metrics: Metrics, changed: Callable[[], None]) -> None:
        self._launch = launch
        self._metrics = metrics
        self._changed = changed
        self._members = [Member(number) for number in range(launch.settings.workers)]
        self._totals = Totals()
        self._tickets: dict[int, asyncio.Future[None]] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._draining = False
        self.refused: str | None = None
        self.store_opened = asyncio.Event()  # by some worker: it is migrated now
        self.all_opened = asyncio.Event()

    def start(self) -> None:
        """Start every worker and keep it running."""
        self._keepers = [
            asyncio.create_task(self._keep(member), name=f"worker {member.number}") for member in self._members
        ]

    @property
    def listening(self) -> bool:
        """Whether every worker takes connections."""
        return all(member.listening for member in self._members)

    @property
    def opened(self) -> bool:
        """Whether every worker has opened the store."""
        return all(member.opened for member in self._members)

    async def _keep(self, member: Member) -> None:
        loop = asyncio.get_running_loop()
        pause_s = RESTART_MIN_S
        while True:
            started = loop.time()
            status = await self._run(member)
            if self._draining or self.refused is not None:
                return
            if status == EXIT_REFUSED:
                self.refused = "a worker refused the configuration"
                self._changed()
                return
            self._metrics.worker_restarts.inc()
            if loop.time() - started > STEADY_S:
                pause_s = RESTART_MIN_S
            log.error("a worker ended; starting another", extra={"worker": member.number, "exit_status": status})
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, RESTART_MAX_S)

    async def _run(self, member: Member) -> int:
        ours, theirs = socket.socketpair()
        try:
            member.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "gateway.runtime.worker", str(theirs.fileno()), pass_fds=(theirs.fileno(),)
            )
        finally:
            theirs.close()
        channel = member.channel = await Channel.over(ours)
        launch = self._launch
        channel.send(
            "hello",
            settings=launch.settings,
            store_url=launch.store_url,
            owner_url=launch.owner_url,
            log_level=launch.log_level,
        )
        while (message := await channel.receive()) is not None:
            self._heard(member, *message)
        status = await member.process.wait()
        member.listening = member.opened = False
        member.process = member.channel = None
        if member.reloaded is not None and not member.reloaded.done():
            member.reloaded.set_result("the worker ended")
        self._totals.retire(member.number)
        self._changed()
        channel.close()
        return status

    def _heard(self, member: Member, kind: str, content: dict[str, Any]) -> None:
        if kind == "listening":
            member.listening = True
        elif kind == "opened":
            member.opened = True
            self.store_opened.set()
            if self.opened and self.listening:
                self.all_opened.set()
        elif kind == "refused":
            self.refused = content["reason"]
        elif kind == "snapshot":
            self._totals.update(member.number, content["snapshot"])
            ticket = self._tickets.get(content["ticket"])
            if ticket is not None and not ticket.done():
                ticket.set_result(None)
        elif kind in ("reloaded", "not reloaded") and member.reloaded is not None and not member.reloaded.done():
            member.reloaded.set_result(content.get("reason"))
        self._changed()

    async def snapshot(self) -> Snapshot:
        """The metrics of all processes, as fresh as they can be had within a moment."""
        waiting = []
        for member in self._members:
            if member.channel is None:
                continue
            number = max(self._tickets, default=0) + 1
            self._tickets[number] = ticket = asyncio.get_running_loop().create_future()
            waiting.append(ticket)
            member.channel.send("snapshot", ticket=number)
        if waiting:
            await asyncio.wait(waiting, timeout=SNAPSHOT_WAIT_S)
        self._tickets = {number: ticket for number, ticket in self._tickets.items() if not ticket.done()}
        return self._totals.snapshot(self._metrics.snapshot())

    async def reload(self, settings: Settings) -> list[str]:
        """Give every worker a new configuration; returns what went wrong."""
        waiting = []
        for member in self._members:
            if member.channel is not None:
                member.reloaded = asyncio.get_running_loop().create_future()
                waiting.append(member.reloaded)
                member.channel.send("reload", settings=settings)
        reasons = await asyncio.gather(*waiting)
        failed = [reason for reason in reasons if reason is not None]
        if not failed:
            self._launch.settings = settings
        return failed

    async def drain(self) -> None:
        """OPS-1: every worker finishes what it has in flight; one that does not end is ended."""
        self._draining = True
        for member in self._members:
            if member.channel is not None:
                member.channel.send("drain")
        if not self._keepers:
            return
        timeout_s = self._launch.settings.drain.timeout_ms / 1000 + KILL_GRACE_S
        await asyncio.wait(self._keepers, timeout=timeout_s)
        for member in self._members:
            if member.process is not None and member.process.returncode is None:
                log.error("a worker did not drain in time and is ended", extra={"worker": member.number})
                member.process.kill()
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
