"""The three identities of a mutation, kept apart (REP-1).

- `logical_key`: one intended effect. Service, caller and Client-Correlation-ID; consumed once, by the Phase 1
  transaction.
- `replay_key`: everything that effect is bound to. Two requests with one logical key and different replay keys are
  different
  requests (P1-6).
- `attempt_id`: one execution of it. Never part of either key.
"""

from __future__ import annotations

import hashlib
import os
from typing import NamedTuple
from uuid import UUID

PROTOCOL_VERSION = b"2php-00"
BUCKET_BITS = 12  # DESIGN decision 3: a server correlation ID carries this many bits of its key's hash
BUCKETS_MAX = 1 << BUCKET_BITS
LOGICAL_KEY_BYTES = 16

_UUID_VERSION_MASK = ~((0xF << 76) | (0x3 << 62)) & ((1 << 128) - 1)
_UUID_V4 = (0x4 << 76) | (0x2 << 62)
_BUCKET_MASK = BUCKETS_MAX - 1


class IntentKey(NamedTuple):
    """Where an intent lives: the bucket that routes every statement, and its logical key."""

    bucket: int
    logical: bytes


def logical_key(service: bytes, caller: bytes, client_correlation_id: bytes, *, buckets: int) -> IntentKey:
    """The single-use key of one intended effect of one caller at one service."""
    digest = _digest(b"logical", service, caller, client_correlation_id)
    return IntentKey(int.from_bytes(digest[:2], "big") & (buckets - 1), digest[:LOGICAL_KEY_BYTES])


def client_key(service: bytes, client_correlation_id: bytes, *, buckets: int) -> IntentKey:
    """Where the client row of one call that a service makes lives (COR-4); never the key of an intent."""
    digest = _digest(b"client", service, client_correlation_id)
    return IntentKey(int.from_bytes(digest[:2], "big") & (buckets - 1), digest[:LOGICAL_KEY_BYTES])


def derived_client_id(service: bytes, target: bytes, *call: bytes) -> str:
    """COR-4: one client correlation ID for every retry of a call that brings an idempotency key of its own."""
    return "key-" + _digest(b"derived", service, target, *call)[:LOGICAL_KEY_BYTES].hex()


def payload_digest(body: bytes, content_type: bytes, content_encoding: bytes) -> tuple[bytes, bytes]:
    """The SHA-256 of a payload's bytes, and the digest that also binds how they are to be read (P1-5)."""
    body_sha256 = hashlib.sha256(body).digest()
    return body_sha256, _digest(b"payload", body_sha256, content_type, content_encoding)


def replay_key(key: IntentKey, *, method: bytes, target: bytes, payload: bytes, caller: bytes, run_id: bytes) -> bytes:
    """The binding digest of replay-identities section 1; the attempt is not in it."""
    return _digest(b"replay", PROTOCOL_VERSION, key.logical, method, target, payload, caller, run_id)


def new_server_correlation_id(key: IntentKey) -> UUID:
    """SEC-1: a UUID v4 from the CSPRNG whose last bits tell the bucket of its key."""
    bits = int.from_bytes(os.urandom(16), "big") & _UUID_VERSION_MASK & ~_BUCKET_MASK
    return UUID(int=bits | _UUID_V4 | _bucket_bits(key.logical))


def bucket_of(server_correlation_id: UUID, *, buckets: int) -> int:
    """The bucket that a server correlation ID leads to."""
    return server_correlation_id.int & (buckets - 1)


def new_attempt_id() -> UUID:
    """REC-3: the identity of one execution."""
    return UUID(int=int.from_bytes(os.urandom(16), "big") & _UUID_VERSION_MASK | _UUID_V4)


def _bucket_bits(logical: bytes) -> int:
    return int.from_bytes(logical[:2], "big") & _BUCKET_MASK


def _digest(*parts: bytes) -> bytes:
    """SHA-256 over length-prefixed parts, so that no two lists of parts share a digest."""
    joined = b"".join([len(part).to_bytes(4, "big") + part for part in parts])
    return hashlib.sha256(joined).digest()
