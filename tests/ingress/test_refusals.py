"""Malformed and ambiguous requests (RELIABILITY fact 3): each gets its status and problem type, and no handler sees it.

Rows are whole requests as sent. A row that must be neutralised instead of refused is in the second table.
"""

from __future__ import annotations

import asyncio

import pytest

from gateway.ingress import Inbound
from gateway.protocol.messages import Answer
from tests.ingress.peer import Gateway, Serve

CANARY = b"canary-4711"


def get(target: bytes = b"/", *headers: bytes, version: bytes = b"HTTP/1.1", host: bytes = b"Host: a") -> bytes:
    lines = [b"GET %b %b" % (target, version), *([host] if host else []), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def post(*headers: bytes, body: bytes = b"", version: bytes = b"HTTP/1.1") -> bytes:
    return b"\r\n".join([b"POST / " + version, b"Host: a", *headers]) + b"\r\n\r\n" + body


def chunked(body: bytes, *headers: bytes) -> bytes:
    return post(b"Transfer-Encoding: chunked", *headers, body=body)


EMPTY_CHUNKED = b"0\r\n\r\n"
ONE_CHUNK = b"3\r\nabc\r\n0\r\n\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
ID = b"DTT-2PHP-Client-Correlation-ID: "

REFUSED: dict[str, tuple[bytes, int, str]] = {
    # framing
    "te list": (post(b"Transfer-Encoding: gzip, chunked", body=ONE_CHUNK), 400, "ambiguous-framing"),
    "te identity then chunked": (
        post(b"Transfer-Encoding: identity, chunked", body=ONE_CHUNK),
        400,
        "ambiguous-framing",
    ),
    "te chunked twice in one": (post(b"Transfer-Encoding: chunked, chunked", body=ONE_CHUNK), 400, "malformed-request"),
    "te chunked not last": (post(b"Transfer-Encoding: chunked, gzip", body=ONE_CHUNK), 400, "malformed-request"),
    "te repeated": (chunked(ONE_CHUNK, b"Transfer-Encoding: chunked"), 400, "malformed-request"),
    "te repeated, other first": (
        post(b"Transfer-Encoding: identity", b"Transfer-Encoding: chunked", body=ONE_CHUNK),
        400,
        "malformed-request",
    ),
    "te identity": (post(b"Transfer-Encoding: identity", body=b"abc"), 400, "malformed-request"),
    "te unknown": (post(b"Transfer-Encoding: xchunked", body=ONE_CHUNK), 400, "malformed-request"),
    "te with parameter": (post(b"Transfer-Encoding: chunked;q=1", body=ONE_CHUNK), 400, "malformed-request"),
    "te quoted": (post(b'Transfer-Encoding: "chunked"', body=ONE_CHUNK), 400, "malformed-request"),
    "te with tab": (post(b"Transfer-Encoding: \x0bchunked", body=ONE_CHUNK), 400, "malformed-request"),
    "te empty": (post(b"Transfer-Encoding: ", body=ONE_CHUNK), 400, "malformed-request"),
    "te with leading comma": (post(b"Transfer-Encoding: , chunked", body=ONE_CHUNK), 400, "ambiguous-framing"),
    "te on 1.0": (post(b"Transfer-Encoding: chunked", body=ONE_CHUNK, version=b"HTTP/1.0"), 400, "ambiguous-framing"),
    "te folded": (post(b"Transfer-Encoding:\r\n chunked", body=ONE_CHUNK), 400, "malformed-request"),
    "te then cl": (chunked(ONE_CHUNK, b"Content-Length: 3"), 400, "malformed-request"),
    "cl then te": (
        post(b"Content-Length: 3", b"Transfer-Encoding: chunked", body=ONE_CHUNK + SMUGGLED),
        400,
        "malformed-request",
    ),
    "cl twice, equal": (post(b"Content-Length: 3", b"Content-Length: 3", body=b"abc"), 400, "malformed-request"),
    "cl twice, different": (post(b"Content-Length: 3", b"Content-Length: 4", body=b"abcd"), 400, "malformed-request"),
    "cl list": (post(b"Content-Length: 3, 3", body=b"abc"), 400, "malformed-request"),
    "cl plus": (post(b"Content-Length: +3", body=b"abc"), 400, "malformed-request"),
    "cl negative": (post(b"Content-Length: -3", body=b"abc"), 400, "malformed-request"),
    "cl hex": (post(b"Content-Length: 0x3", body=b"abc"), 400, "malformed-request"),
    "cl underscore": (post(b"Content-Length: 1_0", body=b"abcdefghij"), 400, "malformed-request"),
    "cl with inner space": (post(b"Content-Length: 1 0", body=b"abcdefghij"), 400, "malformed-request"),
    "cl empty": (post(b"Content-Length:", body=b"abc"), 400, "malformed-request"),
    "cl too big": (post(b"Content-Length: 99999999999999999999999", body=b"abc"), 400, "malformed-request"),
    "cl nineteen digits": (post(b"Content-Length: 9999999999999999999", body=b"abc"), 400, "ambiguous-framing"),
    "cl not ascii": (post("Content-Length: ٣".encode(), body=b"abc"), 400, "malformed-request"),
    "cl with space before colon": (post(b"Content-Length : 3", body=b"abc"), 400, "malformed-request"),
    # chunks
    "chunk size hex prefix": (chunked(b"0x3\r\nabc\r\n0\r\n\r\n"), 400, "malformed-request"),
    "chunk size signed": (chunked(b"+3\r\nabc\r\n0\r\n\r\n"), 400, "malformed-request"),
    "chunk size negative": (chunked(b"-3\r\nabc\r\n0\r\n\r\n"), 400, "malformed-request"),
    "chunk size with space": (chunked(b"3 \r\nabc\r\n0\r\n\r\n"), 400, "malformed-request"),
    "chunk size empty": (chunked(b"\r\nabc\r\n0\r\n\r\n"), 400, "malformed-request"),
    "chunk size overflow": (chunked(b"fffffffffffffffff\r\nabc\r\n0\r\n\r\n"), 400, "malformed-request"),
    "chunk size too small": (chunked(b"2\r\nabc\r\n0\r\n\r\n"), 400, "malformed-request"),
    "chunk size too large": (chunked(b"4\r\nabc\r\n0\r\n\r\n"), 400, "malformed-request"),
    "chunk with bare lf": (chunked(b"3\nabc\n0\n\n"), 400, "malformed-request"),
    "chunk extension with lf": (chunked(b"3;a=\nb\r\nabc\r\n0\r\n\r\n"), 400, "malformed-request"),
    "chunk extension with nul": (chunked(b"3;a=\x00\r\nabc\r\n0\r\n\r\n"), 400, "malformed-request"),
    "chunk extension huge": (chunked(b"3;a=" + b"x" * 20_000 + b"\r\nabc\r\n0\r\n\r\n"), 400, "chunk-overhead"),
    "chunk extensions many": (
        chunked(b"1;%b\r\na\r\n" % (b"x" * 200) * 200 + b"0\r\n\r\n"),
        400,
        "chunk-overhead",
    ),
    "trailer with space before colon": (chunked(b"0\r\nX : y\r\n\r\n"), 400, "malformed-request"),
    # host
    "host missing": (get(host=b""), 400, "malformed-request"),
    "host empty": (get(host=b"Host:"), 400, "bad-host"),
    "host repeated": (get(b"/", b"Host: a"), 400, "malformed-request"),
    "host repeated, different": (get(b"/", b"Host: b"), 400, "malformed-request"),
    "host list": (get(host=b"Host: a, b"), 400, "bad-host"),
    "host with userinfo": (get(host=b"Host: user@a"), 400, "bad-host"),
    "host with password": (get(host=b"Host: user:pass@a"), 400, "bad-host"),
    "host with path": (get(host=b"Host: a/b"), 400, "bad-host"),
    "host with query": (get(host=b"Host: a?b"), 400, "bad-host"),
    "host with fragment": (get(host=b"Host: a#b"), 400, "bad-host"),
    "host with backslash": (get(host=b"Host: a\\b"), 400, "bad-host"),
    "host with space": (get(host=b"Host: a b"), 400, "bad-host"),
    "host with percent": (get(host=b"Host: a%2eb"), 400, "bad-host"),
    "host with quote": (get(host=b'Host: "a"'), 400, "bad-host"),
    "host not ascii": (get(host=b"Host: \xef\xbd\x81"), 400, "bad-host"),
    "host with letters for a port": (get(host=b"Host: a:b"), 400, "bad-host"),
    "host with two ports": (get(host=b"Host: a:1:2"), 400, "bad-host"),
    "host with long port": (get(host=b"Host: a:123456"), 400, "bad-host"),
    "host with open bracket": (get(host=b"Host: [::1"), 400, "bad-host"),
    "host with tag": (get(host=b"Host: <script>"), 400, "bad-host"),
    "host repeated on 1.0": (get(b"/", b"Host: b", version=b"HTTP/1.0"), 400, "malformed-request"),
    # targets
    "absolute for another host": (get(b"http://b/x"), 400, "bad-target"),
    "absolute for another port": (get(b"http://a:81/x"), 400, "bad-target"),
    "absolute with userinfo": (get(b"http://user@a/x"), 400, "bad-target"),
    "absolute without host header": (get(b"http://a/x", version=b"HTTP/1.0", host=b""), 400, "bad-target"),
    "absolute with other scheme": (get(b"ftp://a/x"), 400, "bad-target"),
    "absolute without authority": (get(b"http:///x"), 400, "malformed-request"),
    "absolute with open bracket": (get(b"http://[::1/x"), 400, "malformed-request"),
    "no slash": (get(b"x"), 400, "malformed-request"),
    "scheme without slashes": (get(b"http:x"), 400, "malformed-request"),
    "authority form": (get(b"a:80"), 400, "malformed-request"),
    "connect": (b"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n", 400, "bad-target"),
    "connect with path": (b"CONNECT /x HTTP/1.1\r\nHost: a\r\n\r\n", 400, "bad-target"),
    "asterisk": (b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 400, "bad-target"),
    "asterisk for get": (get(b"*"), 400, "malformed-request"),
    "fragment": (get(b"/x#y"), 400, "bad-target"),
    "fragment in query": (get(b"/x?y#z"), 400, "bad-target"),
    "backslash": (get(b"/a\\..\\b"), 400, "bad-target"),
    "backslash first": (get(b"/\\evil"), 400, "bad-target"),
    "tab in target": (get(b"/a\tb"), 400, "malformed-request"),
    "space in target": (get(b"/a b"), 400, "malformed-request"),
    "nul in target": (get(b"/a\x00b"), 400, "malformed-request"),
    "control in target": (get(b"/a\x1bb"), 400, "malformed-request"),
    "delete in target": (get(b"/a\x7fb"), 400, "malformed-request"),
    "raw utf-8 in target": (get("/é".encode()), 400, "malformed-request"),
    "raw latin-1 in target": (get(b"/\xe9"), 400, "malformed-request"),
    # request line
    "no version": (b"GET /\r\n\r\n", 505, "http-version-not-supported"),
    "version 0.9": (get(version=b"HTTP/0.9"), 505, "http-version-not-supported"),
    "version 2.0": (get(version=b"HTTP/2.0"), 505, "http-version-not-supported"),
    "version 1.2": (get(version=b"HTTP/1.2"), 400, "malformed-request"),
    "version 1.10": (get(version=b"HTTP/1.10"), 400, "malformed-request"),
    "version lower case": (get(version=b"http/1.1"), 400, "malformed-request"),
    "version with space": (get(version=b"HTTP /1.1"), 400, "malformed-request"),
    "version then junk": (get(version=b"HTTP/1.1 x"), 400, "malformed-request"),
    "http 2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "malformed-request"),
    "rtsp": (b"DESCRIBE / RTSP/1.0\r\nHost: a\r\n\r\n", 501, "method-not-supported"),
    "unknown method": (b"BREW / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "malformed-request"),
    "lower-case method": (b"get / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "malformed-request"),
    "method with control": (b"GE\x01T / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "malformed-request"),
    "space before method": (b" " + get(), 400, "malformed-request"),
    "tls on a plain port": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40), 400, "malformed-request"),
    "bare lf": (b"GET / HTTP/1.1\nHost: a\n\n", 400, "malformed-request"),
    "bare cr": (b"GET / HTTP/1.1\rHost: a\r\r", 400, "malformed-request"),
    # header fields
    "obs-fold": (get(b"/", b"X: a\r\n b"), 400, "malformed-request"),
    "obs-fold with tab": (get(b"/", b"X: a\r\n\tb"), 400, "malformed-request"),
    "space before first header": (b"GET / HTTP/1.1\r\n X: y\r\nHost: a\r\n\r\n", 400, "malformed-request"),
    "space before colon": (get(b"/", b"X : y"), 400, "malformed-request"),
    "tab before colon": (get(b"/", b"X\t: y"), 400, "malformed-request"),
    "no colon": (get(b"/", b"X"), 400, "malformed-request"),
    "empty name": (get(b"/", b": y"), 400, "malformed-request"),
    "nul in name": (get(b"/", b"X\x00: y"), 400, "malformed-request"),
    "nul in value": (get(b"/", b"X: \x00"), 400, "malformed-request"),
    "control in value": (get(b"/", b"X: \x01"), 400, "malformed-request"),
    "delete in value": (get(b"/", b"X: \x7f"), 400, "malformed-request"),
    "bare cr in value": (get(b"/", b"X: a\rb"), 400, "malformed-request"),
    "bare lf in value": (get(b"/", b"X: a\nY: b"), 400, "malformed-request"),
    "utf-8 name": (get(b"/", "É: x".encode()), 400, "malformed-request"),
    "slash in name": (get(b"/", b"X/Y: x"), 400, "malformed-request"),
    "content type twice": (get(b"/", b"Content-Type: a/b", b"Content-Type: c/d"), 400, "malformed-request"),
    # our own headers
    "client id twice": (get(b"/", ID + b"a", ID + b"a"), 400, "repeated-header"),
    "client id twice, other case": (get(b"/", ID + b"a", ID.lower() + b"b"), 400, "repeated-header"),
    "server id twice": (get(b"/", *[b"DTT-2PHP-Server-Correlation-ID: x"] * 2), 400, "repeated-header"),
    "alias with underscores": (get(b"/", b"DTT_2PHP_Client_Correlation_ID: x"), 400, "header-alias"),
    "alias with one underscore": (get(b"/", b"DTT-2PHP_Enabled: true"), 400, "header-alias"),
    "alias in lower case": (get(b"/", b"dtt_2php-enabled: true"), 400, "header-alias"),
    "alias with dot": (get(b"/", b"DTT.2PHP.Enabled: true"), 400, "header-alias"),
    "alias of idempotency key": (get(b"/", b"Idempotency_Key: x"), 400, "header-alias"),
    "alias of forwarded for": (get(b"/", b"X_Forwarded_For: 1.2.3.4"), 400, "header-alias"),
    "alias of content length": (post(b"Content_Length: 3", body=b""), 400, "header-alias"),
    "alias of transfer encoding": (post(b"Transfer_Encoding: chunked", body=b""), 400, "header-alias"),
    "old websocket": (get(b"/", b"Sec-WebSocket-Key1: x"), 400, "malformed-request"),
}


@pytest.mark.parametrize("row", REFUSED)
async def test_a_malformed_or_ambiguous_request_is_refused_and_no_handler_sees_it(gateway: Gateway, row: str) -> None:
    """RELIABILITY fact 3, OPS-3."""
    request, status, problem = REFUSED[row]
    peer = await gateway.connect()
    answer = await peer.exchange(request)
    assert (answer.status, answer.problem) == (status, problem)
    assert answer.header("Connection") == "close" or problem == "repeated-header"
    if problem != "repeated-header":
        peer.writer.write_eof()
        assert await peer.ended() == b""
    assert gateway.seen == []


@pytest.mark.parametrize("row", ["space before colon", "control in value", "unknown method", "no slash", "fragment"])
async def test_a_refusal_repeats_nothing_of_the_request(gateway: Gateway, row: str) -> None:
    """OPS-3: neither the parser's words nor the caller's."""
    request = REFUSED[row][0].replace(b"\r\n\r\n", b"\r\nSecret: " + CANARY + b"\r\n\r\n")
    request = request.replace(b"GET /", b"GET /" + CANARY)
    answer = await gateway.exchange(request)
    assert CANARY not in answer.body
    assert b"parser" not in answer.body
    assert b"Traceback" not in answer.body


async def test_a_request_behind_a_refused_one_is_never_handled(gateway: Gateway) -> None:
    peer = await gateway.connect()
    await peer.send(get(b"/x#y") + SMUGGLED)
    assert (await peer.answer()).problem == "bad-target"
    assert await peer.ended() == b""
    assert gateway.seen == []


async def test_garbage_behind_a_good_request_is_refused_after_its_answer(gateway: Gateway) -> None:
    peer = await gateway.connect()
    assert (await peer.exchange(get(b"/good"))).body == b"/good"
    assert (await peer.exchange(b"garbage\r\n\r\n")).problem == "malformed-request"
    assert [seen.target for seen in gateway.seen] == [b"/good"]


@pytest.mark.parametrize("split", [False, True], ids=["at once", "in pieces"])
@pytest.mark.parametrize(
    ("head", "status", "problem"),
    [
        (get(b"/" + b"x" * 5000), 414, "target-too-long"),
        (get(b"/", b"X: " + b"x" * 5000), 431, "header-too-large"),
        (get(b"/", b"X" * 5000 + b": x"), 431, "header-too-large"),
        (get(b"/", *[b"X: " + b"x" * 90] * 50), 431, "header-too-large"),
        (get(b"/", *[b"X: x"] * 101), 431, "too-many-headers"),
        (b"\r\n" * 3000, 431, "header-too-large"),
    ],
    ids=["target", "value", "name", "all headers", "count", "empty lines"],
)
async def test_a_head_over_the_limits_is_refused(
    serve: Serve, head: bytes, status: int, problem: str, split: bool
) -> None:
    gateway = await serve(max_header_bytes=4096, max_headers=100)
    peer = await gateway.connect()
    for start in range(0, len(head), 500 if split else len(head)):
        await peer.send(head[start : start + (500 if split else len(head))])
    answer = await peer.answer()
    assert (answer.status, answer.problem) == (status, problem)
    assert gateway.seen == []


async def test_a_head_just_within_the_limits_is_taken(serve: Serve) -> None:
    gateway = await serve(max_header_bytes=4096, max_headers=100)
    assert (await gateway.exchange(get(b"/" + b"x" * 4000))).status == 200
    assert (await gateway.exchange(get(b"/", *[b"X: x"] * 99))).status == 200


NEUTRALISED: dict[str, tuple[bytes, tuple[tuple[bytes, bytes], ...]]] = {
    "h2c upgrade": (
        get(b"/", b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk"),
        ((b"Host", b"a"),),
    ),
    "upgrade without connection": (get(b"/", b"Upgrade: h2c"), ((b"Host", b"a"),)),
    "upgrade to tls": (get(b"/", b"Connection: upgrade", b"Upgrade: TLS/1.2"), ((b"Host", b"a"),)),
    "websocket among others": (get(b"/", b"Connection: upgrade", b"Upgrade: h2c, websocket"), ((b"Host", b"a"),)),
    "websocket by post": (
        post(b"Connection: Upgrade", b"Upgrade: websocket", b"Content-Length: 0"),
        ((b"Host", b"a"), (b"Content-Length", b"0")),
    ),
    "websocket on 1.0": (
        get(b"/", b"Connection: Upgrade", b"Upgrade: websocket", version=b"HTTP/1.0"),
        ((b"Host", b"a"),),
    ),
    "connection takes authorization": (
        get(b"/", b"Connection: Authorization", b"Authorization: x"),
        ((b"Host", b"a"), (b"Authorization", b"x")),
    ),
    "connection takes our headers and one of its own": (
        get(b"/", b"Connection: close, DTT-2PHP-Enabled, X-Hop, cookie,", b"X-Hop: 1", b"Cookie: c"),
        ((b"Host", b"a"), (b"X-Hop", b"1"), (b"Cookie", b"c"), (b"Connection", b"close, X-Hop")),
    ),
    "connection takes forwarding headers": (
        get(b"/", b"Connection: keep-alive", b"Connection: X-Forwarded-For, Host"),
        ((b"Host", b"a"), (b"Connection", b"keep-alive")),
    ),
}


@pytest.mark.parametrize("row", NEUTRALISED)
async def test_what_tries_to_steer_the_next_hop_is_neutralised(gateway: Gateway, row: str) -> None:
    """RELIABILITY fact 3: the request is served, and forwarding never sees the attempt."""
    request, headers = NEUTRALISED[row]
    assert (await gateway.exchange(request)).status == 200
    (seen,) = gateway.seen
    assert seen.headers == headers
    assert not seen.inbound.websocket


@pytest.mark.parametrize("row", ["h2c upgrade", "websocket by post"])
async def test_the_connection_ends_after_an_upgrade_that_was_not_made(serve: Serve, row: str) -> None:
    """What the client sends next might be in the other protocol."""
    handled: list[bytes] = []
    release = asyncio.Event()

    async def handle(inbound: Inbound) -> Answer:
        handled.append(inbound.target)
        await release.wait()
        return Answer(200)

    gateway = await serve(handle)
    request, _ = NEUTRALISED[row]
    for pieces in ([request + SMUGGLED], [request, SMUGGLED]):
        release.clear()
        peer = await gateway.connect()
        for piece in pieces:
            await peer.send(piece)
        release.set()
        assert (await peer.answer()).header("Connection") == "close"
        assert await peer.ended() == b""
    assert handled == [b"/", b"/"]


async def test_a_trailer_never_becomes_a_header_of_the_next_request(gateway: Gateway) -> None:
    """The parser keeps the last trailer for the next head (see wire.py): there must be no next head."""
    trailers = b"3\r\nabc\r\n0\r\nX-A: 1\r\nDTT-2PHP-Enabled: true\r\n\r\n"
    for pieces in (
        [chunked(trailers) + SMUGGLED],
        [chunked(trailers), SMUGGLED],
        [chunked(trailers[:20]), trailers[20:], SMUGGLED],
        [chunked(trailers[:20]), trailers[20:] + SMUGGLED],
        [chunked(b"0\r\nX: 0\r\n\r\n"), SMUGGLED],
    ):
        peer = await gateway.connect()
        for piece in pieces:
            await peer.send(piece)
        answer = await peer.answer()
        assert (answer.status, answer.header("Connection")) == (200, "close")
        assert await peer.ended() == b""
    assert all(seen.method == "POST" for seen in gateway.seen)
    assert len(gateway.seen) == 5


async def test_chunked_requests_without_trailers_keep_the_connection(gateway: Gateway) -> None:
    peer = await gateway.connect()
    for pieces in ([ONE_CHUNK], [EMPTY_CHUNKED], [ONE_CHUNK[:4], ONE_CHUNK[4:]], [ONE_CHUNK[:-3], ONE_CHUNK[-3:]]):
        await peer.send(chunked(pieces[0]))
        for piece in pieces[1:]:
            await peer.send(piece)
        assert (await peer.answer()).header("Connection") is None
    assert [seen.body for seen in gateway.seen] == [b"abc", b"", b"abc", b"abc"]
