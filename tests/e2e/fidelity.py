"""What a proxy may change (OPT-2), written down once: everything else of an exchange is compared byte for byte.

The same bytes are sent to the origin itself and to the gateway before it; what the origin got and what the client got
must be equal but for hop-by-hop headers, our forwarding headers on the request, the framing of the answer and a missing
Date.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.e2e.wire import Header, Message, Place, answering

HOST = b"service.test:8080"
HOP_BY_HOP = {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
FORWARDING = {b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host", b"forwarded", b"via"}


@dataclass
class Row:
    """What a client sends, and what the origin answers to it."""

    request: bytes
    answer: tuple[bytes, ...] = (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",)
    close: bool = False


def ask(method: bytes, target: bytes, *headers: bytes, body: bytes = b"", version: bytes = b"HTTP/1.1") -> bytes:
    return b"\r\n".join([method + b" " + target + b" " + version, b"Host: " + HOST, *headers]) + b"\r\n\r\n" + body


def get(target: bytes = b"/x", *headers: bytes) -> bytes:
    return ask(b"GET", target, *headers)


def sent(method: bytes, body: bytes, *headers: bytes) -> bytes:
    return ask(method, b"/x", *headers, b"Content-Length: %d" % len(body), body=body)


def chunked(*chunks: bytes, end: bytes = b"0\r\n\r\n", headers: tuple[bytes, ...] = ()) -> bytes:
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + end
    return ask(b"POST", b"/x", b"Transfer-Encoding: chunked", *headers, body=body)


def told(*lines: bytes, body: bytes = b"", status: bytes = b"200 OK", version: bytes = b"HTTP/1.1") -> tuple[bytes]:
    return (b"\r\n".join([version + b" " + status, *lines]) + b"\r\n\r\n" + body,)


def length(body: bytes) -> bytes:
    return b"Content-Length: %d" % len(body)


def end_to_end(message: Message) -> list[Header]:
    """Without what ends at this hop, and without what tells who forwarded."""
    named = b",".join(value for name, value in message.headers if name.lower() == b"connection").lower()
    dropped = HOP_BY_HOP | FORWARDING | {option.strip() for option in named.split(b",")}
    return [
        header
        for header in message.headers
        if header[0].lower() not in dropped and not header[0].lower().startswith(b"x-forwarded-")
    ]


def assert_forwarded(direct: Message, through: Message, upstream_host: bytes) -> None:
    """The origin got the same request, with exactly four headers of ours behind it."""
    version = direct.line[-3:]
    line = direct.line.removesuffix(b"HTTP/1.0") + b"HTTP/1.1" if version == b"1.0" else direct.line
    assert through.line == line.replace(b"http://" + HOST, b"")  # absolute form is what clients say to proxies
    host = direct.header(b"host")
    expected = end_to_end(direct)
    if host is None:
        expected.insert(0, (b"Host", upstream_host))
    via = b", ".join(value for name, value in direct.headers if name.lower() == b"via")
    expected += [
        (b"X-Forwarded-For", b"127.0.0.1"),
        (b"X-Forwarded-Proto", b"http"),
        (b"X-Forwarded-Host", host or upstream_host),
        (b"Via", (via + b", " if via else b"") + version + b" twophp"),
    ]
    codings = [header for header in through.headers if header[0].lower() == b"transfer-encoding"]
    assert codings == [header for header in direct.headers if header[0].lower() == b"transfer-encoding"]
    assert [header for header in through.headers if header not in codings] == expected
    assert (through.framing, through.body, through.whole) == (direct.framing, direct.body, True)


def assert_answered(direct: Message, through: Message) -> None:
    """The client got the same answer; only its framing may be another, and a missing Date is added."""
    _, status, *reason = direct.line.split(b" ", 2)
    assert through.line == b"HTTP/1.1 " + status + b" " + b"".join(reason)
    got = [header for header in through.headers if header[0].lower() not in HOP_BY_HOP]
    expected = [header for header in direct.headers if header in end_to_end(direct) or header[0].lower() == b"via"]
    if direct.header(b"date") is None:
        assert got.count((b"Date", through.header(b"date") or b"")) == 1
        got = [header for header in got if header[0] != b"Date"]
    if direct.framing in ("chunked", "close"):
        got = [header for header in got if header[0] != b"Content-Length"]
    if direct.status == 204:  # RFC 9110 8.6: it MUST NOT have one
        expected = [header for header in expected if header[0] != b"Content-Length"]
    assert got == expected
    assert (through.body, through.whole) == (direct.body, True)


async def assert_passed_on(place: Place, row: Row, *, piece_bytes: int | None = None) -> None:
    """Make the exchange twice, with the origin and through the gateway, and compare."""
    origin = place.origin
    origin.behave = answering(*row.answer, close=row.close)
    origin.seen.clear()
    direct = await place.direct(row.request, piece_bytes=piece_bytes)
    through = await place.through(row.request, piece_bytes=piece_bytes)
    assert len(origin.seen) == 2, through
    first, second = origin.seen
    assert_forwarded(first, second, f"127.0.0.1:{origin.port}".encode())
    assert_answered(direct, through)
