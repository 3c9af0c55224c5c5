"""Phase 2.

One conditional write crosses the PONR; whoever crosses executes, everybody else gets that result (P2-1 .. P2-9).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import assert_never
from uuid import UUID

from gateway.crash_points import reached
from gateway.flows import answers
from gateway.flows.execute import Streamed, execute_claimed
from gateway.flows.ports import Desk
from gateway.flows.proof import may_fare_better, proven_nonce
from gateway.flows.queued import QueueRunner
from gateway.flows.replay_ports import SignedRequest
from gateway.flows.sealed import seal_message
from gateway.flows.stored import stored_answer
from gateway.flows.voices import CONFIRMED
from gateway.protocol import identity, problems, replay
from gateway.protocol.faults import NonceConsumed, StoreAway, StoreLost
from gateway.protocol.identity import IntentKey
from gateway.protocol.intents import Intent
from gateway.protocol.messages import Answer, Header
from gateway.protocol.modes import Confirm, confirm_path
from gateway.protocol.phases import Phase
from gateway.protocol.records import Claim, Claimed

log = logging.getLogger(__name__)

WAIT_MIN_S = 0.01  # between looks at an intent that another replica executes
WAIT_MAX_S = 0.25
CLAIMS_MAX = 3  # tries at an intent that still waits although a write lost: each loss needs a new cause
CHASE_PAUSE_S = 0.5

Result = Answer | Streamed
Cross = Callable[[Claim], Awaitable[Claimed | None]]  # a guarded write that crosses the PONR


class Confirmations:
    """The confirmations of one worker. Those racing on one intent share one execution (P2-8)."""

    def __init__(self, desk: Desk, runner: QueueRunner) -> None:
        self._desk = desk
        self._runner = runner
        self._running: dict[tuple[bytes, UUID, tuple[bytes, ...]], asyncio.Future[Result]] = {}

    def under(self, desk: Desk) -> None:
        """Go on with a reloaded configuration."""
        self._desk = desk

    async def confirm(
        self, decision: Confirm, caller: bytes, credentials: list[Header], request: SignedRequest
    ) -> Result | None:
        """The answer; None when the request is none of ours after all. `request` is asked for a proof if it is late."""
        desk = self._desk
        key = identity.logical_key(desk.service, caller, decision.client_correlation_id.encode(), buckets=desk.buckets)
        place = (key.logical, decision.server_correlation_id, decision.confirms)
        while (running := self._running.get(place)) is not None:
            try:
                result = await asyncio.shield(running)
            except problems.Problem as problem:
                if may_fare_better(problem, request):
                    continue
                raise
            return result.replay if isinstance(result, Streamed) else result
        if not decision.confirms:
            return await self._not_a_confirm_path(decision, key, caller)
        # P2-9: nothing cancels this when its client goes; what is in flight at a drain is waited for, then handed over.
        self._running[place] = lead = asyncio.get_running_loop().create_future()
        try:
            result = await self._lead(desk, _Confirmation(decision, key, caller, credentials, request))
        except BaseException as error:
            lead.set_exception(error if isinstance(error, Exception) else problems.ponr_unknown())
            lead.exception()  # retrieved: often nobody else waits
            raise
        else:
            lead.set_result(result)
            return result
        finally:
            del self._running[place]

    async def _not_a_confirm_path(self, decision: Confirm, key: IntentKey, caller: bytes) -> Answer | None:
        """P2-1: the IDs of an intent on some other path or method."""
        intent = await self._desk.intents.read(key)
        if intent is None or intent.server_correlation_id != decision.server_correlation_id:
            if not decision.routed:
                return None
            raise await self._unknown(decision, caller)
        mismatch = problems.confirm_mismatch(self._confirm_path(self._desk, intent))
        raise self._desk.audit.refused(key, mismatch, caller)

    async def _lead(self, desk: Desk, asked: _Confirmation) -> Result:
        decision, credentials = asked.decision, asked.credentials
        server_id = decision.server_correlation_id
        for _ in range(CLAIMS_MAX):
            claimed = await self._claim(desk, asked)
            if claimed is None:
                found = await self._claimed_by_another(desk, asked)
                if isinstance(found, Answer):
                    return found
                if found is not None:
                    claimed = await self._claim_late(desk, asked, found.intent)
            if claimed is not None:
                reached("ponr.crossed")
                desk.observe.transition(Phase.PROCESSING)
                if claimed.execution == "async":
                    self._runner.offer(claimed.key, desk.route_of(claimed.method, claimed.path).path)
                    return answers.in_progress(server_id, claimed.path)
                client_id = decision.client_correlation_id
                return await execute_claimed(desk, claimed, server_id, client_id, credentials, CONFIRMED)
        raise problems.store_away()

    async def _claim(self, desk: Desk, asked: _Confirmation) -> Claimed | None:
        for path in asked.decision.confirms:
            claim = asked.claim(desk, path)
            claimed = await claim_or_chase(
                desk, claim, asked.decision.client_correlation_id, asked.credentials, desk.intents.claim
            )
            if claimed is not None:
                return claimed
        return None

    async def _claim_late(self, desk: Desk, asked: _Confirmation, intent: Intent) -> Claimed | None:
        """RPL-3: cross the PONR after the deadline, with proof; None when the intent changed meanwhile."""
        nonce = await proven_nonce(desk, intent, asked.request)

        async def cross(claim: Claim) -> Claimed | None:
            return await desk.lates.claim_late(claim, nonce)

        claim = asked.claim(desk, intent.path)
        try:
            return await claim_or_chase(desk, claim, intent.client_correlation_id, asked.credentials, cross)
        except NonceConsumed:
            raise desk.audit.refused(asked.key, problems.nonce_consumed(), asked.caller) from None

    async def _claimed_by_another(self, desk: Desk, asked: _Confirmation) -> Answer | replay.Late | None:
        """What the row says, once it says something final or the wait is over; None to try the claim again."""
        decision, key = asked.decision, asked.key
        loop = asyncio.get_running_loop()
        give_up: float | None = None
        pause_s = WAIT_MIN_S
        while True:
            intent = await desk.intents.read(key)
            found = replay.on_confirm(
                intent, decision.server_correlation_id, decision.confirms, self._confirm_path(desk, intent)
            )
            match found:
                case replay.ReturnStored(intent=known) | replay.InProgress(intent=known) if known.execution == "async":
                    return answers.in_progress(known.server_correlation_id, known.path, phase=known.phase)  # ASY-3
                case replay.ReturnStored(intent=known):
                    return await stored_answer(desk, known, CONFIRMED)
                case replay.InDoubt(intent=known):
                    return answers.in_doubt(known.server_correlation_id, known.path)
                case replay.TryAgain():
                    return None
                case replay.Late():
                    return found
                case replay.Refuse(problem=problem):
                    if problem.status == 404:
                        raise await self._unknown(decision, asked.caller)
                    raise desk.audit.refused(key, problem, asked.caller)
                case replay.InProgress(intent=known):
                    if give_up is None:
                        give_up = loop.time() + desk.route_of(known.method, known.path).timeout_ms / 1000
                    if loop.time() >= give_up:
                        return answers.in_progress(known.server_correlation_id, known.path)
                case _:
                    assert_never(found)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, WAIT_MAX_S)

    def _confirm_path(self, desk: Desk, intent: Intent | None) -> str:
        if intent is None:
            return ""
        suffix = desk.route_of(intent.method, intent.path).confirm_suffix
        return confirm_path(intent.path, suffix).decode("latin-1")

    async def _unknown(self, decision: Confirm, caller: bytes) -> problems.Problem:
        """P2-7: an unknown pair is 404; a known pair of another caller is 403."""
        intent = await self._desk.intents.read_by_server_id(decision.server_correlation_id)
        if intent is not None and intent.client_correlation_id == decision.client_correlation_id:
            return self._desk.audit.refused(intent.key, problems.other_caller(), caller)
        return problems.intent_unknown()


@dataclass(slots=True)
class _Confirmation:
    """One confirmation, as it was asked for."""

    decision: Confirm
    key: IntentKey
    caller: bytes
    credentials: list[Header]
    request: SignedRequest

    def claim(self, desk: Desk, path: bytes) -> Claim:
        """Its claim on an intent of this path, under a new attempt."""
        sealed = None
        if desk.queues and self.credentials:
            sealed = seal_message(desk.vault, b"credentials", self.key, self.credentials, b"")
        server_id = self.decision.server_correlation_id
        return Claim(self.key, server_id, path, identity.new_attempt_id(), desk.lease.holder, sealed)


async def claim_or_chase(
    desk: Desk, claim: Claim, client_id: str, credentials: list[Header], cross: Cross
) -> Claimed | None:
    """Cross the PONR, or None. A write that may or may not have been carried out is chased until that is known."""
    reached("ponr.before")
    try:
        return await cross(claim)
    except StoreLost as error:
        desk.spawn(_chase(desk, claim, client_id, credentials, cross), "resolve a confirmation")
        raise problems.ponr_unknown() from error


async def _chase(desk: Desk, claim: Claim, client_id: str, credentials: list[Header], cross: Cross) -> None:
    """The store went away around the PONR write and stayed away.

    It may have been carried out: until that is known, it is asked for again under the same attempt. If it was ours,
    nothing was sent yet, and the confirmed work is done now.
    """
    while desk.lease.holder == claim.holder:  # else it was taken over: the rescuer has it
        await asyncio.sleep(CHASE_PAUSE_S)
        try:
            claimed = await cross(claim)
        except StoreAway:
            continue
        except NonceConsumed:
            return  # it was not carried out, and no longer can be
        if claimed is not None and claimed.execution == "sync":
            server_id = claim.server_correlation_id
            log.info("confirmation resolved", extra={"server_correlation_id": str(server_id)})
            result = await execute_claimed(desk, claimed, server_id, client_id, credentials, CONFIRMED)
            if isinstance(result, Streamed):
                result.abort()  # nobody reads it live any more
        return
