"""A log record as one line of JSON that holds no secret (OPS-1, SEC-4).

What may be said, and by whom:
- our own loggers choose their words; their extra fields must be plain values, are cut to a length, and are withheld
  when their name says that they carry headers, bodies or credentials;
- other libraries may quote what they handled: of their messages only the opening words of the template are kept;
- an exception is its type and the places it passed through. Its message is kept only where the words are ours or the
  operating system's, for the rest may quote input. Local variables are never shown.
Whatever a client sent is escaped, so that no value can forge or break a line.
"""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from itertools import islice
from math import isfinite
from traceback import walk_tb
from types import TracebackType
from typing import Any
from uuid import UUID

import orjson

MESSAGE_CHARS_MAX = 2048
VALUE_CHARS_MAX = 256  # twice what a client may choose as a correlation id
FIELDS_MAX = 32
FRAMES_MAX = 24  # the innermost ones: where it happened
EXCEPTIONS_MAX = 6

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_OWN = frozenset({"ts", "level", "logger", "message", "exception"})
_SECRET = re.compile(r"header|body|payload|authori[sz]ation|cookie|secret|passw|token|nonce|credential|api_?key", re.I)

_BRACKET_OR_QUOTE = re.compile(r"[\n<(\[{'\"`]")


def is_ours(logger: str) -> bool:
    return logger == "gateway" or logger.startswith("gateway.")


def opening_words(text: object) -> str:
    """The first line up to any bracket or quote: reprs, and with them values, come after one."""
    return _BRACKET_OR_QUOTE.split(str(text), maxsplit=1)[0].rstrip()


def render(record: logging.LogRecord, repeats: int = 0) -> bytes:
    """The line, newline included. `repeats`: how many like it were left out before."""
    fields: dict[str, Any] = {
        "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": _message(record),
    }
    extras = ((name, value) for name, value in vars(record).items() if name not in _STANDARD and name not in _OWN)
    for name, value in islice(extras, FIELDS_MAX):
        fields[name[:VALUE_CHARS_MAX]] = _plain(name, value)
    if repeats:
        fields["repeats_left_out"] = repeats
    if record.exc_info and record.exc_info[1] is not None:
        fields["exception"] = _exception(record.exc_info[1])
    return _encode(fields)


def _message(record: logging.LogRecord) -> str:
    if not is_ours(record.name):
        return _cut(opening_words(record.msg), MESSAGE_CHARS_MAX)
    try:
        return _cut(record.getMessage(), MESSAGE_CHARS_MAX)
    except (TypeError, ValueError, KeyError):  # arguments that do not fit their template: a bug, but no lost line
        return _cut(str(record.msg), MESSAGE_CHARS_MAX)


def _plain(name: str, value: object) -> object:
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if isfinite(value) else repr(value)
        case str():
            return "[redacted]" if _SECRET.search(name) else _cut(value, VALUE_CHARS_MAX)
        case UUID():
            return str(value)
        case datetime():
            return value.isoformat()
        case bytes() | bytearray() | memoryview():
            return f"[{len(value)} bytes]"
        case _:
            return f"[{type(value).__qualname__}]"


def _cut(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else text[: chars_max - 1] + "…"


def _exception(error: BaseException) -> dict[str, Any]:
    """The error, what caused it, and the members of groups, EXCEPTIONS_MAX of them in all."""
    room = EXCEPTIONS_MAX

    def tell(error: BaseException) -> dict[str, Any]:
        nonlocal room
        room -= 1
        kind = type(error)
        told: dict[str, Any] = {"type": f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")}
        told |= _words(error)
        told["frames"] = _frames(error.__traceback__)
        if isinstance(error, BaseExceptionGroup):
            told["members"] = [tell(member) for member in error.exceptions if room > 0]
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if cause is not None and room > 0:
            told["cause"] = tell(cause)
        return told

    return tell(error)


def _words(error: BaseException) -> dict[str, str]:
    """What an exception says of itself, as far as that cannot quote input."""
    if is_ours(type(error).__module__):
        return {"message": _cut(str(error), MESSAGE_CHARS_MAX)}
    if isinstance(error, OSError) and error.strerror:
        return {"message": _cut(str(error.strerror), MESSAGE_CHARS_MAX)}
    sqlstate = getattr(error, "sqlstate", None)  # a database error's message may quote a row; its code tells enough
    return {"sqlstate": sqlstate} if isinstance(sqlstate, str) else {}


def _frames(traceback: TracebackType | None) -> list[str]:
    places = [f"{_short(frame.f_code.co_filename)}:{line} {frame.f_code.co_name}" for frame, line in walk_tb(traceback)]
    return places[-FRAMES_MAX:]


def _short(path: str) -> str:
    """From the package on: where it is installed says nothing."""
    if "/site-packages/" in path:
        return path.rpartition("/site-packages/")[2]
    if "/gateway/" in path:
        return "gateway/" + path.rpartition("/gateway/")[2]
    return "/".join(path.rsplit("/", 2)[-2:])


def _encode(fields: dict[str, Any]) -> bytes:
    try:
        line = orjson.dumps(fields)
        if line.isascii():
            return line + b"\n"
    except orjson.JSONEncodeError:  # lone surrogates, integers beyond 64 bits
        pass
    # Pure ASCII: U+2028 and its like end a line for some readers, C1 controls steer terminals.
    return json.dumps(fields, separators=(",", ":")).encode("ascii") + b"\n"
