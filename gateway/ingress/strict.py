"""Checks of a request head that the HTTP parser lets pass and a gateway must not (RELIABILITY fact 3).

Pure: method, raw target, raw headers and version in; what the gateway may rely on out, or a Problem. Whatever two
readers of the same bytes could understand differently is refused; what only tries to steer the next hop is neutralised,
so that forwarding never sees it. Nothing here stores, forwards, or repeats input in an answer.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from gateway.ingress import refusals
from gateway.protocol import problems
from gateway.protocol.headers import CLIENT_CORRELATION_ID, PREFIX, SERVER_CORRELATION_ID
from gateway.protocol.messages import Header

RawHeaders = tuple[Header, ...]


class Cleared(NamedTuple):
    """A request head that every reader understands alike."""

    target: bytes  # origin form
    headers: RawHeaders  # as sent, without what was neutralised
    content_length: int | None
    chunked: bool
    expects_continue: bool
    websocket: bool
    speaks_2php: bool  # some DTT-2PHP field is there


# What a header name means to the checks. Names are looked up as spelled, so the usual head costs no lower-casing.
_PLAIN: Final = 0
_HOST: Final = 1
_LENGTH: Final = 2
_CODING: Final = 3
_CONNECTION: Final = 4
_UPGRADE: Final = 5
_EXPECT: Final = 6
_HTTP2_SETTINGS: Final = 7
_ALIAS: Final = 8
_CLIENT_ID: Final = 16  # one bit each: what was seen already is their sum
_SERVER_ID: Final = 32
_OURS: Final = 64  # any other DTT-2PHP field: it may come twice as far as this module is concerned

_MEANINGS: Final = {
    b"host": _HOST,
    b"content-length": _LENGTH,
    b"transfer-encoding": _CODING,
    b"connection": _CONNECTION,
    b"upgrade": _UPGRADE,
    b"expect": _EXPECT,
    b"http2-settings": _HTTP2_SETTINGS,
    CLIENT_CORRELATION_ID.lower().encode(): _CLIENT_ID,
    SERVER_CORRELATION_ID.lower().encode(): _SERVER_ID,
}

# Headers the gateway reads or sets itself. CGI-like upstreams fold `_` and `.` into `-`: an alias would pass for ours.
_OWN_NAMES: Final = frozenset({b"idempotency-key", b"content-length", b"transfer-encoding", b"x-real-ip", b"x-api-key"})
_OWN_PREFIXES: Final = (PREFIX, b"x-forwarded-")
_NOT_ALNUM: Final = re.compile(rb"[^a-z0-9]")

# End-to-end fields that a `Connection` header cannot take away from the upstream (or from us).
_NEVER_HOP_BY_HOP: Final = _OWN_NAMES | {
    b"host",
    b"authorization",
    b"cookie",
    b"origin",
    b"content-type",
    b"content-encoding",
    b"forwarded",
    b"via",
    b"baggage",
    b"traceparent",
    b"tracestate",
    b"x-remote-user",
    b"cache-control",
}

# Methods that the parser knows from elsewhere: the HTTP/2 preface, ICE and RTSP.
_NOT_HTTP: Final = frozenset(
    {
        "PRI",
        "SOURCE",
        "ANNOUNCE",
        "DESCRIBE",
        "FLUSH",
        "GET_PARAMETER",
        "PAUSE",
        "PLAY",
        "RECORD",
        "REDIRECT",
        "SETUP",
        "SET_PARAMETER",
        "TEARDOWN",
    }
)

_BAD_TARGET: Final = re.compile(rb"[\x00-\x20#\x7f-\xff]")
_ABSOLUTE: Final = re.compile(rb"https?://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)
_HOST_FORM: Final = re.compile(rb"(?:[A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_DIGITS: Final = re.compile(rb"[0-9]{1,18}")

_CACHE_MAX = 1024  # spellings and hosts remembered; a client that invents more only makes us forget the others
_spellings: dict[bytes, int] = {}
_good_hosts: set[bytes] = set()


def check(method: str, target: bytes, headers: RawHeaders, version: tuple[int, int]) -> Cleared:
    """The head as the gateway may use it, or the Problem that refuses it."""
    if version != (1, 1) and version != (1, 0):
        raise refusals.version_unknown()
    if method in _NOT_HTTP:
        raise refusals.method_unknown()
    host: bytes | None = None
    length: bytes | None = None
    chunked = expects_continue = steered = False
    once = 0
    spellings = _spellings
    for name, value in headers:
        meaning = spellings.get(name)
        if meaning is None:
            meaning = _learn(name)
        if not meaning:
            continue
        if meaning == _HOST:
            if host is not None:
                raise refusals.bad_host()
            host = value
        elif meaning == _LENGTH:
            if length is not None:
                raise refusals.ambiguous_framing()
            length = value
        elif meaning == _CODING:
            if chunked or value.lower() != b"chunked" or version == (1, 0):
                raise refusals.ambiguous_framing()
            chunked = True
        elif meaning == _EXPECT:
            expects_continue = value.lower() == b"100-continue" and version == (1, 1)
        elif meaning == _CONNECTION:
            steered = steered or value.lower() not in (b"keep-alive", b"close")
        elif meaning in (_UPGRADE, _HTTP2_SETTINGS):
            steered = True
        elif meaning == _ALIAS:
            raise refusals.header_alias()
        else:
            if once & meaning and meaning != _OURS:
                raise _repeated(meaning)
            once |= meaning
    if host is None:
        if version == (1, 1):
            raise refusals.bad_host()
    elif host not in _good_hosts:
        _check_host(host)
    if length is not None and (chunked or not _DIGITS.fullmatch(length)):
        raise refusals.ambiguous_framing()
    if method == "CONNECT":  # a tunnel to anywhere is not what this gateway is for, whatever form its target has
        raise refusals.bad_target()
    target = _origin_form(target, host)
    content_length = None if length is None else int(length)
    websocket = False
    if steered:
        websocket = method == "GET" and version == (1, 1) and not chunked and not content_length
        headers, websocket = _neutralise(headers, websocket)
    return Cleared(target, headers, content_length, chunked, expects_continue, websocket, once != 0)


def _learn(name: bytes) -> int:
    lower = name.lower()
    meaning = _MEANINGS.get(lower, _PLAIN)
    if meaning == _PLAIN:
        folded = _NOT_ALNUM.sub(b"-", lower)
        if folded != lower and (folded in _OWN_NAMES or folded.startswith(_OWN_PREFIXES)):
            meaning = _ALIAS
        elif lower.startswith(PREFIX):
            meaning = _OURS
    if len(_spellings) >= _CACHE_MAX:
        _spellings.clear()
    _spellings[name] = meaning
    return meaning


def _repeated(meaning: int) -> problems.Problem:
    return problems.repeated_header(CLIENT_CORRELATION_ID if meaning == _CLIENT_ID else SERVER_CORRELATION_ID)


def _check_host(host: bytes) -> None:
    if not _HOST_FORM.fullmatch(host):
        raise refusals.bad_host()
    if len(_good_hosts) >= _CACHE_MAX:
        _good_hosts.clear()
    _good_hosts.add(host)


def _origin_form(target: bytes, host: bytes | None) -> bytes:
    """The target as a path; absolute form only for the very host that Host names, every other form refused."""
    if _BAD_TARGET.search(target):
        raise refusals.bad_target()
    if b"\\" in target and b"\\" in target.partition(b"?")[0]:  # browsers do send it raw in a query
        raise refusals.bad_target()
    if target.startswith(b"/"):
        return target
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None or host is None or absolute[1].lower() != host.lower():
        raise refusals.bad_target()
    rest = absolute[2]
    return rest if rest.startswith(b"/") else b"/" + rest


def _neutralise(headers: RawHeaders, may_upgrade: bool) -> tuple[RawHeaders, bool]:
    """Without upgrades other than WebSocket, and without nominations of end-to-end fields in `Connection`."""
    options = [
        option.strip() for name, value in headers if name.lower() == b"connection" for option in value.split(b",")
    ]
    upgrades = [value.strip().lower() for name, value in headers if name.lower() == b"upgrade"]
    websocket = may_upgrade and upgrades == [b"websocket"] and any(option.lower() == b"upgrade" for option in options)
    dropped = {b"connection", b"http2-settings"} if websocket else {b"connection", b"http2-settings", b"upgrade"}
    kept = [option for option in options if option and _may_nominate(option.lower(), websocket)]
    clean = [header for header in headers if header[0].lower() not in dropped]
    if kept:
        clean.append((b"Connection", b", ".join(kept)))
    return tuple(clean), websocket


def _may_nominate(option: bytes, websocket: bool) -> bool:
    if option == b"upgrade":
        return websocket
    return option != b"http2-settings" and option not in _NEVER_HOP_BY_HOP and not option.startswith(_OWN_PREFIXES)
