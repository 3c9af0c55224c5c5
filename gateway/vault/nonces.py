"""Authorization nonces: the token that Phase 1 hands out for a late confirmation (SEC-3, REP-2).

Derived and not kept: an exact retry of Phase 1 gets the same one, any replica can check it, and nothing is written
before it is consumed. Who knows one intent's nonce knows nothing about another's.
"""

from __future__ import annotations

import base64
import hmac

from gateway.vault.derivation import derive


class NonceMaker:
    """Makes nonces under a key of its own, derived from the store's pepper: the same on every replica."""

    def __init__(self, pepper: bytes) -> None:
        self._key = derive(pepper, salt=b"", info=b"2php authorization nonce")

    def nonce(self, logical_key: bytes, server_correlation_id: bytes, caller: bytes) -> str:
        """The nonce of one intent and its caller. All three are of fixed length."""
        bound = logical_key + server_correlation_id + caller
        return base64.urlsafe_b64encode(hmac.digest(self._key, bound, "sha256")).rstrip(b"=").decode()
