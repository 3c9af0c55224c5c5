"""What the operator listener refuses, and what to do about it (OPS-3).

Like every refusal of ours, none repeats what the caller sent: a parameter is named only if it is one of the endpoint's
own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gateway.protocol.messages import Header
from gateway.protocol.obligations import ErrorCode, ObligationError
from gateway.protocol.problems import RETRY_AFTER_S, Problem

_CHALLENGE: Header = (b"WWW-Authenticate", b'Bearer realm="twophp"')
_CHALLENGE_INVALID: Header = (b"WWW-Authenticate", b'Bearer realm="twophp", error="invalid_token"')
_RETRY_AFTER: Header = (b"Retry-After", str(RETRY_AFTER_S).encode())


def token_missing() -> Problem:
    """SEC-5."""
    return Problem(
        "token-missing",
        401,
        "Token missing",
        "Send exactly one Authorization header: Bearer, a space, and a token of this gateway.",
        headers=[_CHALLENGE],
    )


def token_invalid() -> Problem:
    """SEC-5."""
    return Problem(
        "token-invalid", 401, "Token not accepted", "No configured token has this value.", headers=[_CHALLENGE_INVALID]
    )


def no_tokens() -> Problem:
    """SEC-5: deny by default."""
    return Problem(
        "tokens-not-configured",
        401,
        "No tokens configured",
        "This gateway has no tokens, so nobody may use this API. Add one under `tokens` in its configuration.",
        headers=[_CHALLENGE],
    )


def role_not_allowed(roles: Collection[str]) -> Problem:
    """SEC-5."""
    return Problem(
        "role-not-allowed",
        403,
        "Role not allowed",
        "The token's role may not do this.",
        extra={"roles": sorted(roles)},
    )


def body_malformed() -> Problem:
    """A document that cannot be read as one."""
    return Problem("body-malformed", 400, "Body malformed", "Send one JSON object.")


def member_unknown(takes: Collection[str]) -> Problem:
    """A member that would be ignored is a mistake of its sender's."""
    return Problem(
        "member-unknown",
        400,
        "Unknown member",
        "The object has a member that is not known here.",
        extra={"takes": takes},
    )


def member_missing(name: str) -> Problem:
    """Said by name: it is one of the endpoint's own."""
    return Problem("member-missing", 400, "Member missing", f"The object has no `{name}`.")


def member_invalid(name: str, takes: str) -> Problem:
    """Said by name: it is one of the endpoint's own."""
    return Problem("member-invalid", 400, "Member not valid", f"`{name}` takes {takes}.")


def body_too_large(max_bytes: int) -> Problem:
    """Nothing of it was used."""
    return Problem(
        "payload-too-large",
        413,
        "Body too large",
        f"At most {max_bytes} bytes are taken here. Send less at once.",
        close=True,
    )


def body_too_slow() -> Problem:
    """Nothing of it was used."""
    return Problem("body-timeout", 408, "Body too slow", "The body did not arrive in time. Send it again.", close=True)


def delivery_unknown() -> Problem:
    """ACM-3."""
    return Problem("delivery-unknown", 404, "No such delivery", "No delivery has this ID. List them at /v1/deliveries.")


def delivery_done() -> Problem:
    """ACM-3: what was acknowledged is not sent again."""
    return Problem("delivery-done", 409, "Already delivered", "This delivery was acknowledged and is not sent again.")


def not_in_doubt(standing: Mapping[str, object], *, running: bool) -> Problem:
    """REC-2: a verdict is only for what nobody knows the outcome of, and only once."""
    detail = (
        "The intent is not in doubt: it waits, or it is being executed. Look at it again in a moment."
        if running
        else f"The intent was settled before: {standing['phase']}, by {standing['settled_by']}. That is final."
    )
    return Problem("not-in-doubt", 409, "Not in doubt", detail, extra=dict(standing))


_OBLIGATIONS: dict[ErrorCode, tuple[int, str, str]] = {
    "ERR_OBL_NOT_FOUND": (404, "No such obligation", "No obligation has this ID. List them at /v1/obligations."),
    "ERR_OBL_ALREADY_COMMITTED": (
        409,
        "Already committed",
        "This obligation was committed, which is final: it is neither committed again nor rolled back.",
    ),
    "ERR_OBL_ALREADY_ROLLED_BACK": (
        409,
        "Already rolled back",
        "This obligation was rolled back, which is final. Reserve it again to do it after all.",
    ),
    "ERR_OBL_LEAK_TIMEOUT": (
        410,
        "Leaked",
        "This obligation was not settled within the leak timeout and is taken back. Reserve it again.",
    ),
    "ERR_OBL_DUPLICATE_RESERVE": (
        409,
        "Already reserved",
        "An obligation of this flow and key is Reserved or Committed. Use that one, or another key.",
    ),
}


def obligation(error: ObligationError) -> Problem:
    """OBL-2: `code` says which, `obligation` which one is in the way."""
    status, title, detail = _OBLIGATIONS[error.code]
    slug = error.code.removeprefix("ERR_OBL_").replace("_", "-").lower()
    extra: dict[str, str] = {"code": error.code}
    if error.obligation is not None:
        extra["obligation"] = str(error.obligation)
    return Problem(f"obligation-{slug}", status, title, detail, extra=extra)


