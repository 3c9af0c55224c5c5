"""Pass-through is byte for byte (OPT-2, OPT-3): a corpus of exchanges, made directly and through a gateway."""

from __future__ import annotations

import gzip

import pytest

from tests.e2e.fidelity import HOST, Row, ask, assert_passed_on, chunked, get, length, sent, told
from tests.e2e.wire import Place, module_place

pytestmark = pytest.mark.asyncio(loop_scope="module")
place = module_place(routes=[{"path": "/orders/**"}, {"path": "/off/**", "mode": "off"}])

ALL_BYTES = bytes(range(256))
ZIPPED = gzip.compress(b"twice as long when unpacked " * 40, mtime=0)
BIG = bytes(range(256)) * 2048  # half a MiB: larger than every buffer on the way
OURS = (
    b"DTT-2PHP-Client-Correlation-ID: c-1",
    b"DTT-2PHP-Server-Correlation-ID: 0a8b2f6e-7b1f-4c1e-9d55-1f7c0d1b2a33",
    b"dtt-2php-requested-ttl: soon",
    b"DTT-2PHP-Auto-Confirm: true",
)
CONFIRM = (b"Authorization: Bearer me", b"DTT-2PHP-Enabled: true", *OURS[:2])

TARGETS: dict[str, bytes] = {
    "root": b"/",
    "trailing question mark": b"/x?",
    "only a question mark": b"/?",
    "two question marks": b"/x??",
    "empty parameters": b"/x?a=1&a=2&&=&b",
    "encoded slash": b"/a%2Fb%2fc",
    "double encoding": b"/a%252Fb",
    "double slashes": b"//a//b//",
    "dot segments": b"/a/./b/../c/..",
    "encoded dots": b"/a/%2e%2E/b",
    "encoded controls": b"/%00%0d%0a%7f",
    "broken percent": b"/%zz/%/%4",
    "not utf-8, encoded": b"/%ff%fe",
    "parameters": b"/a;v=1/b;c,d=2",
    "sub-delimiters": b"/!$&'()*+,;=:@-._~",
    "unwise characters": b'/{a}|"<>^`',
    "url in query": b"/x?to=http://b//c?d=/../e",
    "backslash in query": b"/x?a\\b",
    "plus and space": b"/a+b%20c?d+e=%20",
    "below our route's name": b"/orders-of-another",
    "long": b"/" + b"a" * 6000 + b"?" + b"b" * 6000,
}

