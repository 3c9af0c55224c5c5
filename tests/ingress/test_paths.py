"""Raw paths route (decision 14)."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ingress import paths
from gateway.protocol.problems import Problem


def classify(path: bytes) -> tuple[str, bool]:
    """Routes /orders (with its /confirm) and /files/**; everything else is passed through."""
    confirm = path.endswith(b"/confirm")
    if path in (b"/orders", b"/orders/confirm"):
        return "orders", confirm
    if path == b"/files" or path.startswith(b"/files/"):
        return "files", confirm
    return "none", False


@pytest.mark.parametrize(
    "path",
    [
        b"/orders",
        b"/orders/confirm",
        b"/files/a%2Fb",
        b"/files/a%20b",
        b"/files/./a",
        b"/files//a",
        b"/files/a;v=1",
        b"/files/%E2%82%AC",
        b"/files/100%",
        b"/files/%zz",
        b"/else%2Fwhere",
        b"/else/../where",
        b"/.well-known/x",
        b"/a//b",
        b"/",
    ],
)
def test_a_path_whose_other_readings_are_the_same_route_is_taken(path: bytes) -> None:
    paths.check(path, classify)


@pytest.mark.parametrize(
    "path",
    [
        b"/orders%2Fconfirm",
        b"/orders%2fconfirm",
        b"/orders/confirm%2F..",
        b"/orders/./confirm",
        b"/orders/x/../confirm",
        b"/orders/x/..",
        b"/orders/.",
        b"/orders//confirm",
        b"//orders",
        b"/%6frders",
        b"/%256frders",
        b"/%25256frders",
        b"/x/%2e%2e/orders",
        b"/x/%2E./orders",
        b"/x/..%2Forders",
        b"/x%5C..%5Corders",
        b"/orders;v=1",
        b"/orders/confirm;v=1",
        b"/x/..;/orders",
        b"/files/../orders",
        b"/files/%2e%2e/orders",
        b"/files/%2e%2e/x",
        b"/files/a%2Fconfirm",
        b"/files/a/conf%69rm",
        b"/files%2Fa",
    ],
)
def test_a_path_that_may_be_read_as_another_route_or_phase_is_refused(path: bytes) -> None:
    with pytest.raises(Problem) as refused:
        paths.check(path, classify)
    assert (refused.value.status, refused.value.slug) == (400, "ambiguous-path")


def test_a_plain_path_is_not_even_classified() -> None:
    def never(path: bytes) -> str:
        raise AssertionError

    paths.check(b"/orders/1/confirm", never)


@given(st.binary(max_size=60))
def test_any_path_is_taken_or_refused(tail: bytes) -> None:
    with suppress(Problem):
        paths.check(b"/" + tail, classify)


@pytest.mark.parametrize(
    ("segment", "value"),
    [(b"abc", "abc"), (b"a%2Fb", "a/b"), (b"a%252Fb", "a%2Fb"), (b"%E2%82%AC", "€"), (b"a+b", "a+b"), (b"%20", " ")],
)
def test_an_identifier_in_a_path_is_decoded_once(segment: bytes, value: str) -> None:
    """RPL-5."""
    assert paths.decode_segment(segment) == value


@pytest.mark.parametrize("segment", [b"", b"a/b", b"%", b"%2", b"%zz", b"%FF", b"a b", b"a?b", b"a\\b", b"\xe9"])
def test_what_is_not_one_encoded_segment_is_refused(segment: bytes) -> None:
    with pytest.raises(Problem) as refused:
        paths.decode_segment(segment)
    assert refused.value.status == 400
