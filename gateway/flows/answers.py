"""The answers of the handshake.

One function makes the first answer and every replay of it, so that they cannot differ.
"""

from __future__ import annotations

from uuid import UUID

import orjson

from gateway.protocol import problems
from gateway.protocol.deadlines import iso, ttl_left_ms
from gateway.protocol.intents import Intent
from gateway.protocol.messages import Answer, Header, Headers
from gateway.protocol.modes import confirm_path
from gateway.protocol.outcome import client_status, without_ours
from gateway.protocol.phases import Phase
from gateway.protocol.records import NewIntent, Registered

JSON: Header = (b"Content-Type", b"application/json")
NO_STORE: Header = (b"Cache-Control", b"no-store")
POLL_AFTER: Header = (b"Retry-After", b"1")
IN_DOUBT_MESSAGE = (
    "Outcome in doubt: the request may have taken effect. Do not send it anew; ask here until it is settled."
)


def registered(new: NewIntent, done: Registered, confirm_suffix: str, nonce: str | None) -> Answer:
    """P1-4; with the `authorization_nonce` of a route that asks late confirmations for it (SEC-3)."""
    return _registration(
        new.server_correlation_id,
        new.client_correlation_id,
        Phase.WAITING_CONFIRM,
        new.ttl_ms,
        iso(done.ponr_deadline),
        new.replay_policy,
        confirm_path(new.path, confirm_suffix),
        nonce,
    )


def registered_before(intent: Intent, confirm_suffix: str, nonce: str | None) -> Answer:
    """P1-5: the same registration, with what is left of its TTL and where it stands now."""
    return _registration(
        intent.server_correlation_id,
        intent.client_correlation_id,
        intent.phase,
        ttl_left_ms(intent.ponr_deadline, intent.read_at),
        iso(intent.ponr_deadline),
        intent.replay_policy,
        confirm_path(intent.path, confirm_suffix),
        nonce,
    )


def _registration(
    server_id: UUID,
    client_id: str,
    phase: Phase,
    ttl_ms: int,
    deadline: str,
    replay_policy: str,
    confirm: bytes,
    nonce: str | None,
) -> Answer:
    server = str(server_id)
    document = {
        "server_correlation_id": server,
        "client_correlation_id": client_id,
        "phase_state": phase.value,
        "ttl_ms": ttl_ms,
        "ponr_deadline": deadline,
        "replay_policy": replay_policy,
        "confirm": confirm.decode("latin-1"),
    }
    if nonce is not None:
        document["authorization_nonce"] = nonce
    headers = [
        JSON,
        NO_STORE,
        (b"DTT-2PHP-Server-Correlation-ID", server.encode()),
        (b"DTT-2PHP-Phase-State", phase.value.encode()),
        (b"DTT-2PHP-TTL", b"%d" % ttl_ms),
        (b"DTT-2PHP-PONR-Deadline", deadline.encode()),
        (b"DTT-2PHP-Replay-Policy", replay_policy.encode()),
    ]
    return Answer(200, headers, orjson.dumps(document))


def executed(
    server_id: UUID,
    phase: Phase,
    resource_id: str | None,
    message: str | None,
    status: int,
    headers: Headers,
    body: bytes,
) -> Answer:
    """P2-4, P2-5: upstream's own headers and body, with where the intent stands. `headers` carry no framing."""
    told = without_ours(headers)
    told += standing(server_id, phase, resource_id, message)
    told.append((b"DTT-2PHP-Upstream-Status", b"%d" % status))
    return Answer(client_status(phase, status), told, body)


def executed_unkept(
    server_id: UUID, phase: Phase, resource_id: str | None, message: str | None, status: int, headers: Headers
) -> Answer:
    """RPL-6: the answer was too large to keep; its status, headers and state are not lost."""
    described = (b"content-type", b"content-encoding", b"content-range", b"etag", b"content-md5", b"digest")
    told = [header for header in headers if header[0].lower() not in described]
    body = orjson.dumps(
        {
            "server_correlation_id": str(server_id),
            "phase_state": phase.value,
            "upstream_status": status,
            "body_kept": False,
            "detail": "The original answer was larger than this route keeps; it was delivered once.",
        }
    )
    return executed(server_id, phase, resource_id, message, status, [*told, JSON], body)


