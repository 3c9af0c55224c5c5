"""SEC-4: what is sealed opens only as itself: same bytes, same row, same kind, a key of the ring."""

from __future__ import annotations

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from copy import copy, deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.vault import BadKey, Key, KeyRing, Tampered, UnknownKey, new_key, sealing
from gateway.vault.sealing import OVERHEAD_BYTES, Sealer

ROW = b"\x01" * 32
OTHER_ROW = b"\x02" * 32
PLAINTEXT = b'{"amount": 100}'
OLD, NEW = Key("k1", b"1" * 32), Key("k2", b"2" * 32)
NUMBERS = {"k1": 1, "k2": 2}


def ring_of(*keys: Key) -> KeyRing:
    ring = KeyRing(keys)
    ring.bind(NUMBERS)
    return ring


RING = ring_of(OLD)


@given(kind=st.binary(max_size=16), row=st.binary(max_size=64), plaintext=st.binary(max_size=4096))
def test_what_is_sealed_opens_to_the_same_bytes(kind: bytes, row: bytes, plaintext: bytes) -> None:
    blob = RING.seal(kind, row, plaintext)
    assert RING.open(kind, row, blob, RING.sealed_with) == plaintext
    assert len(blob) == len(plaintext) + OVERHEAD_BYTES


def test_a_blob_shows_nothing_of_its_plaintext() -> None:
    plaintext = b"canary-" * 64
    blob = RING.seal(b"payload", ROW, plaintext)
    assert b"canary" not in blob
    assert RING.seal(b"payload", ROW, plaintext)[-len(plaintext) :] != blob[-len(plaintext) :]


@pytest.mark.parametrize("at", range(OVERHEAD_BYTES + len(PLAINTEXT)))
def test_a_change_of_any_byte_is_detected(at: int) -> None:
    """Every region: version, salt, nonce, ciphertext and tag."""
    blob = bytearray(RING.seal(b"payload", ROW, PLAINTEXT))
    blob[at] ^= 0x01
    with pytest.raises(Tampered):
        RING.open(b"payload", ROW, bytes(blob), 1)


@pytest.mark.parametrize("length", range(OVERHEAD_BYTES + len(PLAINTEXT)))
def test_a_cut_blob_is_detected(length: int) -> None:
    blob = RING.seal(b"payload", ROW, PLAINTEXT)
    with pytest.raises(Tampered):
        RING.open(b"payload", ROW, blob[:length], 1)


def test_a_blob_moved_to_another_row_does_not_open() -> None:
    blob = RING.seal(b"payload", ROW, PLAINTEXT)
    with pytest.raises(Tampered):
        RING.open(b"payload", OTHER_ROW, blob, 1)


def test_a_response_passed_off_as_a_payload_does_not_open() -> None:
    for kind in (b"response", b"headers"):  # the second is as long as the kind it is opened as
        blob = RING.seal(kind, ROW, PLAINTEXT)
        with pytest.raises(Tampered):
            RING.open(b"payload", ROW, blob, 1)


def test_kind_and_row_cannot_be_shifted_into_each_other() -> None:
    blob = RING.seal(b"ab", b"c", PLAINTEXT)
    with pytest.raises(Tampered):
        RING.open(b"a", b"bc", blob, 1)


def test_a_blob_does_not_open_under_another_key_of_the_ring() -> None:
    ring = ring_of(NEW, OLD)
    blob = ring.seal(b"payload", ROW, PLAINTEXT)
    with pytest.raises(Tampered):
        ring.open(b"payload", ROW, blob, 1)


def test_after_a_rotation_the_new_key_seals_and_the_old_one_still_opens() -> None:
    before = ring_of(OLD)
    old_blob = before.seal(b"payload", ROW, PLAINTEXT)
    after = ring_of(NEW, OLD)
    new_blob = after.seal(b"payload", ROW, PLAINTEXT)
    assert (before.sealed_with, after.sealed_with) == (1, 2)
    assert after.open(b"payload", ROW, old_blob, 1) == PLAINTEXT
    assert after.open(b"payload", ROW, new_blob, 2) == PLAINTEXT
    with pytest.raises(UnknownKey):
        before.open(b"payload", ROW, new_blob, 2)


def test_what_stays_is_sealed_again_under_the_new_key() -> None:
    blob = ring_of(OLD).seal(b"pepper", b"", PLAINTEXT)
    both = ring_of(NEW, OLD)
    assert both.is_stale(1)
    assert not both.is_stale(both.sealed_with)
    again = both.reseal(b"pepper", b"", blob, 1)
    assert ring_of(NEW).open(b"pepper", b"", again, 2) == PLAINTEXT


def test_a_retired_key_is_named_when_something_still_needs_it() -> None:
    blob = ring_of(OLD).seal(b"payload", ROW, PLAINTEXT)
    with pytest.raises(UnknownKey, match="'k1'"):
        ring_of(NEW).open(b"payload", ROW, blob, 1)
    with pytest.raises(UnknownKey, match="number 9"):
        ring_of(NEW).open(b"payload", ROW, blob, 9)


