"""AES-256-GCM under data keys that are never used twice with one nonce (SEC-4).

A random 96-bit nonce under one long-lived key is safe for about 2^32 messages, which a busy gateway sends in days. So
each sealer draws a random salt, derives a data key of its own from the master key, and counts nonces under it: nothing
repeats within a data key, and a thousand workers share a master key without talking to each other.

    blob = version (1) | salt (16) | nonce (12) | ciphertext and tag (n + 16)

The kind and the row are authenticated with it, so that a blob copied to another row, or a response passed off as a
payload, does not open. Knows nothing of key ids or rotation (see `ring`).
"""

from __future__ import annotations

import os
from itertools import count
from typing import NoReturn

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gateway.vault.derivation import derive
from gateway.vault.errors import Tampered

VERSION = 1
SALT_BYTES = 16
NONCE_BYTES = 12
TAG_BYTES = 16
OVERHEAD_BYTES = 1 + SALT_BYTES + NONCE_BYTES + TAG_BYTES
DATA_KEY_INFO = b"2php vault v1"
MESSAGES_MAX = 2**32  # per data key: far below GCM's own bounds at our sizes; then a new salt

_SALT = slice(1, 1 + SALT_BYTES)
_NONCE = slice(1 + SALT_BYTES, 1 + SALT_BYTES + NONCE_BYTES)
_SEALED = slice(1 + SALT_BYTES + NONCE_BYTES, None)

_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


# A forked child inherits salt and counter, and would repeat its parent's nonces. Comparing process ids would miss a
# grandchild that is given its dead grandparent's id; counting forks misses none.
os.register_at_fork(after_in_child=_count_fork)


def data_key(secret: bytes, salt: bytes) -> AESGCM:
    """The cipher that sealed everything carrying `salt`."""
    return AESGCM(derive(secret, salt=salt, info=DATA_KEY_INFO))


class _Stretch:
    """One data key with its counter: what a sealer uses until the salt is spent or the process forks."""

    __slots__ = ("cipher", "forks", "nonces", "prefix")

    def __init__(self, secret: bytes) -> None:
        salt = os.urandom(SALT_BYTES)
        self.cipher = data_key(secret, salt)
        self.prefix = bytes((VERSION,)) + salt
        self.nonces = count()
        self.forks = _forks


class Sealer:
    """Seals under one master key. Safe to share between threads and to carry over a fork."""

    __slots__ = ("_secret", "_stretch")

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._stretch = _Stretch(secret)

    def seal(self, kind: bytes, row: bytes, plaintext: bytes) -> bytes:
        stretch = self._stretch
        number = next(stretch.nonces)  # atomic: two threads never get the same one
        if stretch.forks != _forks or number >= MESSAGES_MAX:
            stretch = self._stretch = _Stretch(self._secret)
            number = next(stretch.nonces)
        nonce = number.to_bytes(NONCE_BYTES, "big")
        return stretch.prefix + nonce + stretch.cipher.encrypt(nonce, plaintext, _bound_to(kind, row))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a sealer holds an encryption key and is never pickled or copied")


def salt_of(blob: bytes) -> bytes:
    """The salt of a blob of a form we know; Tampered for anything else."""
    if len(blob) < OVERHEAD_BYTES:
        raise Tampered(f"a sealed blob has at least {OVERHEAD_BYTES} bytes, this one {len(blob)}")
    if blob[0] != VERSION:
        raise Tampered(f"sealed blob of unknown version {blob[0]}")
    return blob[_SALT]


def open_blob(cipher: AESGCM, kind: bytes, row: bytes, blob: bytes) -> bytes:
    """The plaintext of a blob whose form `salt_of` has accepted."""
    try:
        return cipher.decrypt(blob[_NONCE], memoryview(blob)[_SEALED], _bound_to(kind, row))
    except InvalidTag:
        raise Tampered(
            f"a sealed {kind.decode('ascii', 'replace')} does not authenticate: changed, moved from another row, "
            "or sealed by another key"
        ) from None


def _bound_to(kind: bytes, row: bytes) -> bytes:
    # The length keeps ("ab", "c") apart from ("a", "bc").
    return bytes((len(kind),)) + kind + row
