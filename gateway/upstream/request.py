"""A request's head as bytes, and the framing that its headers declare.

Pure: it writes what it is given. It invents no header; it refuses, as a bug of ours, a head that would be read as
something else on the wire (a split line, a body that its headers do not announce).
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.protocol.messages import Headers

_NOTABLE_LENGTHS = frozenset({6, 7, 14, 17})  # of Expect, Upgrade, Content-Length, Transfer-Encoding


class Framing(NamedTuple):
    """How the headers say that the body is delimited, and what else they ask of the connection."""

    length: int | None
    chunked: bool
    expects_continue: bool
    upgrade: bool


def render(method: str, target: bytes, headers: Headers) -> bytes:
    """The bytes of the request line and the headers."""
    lines = [name + b": " + value for name, value in headers]
    head = b"%b %b HTTP/1.1\r\n%b\r\n\r\n" % (method.encode("ascii"), target, b"\r\n".join(lines))
    # One line break per line and one more: any other number is a value that would split the request in two.
    breaks = len(lines) + 2
    if head.count(b"\n") != breaks or head.count(b"\r") != breaks or b" " in target or not target or not lines:
        raise ValueError("a line break in the head, a space in the target, no target, or no headers")
    return head


def framing_of(headers: Headers) -> Framing:
    """The framing that the headers declare; a ValueError if they declare none or several."""
    length: int | None = None
    chunked = expects_continue = upgrade = False
    for name, value in headers:
        if len(name) not in _NOTABLE_LENGTHS:
            continue
        lower = name.lower()
        if lower == b"content-length":
            if length is not None or not value.isdigit():
                raise ValueError("the request declares its length twice, or not as a number")
            length = int(value)
        elif lower == b"transfer-encoding":
            if chunked or value.lower() != b"chunked":
                raise ValueError("the request's Transfer-Encoding is not one plain chunked")
            chunked = True
        elif lower == b"expect":
            expects_continue = value.lower() == b"100-continue"
        elif lower == b"upgrade":
            upgrade = True
    if chunked and length is not None:
        raise ValueError("the request declares a length and is chunked")
    return Framing(length, chunked, expects_continue, upgrade)


def check_framing(framing: Framing, body: object) -> None:
    """Refuse a body that is not what the headers announce: it would shift the start of the next request."""
    if body is None or isinstance(body, bytes):
        if framing.chunked or (framing.length or 0) != len(body or b""):
            raise ValueError("the headers do not announce the buffered body's length")
    elif framing.length is None and not framing.chunked:
        raise ValueError("the headers announce no body, but there is one to stream")
