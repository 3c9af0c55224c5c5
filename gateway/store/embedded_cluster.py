"""The cluster's files: making it, reading what it says about itself, and the settings it runs with."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import shutil
import signal
import sys
import time
from pathlib import Path

from gateway.store.embedded_account import Account, EmbeddedError, name_of
from gateway.store.embedded_binaries import POSTGRES_MAJOR
from gateway.store.embedded_home import PORT, make_private, sync_directory, write_file
from gateway.store.embedded_process import Process

log = logging.getLogger(__name__)

SUPERUSER = "twophp"
INITDB_TIMEOUT_S = 300.0  # takes about 2 s; a slow disk under load has been seen to take a minute
DRAFT_REMOVALS_MAX = 50  # the initdb of a killed gateway may still be writing; it fails once its files are gone
LOG_BYTES_MAX = 4 * 1024 * 1024  # and one older file of the same size: enough to see what happened, no more

CLIENT_LINE = re.compile(r"^[^[]*\[\d+\] ([a-z-]+ )?client backend: ")  # %b of a server process that serves a client

SETTINGS = {
    # Durability: an acknowledged intent survives a power cut (P1-3). The defaults, said so that no file overrides them.
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "wal_init_zero": "off",  # measured: zeroing new WAL files lengthens the handshake's p99 from 5 to 47 ms
    # Reach: one private socket and nothing else.
    "listen_addresses": "",
    "port": str(PORT),
    "unix_socket_permissions": "0700",
    # Size: a sidecar's share of a machine.
    "max_connections": "500",  # a worker holds about twenty, the supervisor ten; an unused slot costs kilobytes
    "shared_buffers": "128MB",
    "autovacuum": "on",
    "jit": "off",  # our statements are short: compiling one costs more than running it
    "timezone": "UTC",
    # Log: to stderr, which is a file. No DETAIL lines: they quote row values, and those are never logged (SEC-4).
    "logging_collector": "off",
    "log_destination": "stderr",
    "log_line_prefix": "%m [%p] %b: ",
    "log_error_verbosity": "terse",
    "log_parameter_max_length_on_error": "0",
    "log_statement": "none",
    "log_checkpoints": "off",
    "log_timezone": "UTC",
    "log_startup_progress_interval": "2s",  # recovery says how far it is: that is how we know it moves
}


def server_arguments(home: Path, socket_dir: Path) -> list[str]:
    """The command line of `postgres`. Arguments win over every file in the cluster, ALTER SYSTEM included."""
    settings = {
        **SETTINGS,
        "unix_socket_directories": f'"{socket_dir}"',
        "hba_file": str(home / "pg_hba.conf"),
        "ident_file": str(home / "pg_ident.conf"),
    }
    arguments = ["-D", str(home / "data")]
    for name, value in settings.items():
        arguments += ["-c", f"{name}={value}"]
    return arguments


def write_access_rules(home: Path, account: Account) -> None:
    """Only the gateway's user and the account that runs Postgres get in, as the kernel tells who is at the socket."""
    group = account.gid if account.lent else None
    names = sorted({name_of(os.geteuid()), account.name})
    write_file(home / "pg_hba.conf", "local all all peer map=gateway\n", group=group)
    write_file(home / "pg_ident.conf", "".join(f'gateway "{name}" all\n' for name in names), group=group)


def open_log(home: Path) -> int:
    """The log, for appending. A large one is moved aside first."""
    path = home / "postgres.log"
    if log_size(home) > LOG_BYTES_MAX:
        path.replace(home / "postgres.log.1")
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def bound_log(home: Path) -> None:
    """Keep a running server's log in bounds: it holds the file open, so its content is moved, not the file."""
    path = home / "postgres.log"
    if log_size(home) <= LOG_BYTES_MAX:
        return
    try:
        shutil.copyfile(path, home / "postgres.log.1")
    except OSError as error:  # on a full disk the space counts for more than old lines
        log.warning("the log of Postgres could not be kept: %s", error)
    os.truncate(path, 0)  # the server appends, so it goes on at the new end


def log_after(home: Path, offset: int) -> bytes:
    """The whole lines that the log has gained since `offset` bytes."""
    with open(home / "postgres.log", "rb") as file:
        file.seek(offset)
        said = file.read(64 * 1024)
    return said[: said.rfind(b"\n") + 1]


def progress(said: bytes) -> list[str]:
    """What the server says about itself: not the lines of its clients, of whom we are one while we ask if it is up."""
    lines = said.decode("utf-8", "replace").splitlines()
    return [line for line in lines if not CLIENT_LINE.search(line)]


