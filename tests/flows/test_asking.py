"""REC-2, REC-5: what is not asked is not counted, and nothing is asked that cannot be asked as its caller would."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from gateway.flows.recover import look
from gateway.flows.verify import verify
from gateway.protocol.identity import IntentKey
from gateway.protocol.records import Doubted, Sealed, Verification
from gateway.protocol.recovery import Limits

KEY = IntentKey(0, b"k" * 16)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
LIMITS = Limits(attempts=3, backoff_ms=1000, upstream_timeout_ms=30_000)
VERIFICATION = Verification(KEY, NOW, UUID(int=1), "c-1", "POST", b"/orders", "17", 0, Sealed(b"", 1))
DOUBTED = Doubted(
    KEY, NOW, 1, UUID(int=1), "c-1", "POST", b"/orders", 0, 1, 1, NOW - timedelta(hours=1), NOW, True, False
)
PROBING = SimpleNamespace(recovery="probe", timeout_ms=1000, probe=SimpleNamespace(path="/x", json=None))


class Recoveries:
    """A store that notes what it is told; the payload of its one intent is gone."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.held: list[str] = []

    async def verify_later(self, verification: Verification, delay_ms: int, *, asked: int) -> None:
        self.calls.append(("verify later", asked))

    async def postpone(self, doubted: Doubted, delay_ms: int, *, asked: int = 0) -> Doubted:
        self.calls.append(("postpone", asked))
        return doubted

    async def hold(self, doubted: Doubted, reason: str, *, news: bool) -> None:
        self.held.append(reason)

    async def payload(self, key: IntentKey) -> None:
        return None


def desk(recoveries: Recoveries, route: Any) -> Any:
    """A desk without an upstream: whoever asks it fails."""
    return SimpleNamespace(recoveries=recoveries, limits=LIMITS, own_route_of=lambda method, path: route)


async def test_a_verification_whose_route_is_gone_waits_and_uses_up_no_try() -> None:
    """REC-5: a reload may bring the route back, and nothing was asked meanwhile."""
    recoveries = Recoveries()
    for route in (None, SimpleNamespace(verify=None)):
        await verify(desk(recoveries, route), VERIFICATION)
    assert recoveries.calls == [("verify later", 0), ("verify later", 0)]


async def test_a_probe_whose_payload_was_not_kept_is_held() -> None:
    """REC-2: with no credentials an upstream may deny what it did."""
    recoveries = Recoveries()
    await look(desk(recoveries, PROBING), replace(DOUBTED, payload_kept=False), room=True)
    (reason,) = recoveries.held
    assert "credentials" in reason
    assert recoveries.calls == []


async def test_a_probe_whose_payload_went_meanwhile_asks_nothing() -> None:
    """REC-2: somebody has settled it; if not, the next look holds it."""
    recoveries = Recoveries()
    await look(desk(recoveries, PROBING), DOUBTED, room=True)
    assert (recoveries.calls, recoveries.held) == ([("postpone", 0)], [])
