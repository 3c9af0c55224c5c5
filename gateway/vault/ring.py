"""The key ring: the first key seals, every key opens (SEC-4).

A ring's keys never change; a reload makes another ring. Whoever stores a blob stores `sealed_with` of the same ring
beside it. Must not reach for the store: numbers are told to it by `bind`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NoReturn

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gateway.vault.errors import BadKey, UnknownKey
from gateway.vault.keys import Key
from gateway.vault.sealing import Sealer, data_key, open_blob, salt_of

DATA_KEYS_MAX = 512  # one per worker process that ever sealed; deriving one again costs microseconds


class KeyRing:
    def __init__(self, keys: Sequence[Key]) -> None:
        if not keys:
            raise BadKey("the key ring is empty: `encryption.keys` needs at least one key")
        ids = [key.id for key in keys]
        if len(set(ids)) != len(ids):
            twice = sorted({id for id in ids if ids.count(id) > 1})
            raise BadKey(f"encryption key id given more than once: {', '.join(twice)}")
        self._keys = tuple(keys)
        self._sealer = Sealer(keys[0].secret)
        self._ids: dict[int, str] = {}
        self._secrets: dict[int, bytes] = {}
        self._sealed_with: int | None = None
        self._cipher = lru_cache(maxsize=DATA_KEYS_MAX)(self._derive)

    @property
    def keys(self) -> tuple[Key, ...]:
        """All keys, the one that seals first."""
        return self._keys

    @property
    def sealed_with(self) -> int:
        """The number of the key that seals: stored beside every blob this ring makes."""
        assert self._sealed_with is not None, "the ring was not bound to the store's key numbers"
        return self._sealed_with

    def bind(self, numbers: Mapping[str, int]) -> None:
        """Take the store's number of each key id. It may know more ids (retired keys), never fewer."""
        assert len(set(numbers.values())) == len(numbers), "two key ids share a number"
        assert all(key.id in numbers for key in self._keys), "the store has not numbered every key"
        self._ids = {number: id for id, number in numbers.items()}
        self._secrets = {numbers[key.id]: key.secret for key in self._keys}
        self._sealed_with = numbers[self._keys[0].id]
        self._cipher.cache_clear()  # it is keyed by number

    def seal(self, kind: bytes, row: bytes, plaintext: bytes) -> bytes:
        """Encrypt, bound to its kind (`b"payload"`) and its row (the logical key)."""
        return self._sealer.seal(kind, row, plaintext)

    def open(self, kind: bytes, row: bytes, blob: bytes, number: int) -> bytes:
        """Decrypt what `seal` made for the same kind and row; `number` is what `sealed_with` was then."""
        return open_blob(self._cipher(number, salt_of(blob)), kind, row, blob)

    def is_stale(self, number: int) -> bool:
        """Whether a blob sealed with this key waits to be sealed again under the first one."""
        return number != self.sealed_with

    def reseal(self, kind: bytes, row: bytes, blob: bytes, number: int) -> bytes:
        """The same content under the first key: how a rotation reaches what is kept for ever, such as the pepper."""
        return self.seal(kind, row, self.open(kind, row, blob, number))

    def _derive(self, number: int, salt: bytes) -> AESGCM:
        secret = self._secrets.get(number)
        if secret is None:
            name = repr(self._ids[number]) if number in self._ids else f"number {number}"
            raise UnknownKey(f"sealed with encryption key {name}, which is not in `encryption.keys`; add it back")
        return data_key(secret, salt)

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(key.id for key in self._keys)})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key ring is never pickled or copied")
