"""The proof that a late confirmation brings, judged under its route's `replay_proof` (SEC-3).

The answer to a bad proof is the same before and after delta: no refusal may tell how long delta is (TTL-3).
"""

from __future__ import annotations

from typing import assert_never

from gateway.flows.ports import Desk
from gateway.flows.replay_ports import SignedRequest
from gateway.protocol import headers, problems, proofs
from gateway.protocol.intents import Intent
from gateway.protocol.phases import Phase

_NONCE = headers.AUTHORIZATION_NONCE.lower().encode()
_PROOFS = frozenset({_NONCE, b"signature", b"signature-input"})


async def proven_nonce(desk: Desk, intent: Intent, request: SignedRequest) -> bytes:
    """The nonce that authorizes this late confirmation, to be consumed with it; else the refusal."""
    verdict = await _judge(desk, intent, request)
    match verdict:
        case proofs.Proven(nonce=nonce):
            if intent.phase is Phase.ABANDONED:
                raise _refused(desk, intent, problems.ttl_expired(intent.server_correlation_id))
            return nonce
        case proofs.Missing():
            raise _refused(desk, intent, problems.ttl_expired(intent.server_correlation_id))
        case proofs.Unbound(reason=reason):
            raise _refused(desk, intent, problems.nonce_unbound(), reason)
        case _:
            assert_never(verdict)


async def _judge(desk: Desk, intent: Intent, request: SignedRequest) -> proofs.Verdict:
    route = desk.route_of(intent.method, intent.path)
    if route.replay_policy != "REUSE":  # a reload has taken it back
        return proofs.MISSING
    if route.replay_proof == proofs.SIGNATURE:
        return await desk.signatures.judge(request)
    return proofs.judge_token(_sent(request), desk.nonce_of(intent.key, intent.server_correlation_id, intent.caller))


def _sent(request: SignedRequest) -> str | None:
    values = [value for name, value in request.raw_headers if name.lower() == _NONCE]
    if len(values) > 1:
        raise problems.repeated_header(headers.AUTHORIZATION_NONCE)
    return values[0].strip().decode("latin-1") if values else None


def _refused(desk: Desk, intent: Intent, problem: problems.Problem, reason: str | None = None) -> problems.Problem:
    return desk.audit.refused(intent.key, problem, intent.caller, reason)


def may_fare_better(problem: problems.Problem, request: SignedRequest) -> bool:
    """Whether a refusal of another confirmation, racing on the same intent, says nothing about this one's proof."""
    if problem.status in (403, 409):
        return True
    return problem.status == 408 and any(name.lower() in _PROOFS for name, _ in request.raw_headers)
