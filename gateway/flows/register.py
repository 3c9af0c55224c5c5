"""Phase 1: read, seal, commit intent + payload + ledger row + event in one transaction, answer (P1-1 .. P1-9)."""

from __future__ import annotations

from collections.abc import Callable

from gateway.flows import answers
from gateway.flows.ports import Desk, Request, Route
from gateway.flows.sealed import seal_message
from gateway.protocol import identity, problems, replay
from gateway.protocol.deadlines import granted_ttl_ms
from gateway.protocol.entries import trace_id
from gateway.protocol.intents import Intent
from gateway.protocol.messages import Answer, Header, first_value
from gateway.protocol.modes import Register
from gateway.protocol.phases import Phase
from gateway.protocol.records import NewIntent, Registered


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
    found = await desk.intents.register(new)
    if isinstance(found, Registered):
        desk.observe.transition(Phase.WAITING_CONFIRM)
        return answers.registered(new, found, route.confirm_suffix)
    if found is None:
        raise problems.too_many_pending(route.max_pending)
    return _again(found, new, route)


def _again(existing: Intent, new: NewIntent, route: Route) -> Answer:
    decision = replay.on_register(existing, new.replay_key)
    if isinstance(decision, replay.Refuse):
        raise decision.problem
    return answers.registered_before(decision.intent, route.confirm_suffix)


def new_intent(
    desk: Desk,
    request: Request,
    route: Route,
    client_id: str,
    caller: bytes,
    requested_ttl_ms: int | None,
    headers: list[Header],
    body: bytes,
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
        replay_policy="REJECT",  # RPL-3: REUSE is announced once it is served
        transaction_reference=trace_id(first_value(headers, b"traceparent")),
        payload_sha256=body_sha256,
        payload_bytes=len(body),
        ttl_ms=granted_ttl_ms(route.ttl_ms, route.max_ttl_ms, requested_ttl_ms),
        grace_ms=route.grace_ms,
        horizon_ms=route.replay_horizon_ms,
        max_pending=route.max_pending,
        payload=seal_message(desk.vault, b"payload", key, headers, body),
    )
