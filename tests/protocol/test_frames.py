"""P2-3, RPL-1: headers and body come back byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.frames import BadFrame, pack, unpack

HEADERS = st.lists(st.tuples(st.binary(max_size=64), st.binary(max_size=256)), max_size=40)


@given(headers=HEADERS, body=st.binary(max_size=4096))
def test_headers_and_body_come_back_exactly(headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    assert unpack(pack(headers, body)) == (headers, body)


def test_order_case_repetition_and_bytes_that_are_no_text_are_kept() -> None:
    headers = [(b"X-B", b"1"), (b"x-b", b"\xff\xfe"), (b"X-A", b""), (b"X-B", b"1")]
    assert unpack(pack(headers, b"\x00\r\n")) == (headers, b"\x00\r\n")


def test_a_large_body_and_many_headers_come_back_exactly() -> None:
    headers = [(b"h%d" % number, b"v" * number) for number in range(1000)]
    body = bytes(range(256)) * 4096
    assert unpack(pack(headers, body)) == (headers, body)


@given(headers=HEADERS.filter(bool), data=st.data())
def test_a_cut_frame_is_refused_rather_than_misread(headers: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    packed = pack(headers, b"")
    with pytest.raises(BadFrame):
        unpack(packed[: data.draw(st.integers(0, len(packed) - 1))])


@given(noise=st.binary(max_size=200))
def test_noise_is_refused_or_read_within_its_bounds(noise: bytes) -> None:
    try:
        headers, body = unpack(noise)
    except BadFrame:
        return
    assert pack(headers, body) == noise


def test_a_frame_of_another_version_is_refused() -> None:
    with pytest.raises(BadFrame, match="version"):
        unpack(b"\x02" + pack([], b"body")[1:])
