"""The head checks by themselves: what they clear, what they clean, and that they stay pure (RELIABILITY fact 3)."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ingress import strict
from gateway.protocol.problems import Problem

HOST = (b"Host", b"a.example:8080")
V11 = (1, 1)


def test_an_ordinary_head_is_cleared_as_it_is() -> None:
    headers = (HOST, (b"content-length", b"12"), (b"Expect", b"100-Continue"), (b"Connection", b"Keep-Alive"))
    cleared = strict.Cleared(b"/a?b", headers, 12, False, True, False, False)
    assert strict.check("POST", b"/a?b", headers, V11) == cleared


@pytest.mark.parametrize(
    "host", [b"a", b"a.b-c_d~e.", b"10.0.0.1:80", b"[::1]", b"[2001:db8::1]:65535", b"xn--bcher-kva.example"]
)
def test_hosts_as_they_are_really_sent_are_cleared(host: bytes) -> None:
    assert strict.check("GET", b"/", ((b"Host", host),), V11).target == b"/"


@pytest.mark.parametrize(
    "target", [b"/", b"//x", b"/a;b=c", b"/?", b"/?q=a\\b", b"/%00%2F%5C", b"/a|b{c}<d>\"^`'", b"/~x/$&+,:=@!*()"]
)
def test_targets_that_are_only_unusual_are_cleared_unchanged(target: bytes) -> None:
    """OPT-2: what is not ambiguous is the upstream's to judge."""
    assert strict.check("GET", target, (HOST,), V11).target == target


def test_a_websocket_upgrade_is_recognised_and_kept() -> None:
    headers = (HOST, (b"Connection", b"keep-alive, Upgrade"), (b"Upgrade", b"WebSocket"), (b"Sec-WebSocket-Key", b"x"))
    cleared = strict.check("GET", b"/", headers, V11)
    assert cleared.websocket
    assert cleared.headers == (HOST, (b"Upgrade", b"WebSocket"), headers[3], (b"Connection", b"keep-alive, Upgrade"))


@pytest.mark.parametrize(
    ("method", "version", "extra"),
    [
        ("POST", (1, 1), ()),
        ("GET", (1, 0), ()),
        ("GET", (1, 1), ((b"Content-Length", b"3"),)),
        ("GET", (1, 1), ((b"Transfer-Encoding", b"chunked"),)),
        ("GET", (1, 1), ((b"Upgrade", b"h2c"),)),
    ],
)
def test_no_upgrade_is_made_of_anything_else(
    method: str, version: tuple[int, int], extra: tuple[tuple[bytes, bytes], ...]
) -> None:
    if extra and version == (1, 0):
        return
    headers = (HOST, (b"Connection", b"Upgrade"), (b"Upgrade", b"websocket"), *extra)
    cleared = strict.check(method, b"/", headers, version)
    assert not cleared.websocket
    assert not {name.lower() for name, _ in cleared.headers} & {b"upgrade", b"connection"}


def test_http_1_0_needs_no_host() -> None:
    assert strict.check("GET", b"/", (), (1, 0)).content_length is None


def test_the_parsers_own_refusals_are_repeated_where_only_one_reader_would_make_them() -> None:
    """What the parser refuses today is refused here too: nothing rests on the parser alone."""
    chunked, length = (b"Transfer-Encoding", b"chunked"), (b"Content-Length", b"1")
    for headers in (
        (),
        (HOST, HOST),
        (HOST, length, length),
        (HOST, chunked, chunked),
        (HOST, chunked, length),
        (HOST, (b"Content-Length", b"+1")),
        (HOST, (b"Content-Length", b"")),
        (HOST, (b"Transfer-Encoding", b"xchunked")),
    ):
        with pytest.raises(Problem) as refused:
            strict.check("POST", b"/", headers, V11)
        assert (refused.value.status, refused.value.close) == (400, True)


def test_control_characters_in_a_target_are_refused_here_too() -> None:
    for byte in [*range(0x21), *range(0x7F, 0x100), ord("#")]:
        with pytest.raises(Problem):
            strict.check("GET", b"/a" + bytes([byte]), (HOST,), V11)


@given(st.lists(st.binary(min_size=1, max_size=12), max_size=2000))
def test_invented_names_and_hosts_do_not_grow_the_memory_of_the_checks(names: list[bytes]) -> None:
    for name in names:
        with suppress(Problem):
            strict.check("GET", b"/", ((b"Host", name), (name, b"x")), V11)
    assert len(strict._spellings) <= 1024
    assert len(strict._good_hosts) <= 1024


@given(
    st.sampled_from(["GET", "POST", "OPTIONS", "CONNECT"]),
    st.binary(max_size=40),
    st.lists(
        st.tuples(st.sampled_from([b"Host", b"connection", b"UPGRADE", b"x"]), st.binary(max_size=20)), max_size=6
    ),
)
def test_any_head_is_cleared_or_refused_and_never_fails(
    method: str, target: bytes, headers: list[tuple[bytes, bytes]]
) -> None:
    with suppress(Problem):
        assert strict.check(method, target, tuple(headers), V11).target.startswith(b"/")


@pytest.mark.parametrize("name", [b"DTT-2PHP-Enabled", b"dtt-2php-anything", b"Dtt-2php-Client-Correlation-ID"])
def test_any_2php_field_is_noticed_however_it_is_spelled(name: bytes) -> None:
    """OPT-1, TRN-2: the fields of whoever sends none are never looked for."""
    assert strict.check("GET", b"/", (HOST, (name, b"x")), V11).speaks_2php
    assert not strict.check("GET", b"/", (HOST, (b"X-DTT-2PHP-Enabled", b"x")), V11).speaks_2php


def test_other_2php_fields_may_come_twice_here() -> None:
    """Which of them may not is said where they are read, with its own 400."""
    twice = ((b"DTT-2PHP-Enabled", b"true"),) * 2
    assert strict.check("GET", b"/", (HOST, *twice), V11).headers == (HOST, *twice)
