"""What a proxy may and must touch: hop-by-hop headers, and on the request who it is forwarded for.

Pure rules over raw headers; order, case, repetition and bytes of everything else are kept (OPT-2). They must not
decide who is trusted, nor route, nor read a body.
"""

from __future__ import annotations

from typing import Final, Literal

from gateway.protocol.messages import Header, Headers

PSEUDONYM = b"twophp"  # our name in Via
_NAMES_MAX = 1024  # names remembered; callers choose names, so the memory of them is bounded

_HOP_BY_HOP = frozenset(
    {
        b"http2-settings",  # of an h2c upgrade, which we never make
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authentication-info",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",  # trailers are dropped, so none are promised
        b"trailer",
    }
)

# `Connection: Authorization` is a known way to make a proxy drop what a service relies on: only the names of headers
# that are nobody's business beyond this hop can be removed by it.
_NEVER_NOMINATED = frozenset(
    {
        b"authorization",
        b"baggage",
        b"cache-control",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"cookie",
        b"date",
        b"expect",
        b"forwarded",
        b"host",
        b"idempotency-key",
        b"location",
        b"origin",
        b"set-cookie",
        b"traceparent",
        b"tracestate",
        b"transfer-encoding",
        b"via",
    }
)
_PLAIN_OPTIONS = frozenset({b"close", b"keep-alive"})  # by far the most frequent values; they name no header
_NEVER_NOMINATED_PREFIXES = (b"dtt-2php-", b"sec-", b"x-forwarded-")


# What a header is to a proxy. Plain numbers: every header of every message is looked at, and enum members cost more.
_END_TO_END: Final = 0
_OF_THIS_HOP: Final = 1
_CONNECTION: Final = 2
_UPGRADE: Final = 3
_TRANSFER_ENCODING: Final = 4
_CONTENT_LENGTH: Final = 5
_EXPECT: Final = 6
_HOST: Final = 7
_FORWARDING: Final = 8


