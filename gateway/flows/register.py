"""Phase 1: read, seal, commit intent + payload + ledger row + event in one transaction, answer (P1-1 .. P1-9)."""

from __future__ import annotations

from collections.abc import Callable

from gateway.crash_points import reached
from gateway.flows import answers
from gateway.flows.ports import Desk, Request, Route
from gateway.flows.sealed import seal_message
from gateway.protocol import identity, problems, proofs, replay
from gateway.protocol.deadlines import granted_ttl_ms
from gateway.protocol.entries import trace_id
from gateway.protocol.intents import Intent
from gateway.protocol.messages import Answer, Header, first_value
from gateway.protocol.modes import Register
from gateway.protocol.phases import Phase
from gateway.protocol.records import NOT_KEPT, NewIntent, Registered


async def register(
    desk: Desk,
    request: Request,
    decision: Register[Route],
    caller: bytes,
    headers_with: Callable[[int], list[Header]],
) -> Answer:
    """Register an intent. `headers_with` gives the headers to forward in Phase 2, for a body of so many bytes."""
    route = decision.route
    # P1-9: what the head decides is said before the body is asked for. With several buckets the count inside the
    # registering statement sees one bucket alone, so it is made here, over all of them.
    counted_first = request.expects_continue or desk.buckets > 1
    if counted_first and await desk.intents.pending(caller, route.path, route.max_pending) >= route.max_pending:
        raise problems.too_many_pending(route.max_pending)
    body = await request.read_body(route.max_payload_bytes)
    new = new_intent(
        desk,
        request,
        route,
        decision.client_correlation_id,
        caller,
        decision.requested_ttl_ms,
        headers_with(len(body)),
        body,
    )
    reached("phase_1.before")
    found = await desk.intents.register(new)
    if isinstance(found, Registered):
        reached("phase_1.committed")
        desk.observe.transition(Phase.WAITING_CONFIRM)
        return answers.registered(new, found, route.confirm_suffix, _nonce(desk, new, route))
    if found is None:
        raise problems.too_many_pending(route.max_pending)
    return _again(desk, found, new, route)


def _again(desk: Desk, existing: Intent, new: NewIntent, route: Route) -> Answer:
    decision = replay.on_register(existing, new.replay_key)
    if isinstance(decision, replay.Refuse):
        raise desk.audit.refused(existing.key, decision.problem, new.caller)
    waiting = existing.phase is Phase.WAITING_CONFIRM
    nonce = _nonce(desk, existing, route) if waiting else None
    return answers.registered_before(decision.intent, route.confirm_suffix, nonce)


def _nonce(desk: Desk, intent: NewIntent | Intent, route: Route) -> str | None:
    """SEC-3: what a late confirmation of this intent will have to bring; the same on every retry of Phase 1."""
    if route.replay_proof != proofs.TOKEN or intent.replay_policy != "REUSE":
        return None
    return desk.nonce_of(intent.key, intent.server_correlation_id, intent.caller)


def new_intent(
    desk: Desk,
    request: Request,
    route: Route,
    client_id: str,
    caller: bytes,
    requested_ttl_ms: int | None,
    headers: list[Header],
    body: bytes,
    *,
    keep_payload: bool = True,
) -> NewIntent:
    """A request as an intent: its three identities, its deadlines, and its sealed payload."""
    key = identity.logical_key(desk.service, caller, client_id.encode(), buckets=desk.buckets)
    body_sha256, payload = identity.payload_digest(
        body, first_value(headers, b"content-type") or b"", first_value(headers, b"content-encoding") or b""
    )
    return NewIntent(
        key=key,
        server_correlation_id=identity.new_server_correlation_id(key),
        client_correlation_id=client_id,
        replay_key=identity.replay_key(
            key,
            method=request.method.encode(),
            target=request.target,
            payload=payload,
            caller=caller,
            run_id=desk.run_id,
        ),
        caller=caller,
        method=request.method,
        path=request.path,
        query=request.query,
        route=route.path,
        execution=route.execution,
        replay_policy=route.replay_policy,
        transaction_reference=trace_id(first_value(headers, b"traceparent")),
        payload_sha256=body_sha256,
        payload_bytes=len(body),
        ttl_ms=granted_ttl_ms(route.ttl_ms, route.max_ttl_ms, requested_ttl_ms),
        grace_ms=route.grace_ms,
        horizon_ms=route.replay_horizon_ms,
        max_pending=route.max_pending,
        payload=seal_message(desk.vault, b"payload", key, headers, body) if keep_payload else NOT_KEPT,
    )
