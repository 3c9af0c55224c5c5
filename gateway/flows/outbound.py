"""The request that goes upstream after the PONR: the one of Phase 1, plus what identifies it (P2-3, REC-3)."""

from __future__ import annotations

import re
from urllib.parse import quote
from uuid import UUID

from gateway.protocol.messages import Header, Headers

# Said by the caller to the gateway; an upstream that knows nothing of 2PHP has no use for it.
_GATEWAYS_OWN = frozenset(
    {
        b"dtt-2php-enabled",
        b"dtt-2php-requested-ttl",
        b"dtt-2php-client-correlation-id",
        b"dtt-2php-server-correlation-id",
        b"dtt-2php-attempt-id",
        b"dtt-2php-auto-confirm",
        b"dtt-2php-callback",
        b"dtt-2php-authorization-nonce",
    }
)
_PLAIN = re.compile(r"[A-Za-z0-9!#$&'()*+\-./:<=>?@\[\]^_`{|}~]*")
BAGGAGE_BYTES_MAX = 8192  # W3C baggage; past this our member is left out rather than theirs


def forwarded_headers(
    registered: Headers,
    credentials: Headers,
    credential_names: frozenset[bytes],
    server_id: UUID,
    client_id: str,
    attempt_id: UUID,
) -> list[Header]:
    """Phase 1's headers, with Phase 2's credentials where it brought any, and our own identifiers."""
    replaced = {name.lower() for name, _ in credentials} & credential_names
    headers: list[Header] = []
    idempotency_key = False
    baggage: list[bytes] = []
    for header in registered:
        name = header[0].lower()
        if name in _GATEWAYS_OWN or name in replaced:
            continue
        if name == b"idempotency-key":
            idempotency_key = True
        elif name == b"baggage":
            baggage.append(header[1])
            continue
        headers.append(header)
    headers += [header for header in credentials if header[0].lower() in replaced]
    server = str(server_id).encode()
    headers.append((b"DTT-2PHP-Client-Correlation-ID", client_id.encode()))
    headers.append((b"DTT-2PHP-Server-Correlation-ID", server))
    headers.append((b"DTT-2PHP-Attempt-ID", str(attempt_id).encode()))
    if not idempotency_key:
        headers.append((b"Idempotency-Key", server))
    headers.append((b"baggage", _baggage(baggage, client_id)))
    return headers


def _baggage(received: list[bytes], client_id: str) -> bytes:
    """COR-2: who called, in the header that tracing libraries copy to outgoing calls."""
    member = b"2php-parent=" + _percent_encoded(client_id)
    others = [
        item
        for value in received
        for item in value.split(b",")
        if item.strip() and not item.strip().lower().startswith(b"2php-parent=")
    ]
    joined = b",".join([*others, member])
    return joined if len(joined) <= BAGGAGE_BYTES_MAX else b",".join(others)


def _percent_encoded(value: str) -> bytes:
    if _PLAIN.fullmatch(value):
        return value.encode()
    return quote(value, safe="!#$&'()*+-./:<=>?@[]^_`{|}~").encode()