def service_not_allowed() -> Problem:
    """SEC-5: a sync token writes for one service."""
    return Problem(
        "service-not-allowed",
        403,
        "Not this token's service",
        "The token writes for another service than this gateway's. Its `service` must be the gateway's `service.name`.",
    )


def parent_unknown() -> Problem:
    """COR-2."""
    return Problem(
        "parent-unknown",
        422,
        "Parent unknown",
        "`parent_reference_id` is the client correlation ID that this service was called with, which came with no call "
        "that this gateway knows. Leave it out for a call that nobody asked for.",
    )


def entry_conflict() -> Problem:
    """COR-4: what was said of a call is not taken back."""
    return Problem(
        "entry-conflict",
        409,
        "Contradicts an earlier report",
        "A row with this client correlation ID says something else, or is further on. A call that is over never "
        "changes; use a new ID for another call.",
    )


def too_many_followers(limit: int) -> Problem:
    """LED-6: a stream holds connections for as long as it lasts."""
    return Problem(
        "too-many-followers",
        503,
        "Too many followers",
        f"At most {limit} event streams are served at once. Close one, or read /v1/ledger/entries in turns.",
        headers=[_RETRY_AFTER],
    )


def no_such_path() -> Problem:
    """Nothing is served there."""
    return Problem("path-unknown", 404, "No such path", "The operator listener serves nothing at this path.")


def method_not_allowed(allowed: Collection[str]) -> Problem:
    """The path exists, the method does not."""
    allow = ", ".join(sorted(allowed))
    return Problem(
        "method-not-allowed",
        405,
        "Method not allowed",
        f"This path takes {allow}.",
        headers=[(b"Allow", allow.encode())],
    )


def body_not_expected() -> Problem:
    """No endpoint takes a body."""
    return Problem("body-not-expected", 400, "Body not expected", "Send this request without a body.", close=True)


def expectation_not_met() -> Problem:
    """No endpoint takes a body that one could wait for."""
    return Problem("expectation-failed", 417, "Expectation failed", "Send this request without Expect.", close=True)


def parameter_unknown(takes: Collection[str]) -> Problem:
    """A filter that is not understood must not be taken for one that was applied."""
    known = f"This endpoint takes: {', '.join(takes)}." if takes else "This endpoint takes none."
    return Problem("parameter-unknown", 400, "Unknown query parameter", known, extra={"parameters": list(takes)})


def parameter_invalid(name: str, takes: str) -> Problem:
    """A parameter of the endpoint's own, with a value it cannot have."""
    return Problem(
        "parameter-invalid", 400, "Invalid query parameter", f"{name} takes {takes}.", extra={"parameter": name}
    )


def parameter_missing(name: str) -> Problem:
    """Without it, the question is not complete."""
    return Problem("parameter-missing", 400, "Query parameter missing", f"Send {name}.", extra={"parameter": name})


def parameter_repeated(name: str) -> Problem:
    """Two values leave it open which one is meant."""
    return Problem(
        "parameter-repeated", 400, "Repeated query parameter", f"Send {name} once.", extra={"parameter": name}
    )


def query_malformed() -> Problem:
    """Not text, or more of it than any endpoint takes."""
    return Problem(
        "query-malformed", 400, "Malformed query", "Send name=value pairs, percent-encoded UTF-8, joined by &."
    )


def server_id_malformed() -> Problem:
    """The last segment of the path."""
    return Problem(
        "server-correlation-id-malformed",
        400,
        "Server correlation ID malformed",
        "The last segment of the path takes the UUID that the Phase 1 answer gave.",
        extra={"parameter": "server_correlation_id"},
    )


def intent_unknown() -> Problem:
    """No intent, or one past its replay horizon."""
    return Problem(
        "intent-unknown",
        404,
        "No such intent",
        "No intent has this server correlation ID; settled ones are forgotten after their replay horizon.",
    )


def not_ready(reasons: Collection[str]) -> Problem:
    """OPS-1."""
    return Problem(
        "not-ready",
        503,
        "Not ready",
        "This gateway takes no new work now.",
        headers=[_RETRY_AFTER],
        extra={"ready": False, "reasons": list(reasons)},
    )


def store_away() -> Problem:
    """The ledger cannot be read now."""
    return Problem(
        "store-unavailable",
        503,
        "Store unavailable",
        "The intent store cannot be read now. Retry in a moment.",
        headers=[_RETRY_AFTER],
    )


def access_not_recorded() -> Problem:
    """SEC-5: what cannot be recorded is not answered."""
    return Problem(
        "access-not-recorded",
        503,
        "Access could not be recorded",
        "Every access is recorded before it is answered, and the store cannot be reached. Retry in a moment.",
        headers=[_RETRY_AFTER],
    )


def too_slow() -> Problem:
    """The answer took longer than anyone should wait."""
    return Problem(
        "took-too-long",
        503,
        "Took too long",
        "The answer could not be made in time. Ask for less, or retry in a moment.",
        headers=[_RETRY_AFTER],
    )


def internal_error() -> Problem:
    """Our fault; what went wrong is in the log, not in the answer."""
    return Problem("internal-error", 500, "Internal error", "The gateway failed to handle this request.", close=True)