def test_rings_bound_to_other_numbers_forget_the_old_ones() -> None:
    ring = ring_of(NEW, OLD)
    blob = ring.seal(b"payload", ROW, PLAINTEXT)
    assert ring.open(b"payload", ROW, blob, 2) == PLAINTEXT
    ring.bind({"k1": 2, "k2": 3})
    assert ring.sealed_with == 3
    assert ring.open(b"payload", ROW, blob, 3) == PLAINTEXT
    with pytest.raises(Tampered):
        ring.open(b"payload", ROW, blob, 2)


def test_a_ring_needs_keys_with_ids_of_their_own() -> None:
    with pytest.raises(BadKey, match="at least one"):
        KeyRing([])
    with pytest.raises(BadKey, match="more than once: k1"):
        KeyRing([OLD, Key("k1", b"3" * 32)])


def test_an_unbound_ring_does_not_invent_a_key_number() -> None:
    with pytest.raises(AssertionError):
        _ = KeyRing([OLD]).sealed_with
    with pytest.raises(AssertionError):
        KeyRing([OLD, NEW]).bind({"k1": 1})
    with pytest.raises(AssertionError):
        KeyRing([OLD, NEW]).bind({"k1": 1, "k2": 1})


def nonce_of(blob: bytes) -> bytes:
    """Salt and nonce: what must never repeat under one master key."""
    return blob[1:29]


def test_no_nonce_repeats_within_or_between_sealers() -> None:
    sealers = [Sealer(OLD.secret) for _ in range(4)]
    nonces = [nonce_of(sealer.seal(b"payload", ROW, b"")) for _ in range(500) for sealer in sealers]
    assert len(set(nonces)) == len(nonces)


def test_no_nonce_repeats_between_threads_of_one_sealer() -> None:
    sealer = Sealer(OLD.secret)
    with ThreadPoolExecutor(4) as pool:
        nonces = list(pool.map(lambda _: nonce_of(sealer.seal(b"payload", ROW, b"")), range(2000)))
    assert len(set(nonces)) == len(nonces)


def test_a_spent_data_key_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "MESSAGES_MAX", 3)
    ring = ring_of(OLD)
    blobs = [ring.seal(b"payload", ROW, PLAINTEXT) for _ in range(8)]
    assert len({blob[1:17] for blob in blobs}) == 3
    assert len({nonce_of(blob) for blob in blobs}) == 8
    assert all(ring.open(b"payload", ROW, blob, 1) == PLAINTEXT for blob in blobs)


def seal_in_child(ring: KeyRing, *, generations: int) -> bytes:
    """What a child, or a grandchild whose parent sealed nothing, seals first."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            blob = ring.seal(b"payload", ROW, PLAINTEXT) if generations == 1 else seal_in_child(ring, generations=1)
            os.write(writer, blob)
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        blob = pipe.read()
    os.waitpid(child, 0)
    return blob


@pytest.mark.parametrize("generations", [1, 2])
def test_a_forked_process_takes_a_data_key_of_its_own(generations: int) -> None:
    ring = ring_of(OLD)
    before = ring.seal(b"payload", ROW, PLAINTEXT)
    in_child = seal_in_child(ring, generations=generations)
    after = ring.seal(b"payload", ROW, PLAINTEXT)
    assert after[1:17] == before[1:17]
    assert in_child[1:17] != before[1:17]
    assert ring.open(b"payload", ROW, in_child, 1) == PLAINTEXT


def test_a_fork_is_noticed_even_where_the_process_id_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grandchild may be given the id of its dead grandparent."""
    monkeypatch.setattr(os, "getpid", lambda: 4711)
    ring = ring_of(OLD)
    before = ring.seal(b"payload", ROW, PLAINTEXT)
    assert seal_in_child(ring, generations=1)[1:17] != before[1:17]


@pytest.mark.parametrize("holder", [OLD, ring_of(OLD), Sealer(OLD.secret)], ids=lambda holder: type(holder).__name__)
def test_a_secret_is_in_no_repr_and_in_no_pickle(holder: object) -> None:
    shown = f"{holder!r} {holder!s} {holder}"
    assert "1" * 8 not in shown
    for leak in (pickle.dumps, copy, deepcopy):
        with pytest.raises(TypeError, match="never pickled"):
            leak(holder)


def test_no_error_of_the_vault_quotes_a_secret() -> None:
    secret_text = new_key()
    for text in (secret_text[:-5], f"!{secret_text}", f"{secret_text}\u00e9", f"{secret_text}{secret_text}"):
        with pytest.raises(BadKey) as caught:
            Key.from_base64("k1", text)
        assert secret_text[:8] not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__ or caught.value.__context__ is None