REQUESTS: dict[str, bytes] = {
    "get without headers": get(),
    "names differ in case": get(b"/x", b"x-a: 1", b"X-A: 2", b"X-a: 3", b"ACCEPT: */*"),
    "repeated and interleaved": get(b"/x", b"X-A: 1", b"X-B: 2", b"X-A: 1", b"X-B: 1", b"X-A: 0"),
    "not utf-8": get(b"/x", b"X-Latin: caf\xe9", b"X-Bytes: \x80\xff\xfe", "X-Utf: ☃".encode()),
    "empty values": get(b"/x", b"X-Empty:", b"X-Spaces:    ", b"X-After: 1"),
    "tabs and spaces within": get(b"/x", b"X-Tab: a\tb  c", b'X-Quoted: "a\\"b, c"'),
    "white space around": get(b"/x", b"X-Around: \t a \t", b"X-None:a"),
    "odd names": get(b"/x", b"X!#$%&'*+-.^_`|~9: 1", b"1: 2", b"_: 3", b"X_Under: 4"),
    "long value": get(b"/x", b"X-Long: " + b"v" * 12000),
    "two hundred headers": get(b"/x", *(b"X-%d: %d" % (n % 7, n) for n in range(200))),
    "host in other case": b"GET /x HTTP/1.1\r\nX-First: 1\r\nhOsT: Service.TEST\r\n\r\n",
    "cookies": get(b"/x", b"Cookie: a=1", b"Cookie: b=2; c=3"),
    "credentials": get(b"/x", b"Authorization: Basic YTpi", b"Proxy-Whatever: 1"),
    "encodings asked for": get(b"/x", b"Accept-Encoding: gzip, br;q=0.5", b"Accept: text/*;q=0.3, */*"),
    "conditions": get(b"/x", b'If-None-Match: "a", W/"b"', b"If-Modified-Since: yesterday"),
    "hop by hop": get(b"/x", b"Connection: keep-alive, X-Hop", b"X-Hop: 1", b"Keep-Alive: 5", b"TE: trailers"),
    "proxy connection": get(b"/x", b"Proxy-Connection: keep-alive"),
    "an earlier via": get(b"/x", b"Via: 1.0 fred"),
    "forged forwarding": get(b"/x", b"X-Forwarded-For: 10.0.0.1", b"Forwarded: for=10.0.0.1", b"X-Forwarded-Port: 1"),
    "other expectation": get(b"/x", b"Expect: nothing-much"),
    "get with body": sent(b"GET", b"unusual"),
    "delete": ask(b"DELETE", b"/x"),
    "delete with body": sent(b"DELETE", b"why"),
    "options": ask(b"OPTIONS", b"/x", b"Origin: http://a", b"Access-Control-Request-Method: PUT"),
    "propfind": sent(b"PROPFIND", b"<x/>", b"Depth: 1"),
    "post empty": sent(b"POST", b""),
    "post without framing": ask(b"POST", b"/x"),
    "post json": sent(b"POST", b'{"a": 1}', b"Content-Type: application/json"),
    "put all bytes": sent(b"PUT", ALL_BYTES, b"Content-Type: x/y; z"),
    "patch packed": sent(b"PATCH", ZIPPED, b"Content-Encoding: gzip"),
    "post big": sent(b"POST", BIG),
    "length with zeros": ask(b"POST", b"/x", b"content-length: 0003", body=b"abc"),
    "chunked": chunked(b"one", b"two", ALL_BYTES),
    "chunked empty": chunked(),
    "chunked big": chunked(BIG, b"x", BIG),
    "chunked in capitals": ask(b"PUT", b"/x", b"TRANSFER-ENCODING: Chunked", body=b"3\r\nabc\r\n0\r\n\r\n"),
    "chunked packed": chunked(ZIPPED, headers=(b"Content-Encoding: gzip", b"Content-MD5: x")),
    "chunked with extensions": ask(
        b"POST", b"/x", b"Transfer-Encoding: chunked", body=b'3;a=b\r\nabc\r\n0;c="d"\r\n\r\n'
    ),
    "chunked with trailers": chunked(b"abc", end=b"0\r\nX-Sum: 1\r\n\r\n", headers=(b"Trailer: X-Sum",)),
    "enabled is false": ask(b"POST", b"/orders", b"DTT-2PHP-Enabled: false", *OURS),
    "enabled is 1": ask(b"POST", b"/orders", b"DTT-2PHP-Enabled: 1", *OURS),
    "enabled is empty": ask(b"POST", b"/orders", b"DTT-2PHP-Enabled:", *OURS),
    "not enabled": sent(b"POST", b"plain", *OURS).replace(b" /x ", b" /orders "),
    "enabled on get": ask(b"GET", b"/orders", b"DTT-2PHP-Enabled: true", *OURS),
    "enabled on options": ask(b"OPTIONS", b"/orders", b"DTT-2PHP-Enabled: true", *OURS),
    "enabled where nothing is routed": sent(b"POST", b"plain", b"DTT-2PHP-Enabled: true", *OURS),
    "enabled without ids where nothing is routed": sent(b"POST", b"plain", b"DTT-2PHP-Enabled: true"),
    "a confirmation where nothing is routed": sent(b"POST", BIG, *CONFIRM).replace(b" /x ", b" /x/confirm "),
    "nobody's confirmation where nothing is routed": sent(b"PATCH", b"plain", *CONFIRM[1:]),
    "enabled where it is off": sent(b"POST", b"plain", b"DTT-2PHP-Enabled: true", *OURS).replace(b" /x ", b" /off/x "),
    "a confirmation where it is off": sent(b"POST", b"plain", *CONFIRM).replace(b" /x ", b" /off/x/confirm "),
    "http/1.0": ask(b"GET", b"/x", version=b"HTTP/1.0"),
    "http/1.0 without host": b"GET /x HTTP/1.0\r\nX-A: 1\r\n\r\n",
    "http/1.0 kept alive": ask(
        b"POST", b"/x", b"Connection: keep-alive", length(b"ab"), body=b"ab", version=b"HTTP/1.0"
    ),
    "absolute form": ask(b"GET", b"http://" + HOST + b"/x?y"),
}

