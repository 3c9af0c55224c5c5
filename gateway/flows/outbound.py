"""The request that goes upstream after the PONR: the one of Phase 1, plus what identifies it (P2-3, REC-3)."""

from __future__ import annotations

from uuid import UUID

from gateway.protocol.baggage import with_parent
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
    headers.append((b"baggage", with_parent(baggage, client_id)))  # COR-2
    return headers
