"""Answers as bytes (OPT-2, OPS-3)."""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime

import pytest

from gateway.ingress import render
from gateway.protocol.messages import Answer


def rendered(answer: Answer, *, head_only: bool = False, close: bool = False, http_1_0: bool = False) -> bytes:
    return render.answer_bytes(answer, head_only=head_only, close=close, http_1_0=http_1_0)


def undated(data: bytes) -> bytes:
    return re.sub(rb"Date: [^\r]*\r\n", b"", data)


def test_an_answer_is_rendered_with_what_it_lacks() -> None:
    data = rendered(Answer(201, [(b"x-B", b"1"), (b"X-b", b"2")], b"body"))
    assert undated(data) == b"HTTP/1.1 201 Created\r\nx-B: 1\r\nX-b: 2\r\nContent-Length: 4\r\n\r\nbody"
    date = re.search(rb"Date: ([^\r]*)\r\n", data)
    assert date is not None
    parsedate_to_datetime(date[1].decode())


def test_a_date_that_is_there_is_left_alone() -> None:
    assert rendered(Answer(200, [(b"DATE", b"x")])).lower().count(b"date:") == 1


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (Answer(299), b"HTTP/1.1 299 \r\n"),
        (Answer(200, reason=b"Very Good"), b"HTTP/1.1 200 Very Good\r\n"),
        (Answer(200, reason=b""), b"HTTP/1.1 200 \r\n"),
    ],
)
def test_reasons_are_kept_and_unknown_statuses_have_none(answer: Answer, line: bytes) -> None:
    assert rendered(answer).startswith(line)


def test_framing_that_contradicts_the_body_is_corrected() -> None:
    told = [
        (b"content-length", b"99"),
        (b"Content-Length", b"98"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Connection", b"keep-alive"),
        (b"Keep-Alive", b"timeout=5"),
        (b"X", b"y"),
    ]
    assert undated(rendered(Answer(200, told, b"abc"))) == b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\nX: y\r\n\r\nabc"


def test_connection_says_what_the_version_needs_to_hear() -> None:
    assert b"\r\nConnection: close\r\n" in rendered(Answer(200), close=True)
    assert b"\r\nConnection: close\r\n" in rendered(Answer(200), close=True, http_1_0=True)
    assert b"\r\nConnection: keep-alive\r\n" in rendered(Answer(200), http_1_0=True)
    assert b"Connection" not in rendered(Answer(200))


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, [(b"X", b"a\r\nY: b")]),
        Answer(200, [(b"X", b"a\nY: b")]),
        Answer(200, [(b"X", b"a\rb")]),
        Answer(200, [(b"X\r\nY", b"b")]),
        Answer(200, reason=b"OK\r\nX: y"),
    ],
)
def test_a_line_break_in_a_header_or_reason_is_never_rendered(answer: Answer) -> None:
    with pytest.raises(ValueError, match="line break"):
        rendered(answer)


def test_a_body_may_hold_line_breaks() -> None:
    assert rendered(Answer(200, [], b"a\r\nb\n")).endswith(b"\r\n\r\na\r\nb\n")
