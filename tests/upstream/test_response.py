"""The reading of an answer, byte by byte and without a socket (DESIGN decision 13)."""

from __future__ import annotations

import pytest

from gateway.upstream.response import HEAD_BYTES_MAX, FramingError, Response

OK = b"HTTP/1.1 200 OK\r\n"


def read(*parts: bytes, head_only: bool = False, upgrade_asked: bool = False) -> Response:
    response = Response(head_only=head_only, upgrade_asked=upgrade_asked)
    for part in parts:
        response.feed(part)
    return response


def test_status_reason_and_headers_are_the_upstreams_own_bytes() -> None:
    """OPT-2: order, case, repetition and bytes that are no UTF-8 are kept."""
    response = read(
        b"HTTP/1.1 299 Tr\xe8s bien\r\nx-b: 1\r\nX-B: 2\r\nx-b: \xff\xfe\r\nX-Empty:\r\nContent-Length: 0\r\n\r\n"
    )
    assert (response.status, response.reason, response.version) == (299, b"Tr\xe8s bien", (1, 1))
    assert response.headers == [
        (b"x-b", b"1"),
        (b"X-B", b"2"),
        (b"x-b", b"\xff\xfe"),
        (b"X-Empty", b""),
        (b"Content-Length", b"0"),
    ]
    assert response.complete
    assert response.reusable


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"X: y\r\nContent-Length: 5\r\n\r\nhello",
        OK + b"X: y\r\nTransfer-Encoding: chunked\r\n\r\n2;ext=1\r\nhe\r\n3\r\nllo\r\n0\r\nTrailer-X: 1\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
        + OK
        + b"X: y\r\nContent-Length: 5\r\n\r\nhello",
    ],
    ids=["length", "chunked", "informational"],
)
def test_an_answer_reads_the_same_however_it_is_cut(answer: bytes) -> None:
    whole = read(answer)
    bytewise = read(*(answer[i : i + 1] for i in range(len(answer))))
    for response in (whole, bytewise):
        assert (response.status, response.reason, response.headers[0]) == (200, b"OK", (b"X", b"y"))
        assert len(response.headers) == 2
        assert response.take(100) == b"hello"
        assert response.complete
        assert response.reusable


