"""DESIGN decision 12: a caller's digest is the same for ever, and leads back to nobody without the pepper."""

from __future__ import annotations

import hashlib
import hmac

from gateway.vault import Key, KeyRing, caller_digest, new_pepper


def test_a_digest_is_the_first_half_of_an_hmac() -> None:
    pepper = new_pepper()
    assert len(pepper) == 32
    assert caller_digest(pepper, b"alice") == hmac.new(pepper, b"alice", hashlib.sha256).digest()[:16]


def test_callers_and_stores_have_digests_of_their_own() -> None:
    pepper, other = new_pepper(), new_pepper()
    assert len({caller_digest(pepper, b"alice"), caller_digest(pepper, b"bob"), caller_digest(other, b"alice")}) == 3


def test_rotating_keys_changes_no_digest() -> None:
    """REP-1: otherwise a rotation would free every consumed key."""
    numbers = {"k1": 1, "k2": 2}
    old, both = KeyRing([Key("k1", b"1" * 32)]), KeyRing([Key("k2", b"2" * 32), Key("k1", b"1" * 32)])
    old.bind(numbers)
    both.bind(numbers)
    pepper = new_pepper()
    sealed = both.reseal(b"pepper", b"", old.seal(b"pepper", b"", pepper), old.sealed_with)
    assert caller_digest(both.open(b"pepper", b"", sealed, both.sealed_with), b"alice") == caller_digest(
        pepper, b"alice"
    )
