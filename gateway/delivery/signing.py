"""Standard Webhooks signatures (ACM-3): every configured key signs, the newest first, so that keys can be rotated.

With `per_caller`, a caller's callbacks are signed with keys of its own, derived from the configured ones: what one
receiver knows tells it nothing about another's. Compensation hooks are the operator's own and are signed with the
configured keys. Without any key the store's own is used (`store_key`), so that nothing ever leaves unsigned.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from uuid import UUID

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from standardwebhooks import Webhook

PREFIX = "whsec_"
KEY_BYTES = 32
CALLERS_KEPT = 1024  # derived keys held ready; deriving one again costs microseconds

_OF_A_CALLER = b"2php callback caller v1\0"
_OF_A_STORE = b"2php callback store v1"


class Signer:
    """Signs with all keys of a configuration, newest first."""

    def __init__(self, keys: Sequence[str], *, per_caller: bool = False) -> None:
        assert keys, "a signer needs a key: see store_key"
        self._keys = tuple(keys)
        self._own = tuple(Webhook(key) for key in keys)
        self._per_caller = per_caller
        self._of_caller = lru_cache(CALLERS_KEPT)(self._derived)

    def headers(self, delivery_id: UUID, at: datetime, body: bytes, *, caller: bytes | None) -> dict[str, str]:
        """The three headers of one attempt. `caller` is its digest for a callback, None for a hook."""
        hooks = self._own if caller is None or not self._per_caller else self._of_caller(caller)
        name, text = str(delivery_id), body.decode()
        return {
            "webhook-id": name,
            "webhook-timestamp": str(int(at.timestamp())),
            "webhook-signature": " ".join(hook.sign(name, at, text) for hook in hooks),
        }

    def _derived(self, caller: bytes) -> tuple[Webhook, ...]:
        return tuple(Webhook(caller_key(key, caller)) for key in self._keys)


def caller_key(key: str, caller: bytes) -> str:
    """The key of one caller (its digest, as the ledger shows it), as `twophp keys callback` prints it."""
    return _derive(base64.b64decode(key.removeprefix(PREFIX)), _OF_A_CALLER + caller)


def store_key(pepper: bytes) -> str:
    """The key that signs when none is configured: made from the store's own secret, the same for all its gateways."""
    return _derive(pepper, _OF_A_STORE)


def _derive(secret: bytes, info: bytes) -> str:
    derived = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(secret)
    return PREFIX + base64.b64encode(derived).decode()
