"""What a browser sends: the fields of a form, and where it wants to go on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl, urlencode

from gateway.operator import parameters
from gateway.operator.calls import Call
from gateway.protocol.problems import Problem

BODY_MAX_BYTES = 8 * 1024
FIELDS_MAX = 16
NEXT_CHARACTERS_MAX = 2_048
ROWS = 50  # of a list on one page

_WITHOUT_ZONE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,6})?)?")


def form(call: Call, *, takes: tuple[str, ...]) -> dict[str, str]:
    """The fields of a posted form: these, each at most once, or the 400."""
    try:
        pairs = parse_qsl(call.body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX)
    except ValueError:
        raise form_malformed() from None
    given = dict(pairs)
    if len(given) != len(pairs) or not given.keys() <= set(takes):
        raise form_malformed()
    return given


def form_malformed() -> Problem:
    """Not one of our forms."""
    return Problem("form-malformed", 400, "Form malformed", "Use the forms of these pages, or the API below /v1.")


def filled(query: str, *, takes: Sequence[str]) -> dict[str, str]:
    """The parameters of a form that was sent with GET: browsers send empty fields too, and people add spaces."""
    given = parameters.parse(query, takes=takes)
    return {name: value.strip() for name, value in given.items() if value.strip()}


def utc(given: Mapping[str, str], *names: str) -> dict[str, str]:
    """The same fields, with the zone that a date field leaves out: ours is UTC."""
    return {
        name: f"{value}Z" if name in names and _WITHOUT_ZONE.fullmatch(value) else value
        for name, value in given.items()
    }


def own_path(wanted: str) -> str:
    """Where to go on: a path of ours, never another site's."""
    ours = wanted.startswith("/") and not wanted.startswith("//") and len(wanted) <= NEXT_CHARACTERS_MAX
    plain = all("\x21" <= character <= "\x7e" and character != "\\" for character in wanted)
    return wanted if ours and plain else "/"


def pages(path: str, given: Mapping[str, str], following: str | None) -> dict[str, str | None]:
    """Links of a list that goes on: back to its beginning, and to what follows."""
    kept = {name: value for name, value in given.items() if name != "after"}
    return {
        "first": _url(path, kept) if "after" in given else None,
        "next": None if following is None else _url(path, {**kept, "after": following}),
    }


def _url(path: str, given: Mapping[str, str]) -> str:
    return f"{path}?{urlencode(given)}" if given else path
