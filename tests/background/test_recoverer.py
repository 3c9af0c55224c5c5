"""The recoverer begins what is due as far as a route has room; what has none comes again at another time (REC-2)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from gateway.background.recoverer import PER_ROUTE_MAX, Recoverer
from gateway.protocol.identity import IntentKey
from gateway.protocol.records import Doubted
from gateway.protocol.recovery import Limits
from gateway.runtime.tasks import Tasks

DUE_AT_ONCE = PER_ROUTE_MAX * 2


class Recoveries:
    """A store in which many doubts of one route are due, and which records what becomes of them."""

    def __init__(self) -> None:
        self.redriven: list[bytes] = []
        self.postponed_ms: list[int] = []

    async def due(self, limit: int, claim_ms: int) -> list[Doubted]:
        now = datetime.now(UTC)
        return [
            Doubted(
                key=IntentKey(0, bytes([number])),
                token=now,
                fence=1,
                server_correlation_id=uuid4(),
                client_correlation_id="order-1",
                method="POST",
                path=b"/orders",
                asked=0,
                tries=1,
                sends=1,
                ended_at=now - timedelta(minutes=1),
                read_at=now,
                payload_kept=True,
                proven=False,
            )
            for number in range(DUE_AT_ONCE)
        ]

    async def postpone(self, doubted: Doubted, delay_ms: int, asked: int = 0) -> None:
        self.postponed_ms.append(delay_ms)

    async def redrive(self, doubted: Doubted, *_: Any) -> None:
        self.redriven.append(doubted.key.logical)


async def test_of_many_doubts_at_once_as_many_are_redriven_as_their_route_has_room_for() -> None:
    """REC-2: an outage leaves more of them than may be under way; the rest does not come back all together."""
    recoveries, tasks = Recoveries(), Tasks()
    route = SimpleNamespace(path="/orders", recovery="redrive", timeout_ms=1_000)
    desk: Any = SimpleNamespace(
        recoveries=recoveries,
        verifies=False,
        spawn=tasks.spawn,
        own_route_of=lambda method, path: route,
        limits=Limits(5, 1_000, 1_000),
        lease=SimpleNamespace(holder=uuid4()),
    )
    await Recoverer(desk).run_once()
    await tasks.drain(10)
    assert len(recoveries.redriven) == PER_ROUTE_MAX
    assert len(recoveries.postponed_ms) == DUE_AT_ONCE - PER_ROUTE_MAX
    assert len(set(recoveries.postponed_ms)) > 1
