"""Query parameters: exactly those an endpoint takes, each once, or a 400 that names what is wrong."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from urllib.parse import parse_qsl
from uuid import UUID

from gateway.operator import refusals
from gateway.protocol.obligations import FLOW
from gateway.protocol.problems import Problem

PARAMETERS_MAX = 32  # more than any endpoint takes
CURSOR_CHARACTERS_MAX = 128  # far above what a cursor of ours has

_WHOLE_NUMBER = re.compile(r"[0-9]{1,9}")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_OPAQUE_ID = re.compile(r"[\x21-\x7e]{1,255}")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,63}")
_CURSOR = re.compile(rf"[A-Za-z0-9_-]{{1,{CURSOR_CHARACTERS_MAX}}}")


def parse(query: str, *, takes: Sequence[str]) -> dict[str, str]:
    """The parameters of a raw query string."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=PARAMETERS_MAX)
    except ValueError:  # not UTF-8, or too many
        raise refusals.query_malformed() from None
    given: dict[str, str] = {}
    for name, value in pairs:
        if name not in takes:
            raise refusals.parameter_unknown(takes)
        if name in given:
            raise refusals.parameter_repeated(name)
        given[name] = value
    return given


def limit(given: Mapping[str, str], *, default: int, most: int) -> int:
    """How many rows a page may have."""
    value = given.get("limit")
    if value is None:
        return default
    if not _WHOLE_NUMBER.fullmatch(value) or not 1 <= int(value) <= most:
        raise refusals.parameter_invalid("limit", f"a whole number from 1 to {most}")
    return int(value)


def after(given: Mapping[str, str]) -> str | None:
    """Where to go on; empty or left out: from the beginning."""
    value = given.get("after") or None
    if value is not None and not _CURSOR.fullmatch(value):
        raise bad_cursor()
    return value


def bad_cursor() -> Problem:
    """A cursor that was not one of ours."""
    return refusals.parameter_invalid("after", "the `next` of an earlier page of the same list, unchanged")


def choice(given: Mapping[str, str], name: str, allowed: Collection[str]) -> str | None:
    """One of a few words."""
    value = given.get(name)
    if value is not None and value not in allowed:
        raise refusals.parameter_invalid(name, f"one of {', '.join(sorted(allowed))}")
    return value


def service_name(given: Mapping[str, str], name: str) -> str | None:
    """A service's name."""
    return _shaped(given, name, _NAME, "a service's name")


def flow(given: Mapping[str, str], name: str) -> str | None:
    """An obligation's flow."""
    return _shaped(given, name, FLOW, "1 to 63 letters, digits, dots, dashes or underscores")


def client_id(given: Mapping[str, str], name: str) -> str | None:
    """A client correlation ID."""
    return _shaped(given, name, _OPAQUE_ID, "1 to 255 visible ASCII characters without spaces")


def server_id(given: Mapping[str, str], name: str) -> str | None:
    """A server correlation ID, as entries write it."""
    value = _shaped(given, name, _UUID, "a UUID")
    return None if value is None else str(UUID(value))


def path_server_id(segment: str) -> UUID:
    """A server correlation ID that came as a segment of the path."""
    return path_id(segment, refusals.server_id_malformed())


def path_id(segment: str, otherwise: Problem) -> UUID:
    """A UUID that came as a segment of the path, or the problem that there is none."""
    if not _UUID.fullmatch(segment):
        raise otherwise
    return UUID(segment)


def _shaped(given: Mapping[str, str], name: str, shape: re.Pattern[str], takes: str) -> str | None:
    value = given.get(name)
    if value is not None and not shape.fullmatch(value):
        raise refusals.parameter_invalid(name, takes)
    return value
