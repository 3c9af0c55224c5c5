"""Caller digests: a caller's identity as the ledger keeps it, which without the pepper leads back to nobody.

The pepper is made once per store, sealed by the key ring and never rotated: another pepper would give every caller
another digest, and so free every consumed key (DESIGN decision 12, REP-1).
"""

from __future__ import annotations

import base64
import hmac
import os

from gateway.vault.derivation import derive

PEPPER_BYTES = 32
DIGEST_BYTES = 16  # 128 bits: no two callers meet by chance


def new_pepper() -> bytes:
    return os.urandom(PEPPER_BYTES)


def caller_digest(pepper: bytes, name: bytes) -> bytes:
    """HMAC-SHA256 of a caller's name, cut to 16 bytes."""
    assert len(pepper) == PEPPER_BYTES, "not a pepper"
    return hmac.digest(pepper, name, "sha256")[:DIGEST_BYTES]


def pull_token(pepper: bytes, service_ledger_id: bytes) -> str:
    """LED-3: what the central ledger shows to read this service's entries; the same on all replicas, stored nowhere."""
    assert len(pepper) == PEPPER_BYTES, "not a pepper"
    derived = derive(pepper, salt=service_ledger_id, info=b"2php pull token v1")
    return base64.urlsafe_b64encode(derived).decode().rstrip("=")
