"""Auto-confirm and transparent mode: one round trip, the same ledger (ACM-1 .. ACM-5, TRN-1 .. TRN-3).

One statement writes intent, PROCESSING row, attempt and callback; the callback is handed to the wire; then the request
goes. Its payload is kept only where it may be sent or asked about again (`recovery: redrive | probe`): with `hold`
nobody ever reads it, so it is not written, and its size and digest in the ledger row are what is left of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from hashlib import sha256
from uuid import uuid4

from gateway.crash_points import reached
from gateway.flows import answers
from gateway.flows.confirm import claim_or_chase
from gateway.flows.execute import Attempt, Execution, Streamed, execute_claimed
from gateway.flows.ports import Desk, Request, Route
from gateway.flows.register import new_intent
from gateway.flows.stored import stored_answer
from gateway.flows.voices import AUTO_CONFIRMED, SILENT, Voice
from gateway.protocol import identity, problems
from gateway.protocol.faults import StoreAway, StoreLost, UpstreamFailure
from gateway.protocol.intents import Intent
from gateway.protocol.messages import Answer, Header
from gateway.protocol.modes import Direct
from gateway.protocol.outcome import TIMED_OUT
from gateway.protocol.phases import EXECUTED, Phase
from gateway.protocol.records import Claim, NewIntent
from gateway.protocol.records import Direct as DirectRow

log = logging.getLogger(__name__)

WAIT_MIN_S = 0.01
WAIT_MAX_S = 0.25
LIMBO_PAUSE_S = 0.5
LIMBO_SURE_S = 20.0  # beyond the time a statement may take: what is not there by then was never written
UNSENT = "The store went away before anything was sent."


class PastTheLedger(Exception):
    """TRN-3: the store is away and the route says to go on without it. Carries the body, if it was read."""

    def __init__(self, body: bytes) -> None:
        super().__init__("the store is away")
        self.body = body


async def run_direct(
    desk: Desk,
    request: Request,
    decision: Direct[Route],
    caller: bytes,
    headers_with: Callable[[int | None], list[Header]],
) -> Answer | Streamed:
    """Execute a request that needs no confirmation."""
    route = decision.route
    voice: Voice = SILENT[route.reveal_id] if decision.silent else AUTO_CONFIRMED
    client_id = decision.client_correlation_id or str(uuid4())  # TRN-1
    if decision.callback is not None and desk.courier is None:
        raise problems.callbacks_unavailable()
    body, rest = await _body(request, route, silent=decision.silent)
    headers = headers_with(len(body) if rest is None else None)
    kept = rest is None and route.recovery != "hold"
    ttl_ms = decision.requested_ttl_ms
    new = new_intent(desk, request, route, client_id, caller, ttl_ms, headers, body, keep_payload=kept)
    if rest is not None:
        new = replace(new, payload_sha256=None, payload_bytes=None)
    callback = None
    if decision.callback is not None and desk.courier is not None:
        callback = desk.courier.promise(decision.callback, new.key)
    row = DirectRow(new, identity.new_attempt_id(), desk.lease.holder, kept, callback)
    existing = await _begin(desk, row, route, body, bypass=decision.silent and rest is None)
    if existing is not None:
        return await _again(desk, existing, new, route)
    reached("ponr.crossed")
    desk.observe.transition(Phase.PROCESSING)
    if callback is not None and desk.courier is not None and decision.callback is not None:
        # ACM-2: the callback leaves before processing.
        server_id = new.server_correlation_id
        try:
            await desk.courier.fire(callback, decision.callback, new.key, server_id, client_id, caller)
        except Exception as error:  # the row is stored: the dispatcher has it, and the work must go on
            log.error("a first callback failed", extra={"server_correlation_id": str(server_id)}, exc_info=error)
    attempt = Attempt(
        new.key,
        row.attempt_id,
        row.holder,
        1,
        new.server_correlation_id,
        client_id,
        new.method,
        new.path,
        request.target,
        payload_kept=kept,
    )
    sent = body if rest is None else _digested(desk, new, body, rest)
    return await Execution(desk, attempt, voice).run(headers, [], sent)


async def _body(request: Request, route: Route, *, silent: bool) -> tuple[bytes, AsyncIterator[bytes] | None]:
    """The payload.

    Or its beginning and the rest, when it is too large to keep and the route passes such payloads on.
    """
    limit = route.max_payload_bytes
    if not silent or route.oversize != "stream" or not request.has_body:
        return await request.read_body(limit), None
    if request.content_length is not None and request.content_length <= limit:
        return await request.read_body(limit), None
    request.send_continue()
    held: list[bytes] = []
    size = 0
    rest = request.chunks()
    async for chunk in rest:
        held.append(chunk)
        size += len(chunk)
        if size > limit:
            return b"".join(held), rest
    return b"".join(held), None


async def _digested(desk: Desk, new: NewIntent, beginning: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A payload passed on as it comes, with its size and digest recorded at its end."""
    digest = sha256(beginning)
    size = len(beginning)
    yield beginning
    try:
        async for chunk in rest:
            digest.update(chunk)
            size += len(chunk)
            yield chunk
    except Exception as error:
        raise UpstreamFailure("reset", sent=True, detail="the client's payload ended before its end") from error
    desk.spawn(desk.directs.payload_passed_on(new.key, size, digest.digest()), "note a payload")


