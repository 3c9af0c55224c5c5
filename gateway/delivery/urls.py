"""URLs as they are kept: sealed, for they may carry a secret of their own (SEC-4).

A callback's is bound to its intent. A hook's stands in the configuration and goes with many intents, so it is sealed
once and bound to what it is.
"""

from __future__ import annotations

from gateway.delivery.guard import AddressGuard
from gateway.delivery.targets import Target, trusted
from gateway.flows.ports import Vault
from gateway.protocol.deliveries import DueDelivery
from gateway.protocol.identity import IntentKey
from gateway.protocol.records import Sealed

_CALLBACK = b"callback"
_HOOK = b"hook"


def seal_callback(vault: Vault, key: IntentKey, url: str) -> Sealed:
    """A callback's URL for its row."""
    return Sealed(vault.seal(_CALLBACK, key.logical, url.encode()), vault.sealed_with)


def seal_hook(vault: Vault, url: str) -> tuple[Sealed, int]:
    """A hook's URL for any row, and the `host` that goes with it."""
    return Sealed(vault.seal(_HOOK, b"", url.encode()), vault.sealed_with), trusted(url).host_key


def target_of(vault: Vault, guard: AddressGuard, due: DueDelivery) -> Target:
    """Where a stored delivery goes. A caller's URL is checked again, by the rules of now; the operator's own is not."""
    kind, row = (_CALLBACK, due.key.logical) if due.kind == "callback" else (_HOOK, b"")
    url = vault.open(kind, row, due.url.blob, due.url.key_number).decode()
    return guard.check_url(url) if due.kind == "callback" else trusted(url)
