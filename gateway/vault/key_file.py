"""The key file of the embedded store: one `<id> <base64>` line per key, the first one encrypts (DESIGN decision 12).

It lies in the store's data directory, readable by its owner alone. Nobody ever sees half a file: a new one is written
aside, synced, and then linked or renamed into place, so that a crash at any line leaves the old state or the new one.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from gateway.vault.errors import BadKey
from gateway.vault.keys import Key, new_key

FILE_NAME = "encryption.keys"
MODE = 0o600
FILE_BYTES_MAX = 64 * 1024  # about a thousand keys; a larger file is something else

_LOCAL_ID = re.compile(r"local-(\d+)")


def local_keys(data_dir: Path) -> tuple[Key, ...]:
    """The keys of the embedded store in `data_dir`; the first start makes one. The directory must exist."""
    path = data_dir / FILE_NAME
    try:
        return read_key_file(path)
    except FileNotFoundError:
        # Another process may be first: its key wins, and is what is read back.
        with suppress(FileExistsError):
            _place_new(path, _made_after(()))
        return read_key_file(path)


def read_key_file(path: Path) -> tuple[Key, ...]:
    """The keys in `path`, in order. FileNotFoundError if absent; BadKey, with what to do, if it cannot be used."""
    # O_NONBLOCK: opening a FIFO put in its place would otherwise wait for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        _check_file(path, os.fstat(descriptor))
        return _parse(path, file.read(FILE_BYTES_MAX))


def rotate_key_file(path: Path) -> tuple[Key, ...]:
    """Put a new key first and keep the others, so that what they sealed still opens. Returns the keys, in order."""
    with _locked(path):
        keys = read_key_file(path)
        keys = (_made_after(keys), *keys)
        os.replace(_write_aside(path, keys), path)
        _sync_directory(path.parent)
        return keys


def _made_after(keys: Sequence[Key]) -> Key:
    # Above every number in the file: the newest key stays in it, so no id is ever given to a second key.
    numbers = [int(match[1]) for key in keys if (match := _LOCAL_ID.fullmatch(key.id))]
    return Key.from_base64(f"local-{max(numbers, default=0) + 1}", new_key())


def _check_file(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise BadKey(f"{path} is not a regular file")
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise BadKey(f"{path} has mode {mode:04o}, so others can reach the encryption keys; run: chmod 600 {path}")
    if status.st_size > FILE_BYTES_MAX:
        raise BadKey(f"{path} has {status.st_size} bytes, which is no key file; restore it from your backup")


def _parse(path: Path, content: bytes) -> tuple[Key, ...]:
    keys: list[Key] = []
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), start=1):
        if not line.strip():
            continue
        id, _, text = line.strip().partition(" ")
        if not text:
            raise BadKey(f"{path}, line {number}: expected `<id> <base64>`; restore the file from your backup")
        try:
            keys.append(Key.from_base64(id, text))
        except BadKey as error:
            raise BadKey(f"{path}, line {number}: {error}") from None
    if not keys:
        raise BadKey(f"{path} holds no key; restore it from your backup, without it stored payloads cannot be read")
    return tuple(keys)


def _write_aside(path: Path, keys: Sequence[Key]) -> Path:
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write("".join(f"{key.id} {key.to_base64()}\n" for key in keys))
        file.flush()
        os.fsync(descriptor)
    return aside


def _place_new(path: Path, key: Key) -> None:
    """Create `path` whole or not at all; FileExistsError if somebody was faster."""
    aside = _write_aside(path, [key])
    try:
        os.link(aside, path)  # as exclusive as O_EXCL, but with the content already in it
    finally:
        os.unlink(aside)
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One rotation at a time: of two at once, the later would drop the key that the earlier one has put into use."""
    while True:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Each rotation replaces the file: a lock on the one just replaced guards nothing.
            if os.fstat(descriptor).st_ino == os.stat(path).st_ino:
                yield
                return
        finally:
            os.close(descriptor)