async def _begin(desk: Desk, row: DirectRow, route: Route, body: bytes, *, bypass: bool) -> Intent | None:
    reached("ponr.before")
    try:
        return await desk.directs.begin(row)
    except StoreLost:
        # It may have been written: then nobody but us knows that nothing was sent. Said when the store is back.
        desk.spawn(_limbo(desk, row), "resolve a direct request")
        raise
    except StoreAway as error:
        if not bypass or route.ledger_outage != "bypass":
            raise
        desk.observe.bypass()
        log.warning("request passed on without a ledger row: the store is away", extra={"route": route.path})
        raise PastTheLedger(body) from error


async def _limbo(desk: Desk, row: DirectRow) -> None:
    """The statement may still run on the server when its row is first looked for, so that is done for a while."""
    loop = asyncio.get_running_loop()
    sure_at: float | None = None
    while desk.lease.holder == row.holder:
        await asyncio.sleep(LIMBO_PAUSE_S)
        try:
            intent = await desk.intents.read(row.key)
        except StoreAway:
            continue
        sure_at = sure_at or loop.time() + LIMBO_SURE_S
        if intent is None and loop.time() < sure_at:
            continue
        if intent is not None and intent.attempt_id == row.attempt_id and intent.stored_phase is Phase.PROCESSING:
            new = row.intent
            attempt = Attempt(
                row.key,
                row.attempt_id,
                row.holder,
                1,
                new.server_correlation_id,
                new.client_correlation_id,
                new.method,
                new.path,
                b"",
                payload_kept=row.payload_kept,
            )
            await Execution(desk, attempt, AUTO_CONFIRMED).fail(UNSENT, "store")
        return


async def _again(desk: Desk, existing: Intent, new: NewIntent, route: Route) -> Answer | Streamed:
    """ACM-5: the key is consumed. The stored answer, or that of the one who runs it now; never a second execution."""
    if existing.replay_key != new.replay_key:
        raise desk.audit.refused(existing.key, problems.key_reused(), new.caller)
    loop = asyncio.get_running_loop()
    give_up = loop.time() + route.timeout_ms / 1000
    pause_s = WAIT_MIN_S
    intent: Intent | None = existing
    while intent is not None:
        server_id = intent.server_correlation_id
        if intent.stored_phase in EXECUTED:
            return await stored_answer(desk, intent, AUTO_CONFIRMED)
        if intent.in_doubt is not None:
            kind = "timeout" if intent.in_doubt == TIMED_OUT else "reset"
            return AUTO_CONFIRMED.in_doubt(server_id, intent.path, kind)
        if intent.phase in (Phase.TTL_EXPIRED, Phase.ABANDONED):
            raise desk.audit.refused(intent.key, problems.ttl_expired(server_id), new.caller)
        if intent.phase is Phase.WAITING_CONFIRM:
            claim = Claim(intent.key, server_id, intent.path, identity.new_attempt_id(), desk.lease.holder)
            client_id = intent.client_correlation_id
            claimed = await claim_or_chase(desk, claim, client_id, [], desk.intents.claim)
            if claimed is not None and claimed.execution == "sync":
                return await execute_claimed(desk, claimed, server_id, client_id, [], AUTO_CONFIRMED)
            # Asynchronous work is the queue's to run, never ours too: its result is waited for like any other.
        elif loop.time() >= give_up:
            return answers.still_running(server_id, intent.path)
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, WAIT_MAX_S)
        intent = await desk.intents.read(existing.key)
    raise problems.store_away()
