"""Durations (`500ms`, `30s`, `2m`, `1h`, `7d`) and sizes (`64KiB`, `1MiB`) to whole milliseconds and bytes, and back.

A bare number is refused: nobody can tell whether 30 was meant as seconds or as milliseconds.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from gateway.settings.rules import Refused, Rule

MILLISECONDS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

DURATION_MAX_MS = 366 * MILLISECONDS["d"]  # longer than any sensible horizon; keeps sums of durations far from overflow
SIZE_MAX_BYTES = 64 * BYTES["GiB"]

_WRITTEN = re.compile(r"(?P<number>[0-9]{1,15})(?P<unit>[A-Za-z]+)")
_ALMOST = re.compile(r"(?P<number>[0-9]{1,15}(?:\.[0-9]{1,6})?)\s*(?P<unit>[A-Za-z]*)")

# What people write elsewhere, only to tell them how it is written here.
_DURATION_WORDS = {
    "ms": "ms", "msec": "ms", "millis": "ms", "milliseconds": "ms", "s": "s", "sec": "s", "secs": "s", "second": "s",
    "seconds": "s", "m": "m", "min": "m", "mins": "m", "minute": "m", "minutes": "m", "h": "h", "hr": "h", "hour": "h",
    "hours": "h", "d": "d", "day": "d", "days": "d",
}  # fmt: skip
_SIZE_WORDS = {
    "b": "B", "byte": "B", "bytes": "B", "k": "KiB", "kb": "KiB", "kib": "KiB", "m": "MiB", "mb": "MiB", "mib": "MiB",
    "g": "GiB", "gb": "GiB", "gib": "GiB",
}  # fmt: skip


def duration_text(milliseconds: int) -> str:
    """A duration as it is written: 90000 is `90s`, 120000 is `2m`."""
    return _text(milliseconds, MILLISECONDS)


def size_text(size_bytes: int) -> str:
    """A size as it is written: 65536 is `64KiB`."""
    return _text(size_bytes, BYTES)


class Duration(Rule):
    """A duration, in milliseconds. The least is one millisecond unless said otherwise: a timeout of 0 means nothing."""

    def __init__(self, least_ms: int = 1, most_ms: int = DURATION_MAX_MS) -> None:
        self.least_ms = least_ms
        self.most_ms = most_ms

    def parse(self, value: object) -> int:
        allowed = "a duration such as `500ms`, `30s`, `2m`, `1h` or `7d`"
        milliseconds = _amount(value, MILLISECONDS)
        if milliseconds is None:
            bare = f"write `{value}s` or `{value}ms`" if _is_bare(value) else ""
            raise Refused(allowed, hint=bare or _meant(value, MILLISECONDS, _DURATION_WORDS))
        if not self.least_ms <= milliseconds <= self.most_ms:
            raise Refused(f"a duration from `{duration_text(self.least_ms)}` to `{duration_text(self.most_ms)}`")
        return milliseconds

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": "^[0-9]+(ms|s|m|h|d)$", "format": "2php-duration", "examples": ["30s"]}


class Size(Rule):
    """A size, in bytes."""

    def __init__(self, least_bytes: int = 0) -> None:
        self.least_bytes = least_bytes

    def parse(self, value: object) -> int:
        size_bytes = _amount(value, BYTES)
        if size_bytes is None:
            bare = f"write `{value}B`" if _is_bare(value) else ""
            hint = bare or _meant(value, BYTES, _SIZE_WORDS)
            raise Refused("a size such as `512B`, `64KiB`, `1MiB` or `1GiB`", hint=hint)
        if not self.least_bytes <= size_bytes <= SIZE_MAX_BYTES:
            raise Refused(f"a size from `{size_text(self.least_bytes)}` to `{size_text(SIZE_MAX_BYTES)}`")
        return size_bytes

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": "^[0-9]+(B|KiB|MiB|GiB)$", "format": "2php-size", "examples": ["1MiB"]}


def _amount(value: object, units: dict[str, int]) -> int | None:
    match = _WRITTEN.fullmatch(value) if isinstance(value, str) else None
    if match is None or match["unit"] not in units:
        return None
    return int(match["number"]) * units[match["unit"]]


def _is_bare(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _meant(value: object, units: dict[str, int], words: dict[str, str]) -> str:
    """`write …` for a value that is nearly right: another spelling of the unit, a fraction, a space."""
    match = _ALMOST.fullmatch(value) if isinstance(value, str) else None
    unit = words.get(match["unit"].lower()) if match else None
    if match is None or unit is None:
        return ""
    exact = Fraction(match["number"]) * units[unit]
    return f"write `{_text(int(exact), units)}`" if exact.denominator == 1 else ""


def _text(amount: int, units: dict[str, int]) -> str:
    """In the largest unit that divides it."""
    best = next(unit for unit in reversed(units) if amount % units[unit] == 0 and (amount or units[unit] == 1))
    return f"{amount // units[best]}{best}"
