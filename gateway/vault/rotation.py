"""Which keys a start or a reload may go on with, and which may be dropped (DESIGN decision 12). Pure logic.

A rotation in three steps, each safe to stop after:
1. put a new key first in `encryption.keys` of every replica, the old one second; reload. `admit` names the new one,
   which the store numbers; from then on it seals, and both open.
2. what is short-lived expires with its payload; what stays (`KeyRing.is_stale`) is sealed again with `KeyRing.reseal`.
3. once `removable` names the old key, take it out. Taken out earlier, `admit` refuses to start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.vault.errors import KeysRefused
from gateway.vault.keys import Key


@dataclass(frozen=True, slots=True)
class KnownKey:
    """A row of the store's table of keys."""

    id: str
    number: int
    check_value: bytes
    in_use: bool  # something stored is still sealed with it


def admit(keys: Sequence[Key], known: Iterable[KnownKey]) -> tuple[Key, ...]:
    """Accept the configured keys, or raise KeysRefused with everything that is wrong with them.

    Returns those the store does not know yet, to be numbered before the ring is bound.
    """
    configured = {key.id: key for key in keys}
    rows = {row.id: row for row in known}
    faults = [
        f"key {id!r} is not the key that this store knows by that id: configure the right one, "
        "or give a new key an id of its own"
        for id, row in rows.items()
        if id in configured and not configured[id].has_check_value(row.check_value)
    ]
    faults += [
        f"key {id!r} is missing, and data sealed with it is still stored: add it back after the first key"
        for id, row in rows.items()
        if id not in configured and row.in_use
    ]
    if faults:
        raise KeysRefused("encryption.keys: " + "; ".join(faults))
    return tuple(key for key in keys if key.id not in rows)


def removable(keys: Sequence[Key], known: Iterable[KnownKey]) -> tuple[str, ...]:
    """Ids of configured keys that neither seal nor are needed to open anything still stored."""
    idle = {row.id for row in known if not row.in_use}
    return tuple(key.id for key in keys[1:] if key.id in idle)
