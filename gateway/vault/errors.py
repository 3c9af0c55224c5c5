"""What can go wrong with sealed data and its keys. No message here ever quotes a key, a plaintext or a blob."""

from __future__ import annotations


class VaultError(Exception):
    """Any refusal of the vault."""


class UnknownKey(VaultError):
    """A blob names a key that is not in the ring."""


class Tampered(VaultError):
    """A blob does not authenticate: it was changed, cut, moved to another row or kind, or sealed by another key."""


class BadKey(VaultError):
    """A key as given cannot be used; the message says what to do about it."""


class KeysRefused(VaultError):
    """The configured keys do not fit what the store already holds (DESIGN decision 12)."""