def without_response(server_id: UUID, phase: Phase, resource_id: str | None, message: str | None) -> Answer:
    """Settled with no answer of the upstream.

    It was provably never reached, or the outcome was settled later (REC-6).
    """
    if phase is Phase.COMMITTED:
        document = {"server_correlation_id": str(server_id), "phase_state": phase.value, "detail": message}
        return Answer(200, [JSON, *standing(server_id, phase, resource_id, message)], orjson.dumps(document))
    problem = problems.Problem("upstream-failed", 500, "Upstream failed", message or "The request failed upstream.")
    answer = problems.to_answer(problem)
    answer.headers += standing(server_id, phase, resource_id, None)
    return answer


def in_progress(
    server_id: UUID, phase_1_path: bytes, message: str | None = None, *, phase: Phase = Phase.PROCESSING
) -> Answer:
    """ASY-1 .. ASY-3, REC-6: accepted; its outcome is at Location."""
    server = str(server_id)
    document = {"server_correlation_id": server, "phase_state": phase.value}
    if message is not None:
        document["detail"] = message
    headers = [
        JSON,
        NO_STORE,
        (b"Location", poll_path(server_id, phase_1_path)),
        POLL_AFTER,
        *standing(server_id, phase, server, message),
    ]
    return Answer(202, headers, orjson.dumps(document))


def still_running(server_id: UUID, phase_1_path: bytes) -> Answer:
    """ACM-5: the first request of this kind runs longer than this one can wait."""
    answer = problems.to_answer(problems.still_running())
    answer.headers += [
        *standing(server_id, Phase.PROCESSING, None, None),
        (b"Location", poll_path(server_id, phase_1_path)),
    ]
    return answer


def in_doubt(server_id: UUID, phase_1_path: bytes) -> Answer:
    """REC-6."""
    return in_progress(server_id, phase_1_path, IN_DOUBT_MESSAGE)


def state(intent: Intent, confirm_suffix: str) -> Answer:
    """RPL-5: where an intent stands. Nothing of delta is in it (TTL-3)."""
    phase = intent.phase
    document = {
        "client_correlation_id": intent.client_correlation_id,
        "server_correlation_id": str(intent.server_correlation_id),
        "phase_state": phase.value,
        "ponr_deadline": iso(intent.ponr_deadline),
        "resource_id": intent.resource_id,
        "in_doubt": intent.in_doubt is not None,
        "confirm": confirm_path(intent.path, confirm_suffix).decode("latin-1"),
    }
    headers = [
        JSON,
        NO_STORE,
        (b"DTT-2PHP-Server-Correlation-ID", str(intent.server_correlation_id).encode()),
        (b"DTT-2PHP-Phase-State", phase.value.encode()),
        (b"DTT-2PHP-PONR-Deadline", iso(intent.ponr_deadline).encode()),
    ]
    if intent.resource_id is not None:
        headers.append((b"DTT-2PHP-Resource-ID", intent.resource_id.encode()))
    return Answer(200, headers, orjson.dumps(document))


def poll_path(server_id: UUID, phase_1_path: bytes) -> bytes:
    """Where an intent's state can be asked for."""
    return (b"" if phase_1_path == b"/" else phase_1_path) + b"/" + str(server_id).encode()


def standing(server_id: UUID, phase: Phase, resource_id: str | None, message: str | None) -> list[Header]:
    """Where an intent stands, as headers."""
    headers: list[Header] = [
        (b"DTT-2PHP-Server-Correlation-ID", str(server_id).encode()),
        (b"DTT-2PHP-Phase-State", phase.value.encode()),
    ]
    if resource_id is not None:
        headers.append((b"DTT-2PHP-Resource-ID", resource_id.encode()))
    if message is not None:
        headers.append((b"DTT-2PHP-Message", message.encode()))
    return headers
