"""The embedded Postgres: durable, private, and in its place (DESIGN decision 9, P1-3, SEC-4)."""

from __future__ import annotations

import os
from pathlib import Path

import asyncpg
import pytest

from gateway.store import embedded_cluster as cluster
from gateway.store.embedded import EmbeddedError, EmbeddedPostgres
from gateway.store.embedded_process import is_alive
from tests.store.servers import kill, owner, read_row, run, socket_dir, write_row


async def test_data_is_kept_over_a_stop_and_a_start(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir)
    dsn = await server.start()
    await write_row(dsn)
    first = server.postmaster_pid
    await server.stop()
    await server.stop()
    assert first is not None
    assert not is_alive(first)

    async with EmbeddedPostgres(data_dir) as dsn:
        assert await read_row(dsn) == "acknowledged"


async def test_the_server_is_durable_and_reachable_by_its_socket_alone(data_dir: Path) -> None:
    """P1-3: what is acknowledged is on disk. Nothing in the cluster can switch that off."""
    async with EmbeddedPostgres(data_dir) as dsn:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            await run(dsn, f"ALTER SYSTEM SET {setting} = off")
        await run(dsn, "ALTER SYSTEM SET listen_addresses = 'localhost'")
    expected = {
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
        "wal_init_zero": "off",
        "listen_addresses": "",
        "data_checksums": "on",
        "server_encoding": "UTF8",
        "jit": "off",
    }
    async with EmbeddedPostgres(data_dir) as dsn:
        for setting, value in expected.items():
            assert await run(dsn, f"SHOW {setting}") == value, setting
        assert socket_dir(dsn).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("version", "says"),
    [("16\n", "was made by PostgreSQL 16"), (None, "is no Postgres cluster")],
)
async def test_a_directory_that_is_not_our_cluster_is_refused_untouched(
    data_dir: Path, version: str | None, says: str
) -> None:
    data = data_dir / "postgres" / "data"
    data.mkdir(parents=True)
    (data / ("PG_VERSION" if version else "notes.txt")).write_text(version or "keep me")
    with pytest.raises(EmbeddedError, match=says):
        await EmbeddedPostgres(data_dir).start()
    assert [path.read_text() for path in data.iterdir()] == [version or "keep me"]


async def test_a_deep_directory_gets_a_short_private_socket_directory(data_dir: Path) -> None:
    deep = data_dir / ("d" * 70) / ("e" * 70)
    server = EmbeddedPostgres(deep)
    dsn = await server.start()
    short = socket_dir(dsn)
    try:
        assert len(str(short)) < 90
        assert short.stat().st_mode & 0o777 == 0o700
        await write_row(dsn)
        postmaster = server.postmaster_pid
        assert postmaster is not None
    finally:
        await server.stop()
    assert not short.exists()

    async with owner(deep) as (process, postmaster, dsn):
        await kill(process)
        adopting = EmbeddedPostgres(deep)
        assert await adopting.start() == dsn, "the short directory is found again"
        assert adopting.postmaster_pid == postmaster
        assert await read_row(dsn) == "acknowledged"
        await adopting.stop()


async def test_no_existing_directorys_mode_or_owner_is_changed(data_dir: Path) -> None:
    parent = data_dir / "parent"
    existing = parent / "existing"
    existing.mkdir(parents=True)
    parent.chmod(0o751)
    existing.chmod(0o715)
    watched = [Path("/"), data_dir.parent, data_dir, parent, existing]
    before = [(path.stat().st_mode, path.stat().st_uid, path.stat().st_gid) for path in watched]
    async with EmbeddedPostgres(existing) as dsn:
        await write_row(dsn)
    assert [(path.stat().st_mode, path.stat().st_uid, path.stat().st_gid) for path in watched] == before


async def test_a_new_data_directory_cannot_be_listed_by_others(data_dir: Path) -> None:
    async with EmbeddedPostgres(data_dir / "new"):
        assert (data_dir / "new").stat().st_mode & 0o067 == 0
        assert (data_dir / "new" / "postgres" / "data").stat().st_mode & 0o077 == 0


async def test_row_values_do_not_reach_the_servers_log(data_dir: Path) -> None:
    """SEC-4: Postgres quotes the offending row in DETAIL lines unless told not to."""
    async with EmbeddedPostgres(data_dir) as dsn:
        connection = await asyncpg.connect(dsn)
        await connection.execute("CREATE TABLE kept (name text PRIMARY KEY CHECK (name <> ''))")
        for _ in range(2):
            try:
                await connection.execute("INSERT INTO kept VALUES ($1)", "canary-7f3a")
            except asyncpg.UniqueViolationError:
                pass
        await connection.close()
        written = (data_dir / "postgres" / "postgres.log").read_text()
    assert "duplicate key value" in written
    assert "canary-7f3a" not in written


def test_the_log_of_a_running_server_is_kept_in_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "LOG_BYTES_MAX", 1000)
    descriptor = cluster.open_log(tmp_path)
    os.write(descriptor, b"x" * 1001)
    cluster.bound_log(tmp_path)
    os.write(descriptor, b"after")
    os.close(descriptor)
    assert (tmp_path / "postgres.log").read_bytes() == b"after"
    assert (tmp_path / "postgres.log.1").read_bytes() == b"x" * 1001


async def test_a_failed_start_leaves_the_directory_free(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = EmbeddedPostgres(data_dir)
    with monkeypatch.context() as broken:
        broken.setitem(cluster.SETTINGS, "max_connections", "none")
        with pytest.raises(EmbeddedError, match="max_connections"):
            await server.start()
    assert server.postmaster_pid is None
    await server.start()
    await server.stop()
