"""Pages from templates: every value escaped, every name defined, and a policy that runs no script but our own."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from gateway.central.page import assets, moments, states
from gateway.protocol.messages import Answer, Header

TEMPLATES = Path(__file__).with_name("templates")
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    b"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: tuple[Header, ...] = (
    (b"Content-Type", b"text/html; charset=utf-8"),
    (b"Content-Security-Policy", POLICY),
    (b"X-Frame-Options", b"DENY"),
    # Correlation IDs stand in our paths: no other site hears of them. Not `no-referrer`: forms would have no origin.
    (b"Referrer-Policy", b"same-origin"),
    (b"Cross-Origin-Opener-Policy", b"same-origin"),
    (b"Cross-Origin-Resource-Policy", b"same-origin"),
)


def html(template: str, *, status: int = 200, **values: Any) -> Answer:
    """A page."""
    body = ENVIRONMENT.get_template(template).render(values).encode("utf-8", "replace")
    return Answer(status, list(HEADERS), body)


def redirect(where: str, *more: Header) -> Answer:
    """See other: the browser asks for it with GET, and a reload repeats nothing. `where` is a path of ours."""
    return Answer(303, [(b"Location", where.encode("ascii")), *more])


def segment(value: object) -> str:
    """One segment of a path, whatever it holds (DESIGN decision 14)."""
    return quote(str(value), safe="")


def tree_url(client_id: object) -> str:
    """Where a call's tree is. Browsers resolve `.` and `..`, encoded or not: these go as a parameter."""
    escaped = segment(client_id)
    return f"/tree?client_correlation_id={escaped}" if escaped in (".", "..") else f"/tree/{escaped}"


def shortened(value: object, most: int) -> str:
    """For pictures, which do not cut by themselves: the beginning and the end, which tell most apart."""
    text = str(value)
    if len(text) <= most:
        return text
    tail = most // 3
    return f"{text[: most - tail - 1]}…{text[-tail:]}"


def detail(value: object) -> str:
    """An event's detail as JSON that people can read."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2, default=str).decode("utf-8", "replace")


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {
        "asset": assets.url,
        "segment": segment,
        "tree_url": tree_url,
        "shortened": shortened,
        "detail": detail,
        "stamp": moments.stamp,
        "exact": moments.exact,
        "age": moments.age,
        "span": moments.span,
        "state": states.of_entry,
        "phase": states.of_phase,
        "twice": lambda value: (value, value),  # an option whose value is its text
        "number": lambda value: f"{value:,}".replace(",", " "),  # a thin space
    }
    return made


ENVIRONMENT = _environment()
