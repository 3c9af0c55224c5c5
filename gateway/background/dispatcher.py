"""The dispatcher: sends what is due until it is acknowledged or dead (ACM-3). Runs in every gateway; claims are leases.

Only what can be sent now is claimed: no more than its slots, of each host no more than that host has room for, of a
resting host nothing. So a host that hangs holds its few slots and nothing else waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway.protocol.deliveries import DueDelivery, Outcome, State
from gateway.protocol.faults import StoreAway
from gateway.store.deliveries import DeliveryStore

log = logging.getLogger(__name__)

SLOTS = 128  # attempts at once: a dozen hosts that hang, each with its limit, leave room for the others
PER_HOST_MAX = 8  # attempts at once to one host: it has just been failing, and its first attempts come besides
LOOK_AGAIN_S = 0.5  # for what has become due while a slow attempt is under way


class Hosts(Protocol):
    """What is known of receiving hosts."""

    limit: int

    def enter(self, key: int) -> Any | None:
        """Take a place, or None."""
        ...

    def leave(self, host: Any, *, answered: bool) -> None:
        """Give it back."""
        ...

    def abandon(self, host: Any) -> None:
        """Give it back, having learnt nothing."""
        ...

    def rooms(self) -> dict[int, int]:
        """How many more each host takes that does not take its whole limit."""
        ...


@dataclass(slots=True)
class Dispatched:
    """What one run did."""

    claimed: int = 0
    delivered: int = 0
    pending: int = 0  # failed, and will be tried again
    dead: int = 0

    def add(self, state: State) -> None:
        """Count one outcome."""
        match state:
            case "delivered":
                self.delivered += 1
            case "pending":
                self.pending += 1
            case "dead":
                self.dead += 1


@dataclass(slots=True)
class _Run:
    """One run: its attempts, and what they came to."""

    attempts: asyncio.TaskGroup
    counts: Dispatched = field(default_factory=Dispatched)
    under_way: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Dispatcher:
    """`deliver` makes one attempt and records it; `observe` is told each outcome's state, for metrics."""

    def __init__(
        self,
        store: DeliveryStore,
        deliver: Callable[[DueDelivery], Awaitable[Outcome]],
        hosts: Hosts,
        *,
        buckets: int,
        observe: Callable[[str], None] | None = None,
    ) -> None:
        self._store = store
        self._deliver = deliver
        self._hosts = hosts
        self._buckets = range(buckets)
        self._observe = observe

    async def run_once(self) -> Dispatched:
        """Send until nothing is due and nothing is under way. What becomes due meanwhile waits for no slow host."""
        away: StoreAway | None = None
        async with asyncio.TaskGroup() as attempts:
            run = _Run(attempts)
            try:
                # An attempt that ended while claims were made may have made room for what they passed over.
                while await self._claim(run) or run.under_way or run.changed.is_set():
                    await _change(run)
            except StoreAway as error:
                away = error  # attempts under way come to their end first
        if away is not None:
            raise away
        if run.counts.claimed:
            log.info(
                "deliveries sent",
                extra={"delivered": run.counts.delivered, "pending": run.counts.pending, "dead": run.counts.dead},
            )
        return run.counts

    async def _claim(self, run: _Run) -> bool:
        """Start what can be started now; whether anything was. A full host is left out of the next claim."""
        before = run.counts.claimed
        run.changed.clear()
        for bucket in self._buckets:
            while run.under_way < SLOTS:
                due = await self._store.claim(
                    bucket, limit=SLOTS - run.under_way, host_limit=self._hosts.limit, rooms=self._hosts.rooms()
                )
                if not due:
                    break
                for delivery in due:
                    self._start(run, delivery)
        return run.counts.claimed > before

    def _start(self, run: _Run, due: DueDelivery) -> None:
        host = self._hosts.enter(due.host)
        if host is None:  # it began to rest while the claim was made; the claim's lease brings it back
            return
        run.counts.claimed += 1
        run.under_way += 1
        run.attempts.create_task(self._attempt(run, due, host), name="delivery attempt")

    async def _attempt(self, run: _Run, due: DueDelivery, host: Any) -> None:
        answered: bool | None = None
        try:
            outcome = await self._deliver(due)
            answered = not outcome.host_failed
            run.counts.add(outcome.state)
            if self._observe is not None:
                self._observe(outcome.state)
        except Exception:
            log.exception("a delivery attempt failed in an unforeseen way", extra={"delivery": str(due.id)})
        finally:
            run.under_way -= 1
            run.changed.set()
            if answered is None:
                self._hosts.abandon(host)
            else:
                self._hosts.leave(host, answered=answered)


async def _change(run: _Run) -> None:
    """Wait until an attempt has ended, but not for long: something else may have become due."""
    if run.under_way:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_AGAIN_S):
                await run.changed.wait()
