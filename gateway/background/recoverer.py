"""Recovery: doubts and verifications that are due are looked at, so many at a time (REC-2, REC-5).

Runs in a worker, which has the upstream, the keys and a lease. A look that sends is an attempt under that lease: if
this worker dies in the middle of it, a rescuer finds it like any other.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from gateway.flows.ports import Desk
from gateway.flows.recover import ASK_MARGIN_MS, look
from gateway.flows.verify import verify
from gateway.protocol.faults import StoreAway
from gateway.protocol.records import Doubted, Verification

log = logging.getLogger(__name__)

SLOTS = 64  # looks at once in one worker
PER_ROUTE_MAX = 16  # of them on one route: its upstream has just failed, and its own traffic comes besides
CLAIM_MS = 5_000  # to decide and to begin; a worker that dies within it holds a doubt up for no longer


@dataclass(frozen=True, slots=True)
class Recovered:
    """What one run began."""

    looks: int
    verifications: int


class Recoverer:
    """One worker's share."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._running: Counter[str] = Counter()  # by route
        self._closed = False

    def under(self, desk: Desk) -> None:
        """Go on with a reloaded configuration."""
        self._desk = desk

    def close(self) -> None:
        """Begin nothing more: this worker drains, and what is due is for others."""
        self._closed = True

    async def run_once(self) -> Recovered:
        """Claim what is due, as far as there is room, and begin it."""
        if self._closed:
            return Recovered(0, 0)
        desk = self._desk
        doubts = await desk.recoveries.due(self._room(), CLAIM_MS)
        for doubted in doubts:
            room = self._running[_route(desk, doubted)] < PER_ROUTE_MAX
            self._begin(doubted, look(desk, doubted, room=room))
        verifications: list[Verification] = []
        if desk.verifies and not self._closed:
            claim_ms = desk.limits.upstream_timeout_ms + ASK_MARGIN_MS
            verifications = await desk.recoveries.due_verifications(self._room(), claim_ms)
            for verification in verifications:
                self._begin(verification, verify(desk, verification))
        return Recovered(len(doubts), len(verifications))

    def _room(self) -> int:
        return SLOTS - self._running.total()

    def _begin(self, what: Doubted | Verification, work: Coroutine[Any, Any, None]) -> None:
        route = _route(self._desk, what)
        self._running[route] += 1
        self._desk.spawn(self._run(what, route, work), "recover")

    async def _run(self, what: Doubted | Verification, route: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except StoreAway:
            log.warning("recovery waits: the store is away")  # the claim runs out, and it is due again
        except Exception as error:
            extra = {"server_correlation_id": str(what.server_correlation_id)}
            log.error("a look at an intent failed", extra=extra, exc_info=error)
        finally:
            self._running[route] -= 1


def _route(desk: Desk, what: Doubted | Verification) -> str:
    route = desk.own_route_of(what.method, what.path)
    return "" if route is None else str(route.path)