_SPECIAL = {
    b"connection": _CONNECTION,
    b"upgrade": _UPGRADE,
    b"transfer-encoding": _TRANSFER_ENCODING,
    b"content-length": _CONTENT_LENGTH,
    b"expect": _EXPECT,
    b"host": _HOST,
    b"via": _FORWARDING,
    b"forwarded": _FORWARDING,
    **dict.fromkeys(_HOP_BY_HOP, _OF_THIS_HOP),
}
_APPENDED = frozenset({b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host", b"forwarded"})
_kinds: dict[bytes, int] = {}  # by the name as it was written: one look-up per header


def request_headers(
    headers: Headers,
    *,
    peer: str,
    scheme: bytes,
    host_header: Literal["preserve", "rewrite"],
    upstream_host: bytes,
    trusted: bool,
    version: bytes = b"1.1",
    body_bytes: int | None = None,
) -> list[Header]:
    """The headers to send upstream.

    `trusted` says that the direct peer is a proxy we believe: what it forwards is appended to; anybody else's is
    replaced. `version` is the HTTP version the request came with (Via). `body_bytes` is the length of a body that is
    held as a whole: it is announced by Content-Length, and `Expect` is settled. None leaves the framing as it came,
    for a body that is streamed or absent.
    """
    kept: list[Header] = []
    connection: list[bytes] = []
    forwarding: list[Header] = []
    upgrade: Header | None = None
    host: bytes | None = None
    was_chunked = has_length = False
    for header in headers:
        name = header[0]
        kind = _kinds.get(name)
        if kind is None:
            kind = _kind_of(name)
        if not kind:
            kept.append(header)
        elif kind == _HOST:
            host = header[1]
            kept.append(header if host_header == "preserve" else (name, upstream_host))
        elif kind == _CONTENT_LENGTH:
            has_length = True
            kept.append(header if body_bytes is None else (name, b"%d" % body_bytes))
        elif kind == _TRANSFER_ENCODING:
            was_chunked = True
            if body_bytes is None:
                kept.append(header)
        elif kind == _EXPECT:
            if body_bytes is None:
                kept.append(header)
        elif kind == _FORWARDING:
            forwarding.append(header)
        elif kind == _CONNECTION:
            if header[1].lower() not in _PLAIN_OPTIONS:
                connection.append(header[1])
        elif kind == _UPGRADE:
            upgrade = header
    if host is None:
        kept.insert(0, (b"Host", upstream_host))  # HTTP/1.0 may leave it out, HTTP/1.1 upstream may not
    if body_bytes is not None and not has_length and (body_bytes or was_chunked):
        kept.append((b"Content-Length", b"%d" % body_bytes))
    if connection:
        options = _options(connection)
        kept = _without_nominated(kept, options)
        if upgrade is not None and b"upgrade" in options and upgrade[1].strip().lower() == b"websocket":
            kept += ((b"Connection", b"Upgrade"), upgrade)
    kept += _forwarding(forwarding, trusted, peer.encode("ascii"), scheme, host or upstream_host, version)
    return kept


def response_headers(headers: Headers, *, upgraded: bool = False) -> list[Header]:
    """The headers to answer with: the upstream's without hop-by-hop ones. The edge frames the body anew.

    `upgraded`: the answer is a 101, whose Connection and Upgrade headers are its point.
    """
    if upgraded:
        return list(headers)
    kept: list[Header] = []
    connection: list[bytes] = []
    for header in headers:
        kind = _kinds.get(header[0])
        if kind is None:
            kind = _kind_of(header[0])
        if not kind or kind > _TRANSFER_ENCODING:
            kept.append(header)
        elif kind == _CONNECTION and header[1].lower() not in _PLAIN_OPTIONS:
            connection.append(header[1])
    return _without_nominated(kept, _options(connection)) if connection else kept


def _kind_of(name: bytes) -> int:
    lower = name.lower()
    kind = _SPECIAL.get(lower, _END_TO_END)
    # CGI-style services read X_Forwarded_For as X-Forwarded-For, so a caller must not be able to write either.
    if lower.replace(b"_", b"-").startswith(b"x-forwarded-"):
        kind = _FORWARDING
    if len(_kinds) < _NAMES_MAX:
        _kinds[name] = kind
    return kind


def _options(connection: list[bytes]) -> set[bytes]:
    return {option.strip() for option in b",".join(connection).lower().split(b",")}


def _without_nominated(headers: list[Header], options: set[bytes]) -> list[Header]:
    nominated = {
        option
        for option in options - _NEVER_NOMINATED - _PLAIN_OPTIONS
        if not option.startswith(_NEVER_NOMINATED_PREFIXES)
    }
    if not nominated:
        return headers
    return [header for header in headers if header[0].lower() not in nominated]


def _forwarding(
    received: list[Header], trusted: bool, peer: bytes, scheme: bytes, host: bytes, version: bytes
) -> list[Header]:
    """Our own forwarding headers; of those received, Via always counts and the rest only from a trusted peer."""
    via = b"%b %b" % (version, PSEUDONYM)
    if not received:
        return [
            (b"X-Forwarded-For", peer),
            (b"X-Forwarded-Proto", scheme),
            (b"X-Forwarded-Host", host),
            (b"Via", via),
        ]
    values: dict[bytes, bytes] = {}
    others: list[Header] = []
    for name, value in received:
        key = name.lower()
        if key == b"via" or (trusted and key in _APPENDED):
            values[key] = b"%b, %b" % (values[key], value) if key in values else value
        elif trusted:
            others.append((name, value))
    forwarded_for, forwarded = values.get(b"x-forwarded-for"), values.get(b"forwarded")
    if forwarded is not None:
        element = b'for="[%b]"' % peer if b":" in peer else b"for=" + peer
        others.append((b"Forwarded", b"%b, %b;proto=%b" % (forwarded, element, scheme)))
    return [
        *others,
        (b"X-Forwarded-For", b"%b, %b" % (forwarded_for, peer) if forwarded_for else peer),
        (b"X-Forwarded-Proto", values.get(b"x-forwarded-proto", scheme)),
        (b"X-Forwarded-Host", values.get(b"x-forwarded-host", host)),
        (b"Via", b"%b, %b" % (values[b"via"], via) if b"via" in values else via),
    ]
