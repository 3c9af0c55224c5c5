"""Requests that a gateway must not understand in its own way: raw bytes, with the answer they get (RELIABILITY fact 3).

`<T>` stands for a target and `<H>` for header lines: each row is aimed at Phase 1, at Phase 2 and at pass-through.
"""

from __future__ import annotations

from typing import NamedTuple

ENABLED = b"DTT-2PHP-Enabled: true"
CLIENT_ID = b"DTT-2PHP-Client-Correlation-ID: "
SERVER_ID = b"DTT-2PHP-Server-Correlation-ID: "
UUID = b"0a8b2f6e-7b1f-4c1e-9d55-1f7c0d1b2a33"  # of no intent
SMUGGLED = b"POST /smuggled HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
ONE_CHUNK = b"3\r\nabc\r\n0\r\n\r\n"


class Refused(NamedTuple):
    """A request, and the refusal it gets."""

    request: bytes
    status: int = 400
    problem: str = "malformed-request"


def post(*lines: bytes, body: bytes = b"", target: bytes = b"<T>", version: bytes = b"HTTP/1.1") -> bytes:
    return b"\r\n".join([b"POST " + target + b" " + version, b"Host: a", b"<H>", *lines]) + b"\r\n\r\n" + body


def chunked(body: bytes, *lines: bytes) -> bytes:
    return post(b"Transfer-Encoding: chunked", *lines, body=body)


def coded(coding: bytes, body: bytes = ONE_CHUNK) -> bytes:
    return post(b"Transfer-Encoding:" + coding, body=body + SMUGGLED)


def sized(length: bytes, body: bytes = b"abc") -> bytes:
    return post(b"Content-Length:" + length, body=body + SMUGGLED)


def hosted(host: bytes) -> bytes:
    return post(b"Content-Length: 0").replace(b"Host: a", host)


def aimed(request: bytes, target: bytes, headers: tuple[bytes, ...]) -> bytes:
    """The request with a target and header lines in its places."""
    return request.replace(b"<T>", target).replace(b"<H>\r\n", b"".join(line + b"\r\n" for line in headers))


SMUGGLING: dict[str, Refused] = {
    "CL.TE": Refused(post(b"Content-Length: 6", b"Transfer-Encoding: chunked", body=b"0\r\n\r\nG")),
    "TE.CL": Refused(chunked(b"5c\r\n" + SMUGGLED + b"\r\n0\r\n\r\n", b"Content-Length: 4")),
    "CL.0 and TE": Refused(post(b"Content-Length: 0", b"Transfer-Encoding: chunked", body=ONE_CHUNK + SMUGGLED)),
    "CL.CL": Refused(post(b"Content-Length: 3", b"Content-Length: 60", body=b"abc" + SMUGGLED)),
    "CL.CL alike": Refused(post(b"Content-Length: 3", b"content-length: 3", body=b"abc")),
    "CL list": Refused(sized(b" 3, 3")),
    "CL list of two": Refused(sized(b" 3,60")),
    "CL and a word": Refused(sized(b" 3abc")),
    "CL and a parameter": Refused(sized(b" 3;q=1")),
    "CL exponent": Refused(sized(b" 3e0")),
    "CL fraction": Refused(sized(b" 3.0")),
    "CL octal": Refused(sized(b" 0o3")),
    "CL quoted": Refused(sized(b' "3"')),
    "CL vertical tab": Refused(sized(b" 3\x0b")),
    "CL nul": Refused(sized(b" 3\x00")),
    "CL not ascii": Refused(sized(" ３".encode())),
    "CL overflow": Refused(sized(b" 18446744073709551619")),
    "CL of twenty zeros": Refused(sized(b" 00000000000000000003"), 400, "ambiguous-framing"),
    "CL minus zero": Refused(sized(b" -0", b"")),
    "CL tab before colon": Refused(post(b"Content-Length\t: 3", body=b"abc")),
    "CL on a folded line": Refused(post(b"Content-Length:\r\n 3", body=b"abc")),
    "CL behind a bare lf": Refused(post(b"X: a\nContent-Length: 3", body=b"abc")),
    "CL behind a bare cr": Refused(post(b"X: a\rContent-Length: 3", body=b"abc")),
    "TE space before colon": Refused(post(b"Transfer-Encoding : chunked", body=ONE_CHUNK)),
    "TE vertical tab": Refused(coded(b"\x0bchunked")),
    "TE form feed": Refused(coded(b" \x0cchunked")),
    "TE nul": Refused(coded(b" chunked\x00")),
    "TE other": Refused(coded(b" cow")),
    "TE other first": Refused(coded(b" cow, chunked"), 400, "ambiguous-framing"),
    "TE other last": Refused(coded(b" chunked, cow")),
    "TE gzip": Refused(coded(b" gzip, chunked"), 400, "ambiguous-framing"),
    "TE trailing comma": Refused(coded(b" chunked,")),
    "TE in two lines": Refused(post(b"Transfer-Encoding: chunked", b"Transfer-encoding: cow", body=ONE_CHUNK)),
    "TE in two lines, the other first": Refused(
        post(b"Transfer-Encoding: cow", b"TE: x", b"Transfer-Encoding: chunked", body=ONE_CHUNK)
    ),
    "TE with a parameter": Refused(coded(b" chunked; q=0.5")),
    "TE in quotes": Refused(coded(b" 'chunked'")),
    "TE identity": Refused(post(b"Transfer-Encoding: identity", b"Content-Length: 3", body=b"abc" + SMUGGLED)),
    "TE folded": Refused(coded(b"\r\n\tchunked")),
    "TE behind a bare lf": Refused(post(b"X: a\nTransfer-Encoding: chunked", body=ONE_CHUNK)),
    "TE on 1.0": Refused(chunked(ONE_CHUNK).replace(b"HTTP/1.1", b"HTTP/1.0"), 400, "ambiguous-framing"),
    "underscore CL": Refused(post(b"Content_Length: 60", body=b""), 400, "header-alias"),
    "underscore TE": Refused(post(b"Transfer_Encoding: chunked", body=b""), 400, "header-alias"),
}  # fmt: skip

