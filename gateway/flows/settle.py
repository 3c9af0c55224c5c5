"""Recording an outcome so that it is durable before anybody hears of it (REC-7, REC-9).

If the store is away, the outcome stays in memory and is written as soon as it can be, before any rescuer claims the
intent; the client waits a bounded time and then hears that the outcome is in doubt. Never a success that is not
durable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar
from uuid import UUID

from gateway.crash_points import reached
from gateway.flows.ports import Desk
from gateway.flows.stored import stored_answer
from gateway.flows.voices import Voice
from gateway.protocol.faults import StoreAway
from gateway.protocol.identity import IntentKey
from gateway.protocol.messages import Answer
from gateway.protocol.phases import EXECUTED
from gateway.protocol.records import Doubt, Settlement

log = logging.getLogger(__name__)

T = TypeVar("T")

CLIENT_WAITS_S = 5.0  # REC-9
RETRY_MIN_S = 0.05
RETRY_MAX_S = 1.0  # a store that is back is found within this


async def settle_durably(
    desk: Desk, settlement: Settlement, server_id: UUID, path: bytes, answer: Answer, voice: Voice
) -> Answer:
    """Write a known outcome, then give its answer.

    Or what the intent's row says when somebody else has taken it over.
    """
    try:
        ours = await desk.intents.settle(settlement)
    except StoreAway:
        log.warning("outcome known but the store is away; kept until it can be written", extra=_ids(server_id))
        work = _kept_in_mind(desk, settlement.key, _settle_until_written(desk, settlement, server_id))
        waiting = desk.spawn(work, "settle when the store is back")
        try:
            ours = await asyncio.wait_for(asyncio.shield(waiting), CLIENT_WAITS_S)
        except TimeoutError:
            return voice.in_doubt(server_id, path, "reset")
    if ours:
        reached("outcome.durable")
        desk.observe.transition(settlement.phase)
        return answer
    return await _fenced(desk, settlement, server_id, path, voice)


def _kept_in_mind(desk: Desk, key: IntentKey, writing: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    """Until it is written, the store takes the attempt for one that still runs; nobody may begin it again."""
    desk.unwritten.add(key.logical)

    async def write() -> T:
        try:
            return await writing
        finally:
            desk.unwritten.discard(key.logical)

    return write()


async def _settle_until_written(desk: Desk, settlement: Settlement, server_id: UUID) -> bool:
    pause_s = RETRY_MIN_S
    while True:
        try:
            ours = await desk.intents.settle(settlement)
        except StoreAway:
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, RETRY_MAX_S)
            continue
        log.info("outcome written", extra={**_ids(server_id), "phase": settlement.phase.value, "ours": ours})
        if not ours:
            await _evidence_until_written(desk, settlement)  # the client may have stopped waiting for it
        return ours


async def _evidence_until_written(desk: Desk, settlement: Settlement) -> None:
    pause_s = RETRY_MIN_S
    while True:
        try:
            await desk.recoveries.keep_evidence(settlement)
            return
        except StoreAway:
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, RETRY_MAX_S)


async def _fenced(desk: Desk, settlement: Settlement, server_id: UUID, path: bytes, voice: Voice) -> Answer:
    """REC-1: a higher fence has taken the intent over. Our outcome is kept as evidence, never as the outcome.

    If nothing was sent since, the fence's holder settles the intent from it (DESIGN decision 7).
    """
    log.warning(
        "outcome refused: the intent was taken over", extra={**_ids(server_id), "phase": settlement.phase.value}
    )
    try:
        await desk.recoveries.keep_evidence(settlement)
        intent = await desk.intents.read(settlement.key)
        if intent is not None and intent.stored_phase in EXECUTED:
            return await stored_answer(desk, intent, voice)
    except StoreAway:
        log.warning("evidence kept until the store is back", extra=_ids(server_id))
        desk.spawn(_evidence_until_written(desk, settlement), "keep evidence when the store is back")
    return voice.in_doubt(server_id, path, "reset")


async def mark_in_doubt(desk: Desk, doubt: Doubt, server_id: UUID) -> None:
    """REC-2: it may have taken effect and nobody knows; held."""
    log.warning("outcome in doubt", extra={**_ids(server_id), "reason": doubt.reason})
    reached("doubt.before")
    try:
        await desk.intents.doubt(doubt)
        reached("doubt.written")
    except StoreAway:
        work = _kept_in_mind(desk, doubt.key, _doubt_until_written(desk, doubt))
        desk.spawn(work, "mark in doubt when the store is back")


async def _doubt_until_written(desk: Desk, doubt: Doubt) -> None:
    pause_s = RETRY_MIN_S
    while True:
        try:
            await desk.intents.doubt(doubt)
            return
        except StoreAway:
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, RETRY_MAX_S)


def _ids(server_id: UUID) -> dict[str, str]:
    return {"server_correlation_id": str(server_id)}
