"""What the central ledger refuses, and what to do about it (OPS-3). Beside those that every listener of ours has."""

from __future__ import annotations

from gateway.protocol.problems import Problem


def encoding_unknown() -> Problem:
    """LED-2."""
    return Problem(
        "content-encoding-unknown", 415, "Encoding not taken", "Send the body as it is, or with Content-Encoding: zstd."
    )


def content_type_unknown() -> Problem:
    """LED-2."""
    return Problem(
        "content-type-unknown",
        415,
        "Content type not taken",
        "Send one JSON object a line, as Content-Type: application/x-ndjson.",
    )


def body_not_zstd() -> Problem:
    """LED-2: nothing was stored."""
    return Problem("body-malformed", 400, "Body malformed", "The body is not what Content-Encoding: zstd says.")


def plain_too_large(max_bytes: int) -> Problem:
    """LED-2: nothing was stored."""
    return Problem(
        "payload-too-large", 413, "Batch too large", f"A batch has at most {max_bytes} bytes. Send fewer lines at once."
    )


def too_many_lines(most: int) -> Problem:
    """LED-2: nothing was stored."""
    return Problem("too-many-lines", 413, "Batch too large", f"A batch has at most {most} lines. Send fewer at once.")


def bad_line(number: int, why: str) -> Problem:
    """LED-2: all or nothing."""
    return Problem(
        "entry-invalid", 400, "Entry not valid", f"Line {number}: {why}. Nothing was stored.", extra={"line": number}
    )


def entry_moved() -> Problem:
    """COR-4: the time of Phase 1 is part of what identifies an entry."""
    return Problem(
        "entry-moved",
        409,
        "Entry known with another time",
        "An entry with this ID is known with another `phase_1_timestamp`, which never changes. Nothing was stored.",
    )


def other_service() -> Problem:
    """SEC-5: sync writes for its own service only."""
    return Problem(
        "other-service",
        403,
        "Another service's",
        "The token's `service` (by default its name) may write for itself only.",
    )


def service_unknown() -> Problem:
    """LED-4."""
    return Problem(
        "service-unknown",
        404,
        "No such service",
        "No service is registered with this ID. Register with POST /v1/services.",
    )


def service_taken() -> Problem:
    """LED-4."""
    return Problem(
        "service-ledger-id-taken",
        409,
        "Ledger ID taken",
        "This `service_ledger_id` is registered for a service of another name.",
    )


def too_many_ledgers(most: int) -> Problem:
    """LED-4."""
    return Problem(
        "too-many-ledgers",
        409,
        "Too many ledgers of this name",
        f"A service may have {most} ledger IDs. Register with one that it has.",
    )


def service_revoked() -> Problem:
    """LED-4."""
    return Problem(
        "service-revoked",
        410,
        "Service revoked",
        "This service was revoked; nothing of it is taken. An operator can restore it.",
    )


def service_id_malformed() -> Problem:
    """LED-4."""
    return Problem("service-ledger-id-malformed", 400, "Ledger ID malformed", "A `service_ledger_id` is a UUID.")


def cannot_pull() -> Problem:
    """LED-3."""
    return Problem(
        "pull-not-possible",
        409,
        "Cannot be pulled from",
        "This service registered no `operator_url` or no pull token. Set `ledger.operator_url` at its gateway.",
    )


def cannot_pull_plainly() -> Problem:
    """LED-3, SEC-6."""
    return Problem(
        "pull-not-possible",
        409,
        "Cannot be pulled from",
        "This service's `operator_url` is http, and its token is not sent in the open. Serve its operator listener "
        "with TLS, or say `pull.allow_http: true` here.",
    )


def gateway_away(why: str) -> Problem:
    """LED-3."""
    return Problem("gateway-away", 502, "Gateway did not answer", f"The service's operator listener {why}.")


def tree_unknown() -> Problem:
    """LED-5."""
    return Problem(
        "call-unknown", 404, "No such call", "No entry here has this client correlation ID, or none that you may see."
    )


def transaction_unknown() -> Problem:
    """LED-5."""
    return Problem(
        "transaction-unknown",
        404,
        "No such transaction",
        "No entry here has this server correlation ID, or none that you may see.",
    )


def range_too_long(days: int) -> Problem:
    """LED-5."""
    return Problem(
        "parameter-invalid", 400, "Invalid query parameter", f"`from` is before `to`, by at most {days} days."
    )


def restricted() -> Problem:
    """SEC-5."""
    return Problem(
        "token-restricted", 403, "Restricted to one service", "The token may see one service's rows; this is about all."
    )
