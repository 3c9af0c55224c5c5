"""What becomes of an intent in doubt (REC-2): held, sent again, asked about, or settled from what a zombie knew.

One look at one doubt that was claimed. Every step is a guarded statement of the store: whoever is too late does
nothing. A redrive is an attempt like any other, run by `execute` with nobody listening.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import replace
from typing import assert_never

from gateway.crash_points import reached
from gateway.flows.asking import ask, asking_headers, with_credentials
from gateway.flows.execute import Streamed, execute_claimed
from gateway.flows.ports import Desk, Route
from gateway.flows.sealed import open_message
from gateway.flows.voices import CONFIRMED
from gateway.protocol import recovery
from gateway.protocol.faults import StoreAway, StoreLost
from gateway.protocol.identity import new_attempt_id
from gateway.protocol.messages import Headers
from gateway.protocol.phases import Phase
from gateway.protocol.records import Doubted, Taken

log = logging.getLogger(__name__)

CHASE_PAUSE_S = 0.5
ASK_MARGIN_MS = 5_000  # beyond the upstream's own time: connecting, and writing down what it said


async def look(desk: Desk, doubted: Doubted, *, room: bool) -> None:
    """Do what is to be done about one doubt. Without `room` on its route, nothing is sent now."""
    route: Route | None = desk.own_route_of(doubted.method, doubted.path)
    policy, limits = None, desk.limits
    if route is not None:
        policy = route.recovery
        # A route that gives its upstream longer may find it at work for longer.
        limits = replace(limits, upstream_timeout_ms=max(limits.upstream_timeout_ms, route.timeout_ms))
    decision = recovery.decide(doubted, policy, limits, chance=random.random())
    match decision:
        case recovery.UseEvidence():
            await _use_evidence(desk, doubted)
        case recovery.Hold(reason=reason, news=news):
            if news:
                log.warning("held for a verdict", extra={**_ids(doubted), "reason": reason})
            await desk.recoveries.hold(doubted, reason, news=news)
        case recovery.Wait(delay_ms=delay_ms):
            await desk.recoveries.postpone(doubted, delay_ms)
        case recovery.Redrive():
            if room:
                await _redrive(desk, doubted)
            else:
                # Not all at once again: what came together would never find room.
                await desk.recoveries.postpone(doubted, round(desk.limits.backoff_ms * random.uniform(0.5, 1.5)))
        case recovery.Probe():
            assert route is not None
            await _probe(desk, doubted, route, decision)
        case _:
            assert_never(decision)


async def _use_evidence(desk: Desk, doubted: Doubted) -> None:
    phase = await desk.recoveries.settle_from_evidence(doubted)
    if phase is not None:
        desk.observe.transition(phase)
        log.info("settled from a fenced gateway's evidence", extra={**_ids(doubted), "phase": phase.value})


# --- redrive


async def _redrive(desk: Desk, doubted: Doubted) -> None:
    """The same request once more: same bytes, same Idempotency-Key, next attempt (REC-2)."""
    reached("redrive.before")
    taken = await _begin(desk, doubted)
    if taken is None:
        return
    reached("redrive.begun")
    log.info("redriving", extra={**_ids(doubted), "attempt_id": str(taken.claimed.attempt_id)})
    result = await execute_claimed(
        desk,
        taken.claimed,
        taken.server_correlation_id,
        taken.client_correlation_id,
        taken.credentials or [],
        CONFIRMED,
        repeat=True,
    )
    if isinstance(result, Streamed):
        result.abort()  # RPL-6: nobody reads it live, and it is too large to keep


async def _begin(desk: Desk, doubted: Doubted) -> Taken | None:
    """REC-7: a begin whose acknowledgement was lost is asked for again, until it is known or was taken over."""
    attempt_id, holder = new_attempt_id(), desk.lease.holder
    lost = False
    while desk.lease.holder == holder:
        try:
            return await desk.recoveries.redrive(doubted, attempt_id, holder)
        except StoreLost:
            lost = True
        except StoreAway:
            if not lost:
                raise
        await asyncio.sleep(CHASE_PAUSE_S)
    return None


# --- probe


async def _probe(desk: Desk, doubted: Doubted, route: Route, probe: recovery.Probe) -> None:
    """REC-2: a GET tells whether the effect exists. A no counts only when nothing can still be under way."""
    ours = await desk.recoveries.postpone(doubted, route.timeout_ms + ASK_MARGIN_MS)
    request = None if ours is None else await _request(desk, ours)
    if ours is None or request is None:
        return
    target = recovery.target_of(
        route.probe.path,
        {
            "server_correlation_id": str(ours.server_correlation_id),
            "client_correlation_id": ours.client_correlation_id,
        },
    )
    answer = await ask(desk, route, target, asking_headers(desk, request))
    told = (
        recovery.Unsure(answer)
        if isinstance(answer, str)
        else recovery.of_probe(answer.status, answer.body, route.probe.json, complete=answer.complete)
    )
    reached("probe.answered")
    match told:
        case recovery.Yes(resource_id=resource_id):
            await _told(desk, ours, Phase.COMMITTED, resource_id, recovery.PROBED_YES, None)
        case recovery.No(reason=reason) if probe.ripe:
            await _told(desk, ours, Phase.FAILED, None, recovery.PROBED_NO, reason)
        case recovery.No():
            await desk.recoveries.postpone(ours, probe.ripe_in_ms)
        case recovery.Unsure(reason=reason):
            log.info("a probe told nothing", extra={**_ids(ours), "reason": reason})
            pause_ms = recovery.pause_ms(desk.limits.backoff_ms, ours.asked, chance=random.random())
            await desk.recoveries.postpone(ours, pause_ms, asked=1)
        case _:
            assert_never(told)


async def _told(
    desk: Desk, doubted: Doubted, phase: Phase, resource_id: str | None, message: str, reason: str | None
) -> None:
    detail = {"settled_by": "probe"} if reason is None else {"settled_by": "probe", "reason": reason}
    if await desk.recoveries.settle_probed(doubted, phase, resource_id, message, detail):
        desk.observe.transition(phase)
        log.info("settled by a probe", extra={**_ids(doubted), "phase": phase.value})


async def _request(desk: Desk, doubted: Doubted) -> Headers | None:
    """The headers of the request in doubt; None when it was erased, as by whoever has settled it."""
    kept = await desk.recoveries.payload(doubted.key)
    if kept is None:
        return None
    payload, credentials = kept
    headers, _ = open_message(desk.vault, b"payload", doubted.key, payload)
    if credentials is None:
        return headers
    brought, _ = open_message(desk.vault, b"credentials", doubted.key, credentials)
    return with_credentials(desk, headers, brought)


def _ids(doubted: Doubted) -> dict[str, str]:
    return {"server_correlation_id": str(doubted.server_correlation_id)}