CHUNKED = b"Transfer-Encoding: chunked"
COOKIES = (b"Set-Cookie: a=1; Path=/", b"X-Between: 1", b"set-cookie: b=2", b"Set-Cookie: a=1; Path=/")
ANSWERS: dict[str, Row] = {
    "201 with location": Row(
        sent(b"POST", b"x"), told(b"Location: /x/1", length(b"made"), body=b"made", status=b"201 Created")
    ),
    "202 empty": Row(sent(b"PUT", b"x"), told(b"Content-Length: 0", status=b"202 Accepted")),
    "204": Row(ask(b"DELETE", b"/x"), told(b"X-A: 1", status=b"204 No Content")),
    "204 with a length": Row(ask(b"DELETE", b"/x"), told(b"Content-Length: 0", status=b"204 No Content")),
    "206": Row(
        get(b"/x", b"Range: bytes=2-4, 7-"),
        told(b"Content-Range: bytes 2-4/9", length(b"cde"), body=b"cde", status=b"206 Partial Content"),
    ),
    "301": Row(get(), told(b"Location: //elsewhere/%2F?", b"Content-Length: 0", status=b"301 Moved Permanently")),
    "304": Row(get(b"/x", b'If-None-Match: "a"'), told(b'ETag: "a"', status=b"304 Not Modified")),
    "304 with a length": Row(get(), told(b"Content-Length: 512", b'ETag: "a"', status=b"304 Not Modified")),
    "401": Row(get(), told(b'WWW-Authenticate: Basic realm="x"', b"Content-Length: 0", status=b"401 Unauthorized")),
    "404": Row(get(), told(length(b"no"), body=b"no", status=b"404 Not Found")),
    "500": Row(get(), told(length(b"oh"), body=b"oh", status=b"500 Internal Server Error")),
    "502 of its own": Row(get(), told(length(b"mine"), body=b"mine", status=b"502 Bad Gateway")),
    "an unknown status": Row(get(), told(b"Content-Length: 0", status=b"299 Odd")),
    "a status of another family": Row(get(), told(b"Content-Length: 0", status=b"799 ?")),
    "empty reason": Row(get(), told(b"Content-Length: 0", status=b"200 ")),
    "no reason": Row(get(), told(b"Content-Length: 0", status=b"200")),
    "odd reason": Row(get(), told(b"Content-Length: 0", status=b"200 It's  \t fine: really (100%)")),
    "reason not ascii": Row(get(), told(b"Content-Length: 0", status=b"200 caf\xe9")),
    "cookies": Row(get(), told(*COOKIES, b"Content-Length: 0")),
    "odd headers": Row(get(), told(b"x-a: 1", b"X-A: 2", b"Empty:", b"!|~_.: 1", b"L: \xe9\xff", b"Content-Length: 0")),
    "length first and last": Row(get(), told(b"content-LENGTH: 2", b"X-A: 1", body=b"ok")),
    "a date of its own": Row(get(), told(b"date: long ago", b"Content-Length: 0")),
    "server and via": Row(get(), told(b"Server: x/1", b"Via: 1.1 y", b"Content-Length: 0")),
    "hop by hop": Row(get(), told(b"Connection: X-Hop", b"X-Hop: 1", b"Keep-Alive: timeout=9", b"Content-Length: 0")),
    "our names": Row(get(), told(b"DTT-2PHP-Phase-State: COMMITTED", b"DTT-2PHP-Message: x", b"Content-Length: 0")),
    "many headers": Row(get(), told(*(b"X-%d: %d" % (n % 5, n) for n in range(300)), b"Content-Length: 0")),
    "packed": Row(get(), told(b"Content-Encoding: gzip", length(ZIPPED), b"Vary: *", body=ZIPPED)),
    "all bytes": Row(get(), told(length(ALL_BYTES), body=ALL_BYTES)),
    "big": Row(get(), told(length(BIG), body=BIG)),
    "in two writes": Row(get(), (b"HTTP/1.1 200 OK\r\nContent-Le", b"ngth: 4\r\n\r\nab", b"cd")),
    "chunked": Row(get(), told(CHUNKED, b"X-A: 1", body=b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n")),
    "chunked empty": Row(get(), told(b"transfer-encoding: CHUNKED", body=b"0\r\n\r\n")),
    "chunked packed": Row(
        get(),
        (*told(b"Content-Encoding: gzip", CHUNKED), b"%x\r\n%b\r\n0\r\n\r\n" % (len(ZIPPED), ZIPPED)),
    ),
    "chunked with trailers": Row(
        get(), told(CHUNKED, b"Trailer: X-T", body=b"1\r\na\r\n0\r\nX-T: 1\r\n\r\n")
    ),
    "chunked in pieces": Row(get(), (*told(CHUNKED), b"3\r\nab", b"c\r\n", b"0\r\n", b"\r\n")),
    "close-delimited": Row(get(), told(b"X-A: 1", body=b"until the end"), close=True),
    "close-delimited empty": Row(get(), told(b"X-A: 1"), close=True),
    "close-delimited big": Row(get(), told(b"X-A: 1", body=BIG), close=True),
    "close-delimited http/1.0": Row(get(), told(b"X-A: 1", body=b"old", version=b"HTTP/1.0"), close=True),
    "connection close": Row(get(), told(b"Connection: close", b"Content-Length: 2", body=b"ok"), close=True),
    "early hints": Row(get(), (*told(b"Link: </a>", status=b"103 Early Hints"), *told(length(b"ok"), body=b"ok"))),
    "chunked to http/1.0": Row(
        ask(b"GET", b"/x", version=b"HTTP/1.0"), told(CHUNKED, body=b"3\r\nabc\r\n0\r\n\r\n")
    ),
    "head with length": Row(ask(b"HEAD", b"/x"), told(b"X-A: 1", b"Content-Length: 12345", b"X-B: 2")),
    "head with length zero": Row(ask(b"HEAD", b"/x"), told(b"Content-Length: 0")),
    "head without length": Row(ask(b"HEAD", b"/x"), told(b"Content-Type: a/b")),
    "head of chunked": Row(ask(b"HEAD", b"/x"), told(CHUNKED, b"X-A: 1")),
    "head of 304": Row(ask(b"HEAD", b"/x"), told(b"Content-Length: 7", status=b"304 Not Modified")),
    "head of 404": Row(ask(b"HEAD", b"/x"), told(b"Content-Length: 7", status=b"404 Not Found")),
}  # fmt: skip
CORPUS = {
    **{f"target: {name}": Row(get(target)) for name, target in TARGETS.items()},
    **{f"request: {name}": Row(request) for name, request in REQUESTS.items()},
    **{f"answer: {name}": row for name, row in ANSWERS.items()},
}


@pytest.mark.parametrize("pieces", [None, 11], ids=["at once", "in pieces"])
@pytest.mark.parametrize("name", CORPUS)
async def test_an_exchange_is_passed_on_unchanged(place: Place, name: str, pieces: int | None) -> None:
    """OPT-2, OPT-3."""
    row = CORPUS[name]
    if pieces is not None and len(row.request) > 100_000:
        pieces = 4099
    await assert_passed_on(place, row, piece_bytes=pieces)
    assert not any((await place.stored()).values())
