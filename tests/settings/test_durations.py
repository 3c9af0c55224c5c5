"""Durations and sizes: what is accepted, what is refused, and what the refusal suggests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.settings.durations import (
    BYTES,
    DURATION_MAX_MS,
    MILLISECONDS,
    SIZE_MAX_BYTES,
    Duration,
    Size,
    duration_text,
    size_text,
)
from gateway.settings.rules import Refused


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("1ms", 1), ("500ms", 500), ("30s", 30_000), ("2m", 120_000), ("1h", 3_600_000), ("7d", 604_800_000)],
)
def test_a_duration_is_read_in_milliseconds(text: str, milliseconds: int) -> None:
    assert Duration().parse(text) == milliseconds


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("0B", 0), ("512B", 512), ("64KiB", 65_536), ("1MiB", 1 << 20), ("2GiB", 2 << 30)],
)
def test_a_size_is_read_in_bytes(text: str, size_bytes: int) -> None:
    assert Size().parse(text) == size_bytes


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (30, "write `30s` or `30ms`"),
        ("30", ""),
        ("30 s", "write `30s`"),
        ("30sec", "write `30s`"),
        ("1.5s", "write `1500ms`"),
        ("0.5m", "write `30s`"),
        ("5min", "write `5m`"),
        ("30S", "write `30s`"),
        ("1 day", "write `1d`"),
        ("1.0001ms", ""),
        ("-3s", ""),
        ("١s", ""),
        ("", ""),
        ("s", ""),
        (True, ""),
        (None, ""),
        (["3s"], ""),
        ({"s": 3}, ""),
    ],
)
def test_what_is_no_duration_is_refused_with_what_was_meant(value: object, hint: str) -> None:
    with pytest.raises(Refused) as refused:
        Duration().parse(value)
    assert refused.value.hint == hint
    assert "`30s`" in refused.value.allowed


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (1048576, "write `1048576B`"),
        ("1M", "write `1MiB`"),
        ("64kb", "write `64KiB`"),
        ("64kib", "write `64KiB`"),
        ("1.5MiB", "write `1536KiB`"),
        ("64 KiB", "write `64KiB`"),
        ("0.3B", ""),
        ("-1B", ""),
        ("1TiB", ""),
        (True, ""),
    ],
)
def test_what_is_no_size_is_refused_with_what_was_meant(value: object, hint: str) -> None:
    with pytest.raises(Refused) as refused:
        Size().parse(value)
    assert refused.value.hint == hint
    assert "`64KiB`" in refused.value.allowed


@pytest.mark.parametrize("text", ["0ms", "0s", "367d", "999999999999999d"])
def test_a_duration_out_of_bounds_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="from `1ms` to `366d`"):
        Duration().parse(text)


def test_zero_is_a_duration_only_where_it_means_something() -> None:
    assert Duration(0).parse("0s") == 0


@pytest.mark.parametrize("text", ["1023B", "65GiB"])
def test_a_size_out_of_bounds_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="from `1KiB` to `64GiB`"):
        Size(1024).parse(text)


@given(st.integers(0, DURATION_MAX_MS))
def test_every_duration_can_be_written_and_read_back(milliseconds: int) -> None:
    text = duration_text(milliseconds)
    assert Duration(0).parse(text) == milliseconds
    assert text.lstrip("0123456789") in MILLISECONDS


@given(st.integers(0, SIZE_MAX_BYTES))
def test_every_size_can_be_written_and_read_back(size_bytes: int) -> None:
    text = size_text(size_bytes)
    assert Size().parse(text) == size_bytes
    assert text.lstrip("0123456789") in BYTES


@given(st.text(max_size=12) | st.integers() | st.none() | st.booleans())
def test_any_other_value_is_refused_and_never_crashes(value: object) -> None:
    for rule in (Duration(0), Size()):
        try:
            assert rule.parse(value) >= 0
        except Refused:
            pass
