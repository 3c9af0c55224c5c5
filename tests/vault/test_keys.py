"""DESIGN decision 12: how keys are made, read, recognised and kept in the embedded store's key file."""

from __future__ import annotations

import base64
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.vault import BadKey, Key, key_file, local_keys, new_key, read_key_file, rotate_key_file
from gateway.vault.key_file import FILE_NAME


def test_a_new_key_is_base64_of_32_bytes_and_never_the_same() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(len(base64.b64decode(key, validate=True)) == 32 for key in keys)


def test_a_key_reads_back_from_its_text_with_a_newline_at_the_end() -> None:
    text = new_key()
    key = Key.from_base64("k1", f" {text}\n")
    assert key.secret == base64.b64decode(text)
    assert key.to_base64() == text


@pytest.mark.parametrize("length", [0, 16, 31, 33])
def test_a_key_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(BadKey, match=f"'k1' has {length} bytes"):
        Key.from_base64("k1", base64.b64encode(b"x" * length).decode())


def test_a_key_without_an_id_is_refused() -> None:
    with pytest.raises(BadKey, match="id"):
        Key("", b"1" * 32)


def test_a_check_value_recognises_its_key_and_gives_nothing_away() -> None:
    key = Key("k1", b"1" * 32)
    assert key.has_check_value(Key("k1", b"1" * 32).check_value())
    assert not key.has_check_value(Key("k1", b"2" * 32).check_value())
    # The same secret under another id looks like another key.
    assert not key.has_check_value(Key("k2", b"1" * 32).check_value())
    assert key.check_value() not in key.secret
    assert len(key.check_value()) == 16


def test_the_first_start_makes_a_key_that_only_its_owner_reads(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        (key,) = local_keys(tmp_path)
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / FILE_NAME).stat().st_mode) == 0o600
    assert key.id == "local-1"
    assert [name.name for name in tmp_path.iterdir()] == [FILE_NAME]


def test_later_starts_read_the_same_key(tmp_path: Path) -> None:
    assert local_keys(tmp_path)[0].secret == local_keys(tmp_path)[0].secret


def test_processes_that_start_at_once_agree_on_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        secrets = {keys[0].secret for keys in pool.map(local_keys, [tmp_path] * 32)}
    assert len(secrets) == 1
    assert [name.name for name in tmp_path.iterdir()] == [FILE_NAME]


def test_a_crash_while_making_the_key_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(key_file.os, "fsync", crash)
        with pytest.raises(KeyboardInterrupt):
            local_keys(tmp_path)
    assert not (tmp_path / FILE_NAME).exists()
    assert len(local_keys(tmp_path)) == 1


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o620])
def test_a_key_file_that_others_can_reach_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    local_keys(tmp_path)
    path = tmp_path / FILE_NAME
    path.chmod(mode)
    with pytest.raises(BadKey, match=f"mode {mode:04o}.*chmod 600"):
        local_keys(tmp_path)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "holds no key"),
        ("\n\n", "holds no key"),
        ("local-1\n", "line 1: expected"),
        ("local-1 %%%\n", "line 1: .*not base64"),
        (f"local-1 {base64.b64encode(b'x' * 16).decode()}\n", "line 1: .*16 bytes"),
        (f"local-2 {new_key()}\nlocal-1 short\n", "line 2"),
        ("x" * 70_000, "no key file"),
    ],
)
def test_a_damaged_key_file_is_refused_and_not_replaced(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / FILE_NAME
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(BadKey, match=complaint):
        local_keys(tmp_path)
    assert path.read_text() == content


def test_something_else_in_place_of_the_key_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE_NAME, 0o600)
    with pytest.raises(BadKey, match="not a regular file"):
        local_keys(tmp_path)


def test_a_rotation_puts_a_new_key_first_and_keeps_the_others(tmp_path: Path) -> None:
    (first,) = local_keys(tmp_path)
    path = tmp_path / FILE_NAME
    rotated = rotate_key_file(path)
    assert [key.id for key in rotated] == ["local-2", "local-1"]
    assert rotated[1].secret == first.secret
    assert [key.secret for key in read_key_file(path)] == [key.secret for key in rotated]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_id_is_never_given_to_a_second_key(tmp_path: Path) -> None:
    """The store remembers the check value of every id, retired or not."""
    local_keys(tmp_path)
    path = tmp_path / FILE_NAME
    for _ in range(2):
        rotate_key_file(path)
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    assert [key.id for key in rotate_key_file(path)] == ["local-4", "local-3"]


def test_rotations_at_once_lose_no_key(tmp_path: Path) -> None:
    local_keys(tmp_path)
    path = tmp_path / FILE_NAME
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(rotate_key_file, [path] * 16))
    kept = {key.id: key.secret for key in read_key_file(path)}
    assert len(kept) == 17
    assert all(kept[keys[0].id] == keys[0].secret for keys in made)
