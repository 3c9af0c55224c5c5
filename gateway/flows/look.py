"""Reading an intent's state on the data port: polls (ASY-2, REC-6) and "look before you retry" (RPL-5)."""

from __future__ import annotations

from gateway.flows import answers
from gateway.flows.ports import Desk
from gateway.flows.stored import stored_answer
from gateway.flows.voices import CONFIRMED
from gateway.protocol import identity, problems
from gateway.protocol.intents import Intent
from gateway.protocol.messages import Answer
from gateway.protocol.modes import Look, Poll
from gateway.protocol.phases import EXECUTED, Phase


async def find_polled(desk: Desk, decision: Poll) -> Intent | None:
    """The intent that a poll names; None: not one of ours, it goes upstream untouched."""
    intent = await desk.intents.read_by_server_id(decision.server_correlation_id)
    return intent if intent is not None and intent.path == decision.phase_1_path else None


async def poll(desk: Desk, intent: Intent, caller: bytes) -> Answer:
    """ASY-2: while it runs, 202; then what the synchronous Phase 2 would have answered."""
    if intent.caller != caller:
        raise desk.audit.refused(intent.key, problems.other_caller(), caller)
    if intent.stored_phase in EXECUTED:
        return await stored_answer(desk, intent, CONFIRMED)
    if intent.phase is Phase.PROCESSING:
        message = answers.IN_DOUBT_MESSAGE if intent.in_doubt is not None else None
        return answers.in_progress(intent.server_correlation_id, intent.path, message)
    return answers.state(intent, desk.route_of(intent.method, intent.path).confirm_suffix)


async def look(desk: Desk, decision: Look, caller: bytes) -> Answer:
    """RPL-5: where the caller's own request stands."""
    client_id = decision.client_correlation_id.encode()
    intent = await desk.intents.read(identity.logical_key(desk.service, caller, client_id, buckets=desk.buckets))
    if intent is None:
        raise problems.not_registered()
    return answers.state(intent, desk.route_of(intent.method, intent.path).confirm_suffix)
