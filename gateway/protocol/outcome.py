"""What an upstream's answer, or its absence, means; and what the client is told of it.

`FAILED` is always *known*: a definite answer, or provably no effect (P2-5). Everything that may have taken effect
without an answer is in doubt (REC-2): never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import quote

import orjson

from gateway.protocol.messages import Header, Headers, first_value
from gateway.protocol.phases import Phase

RESOURCE_ID_CHARACTERS_MAX = 255
NOWHERE = object()  # what a JSON pointer that does not resolve leads to
_VISIBLE = re.compile(r"[\x21-\x7e]{1,255}")
_TARGET_NAMES_RESOURCE = frozenset({"PUT", "PATCH", "DELETE"})


@dataclass(frozen=True, slots=True)
class Settled:
    """A known outcome."""

    phase: Phase
    message: str | None


_COMMITTED = Settled(Phase.COMMITTED, None)
_REFUSED = Settled(Phase.FAILED, None)


@dataclass(frozen=True, slots=True)
class Doubtful:
    """It may have taken effect, and nobody knows."""

    reason: str


@dataclass(frozen=True, slots=True)
class ResourceIdRule:
    """P2-6: where a route's resource ID is found. All None: the defaults, in turn."""

    header: str | None = None
    json: str | None = None
    path: str | None = None


def of_answer(status: int, in_doubt_statuses: Collection[int]) -> Settled | Doubtful:
    """P2-4, P2-5: an upstream answered, completely."""
    if status in in_doubt_statuses:
        return Doubtful(f"upstream answered {status}")
    if status < 400:
        return _COMMITTED
    if status < 500:
        return _REFUSED
    return Settled(Phase.FAILED, f"Upstream answered {status}.")


def of_failure(kind: str, *, sent: bool) -> Settled | Doubtful:
    """P2-5, REC-4: no answer. Certainly never sent is a known failure; anything else is in doubt."""
    if sent:
        return Doubtful(_DOUBT.get(kind, "connection to upstream lost after the request was sent"))
    return Settled(Phase.FAILED, _UNREACHED.get(kind, "Upstream was not reached; nothing was sent."))


TIMED_OUT = "no answer from upstream in time"
_DOUBT = {
    "timeout": TIMED_OUT,
    "reset": "connection to upstream lost after the request was sent",
    "protocol": "upstream's answer could not be understood",
    "lease": "the right to send was lost within the request",
}
_UNREACHED = {
    "refused": "Upstream refused the connection; nothing was sent.",
    "dns": "Upstream's name could not be resolved; nothing was sent.",
    "tls": "No secure connection to upstream; nothing was sent.",
    "connect_timeout": "Upstream did not accept a connection in time; nothing was sent.",
    "pool": "No connection to upstream was free in time; nothing was sent.",
}


def client_status(phase: Phase, upstream_status: int | None) -> int:
    """The status of a synchronous Phase 2 answer (P2-4, P2-5)."""
    if phase is Phase.COMMITTED:
        return 200
    if upstream_status is not None and 400 <= upstream_status < 500:
        return upstream_status
    return 500


def resource_id(rule: ResourceIdRule, *, method: str, path: bytes, headers: Headers, body: bytes, fallback: str) -> str:
    """P2-6: the name of what was made or changed."""
    if rule.header is not None:
        found = _from_header(headers, rule.header)
    elif rule.json is not None:
        found = _from_json(headers, body, rule.json)
    elif rule.path is not None:
        found = _last_segment(path)
    else:
        found = _from_header(headers, "Location") or _from_json(headers, body, "/id")
        if found is None and method in _TARGET_NAMES_RESOURCE:
            found = _last_segment(path)
    return found if found is not None else fallback


def _from_header(headers: Headers, name: str) -> str | None:
    value = first_value(headers, name.lower().encode())
    if value is None:
        return None
    return _last_segment(value) if name.lower() == "location" else as_id(value.decode("latin-1"))


def _from_json(headers: Headers, body: bytes, pointer: str) -> str | None:
    content_type = first_value(headers, b"content-type")
    if not body or content_type is None or b"json" not in content_type.lower():
        return None
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    value = resolve_pointer(value, pointer)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return as_id(str(value))


def resolve_pointer(document: object, pointer: str) -> object:
    """RFC 6901; NOWHERE where it leads nowhere, None where it leads to a null."""
    for token in pointer.split("/")[1:]:
        token = token.replace("~1", "/").replace("~0", "~")
        if isinstance(document, dict):
            document = document.get(token, NOWHERE)
        elif isinstance(document, list) and token.isdecimal() and int(token) < len(document):
            document = document[int(token)]
        else:
            return NOWHERE
    return document


def _last_segment(target: bytes) -> str | None:
    path = target.split(b"?", 1)[0].split(b"#", 1)[0].rstrip(b"/")
    return as_id(path.rsplit(b"/", 1)[-1].decode("latin-1"))


def as_id(value: str) -> str | None:
    """A value that can stand in a header: what cannot is percent-encoded, what is too long is no ID."""
    if not _VISIBLE.fullmatch(value):
        value = quote(value, safe="/:@!$&'()*+,;=~-._")
    return value if 0 < len(value) <= RESOURCE_ID_CHARACTERS_MAX else None


def without_ours(headers: Headers) -> list[Header]:
    """An upstream's headers without any DTT-2PHP field: those are the gateway's to say."""
    return [header for header in headers if header[0][:9].lower() != b"dtt-2php-"]