CHUNKS: dict[str, Refused] = {
    "no size": Refused(chunked(b"\r\nabc\r\n0\r\n\r\n")),
    "hex prefix": Refused(chunked(b"0x3\r\nabc\r\n0\r\n\r\n")),
    "not hex": Refused(chunked(b"3g\r\nabc\r\n0\r\n\r\n")),
    "signed": Refused(chunked(b"+3\r\nabc\r\n0\r\n\r\n")),
    "space before": Refused(chunked(b" 3\r\nabc\r\n0\r\n\r\n")),
    "space after": Refused(chunked(b"3 \r\nabc\r\n0\r\n\r\n")),
    "tab before an extension": Refused(chunked(b"3\t;a\r\nabc\r\n0\r\n\r\n")),
    "wraps around": Refused(chunked(b"10000000000000003\r\nabc\r\n0\r\n\r\n")),
    "data too long": Refused(chunked(b"2\r\nabc\r\n0\r\n\r\n")),
    "data too short": Refused(chunked(b"4\r\nabc\r\n0\r\n\r\n")),
    "lf after size": Refused(chunked(b"3\nabc\r\n0\r\n\r\n")),
    "lf after data": Refused(chunked(b"3\r\nabc\n0\r\n\r\n")),
    "cr after size": Refused(chunked(b"3\rabc\r\n0\r\n\r\n")),
    "lf in an extension": Refused(chunked(b"3;a\nb\r\nabc\r\n0\r\n\r\n")),
    "cr in an extension": Refused(chunked(b"3;a\rb\r\nabc\r\n0\r\n\r\n")),
    "nul in an extension": Refused(chunked(b"3;a=\x00\r\nabc\r\n0\r\n\r\n")),
    "a flood in one extension": Refused(chunked(b"3;" + b"a" * 40_000 + b"\r\nabc"), 400, "chunk-overhead"),
    "a flood of extensions": Refused(chunked(b"1;%b\r\nx\r\n" % (b"a" * 300) * 200), 400, "chunk-overhead"),
    "a flood of zeros": Refused(chunked(b"0" * 40_000 + b"3\r\nabc"), 400, "chunk-overhead"),
    "a trailer without a colon": Refused(chunked(b"0\r\nX\r\n\r\n")),
    "a trailer with a space": Refused(chunked(b"0\r\nContent-Length : 3\r\n\r\n")),
    "a folded trailer": Refused(chunked(b"0\r\nX: a\r\n b\r\n\r\n")),
}  # fmt: skip