def test_trailers_are_dropped() -> None:
    response = read(OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX-Late: 1\r\nConnection: close\r\n\r\n")
    assert response.headers == [(b"Transfer-Encoding", b"chunked")]
    assert response.complete
    assert response.reusable


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_204_and_304_end_at_the_headers_whatever_length_they_declare(status: bytes) -> None:
    response = read(b"HTTP/1.1 " + status + b"\r\nETag: x\r\nContent-Length: 5\r\n\r\n")
    assert response.complete
    assert response.reusable
    assert response.content_length == 5


@pytest.mark.parametrize("framing", [b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b""])
def test_an_answer_to_head_ends_at_the_headers(framing: bytes) -> None:
    response = read(OK + framing + b"\r\n", head_only=True)
    assert response.complete
    assert response.reusable
    assert response.take(10) == b""


@pytest.mark.parametrize(
    "surplus",
    [
        (b"Content-Length: 5\r\n\r\n", b"hello", True),
        (b"Transfer-Encoding: chunked\r\n\r\n", b"0\r\n\r\n", True),
        (b"Content-Length: 2\r\n\r\nok", b"garbage", False),
        (b"Content-Length: 2\r\n\r\nok", OK + b"Content-Length: 0\r\n\r\n", False),
        (b"Content-Length: 2\r\n\r\nok", b"HTTP/1.1 101 S\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", False),
    ],
    ids=["body on HEAD", "last chunk on HEAD", "garbage", "second answer", "second answer 101"],
)
def test_bytes_after_the_end_spoil_the_connection_but_not_the_answer(surplus: tuple[bytes, bytes, bool]) -> None:
    rest, extra, head_only = surplus
    response = read(OK + rest + extra, head_only=head_only)
    assert (response.status, response.complete, response.reusable) == (200, True, False)
    assert response.take(100) == (b"" if head_only else b"ok")


@pytest.mark.parametrize(
    ("head", "reusable"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nConnection: foo, close\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", False),
        (b"HTTP/1.1 103 Hi\r\nConnection: close\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 100 Go\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
    ],
)
def test_a_connection_is_kept_when_the_answer_says_so(head: bytes, reusable: bool) -> None:
    response = read(head)
    assert response.complete
    assert response.reusable is reusable


def test_without_framing_the_end_of_the_connection_ends_the_body() -> None:
    response = read(OK + b"\r\nall of", b" it")
    assert not response.complete
    assert response.end()
    assert response.complete
    assert not response.reusable
    assert response.take(100) == b"all of it"


@pytest.mark.parametrize(
    "cut", [b"HTTP/1.1 200", OK + b"Content-Length: 5\r\n\r\nhe", OK + b"Transfer-Encoding: chunked\r\n\r\n"]
)
def test_the_end_of_the_connection_does_not_complete_a_framed_body(cut: bytes) -> None:
    assert not read(cut).end()


def test_keep_alive_timeout_is_honoured_with_a_second_to_spare() -> None:
    assert read(OK + b"Keep-Alive: max=9, timeout=5\r\nContent-Length: 0\r\n\r\n").keep_for_s == 4.0


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        OK + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        OK + b"Transfer-Encoding: gzip\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        OK + b"Content-Length: -1\r\n\r\n",
        OK + b"Content-Length: 1, 1\r\n\r\n",
        OK + b"Content-Length: 99999999999999999999999\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        OK + b"X: folded\r\n line\r\n\r\n",
        OK + b"X: nul\x00\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
        b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 099 Odd\r\nContent-Length: 0\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
    ],
)
def test_ambiguous_or_broken_framing_is_an_error(answer: bytes) -> None:
    with pytest.raises(FramingError):
        read(answer)


def test_101_needs_an_upgrade_in_the_answer_too() -> None:
    with pytest.raises(FramingError):
        read(b"HTTP/1.1 101 Switching\r\n\r\n", upgrade_asked=True)


def test_what_follows_a_101_is_not_http() -> None:
    head = b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n"
    response = read(head + b"\x81\x02hi", upgrade_asked=True)
    assert (response.status, response.upgraded, response.complete, response.leftover) == (
        101,
        True,
        False,
        b"\x81\x02hi",
    )


def test_a_head_may_fill_the_limit_but_not_pass_it() -> None:
    padding = HEAD_BYTES_MAX - len(OK + b"X: \r\nContent-Length: 3\r\n\r\n")
    fits = OK + b"X: " + b"x" * padding + b"\r\nContent-Length: 3\r\n\r\n"
    assert len(fits) == HEAD_BYTES_MAX
    assert read(fits + b"abc").take(10) == b"abc"
    with pytest.raises(FramingError, match="larger"):
        read(OK + b"X: x" + b"x" * padding + b"\r\nContent-Length: 3\r\n\r\nabc")
    with pytest.raises(FramingError, match="larger"):
        read(*[b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"] * 3000)


def test_endless_trailers_and_chunk_extensions_are_an_error() -> None:
    with pytest.raises(FramingError, match="without end"):
        read(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"0\r\n", *[b"X: " + b"x" * 1000 + b"\r\n"] * 80)
    with pytest.raises(FramingError, match="without end"):
        read(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1;x=", *[b"x" * 1000] * 80)


def test_take_splits_at_the_limit_and_keeps_the_rest() -> None:
    response = read(OK + b"Content-Length: 6\r\n\r\n", b"ab", b"cd", b"ef")
    assert response.take(3) == b"abc"
    assert response.buffered_bytes == 3
    assert response.take(3) == b"def"
    assert response.take(3) == b""
