"""Encryption at rest of payloads, stored headers and responses; the key ring and its rotation (SEC-4).

Imports nothing of ours, touches no network and no database.
"""

from gateway.vault.errors import BadKey, KeysRefused, Tampered, UnknownKey, VaultError
from gateway.vault.key_file import local_keys, read_key_file, rotate_key_file
from gateway.vault.keys import Key, new_key
from gateway.vault.nonces import NonceMaker
from gateway.vault.pepper import caller_digest, new_pepper, pull_token
from gateway.vault.ring import KeyRing
from gateway.vault.rotation import KnownKey, admit, removable

__all__ = [
    "BadKey",
    "Key",
    "KeyRing",
    "KeysRefused",
    "KnownKey",
    "NonceMaker",
    "Tampered",
    "UnknownKey",
    "VaultError",
    "admit",
    "caller_digest",
    "local_keys",
    "new_key",
    "new_pepper",
    "pull_token",
    "read_key_file",
    "removable",
    "rotate_key_file",
]
