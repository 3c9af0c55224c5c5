"""Answers as bytes: one object, one write.

It adds what an answer needs on the wire (`Date` if missing, `Content-Length`, `Connection`) and nothing else: names,
their case and their order are the caller's (OPT-2). It must not know requests, connections or why an answer was made.
"""

from __future__ import annotations

import time
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from gateway.protocol.messages import Answer, Headers

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}".encode() for status in HTTPStatus}
_LENGTHLESS = frozenset({204, 304})
# What this module decides on. Names are looked up as spelled: the usual header costs one look-up and no lower-casing.
_AS_GIVEN: Final = 0
_DATE: Final = 1
_LENGTH: Final = 2
_OURS_TO_SAY: Final = 3
_MEANINGS: Final = {
    b"date": _DATE,
    b"content-length": _LENGTH,
    **dict.fromkeys((b"connection", b"keep-alive", b"transfer-encoding"), _OURS_TO_SAY),
}
_SPELLINGS_MAX: Final = 1024  # an upstream that invents more is looked up by its lower-cased names
_spellings: dict[bytes, int] = {}


class DateClock:
    """The `Date` header, made once a second."""

    __slots__ = ("_line", "_second")

    def __init__(self) -> None:
        self._second = 0
        self._line = b""

    def line(self) -> bytes:
        """`Date: ...` of now, without line end."""
        now = int(time.time())
        if now != self._second:
            self._second = now
            self._line = b"Date: " + formatdate(now, usegmt=True).encode()
        return self._line


_clock = DateClock()


def has_no_body(status: int) -> bool:
    """True if an answer of this status ends at its headers, whatever they say."""
    return status in _LENGTHLESS or status < 200


def answer_bytes(answer: Answer, *, head_only: bool, close: bool, http_1_0: bool) -> bytes:
    """The whole answer. A HEAD answer keeps the Content-Length it was given; others get that of their body."""
    body = answer.body
    status = answer.status
    length: int | None
    if status in _LENGTHLESS:
        length = None
        body = b""
    elif head_only:
        length = len(body) or None  # without a body to measure, a given length is the better word
        body = b""
    else:
        length = len(body)
    keep_given = length is None and status != 204
    head = _head(status, answer.reason, answer.headers, length, keep_given, close, http_1_0)
    return head + body if body else head


def stream_head(
    status: int,
    reason: bytes | None,
    headers: Headers,
    *,
    chunked: bool,
    close: bool,
    http_1_0: bool,
) -> bytes:
    """The head of an answer whose body follows; a Content-Length among `headers` is kept where it stands."""
    head = _head(status, reason, headers, None, not chunked and status != 204, close, http_1_0)
    return head[:-2] + b"Transfer-Encoding: chunked\r\n\r\n" if chunked else head


def switch_head(status: int, reason: bytes | None, headers: Headers) -> bytes:
    """The head of a 101; `Connection` and, if the caller dropped it as hop-by-hop, `Upgrade` are said anew."""
    head = _head(status, reason, headers, None, False, False, False)
    told = any(name.lower() == b"upgrade" for name, _ in headers)
    return head[:-2] + (b"" if told else b"Upgrade: websocket\r\n") + b"Connection: Upgrade\r\n\r\n"


def _head(
    status: int,
    reason: bytes | None,
    headers: Headers,
    length: int | None,
    keep_given_length: bool,
    close: bool,
    http_1_0: bool,
) -> bytes:
    lines = [_status_line(status, reason)]
    dated = False
    for header in headers:
        meaning = _spellings.get(header[0])
        if meaning is None:
            meaning = _learn(header[0])
        if meaning:
            if meaning == _DATE:
                dated = True
            elif meaning == _OURS_TO_SAY:
                continue
            elif length is not None:
                lines.append(b"%b: %d" % (header[0], length))  # in its place, with the length that is true
                length = None
                continue
            elif not keep_given_length:
                continue
        lines.append(b": ".join(header))
    if length is not None:
        lines.append(b"Content-Length: %d" % length)
    if not dated:
        lines.append(_clock.line())
    if close:
        lines.append(b"Connection: close")
    elif http_1_0:
        lines.append(b"Connection: keep-alive")
    count = len(lines) - 1
    head = b"\r\n".join(lines)
    if head.count(b"\n") != count or head.count(b"\r") != count:
        raise ValueError("a header of an answer holds a line break")  # never let one answer become two
    return head + b"\r\n\r\n"


def _learn(name: bytes) -> int:
    meaning = _MEANINGS.get(name.lower(), _AS_GIVEN)
    if len(_spellings) < _SPELLINGS_MAX:
        _spellings[name] = meaning
    return meaning


def _status_line(status: int, reason: bytes | None) -> bytes:
    if reason is None:
        return _STATUS_LINES.get(status) or b"HTTP/1.1 %d " % status
    return b"HTTP/1.1 %d %b" % (status, reason)
