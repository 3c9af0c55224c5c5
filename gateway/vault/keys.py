"""Master keys: how one is made, written as text, read back, and recognised without being shown.

Must not know where keys are kept (see `key_file` and the settings), nor what they seal (see `sealing`).
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
from typing import NoReturn

from gateway.vault.derivation import KEY_BYTES, derive
from gateway.vault.errors import BadKey

CHECK_VALUE_BYTES = 16


def new_key() -> str:
    """A fresh key as the text that `encryption.keys` expects: base64 of 32 random bytes."""
    return base64.b64encode(os.urandom(KEY_BYTES)).decode("ascii")


class Key:
    """A master key and the id that configuration and ledger know it by.

    It cannot be printed, compared or pickled by accident: only the vault reads `secret`, only a key file is written.
    """

    __slots__ = ("_secret", "id")

    def __init__(self, id: str, secret: bytes) -> None:
        if not id:
            raise BadKey("an encryption key needs an id that is not empty")
        if len(secret) != KEY_BYTES:
            raise BadKey(
                f"encryption key {id!r} has {len(secret)} bytes where AES-256 needs {KEY_BYTES}; "
                "make one with `twophp keys new`"
            )
        self.id = id
        self._secret = bytes(secret)

    @classmethod
    def from_base64(cls, id: str, text: str) -> Key:
        """A key from its text form; white space around it, as at the end of a file, is ignored."""
        try:
            secret = base64.b64decode(text.strip(), validate=True)
        except (binascii.Error, ValueError):
            # `from None`: the original error may quote the text, which is the secret.
            raise BadKey(f"encryption key {id!r} is not base64; make one with `twophp keys new`") from None
        return cls(id, secret)

    @property
    def secret(self) -> bytes:
        return self._secret

    def to_base64(self) -> str:
        """The text form, for a key file and nothing else."""
        return base64.b64encode(self._secret).decode("ascii")

    def check_value(self) -> bytes:
        """What the store keeps to recognise this key (decision 12). One-way, and different under every id."""
        info = b"2php vault check v1\0" + self.id.encode()
        return derive(self._secret, salt=b"", info=info, length=CHECK_VALUE_BYTES)

    def has_check_value(self, value: bytes) -> bool:
        return hmac.compare_digest(self.check_value(), value)

    def __repr__(self) -> str:
        return f"Key(id={self.id!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an encryption key is never pickled or copied")
