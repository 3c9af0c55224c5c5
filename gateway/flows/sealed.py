"""Messages as they are kept: headers and body packed, then sealed to their row (SEC-4)."""

from __future__ import annotations

from gateway.flows.ports import Vault
from gateway.protocol.frames import pack, unpack
from gateway.protocol.identity import IntentKey
from gateway.protocol.messages import Header, Headers
from gateway.protocol.records import Sealed


def seal_message(vault: Vault, kind: bytes, key: IntentKey, headers: Headers, body: bytes) -> Sealed:
    """Seal headers and body for one row."""
    return Sealed(vault.seal(kind, key.logical, pack(headers, body)), vault.sealed_with)


def open_message(vault: Vault, kind: bytes, key: IntentKey, sealed: Sealed) -> tuple[list[Header], bytes]:
    """The headers and body that were sealed."""
    return unpack(vault.open(kind, key.logical, sealed.blob, sealed.key_number))
