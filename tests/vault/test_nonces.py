"""SEC-3, REP-2: an authorization nonce is bound to its intent and its caller, and to the store that made it."""

from __future__ import annotations

import os

from gateway.vault import NonceMaker


def test_a_nonce_is_the_same_on_every_replica_and_no_other_intents() -> None:
    pepper = os.urandom(32)
    key, server_id, caller = os.urandom(16), os.urandom(16), os.urandom(16)
    made = NonceMaker(pepper).nonce(key, server_id, caller)
    assert made == NonceMaker(pepper).nonce(key, server_id, caller)
    others = {
        NonceMaker(os.urandom(32)).nonce(key, server_id, caller),
        NonceMaker(pepper).nonce(os.urandom(16), server_id, caller),
        NonceMaker(pepper).nonce(key, os.urandom(16), caller),
        NonceMaker(pepper).nonce(key, server_id, os.urandom(16)),
    }
    assert len(others | {made}) == 5


def test_a_nonce_fits_in_a_header_and_holds_256_bits() -> None:
    made = NonceMaker(b"p" * 32).nonce(b"k" * 16, b"s" * 16, b"c" * 16)
    assert len(made) == 43
    assert made.isascii()
    assert set(made) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