LINES: dict[str, Refused] = {
    "lf only": Refused(post().replace(b"\r\n", b"\n")),
    "cr only": Refused(post().replace(b"\r\n", b"\r")),
    "first line ends in lf": Refused(post().replace(b" HTTP/1.1\r\n", b" HTTP/1.1\n")),
    "last line ends in lf": Refused(post()[:-2] + b"\n"),
    "space before the method": Refused(b" " + post()),
    "lower-case method": Refused(post().replace(b"POST", b"post")),
    "unknown method": Refused(post().replace(b"POST", b"POSTE")),
    "method with a quote": Refused(post().replace(b"POST", b'PO"ST')),
    "connect": Refused(post().replace(b"POST", b"CONNECT"), 400, "bad-target"),
    "http/2 preface": Refused(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "http/2": Refused(post(version=b"HTTP/2.0"), 505, "http-version-not-supported"),
    "http/0.9": Refused(post(version=b"HTTP/0.9"), 505, "http-version-not-supported"),
    "http/1.2": Refused(post(version=b"HTTP/1.2")),
    "no version": Refused(b"POST <T>\r\n\r\n", 505, "http-version-not-supported"),
    "a word behind the version": Refused(post(version=b"HTTP/1.1 x")),
    "tab for a space": Refused(post().replace(b"POST ", b"POST\t")),
    "a client hello": Refused(b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + bytes(range(32))),
    "another protocol": Refused(b"DESCRIBE <T> RTSP/1.0\r\nHost: a\r\n\r\n", 501, "method-not-supported"),
    "fold": Refused(post(b"X: a\r\n b")),
    "fold in our own header": Refused(post(CLIENT_ID + b"\r\n c-9")),
    "space before a colon of ours": Refused(post(CLIENT_ID[:-2] + b" : c-9")),
    "first header folded": Refused(post().replace(b"\r\nHost", b"\r\n X: y\r\nHost")),
    "empty name": Refused(post(b": x")),
    "no colon": Refused(post(b"Novalue")),
    "name with a space": Refused(post(b"A B: x")),
    "name with a parenthesis": Refused(post(b"A(B): x")),
    "name not ascii": Refused(post("Ünï: x".encode())),
    "nul in a name": Refused(post(b"A\x00B: x")),
    "nul in a value": Refused(post(b"A: x\x00y")),
    "escape in a value": Refused(post(b"A: \x1b[2J")),
    "bare cr in a value": Refused(post(b"A: x\ry")),
}

HOSTS_AND_TARGETS: dict[str, Refused] = {
    "no host": Refused(hosted(b"X: y")),
    "empty host": Refused(hosted(b"Host:"), 400, "bad-host"),
    "two hosts": Refused(post(b"Host: b")),
    "two hosts in one": Refused(hosted(b"Host: a, b"), 400, "bad-host"),
    "userinfo": Refused(hosted(b"Host: me@a"), 400, "bad-host"),
    "host with a path": Refused(hosted(b"Host: a/orders"), 400, "bad-host"),
    "host with a space": Refused(hosted(b"Host: a b"), 400, "bad-host"),
    "host with a strange port": Refused(hosted(b"Host: a:80:80"), 400, "bad-host"),
    "host encoded": Refused(hosted(b"Host: %61"), 400, "bad-host"),
    "absolute for another host": Refused(post(target=b"http://b<T>"), 400, "bad-target"),
    "absolute for another port": Refused(post(target=b"http://a:81<T>"), 400, "bad-target"),
    "absolute with userinfo": Refused(post(target=b"http://me@a<T>"), 400, "bad-target"),
    "absolute of another scheme": Refused(post(target=b"file://a<T>"), 400, "bad-target"),
    "no slash": Refused(post(target=b"orders")),
    "asterisk": Refused(post(target=b"*")),
    "fragment": Refused(post(target=b"<T>#x"), 400, "bad-target"),
    "fragment in the query": Refused(post(target=b"<T>?a#x"), 400, "bad-target"),
    "backslash": Refused(post(target=b"<T>\\confirm"), 400, "bad-target"),
    "backslash first": Refused(post(target=b"/\\a<T>"), 400, "bad-target"),
    "space": Refused(post(target=b"<T> x")),
    "nul": Refused(post(target=b"<T>\x00")),
    "raw utf-8": Refused(post(target=b"<T>/" + "ü".encode())),
    "raw latin-1": Refused(post(target=b"<T>?\xfc")),
    "delete": Refused(post(target=b"<T>\x7f")),
}

OUR_OWN: dict[str, Refused] = {
    "client id twice": Refused(post(CLIENT_ID + b"c-9", CLIENT_ID + b"c-9"), 400, "repeated-header"),
    "client id twice, differently": Refused(post(CLIENT_ID + b"9", CLIENT_ID.upper() + b"8"), 400, "repeated-header"),
    "server id twice": Refused(post(*[SERVER_ID + UUID] * 2), 400, "repeated-header"),
    "underscores": Refused(post(b"DTT_2PHP_Enabled: true"), 400, "header-alias"),
    "one underscore": Refused(post(b"DTT-2PHP-Client_Correlation-ID: c-9"), 400, "header-alias"),
    "dots": Refused(post(b"dtt.2php.server.correlation.id: x"), 400, "header-alias"),
    "underscored idempotency key": Refused(post(b"Idempotency_Key: x"), 400, "header-alias"),
    "underscored forwarding": Refused(post(b"X_Forwarded-For: 127.0.0.1"), 400, "header-alias"),
    "head too large": Refused(post(b"X: " + b"x" * 9000), 431, "header-too-large"),
    "head too large in sum": Refused(post(*[b"X: " + b"x" * 900] * 10), 431, "header-too-large"),
    "name too large": Refused(post(b"X" * 9000 + b": x"), 431, "header-too-large"),
    "target too large": Refused(post(target=b"<T>?" + b"x" * 9000), 414, "target-too-long"),
    "too many headers": Refused(post(*[b"X: x"] * 100), 431, "too-many-headers"),
    "empty lines without end": Refused(b"\r\n" * 5000, 431, "header-too-large"),
}  # fmt: skip

EVERYWHERE: dict[str, Refused] = {
    f"{group}: {name}": row
    for group, rows in {
        "smuggling": SMUGGLING,
        "chunks": CHUNKS,
        "lines": LINES,
        "targets": HOSTS_AND_TARGETS,
        "ours": OUR_OWN,
    }.items()
    for name, row in rows.items()
}

# Odd, but every careful reader understands them alike: they are served, and go upstream in plain form.
TOLERATED: dict[str, bytes] = {
    "an empty line first": b"\r\n" + post(b"Content-Length: 0"),
    "two spaces": post(b"Content-Length: 0", target=b" <T>"),
    "no space after the colon": post(b"Content-Length:3", body=b"abc"),
    "tabs around a value": post(b"Content-Length:\t3 \t", body=b"abc"),
    "zeros before the length": post(b"Content-Length: 003", body=b"abc"),
    "tab before the coding": coded(b"\tchunked").removesuffix(SMUGGLED),
    "coding in capitals": coded(b" CHUNKED").removesuffix(SMUGGLED),
    "zeros before a chunk size": chunked(b"0003\r\nabc\r\n000\r\n\r\n"),
    "capitals in a chunk size": chunked(b"A\r\n0123456789\r\n0\r\n\r\n"),
    "an extension": chunked(b'3;a="b;c"\r\nabc\r\n0;d\r\n\r\n'),
    "trailers": chunked(b"3\r\nabc\r\n0\r\nX-T: 1\r\nDTT-2PHP-Enabled: true\r\n\r\n"),
    "body on 1.0": post(b"Content-Length: 3", body=b"abc", version=b"HTTP/1.0"),
    "absolute form": post(b"Content-Length: 0", target=b"http://a<T>?b"),
    "host with port": hosted(b"Host: a:8080"),
    "host in brackets": hosted(b"Host: [::1]:80"),
    "host with dot": hosted(b"Host: a.b."),
    "host with underscore": hosted(b"Host: a_b"),
    "connection names authorization": post(b"Connection: Authorization", b"Authorization: x", b"Content-Length: 0"),
    "upgrade to h2c": post(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: A"),
    "odd names": post(b"!#$%&'*+-.^`|~: 1", b"X_Y: 2", b"Content-Length: 0"),
    "bytes beyond ascii": post(b"X: \x80\xff", b"Content-Length: 0"),
    "empty value": post(b"X:", b"Content-Length: 0"),
    "above the root": post(b"Content-Length: 0", target=b"/../../x"),
    "encoded nul": post(b"Content-Length: 0", target=b"<T>%00"),
    "encoded line break": post(b"Content-Length: 0", target=b"<T>%0d%0aX:%20y"),
    "broken percent": post(b"Content-Length: 0", target=b"<T>%zz"),
    "double slash": post(b"Content-Length: 0", target=b"//x//y"),
    "backslash in the query": post(b"Content-Length: 0", target=b"<T>?a\\b"),
    "brackets and pipes": post(b"Content-Length: 0", target=b'<T>{|}^`"<>'),
}  # fmt: skip
