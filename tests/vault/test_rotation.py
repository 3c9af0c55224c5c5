"""DESIGN decision 12: start and reload refuse a wrong key, or the absence of one still in use."""

from __future__ import annotations

import pytest

from gateway.vault import Key, KeysRefused, KnownKey, admit, removable

OLD, NEW = Key("k1", b"1" * 32), Key("k2", b"2" * 32)


def known(key: Key, number: int, *, in_use: bool = True) -> KnownKey:
    return KnownKey(id=key.id, number=number, check_value=key.check_value(), in_use=in_use)


def test_a_first_start_has_every_key_numbered() -> None:
    assert admit([NEW, OLD], []) == (NEW, OLD)


def test_a_restart_with_the_same_keys_adds_none() -> None:
    assert admit([OLD], [known(OLD, 1)]) == ()


def test_a_rotation_adds_only_the_new_key() -> None:
    assert admit([NEW, OLD], [known(OLD, 1)]) == (NEW,)


def test_a_wrong_key_under_a_known_id_is_refused_even_if_nothing_uses_it() -> None:
    for in_use in (True, False):
        with pytest.raises(KeysRefused, match="'k1' is not the key"):
            admit([Key("k1", b"x" * 32)], [known(OLD, 1, in_use=in_use)])


def test_a_missing_key_is_refused_while_something_is_sealed_with_it() -> None:
    with pytest.raises(KeysRefused, match="'k1' is missing"):
        admit([NEW], [known(OLD, 1), known(NEW, 2)])
    assert admit([NEW], [known(OLD, 1, in_use=False), known(NEW, 2)]) == ()


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(KeysRefused, match=r"'k2' is not the key.*'k1' is missing"):
        admit([Key("k2", b"x" * 32)], [known(OLD, 1), known(NEW, 2)])


def test_only_an_old_key_that_nothing_needs_may_be_removed() -> None:
    assert removable([NEW, OLD], [known(OLD, 1), known(NEW, 2)]) == ()
    assert removable([NEW, OLD], [known(OLD, 1, in_use=False), known(NEW, 2, in_use=False)]) == ("k1",)
    # Not numbered yet: another replica may be sealing with it.
    assert removable([NEW, OLD], [known(NEW, 2)]) == ()