def log_size(home: Path) -> int:
    """The log's length so far, in bytes."""
    path = home / "postgres.log"
    return path.stat().st_size if path.exists() else 0


async def ensure_cluster(home: Path, binaries: Path, account: Account) -> None:
    """Make the cluster if there is none. What an interrupted attempt left behind is removed."""
    await asyncio.to_thread(_remove_drafts, home)
    data = home / "data"
    if data.exists() and any(data.iterdir()):
        _require_version(data)
        return
    draft = home / f"data.draft-{secrets.token_hex(4)}"
    make_private(draft, account)
    await _initdb(home, draft, binaries, account)
    # A cluster counts only under its final name, and gets that in one step.
    draft.rename(data)
    sync_directory(home)


def system_identifier(home: Path) -> int:
    """The number that tells this cluster from every other: the first field of its control file."""
    with open(home / "data" / "global" / "pg_control", "rb") as file:
        return int.from_bytes(file.read(8), sys.byteorder)


def recorded_postmaster(home: Path, socket_dir: Path) -> int | None:
    """The pid in the lock files of this cluster's server, which may be stale."""
    return next(iter(_lock_files(home, socket_dir).values()), None)


def works_in(pid: int, home: Path) -> bool | None:
    """Whether the process works in the cluster's directory, as every Postgres process does; None if we cannot tell."""
    try:
        return os.path.samestat(os.stat(f"/proc/{pid}/cwd"), (home / "data").stat())
    except OSError:
        return None


def forget_postmaster(home: Path, socket_dir: Path) -> None:
    """Remove stale lock files, whose pid is another program's by now: Postgres alone would refuse to start.

    Server processes that outlived their postmaster are still guarded against: Postgres finds their shared memory by
    the cluster's inode, not by these files.
    """
    for path in _lock_files(home, socket_dir):
        path.unlink(missing_ok=True)


def _lock_files(home: Path, socket_dir: Path) -> dict[Path, int]:
    """Postgres locks its cluster and its socket: a pid in the first line, the cluster's directory in the second."""
    data = home / "data"
    found = {}
    for path in (data / "postmaster.pid", socket_dir / f".s.PGSQL.{PORT}.lock"):
        try:
            pid, directory, *_ = path.read_text("utf-8").splitlines()
        except (OSError, ValueError):
            continue
        if pid.strip().isdigit() and int(pid) > 0 and (path.parent == data or directory == str(data)):
            found[path] = int(pid)
    return found


async def _initdb(home: Path, draft: Path, binaries: Path, account: Account) -> None:
    log_path = home / "initdb.log"
    output = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        process = Process.spawn(
            [
                *(binaries / "initdb", "--pgdata", draft, "--username", SUPERUSER, "--auth", "peer"),
                # Text compares by code point, the same on every machine and after every system upgrade.
                *("--encoding", "UTF8", "--locale", "C", "--locale-provider", "builtin", "--builtin-locale", "C.UTF-8"),
                "--no-instructions",
            ],
            account=account,
            directory=draft,
            output=output,
        )
    finally:
        os.close(output)
    try:
        async with asyncio.timeout(INITDB_TIMEOUT_S):
            status = await process.exited()
    except TimeoutError:
        raise EmbeddedError(f"initdb did not finish within {INITDB_TIMEOUT_S:.0f} s: see {log_path}") from None
    finally:
        process.send_group(signal.SIGKILL)
        process.close()
    if status != 0:
        raise EmbeddedError(f"initdb failed with status {status}: {log_path.read_text('utf-8', 'replace').strip()}")
    log_path.unlink()


def _remove_drafts(home: Path) -> None:
    for draft in home.glob("data.draft-*"):
        for _ in range(DRAFT_REMOVALS_MAX):
            shutil.rmtree(draft, ignore_errors=True)
            if not draft.exists():
                break
            time.sleep(0.1)


def _require_version(data: Path) -> None:
    version = data / "PG_VERSION"
    found = version.read_text("utf-8").strip() if version.exists() else None
    if found is None:
        raise EmbeddedError(f"{data} is no Postgres cluster: move it away, or choose another store.data_dir")
    if found != str(POSTGRES_MAJOR):
        raise EmbeddedError(
            f"{data} was made by PostgreSQL {found}, this gateway runs {POSTGRES_MAJOR}: "
            "dump it with the old release and restore it with this one"
        )
