"""What the edge itself refuses: malformed, ambiguous, too slow or too large requests (RELIABILITY fact 3, OPS-3).

Each is a constructor, so that a type and its status are written once. None repeats a byte of the input, and all of them
that leave input unread end the connection (P1-9).
"""

from __future__ import annotations

from gateway.protocol.problems import RETRY_AFTER_S, Problem


def malformed_request() -> Problem:
    """The parser could not read a request; where the next one would begin is unknown."""
    return Problem(
        "malformed-request",
        400,
        "Malformed request",
        "The bytes received are not a well-formed HTTP/1.1 request.",
        close=True,
    )


def malformed_body() -> Problem:
    """A chunk or its framing is wrong."""
    return Problem(
        "malformed-body", 400, "Malformed body", "The chunked body breaks the rules of its framing.", close=True
    )


def incomplete_body() -> Problem:
    """The client ended its side before the body was complete."""
    return Problem(
        "incomplete-body", 400, "Incomplete body", "The connection ended before the announced body did.", close=True
    )


def chunk_overhead() -> Problem:
    """Chunk extensions or tiny chunks cost more than they carry (decision 13)."""
    return Problem(
        "chunk-overhead",
        400,
        "Too much chunk overhead",
        "The chunked body spends too many bytes on extensions and chunk sizes. Send larger chunks without extensions.",
        close=True,
    )


def ambiguous_framing() -> Problem:
    """Another reader of these bytes might find another end of the body: request smuggling."""
    return Problem(
        "ambiguous-framing",
        400,
        "Ambiguous framing",
        "Frame the body with exactly one Content-Length, or with Transfer-Encoding: chunked alone on HTTP/1.1.",
        close=True,
    )


def bad_host() -> Problem:
    """Host is missing, repeated, or not a host."""
    return Problem(
        "bad-host", 400, "Bad Host", "Send exactly one Host header with a host name and an optional port.", close=True
    )


def bad_target() -> Problem:
    """The target is not an origin-form path that every reader would understand alike."""
    return Problem(
        "bad-target",
        400,
        "Bad request target",
        "Send the target as a path that begins with a slash, without fragment, backslash or another host.",
        close=True,
    )


def ambiguous_path() -> Problem:
    """Decision 14: decoded or with its dots removed, the path would be another route or phase."""
    return Problem(
        "ambiguous-path",
        400,
        "Ambiguous path",
        "Encoded characters, dot segments or doubled slashes make this path mean another route. Send its plain form.",
    )


def malformed_segment() -> Problem:
    """A path segment that should be one percent-encoded identifier is not."""
    return Problem(
        "malformed-path-segment",
        400,
        "Malformed path segment",
        "An identifier in a path is one segment of percent-encoded UTF-8.",
    )


def header_alias() -> Problem:
    """A name that an upstream may fold into one of the gateway's own."""
    return Problem(
        "header-alias",
        400,
        "Header alias",
        "A header name differs from one of the gateway's own only in its separators. Use hyphens.",
        close=True,
    )


def method_unknown() -> Problem:
    """Not a method of HTTP."""
    return Problem(
        "method-not-supported", 501, "Method not supported", "The gateway does not forward this method.", close=True
    )


def version_unknown() -> Problem:
    """Neither HTTP/1.0 nor HTTP/1.1."""
    return Problem(
        "http-version-not-supported", 505, "HTTP version not supported", "Use HTTP/1.1 or HTTP/1.0.", close=True
    )


def target_too_long(limit_bytes: int) -> Problem:
    """The request line alone exceeds `listen.max_header`."""
    return Problem(
        "target-too-long",
        414,
        "Request target too long",
        f"The request head may have up to {limit_bytes} bytes.",
        extra={"limit_bytes": limit_bytes},
        close=True,
    )


def header_too_large(limit_bytes: int) -> Problem:
    """The head exceeds `listen.max_header`."""
    return Problem(
        "header-too-large",
        431,
        "Request head too large",
        f"The request head may have up to {limit_bytes} bytes.",
        extra={"limit_bytes": limit_bytes},
        close=True,
    )


def too_many_headers(limit: int) -> Problem:
    """More fields than `listen.max_headers`."""
    return Problem(
        "too-many-headers",
        431,
        "Too many headers",
        f"A request may have up to {limit} header fields.",
        extra={"limit": limit},
        close=True,
    )


def header_timeout() -> Problem:
    """Half a head, for longer than `listen.header_timeout`."""
    return Problem(
        "header-timeout", 408, "Request head too slow", "The request head did not arrive in time.", close=True
    )


def body_timeout() -> Problem:
    """No byte of the body for `listen.body_timeout`."""
    return Problem("body-timeout", 408, "Request body too slow", "The request body stopped arriving.", close=True)


def buffers_full() -> Problem:
    """Decision 15: `limits.buffered` is held by other requests."""
    return Problem(
        "buffers-full",
        503,
        "Too many bodies in memory",
        "The gateway holds as many request bodies as it may; nothing was done. Retry shortly.",
        headers=[(b"Retry-After", str(RETRY_AFTER_S).encode())],
        close=True,
    )


def internal_error() -> Problem:
    """Our fault; what went wrong is in the log, not in the answer."""
    return Problem("internal-error", 500, "Internal error", "The gateway failed to handle this request.", close=True)
