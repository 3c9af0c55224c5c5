"""Every refusal the gateway makes: a stable type, a status, and what the caller can do about it (OPS-3, RFC 9457).

A refusal never repeats what the caller sent, so nothing of it can reach a log or a page.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from gateway.protocol.messages import Answer, Header
from gateway.protocol.phases import Phase

TYPE_BASE = "https://2php.dev/problems/"
TTL_EXCEEDED = "Request TTL exceeded. Re-submit as new request."
RETRY_AFTER_S = (
    1  # a store or a queue that is away is usually back within a second; a client polls, it does not wait longer
)


class Problem(Exception):
    """A refusal, raised anywhere and rendered at the edge."""

    expected = True  # an answer, not a failure of ours: nobody logs it as one

    def __init__(
        self,
        slug: str,
        status: int,
        title: str,
        detail: str,
        *,
        headers: Sequence[Header] = (),
        extra: dict[str, Any] | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(slug)
        self.slug = slug
        self.status = status
        self.title = title
        self.detail = detail
        self.headers = list(headers)
        self.extra = extra or {}
        self.close = close

    @property
    def type(self) -> str:
        """The stable slug, for metrics and audit events."""
        return self.slug


refuse = Problem


def to_answer(problem: Problem) -> Answer:
    """A problem as `application/problem+json`, with its detail in `DTT-2PHP-Message` too."""
    document = {
        "type": TYPE_BASE + problem.slug,
        "title": problem.title,
        "status": problem.status,
        "detail": problem.detail,
        **problem.extra,
    }
    headers: list[Header] = [
        (b"Content-Type", b"application/problem+json"),
        (b"Cache-Control", b"no-store"),
        (b"DTT-2PHP-Message", problem.detail.encode("ascii", "replace")),
        *problem.headers,
    ]
    return Answer(problem.status, headers, json.dumps(document).encode(), close=problem.close)


# --- opting in, and Phase 1
# ---------------------------------------------------------------------------------------------


def repeated_header(name: str) -> Problem:
    """P1-1: two values leave it open which one is meant."""
    return Problem("repeated-header", 400, "Repeated header", f"Send {name} exactly once.", extra={"header": name})


def missing_client_correlation_id() -> Problem:
    """P1-1."""
    return Problem(
        "client-correlation-id-missing",
        400,
        "Client correlation ID missing",
        "Send DTT-2PHP-Client-Correlation-ID with an identifier of your own, the same on every retry of this request.",
    )


def malformed_client_correlation_id() -> Problem:
    """P1-1."""
    return Problem(
        "client-correlation-id-malformed",
        400,
        "Client correlation ID malformed",
        "DTT-2PHP-Client-Correlation-ID takes 1 to 255 visible ASCII characters without spaces.",
    )


def malformed_server_correlation_id() -> Problem:
    """P2-1."""
    return Problem(
        "server-correlation-id-malformed",
        400,
        "Server correlation ID malformed",
        "DTT-2PHP-Server-Correlation-ID takes the UUID that the Phase 1 answer gave.",
    )


def malformed_requested_ttl() -> Problem:
    """P1-2."""
    return Problem(
        "requested-ttl-malformed",
        400,
        "Requested TTL malformed",
        "DTT-2PHP-Requested-TTL takes a whole number of milliseconds greater than 0.",
    )


def key_reused() -> Problem:
    """P1-6, REP-1: the key is consumed by another request."""
    return Problem(
        "client-correlation-id-reused",
        422,
        "Client correlation ID already used for another request",
        "This ID was registered with another method, target or payload. Use a new one for a new request.",
        extra={"code": "REPLAY_DUPLICATE"},
    )


def payload_too_large(limit_bytes: int) -> Problem:
    """P1-7, P1-9."""
    return Problem(
        "payload-too-large",
        413,
        "Payload too large",
        f"This route takes payloads of up to {limit_bytes} bytes.",
        extra={"limit_bytes": limit_bytes},
        close=True,
    )


def too_many_pending(limit: int) -> Problem:
    """P1-8."""
    return Problem(
        "too-many-pending",
        429,
        "Too many unconfirmed intents",
        f"At most {limit} intents may wait for confirmation on this route. Confirm some of them or let them expire.",
        headers=[_retry_after(RETRY_AFTER_S)],
        extra={"limit": limit},
    )


def store_away() -> Problem:
    """P1-3: nothing was forwarded."""
    return Problem(
        "store-unavailable",
        503,
        "Store unavailable",
        "The intent store cannot be reached; nothing was forwarded. Retry with the same Client-Correlation-ID.",
        headers=[_retry_after(RETRY_AFTER_S)],
    )


def bad_gateway(kind: str) -> Problem:
    """OPT-2: what any proxy says when its upstream does not answer."""
    if kind in ("timeout", "connect_timeout"):
        return Problem("upstream-timeout", 504, "Upstream timed out", "The upstream did not answer in time.")
    if kind == "pool":
        return Problem(
            "upstream-busy",
            503,
            "Upstream busy",
            "No connection to the upstream was free in time; nothing was sent.",
            headers=[_retry_after(RETRY_AFTER_S)],
        )
    return Problem("upstream-unreachable", 502, "Upstream unreachable", "The upstream gave no complete answer.")


def in_doubt(kind: str) -> Problem:
    """ACM-1: no answer after the request was sent; it may have taken effect."""
    timed_out = kind == "timeout"
    return Problem(
        "outcome-in-doubt",
        504 if timed_out else 502,
        "Outcome in doubt",
        "The request was sent and no complete answer came: it may have taken effect. Do not send it under a new ID.",
    )


def callbacks_unavailable() -> Problem:
    """ACM-2: a promise that could not be kept is not made."""
    return Problem(
        "callbacks-unavailable",
        400,
        "Callbacks unavailable",
        "This gateway sends no callbacks; leave DTT-2PHP-Callback out.",
    )


# --- callers
# ------------------------------------------------------------------------------------------------------------


def credentials_missing(challenge: bytes | None = None) -> Problem:
    """SEC-2."""
    headers = [(b"WWW-Authenticate", challenge)] if challenge else []
    return Problem(
        "credentials-missing",
        401,
        "Credentials missing",
        "A 2PHP request must carry credentials, so that only its caller can confirm it.",
        headers=headers,
    )


def credentials_invalid(challenge: bytes | None = None) -> Problem:
    """SEC-2."""
    headers = [(b"WWW-Authenticate", challenge)] if challenge else []
    return Problem(
        "credentials-invalid", 401, "Credentials invalid", "The credentials were not accepted.", headers=headers
    )


def token_not_accepted(why: str) -> Problem:
    """SEC-2: a bearer token; `why` is one of our own sentences and repeats nothing of it."""
    challenge = (b"WWW-Authenticate", b'Bearer error="invalid_token"')
    return Problem("credentials-invalid", 401, "Token not accepted", why, headers=[challenge])


def identity_away() -> Problem:
    """SEC-2: nobody can tell now whether the credentials are right."""
    return Problem(
        "identity-unavailable",
        503,
        "Callers cannot be identified now",
        "The keys that credentials are checked with cannot be read now. Retry in a moment.",
        headers=[(b"Retry-After", str(RETRY_AFTER_S).encode())],
    )


def other_caller() -> Problem:
    """P2-7, SEC-2."""
    return Problem(
        "other-caller",
        403,
        "Registered by another caller",
        "Only the caller that registered this intent can confirm it or read its state.",
    )


# --- Phase 2
# ------------------------------------------------------------------------------------------------------------


def intent_unknown() -> Problem:
    """P2-7."""
    return Problem(
        "intent-unknown",
        404,
        "No such intent",
        "No intent has this pair of correlation IDs. Register it with Phase 1.",
    )


def not_registered() -> Problem:
    """RPL-5: this caller never registered it, so a first request with this ID is safe."""
    return Problem(
        "not-registered",
        404,
        "Not registered",
        "This caller has no intent with this Client-Correlation-ID. Sending the request with it is safe.",
    )


def confirm_mismatch(confirm_path: str) -> Problem:
    """P2-1: right intent, wrong method or path."""
    return Problem(
        "confirm-mismatch",
        400,
        "Not this intent's confirmation",
        "Confirm with POST on the Phase 1 path followed by the confirm suffix.",
        extra={"confirm": confirm_path},
    )


def ttl_expired(server_correlation_id: UUID) -> Problem:
    """TTL-1: never confirmed, and now too late."""
    return Problem(
        "ttl-expired",
        408,
        "Request TTL exceeded",
        TTL_EXCEEDED,
        headers=[
            (b"DTT-2PHP-Server-Correlation-ID", str(server_correlation_id).encode()),
            (b"DTT-2PHP-Phase-State", Phase.TTL_EXPIRED.encode()),
        ],
    )


def nonce_unbound() -> Problem:
    """SEC-3, RP-04: what was sent as a proof proves nothing for this intent and caller, now."""
    return Problem(
        "nonce-unbound",
        403,
        "Proof not accepted",
        "This proof is not valid for this intent, caller and time. Register the request anew.",
        extra={"code": "NONCE_UNBOUND"},
    )


def nonce_consumed() -> Problem:
    """SEC-3, RP-03: a nonce authorizes once."""
    return Problem(
        "nonce-consumed",
        409,
        "Proof already used",
        "This nonce has authorized a confirmation before. Sign with a new one.",
        extra={"code": "REPLAY_NONCE_CONSUMED"},
    )


def keys_away() -> Problem:
    """SEC-3: nobody can tell whether the signature is genuine."""
    return Problem(
        "keys-unavailable",
        503,
        "Keys unavailable",
        "The keys that signatures are checked with cannot be read; nothing was sent. Repeat the same confirmation.",
        headers=[_retry_after(RETRY_AFTER_S)],
    )


def still_running() -> Problem:
    """ACM-5, REP-3."""
    return Problem(
        "still-processing",
        504,
        "Still processing",
        "The first request with this ID is still being processed. Ask again with the same ID.",
        headers=[_retry_after(RETRY_AFTER_S)],
        extra={"code": "ATTEMPT_COLLISION"},
    )


def ponr_unknown() -> Problem:
    """REC-7: the store went away around the PONR write and this request sent nothing."""
    return Problem(
        "confirmation-unresolved",
        503,
        "Confirmation not resolved",
        "The store went away around the confirmation; nothing was sent. Repeat the same confirmation.",
        headers=[_retry_after(RETRY_AFTER_S)],
    )


def _retry_after(seconds: int) -> Header:
    return b"Retry-After", str(seconds).encode()
