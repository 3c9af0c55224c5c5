"""Where the embedded Postgres lives on disk, and who may use it.

    data_dir/
      lock                 held by the one gateway that uses this directory; contains its pid
      postgres/            the home, or `postgres.location` naming one elsewhere
        data/                the cluster (Postgres's own)
        socket/              0700, or `socket.location` naming a short one under the system's temporary directory
        pg_hba.conf pg_ident.conf postgres.log

In a root gateway only `data/` and `socket/` belong to the account that runs Postgres, so that it cannot plant links
where root writes. Directories are created with the modes they need; no existing directory's mode is ever changed.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import secrets
import shutil
import stat
import tempfile
from pathlib import Path

from gateway.store.embedded_account import Account, EmbeddedError
from gateway.store.embedded_process import is_alive

log = logging.getLogger(__name__)

# For a root gateway whose data_dir is closed to other users (/root usually is). Never a temporary directory: a ledger
# must survive a reboot.
SHELF = Path("/var/lib/twophp")

PORT = 5432  # only names the socket file; nothing listens on TCP
SOCKET_PATH_BYTES_MAX = 100  # sun_path holds 108 bytes on Linux and 104 on macOS, its final NUL included
LOCK_PATIENCE_S = 10.0  # workers of a killed gateway may hold the lock a little longer than it lived


class DataLock:
    """One gateway per data_dir, until it ends however it ends."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / "lock"
        self._descriptor: int | None = None

    async def acquire(self) -> None:
        """Take the lock, or say who holds it."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            deadline = asyncio.get_running_loop().time() + LOCK_PATIENCE_S
            while not _try_lock(descriptor):
                holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
                gone = holder.isdigit() and not is_alive(int(holder))
                if not gone or asyncio.get_running_loop().time() >= deadline:
                    raise EmbeddedError(
                        f"{self._path.parent} is in use by another gateway (process {holder or 'unknown'}): "
                        "stop that one, or give this one a store.data_dir of its own"
                    )
                await asyncio.sleep(0.1)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        """Let the next gateway in. The file stays: removing it would let two gateways lock two files."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def make_data_dir(data_dir: Path, account: Account) -> None:
    """Create data_dir, private, but passable for the account that runs Postgres."""
    if not data_dir.exists():
        data_dir.mkdir(mode=0o700, parents=True)
        _open_to_group(data_dir, account)


def recorded_home(data_dir: Path) -> Path | None:
    """The home that data_dir has already, if any."""
    record = data_dir / "postgres.location"
    if record.exists():
        home = Path(record.read_text("utf-8").strip())
        if not home.is_dir():
            raise EmbeddedError(
                f"{record} says that the database is at {home}, but nothing is there: restore it, "
                f"or remove {record} to start with an empty ledger"
            )
        return home
    home = data_dir / "postgres"
    return home if home.exists() else None


def make_home(data_dir: Path, account: Account, shelf: Path) -> Path:
    """A new home: in data_dir if the account can get there, else on the shelf and recorded in data_dir."""
    closed = account.first_closed(data_dir) if account.lent else None
    if closed is None:
        return _make_directory(data_dir / "postgres", account)
    try:
        shelf.mkdir(mode=0o755, parents=True, exist_ok=True)
        home = _make_directory(shelf / f"{data_dir.name.strip('.') or 'data'}-{secrets.token_hex(6)}", account)
    except OSError as error:
        raise EmbeddedError(
            f"Postgres runs as the user {account.name!r}, which cannot pass through {closed}, and no place could be "
            f"made under {shelf} ({error.strerror}): choose a store.data_dir that other users can pass through"
        ) from error
    write_file(data_dir / "postgres.location", f"{home}\n")
    log.warning("the user %r, who runs Postgres, cannot enter %s: the database is in %s", account.name, closed, home)
    return home


def require_open(home: Path, account: Account) -> None:
    """Refuse a home that the account cannot reach any more, naming the directory in the way."""
    closed = account.first_closed(home) if account.lent else None
    if closed is not None:
        raise EmbeddedError(
            f"Postgres runs as the user {account.name!r}, which cannot pass through {closed} to its data in {home}: "
            f"allow it to pass (chmod o+x {closed}), or move the data"
        )


def socket_directory(home: Path, account: Account) -> Path:
    """The directory of the socket, the same one every time, private to the account that runs Postgres."""
    local = home / "socket"
    if len(os.fsencode(local / f".s.PGSQL.{PORT}")) <= SOCKET_PATH_BYTES_MAX and "," not in str(local):
        if not local.exists():
            make_private(local, account)
        return local
    record = home / "socket.location"
    if record.exists():
        recorded = Path(record.read_text("utf-8").strip())
        if _is_private(recorded, account):
            return recorded
    short = Path(tempfile.mkdtemp(prefix="twophp-"))  # 0700
    if account.lent:
        os.chown(short, account.uid, account.gid)
    write_file(record, f"{short}\n")
    log.info("the path %s is too long for a socket: the socket is in %s", local, short)
    return short


def remove_socket_directory(home: Path, directory: Path) -> None:
    """Remove a short socket directory that is no longer used; one in the home stays."""
    if directory.parent != home:
        shutil.rmtree(directory, ignore_errors=True)
        (home / "socket.location").unlink(missing_ok=True)


def make_private(directory: Path, account: Account) -> None:
    """A new 0700 directory that belongs to the account."""
    directory.mkdir(mode=0o700)
    if account.lent:
        os.chown(directory, account.uid, account.gid)


def write_file(path: Path, text: str, *, group: int | None = None) -> None:
    """Write a file whole or not at all, durably; readable by us, and by `group` if given."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        if group is not None:
            os.fchown(descriptor, -1, group)
            os.fchmod(descriptor, 0o640)
        file.write(text)
        file.flush()
        os.fsync(descriptor)
    draft.rename(path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make a rename in `directory` survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_directory(path: Path, account: Account) -> Path:
    """Make a directory under another name first, so that a half-made one is never taken for a home."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    draft.mkdir(mode=0o700)
    _open_to_group(draft, account)
    draft.rename(path)
    return path


def _open_to_group(new_directory: Path, account: Account) -> None:
    """Let the account pass through a directory that was just made; it can neither list nor write it."""
    if account.lent:
        os.chown(new_directory, -1, account.gid)
        new_directory.chmod(0o710)


def _is_private(directory: Path, account: Account) -> bool:
    try:
        status = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == account.uid and not status.st_mode & 0o077


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True
