"""COR-2: the parent of a call, in the W3C `baggage` header that tracing libraries copy to outgoing calls."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote_to_bytes

from gateway.protocol.messages import Headers

MEMBER = b"2php-parent="
BAGGAGE_BYTES_MAX = 8192  # W3C baggage; past this our member is left out rather than theirs

_PLAIN = re.compile(r"[A-Za-z0-9!#$&'()*+\-./:<=>?@\[\]^_`{|}~]*")
_OPAQUE_ID = re.compile(rb"[\x21-\x7e]{1,255}")


def with_parent(received: list[bytes], client_correlation_id: str) -> bytes:
    """The values of a `baggage` header as one, with this call as the parent of those made on its behalf."""
    member = MEMBER + _percent_encoded(client_correlation_id)
    others = [
        item
        for value in received
        for item in value.split(b",")
        if item.strip() and not item.strip().lower().startswith(MEMBER)
    ]
    joined = b",".join([*others, member])
    return joined if len(joined) <= BAGGAGE_BYTES_MAX else b",".join(others)


def parent_of(headers: Headers) -> str | None:
    """The parent that a request names; None: it has none, or none that could be an ID."""
    for name, value in headers:
        if name.lower() != b"baggage":
            continue
        for item in value.split(b","):
            member = item.strip()
            if member.lower().startswith(MEMBER):
                decoded = unquote_to_bytes(member[len(MEMBER) :].split(b";")[0].strip())
                return decoded.decode("ascii") if _OPAQUE_ID.fullmatch(decoded) else None
    return None


def _percent_encoded(value: str) -> bytes:
    if _PLAIN.fullmatch(value):
        return value.encode()
    return quote(value, safe="!#$&'()*+-./:<=>?@[]^_`{|}~").encode()
