"""Verification (REC-5): after a success, a paired GET must confirm the effect.

It runs after the outcome is durable and holds nobody's answer back. An effect that is not there never makes a second
execution: the intent is flagged, its key stays consumed, and compensation is told (`VERIFY_FAILED`).
"""

from __future__ import annotations

import logging
import random
from typing import assert_never

from gateway.flows.asking import ask
from gateway.flows.ports import Desk, Route
from gateway.flows.sealed import open_message
from gateway.protocol import recovery
from gateway.protocol.records import Verification

log = logging.getLogger(__name__)

MESSAGE = "verify_failed: upstream reported success, but its effect could not be confirmed."


async def verify(desk: Desk, verification: Verification) -> None:
    """Ask once, and write down what that tells."""
    route: Route | None = desk.own_route_of(verification.method, verification.path)
    if route is None or route.verify is None:  # a reload took it away, and may bring it back
        await desk.recoveries.verify_later(verification, recovery.PAUSE_MAX_MS, asked=0)
        return
    target = recovery.target_of(
        route.verify.path,
        {
            "server_correlation_id": str(verification.server_correlation_id),
            "client_correlation_id": verification.client_correlation_id,
            "resource_id": verification.resource_id or str(verification.server_correlation_id),
        },
    )
    headers, _ = open_message(desk.vault, b"verification", verification.key, verification.headers)
    answer = await ask(desk, route, target, headers)
    told = recovery.Unsure(answer) if isinstance(answer, str) else recovery.of_verification(answer.status)
    match told:
        case recovery.Yes():
            await desk.recoveries.verified(verification.key, None, None)
        case recovery.No(reason=reason):
            await _missing(desk, verification, reason)
        case recovery.Unsure(reason=reason) if verification.asked + 1 >= desk.limits.attempts:
            await _missing(desk, verification, f"not confirmed in {verification.asked + 1} tries: {reason}")
        case recovery.Unsure():
            pause_ms = recovery.pause_ms(desk.limits.backoff_ms, verification.asked, chance=random.random())
            await desk.recoveries.verify_later(verification, pause_ms, asked=1)
        case _:
            assert_never(told)


async def _missing(desk: Desk, verification: Verification, reason: str) -> None:
    if await desk.recoveries.verified(verification.key, reason, MESSAGE):
        extra = {"server_correlation_id": str(verification.server_correlation_id), "reason": reason}
        log.error("upstream reported a success that is not there", extra=extra)
