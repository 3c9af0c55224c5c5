"""HTTP messages as the rules and flows see them: raw bytes, in their order and case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Header = tuple[bytes, bytes]
Headers = Sequence[Header]


@dataclass(slots=True)
class Answer:
    """A complete, buffered answer.

    The edge adds `Date`, `Content-Length` and `Connection` when it renders one; `close` asks it to end the connection.
    """

    status: int
    headers: list[Header] = field(default_factory=list)
    body: bytes = b""
    reason: bytes | None = None
    close: bool = False


def first_value(headers: Headers, name: bytes) -> bytes | None:
    """The first value of a header, by its lower-case name."""
    for key, value in headers:
        if len(key) == len(name) and key.lower() == name:
            return value
    return None
