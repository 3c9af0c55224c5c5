"""The embedded Postgres survives what happens to processes, its own and others (DESIGN decision 9, P1-3)."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from gateway.store import embedded
from gateway.store import embedded_cluster as cluster
from gateway.store.embedded import EmbeddedError, EmbeddedPostgres
from gateway.store.embedded_account import choose_account
from gateway.store.embedded_process import Process, is_alive
from tests.store.servers import TIMEOUT_S, kill, kill_pid, owner, read_row, socket_dir, until, write_row


@pytest.fixture
def bystander() -> Iterator[Process]:
    """A running program of the user who runs Postgres, which has nothing to do with it."""
    with open(os.devnull, "wb") as null:
        process = Process.spawn(
            ["/bin/sleep", "120"], account=choose_account(None), directory=Path("/"), output=null.fileno()
        )
    yield process
    process.send(signal.SIGKILL)
    process.close()


async def test_a_server_that_is_killed_is_started_again_under_the_same_address(
    data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server = EmbeddedPostgres(data_dir)
    dsn = await server.start()
    try:
        await write_row(dsn)
        first = server.postmaster_pid
        assert first is not None
        os.kill(first, signal.SIGKILL)

        await until(lambda: server.postmaster_pid not in (None, first))
        assert await read_row(dsn) == "acknowledged"
        assert "has ended by itself" in caplog.text
        assert "automatic recovery in progress" in caplog.text, "recovery is told in the gateway's log"
    finally:
        await server.stop()


async def test_a_recovery_is_waited_for_as_long_as_it_moves(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "STALL_S", 0.3)
    server = EmbeddedPostgres(data_dir)
    really_ask = server._ask
    asked = 0

    async def ask() -> embedded.Standing:
        nonlocal asked
        asked += 1
        if asked > 6:  # after about a second, several times the patience with a server that stands still
            return await really_ask()
        with open(data_dir / "postgres" / "postgres.log", "a") as file:
            file.write("2026-01-01 00:00:00.000 UTC [1] startup: LOG:  redo in progress, elapsed time: 2.00 s\n")
        return "busy"

    monkeypatch.setattr(server, "_ask", ask)
    await server.start()
    await server.stop()


async def test_a_recovery_that_stands_still_is_given_up(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own questions appear in the server's log too: they are no progress."""
    monkeypatch.setattr(embedded, "STALL_S", 0.3)
    server = EmbeddedPostgres(data_dir)

    async def ask() -> embedded.Standing:
        with open(data_dir / "postgres" / "postgres.log", "a") as file:
            file.write("2026-01-01 00:00:00.000 UTC [1] dead-end client backend: FATAL:  the database is starting up\n")
        return "busy"

    monkeypatch.setattr(server, "_ask", ask)
    with pytest.raises(EmbeddedError, match="did not start"):
        await server.start()
    assert server.postmaster_pid is None


async def test_lines_about_clients_are_told_from_the_servers_own(data_dir: Path) -> None:
    async with EmbeddedPostgres(data_dir) as dsn:
        with pytest.raises(asyncpg.InvalidCatalogNameError):
            await asyncpg.connect(dsn.replace("/twophp?", "/absent?"))
        said = cluster.log_after(data_dir / "postgres", 0)
    assert b"absent" in said
    lines = "\n".join(cluster.progress(said))
    assert "absent" not in lines
    assert "ready to accept connections" in lines


async def test_a_start_after_gateway_and_server_were_killed_recovers(data_dir: Path) -> None:
    """P1-3: a committed row survives kill -9 of everything."""
    async with owner(data_dir) as (process, postmaster, dsn):
        await write_row(dsn)
        await kill(process)
        await kill_pid(postmaster)
    async with EmbeddedPostgres(data_dir) as dsn:
        assert await read_row(dsn) == "acknowledged"


async def test_a_server_whose_gateway_was_killed_is_adopted(data_dir: Path) -> None:
    async with owner(data_dir) as (process, postmaster, dsn):
        await write_row(dsn)
        await kill(process)
        assert is_alive(postmaster)

        server = EmbeddedPostgres(data_dir)
        assert await server.start() == dsn
        assert server.postmaster_pid == postmaster
        assert await read_row(dsn) == "acknowledged"
        await server.stop()
        assert Process.attach(postmaster) is None, "an adopted server is shut down like an own one"


async def test_an_adopted_server_that_is_killed_is_started_again(data_dir: Path) -> None:
    async with owner(data_dir) as (process, postmaster, dsn):
        await write_row(dsn)
        await kill(process)
        server = EmbeddedPostgres(data_dir)
        await server.start()
        await kill_pid(postmaster)

        await until(lambda: server.postmaster_pid not in (None, postmaster))
        assert await read_row(dsn) == "acknowledged"
        await server.stop()


async def test_a_second_gateway_on_the_same_directory_is_told_who_has_it(data_dir: Path) -> None:
    async with owner(data_dir) as (process, _, dsn):
        await write_row(dsn)
        with pytest.raises(EmbeddedError) as refusal:
            await EmbeddedPostgres(data_dir).start()
        assert f"process {process.pid}" in str(refusal.value)
        assert await read_row(dsn) == "acknowledged", "the first one is not disturbed"
        await kill(process)
        async with EmbeddedPostgres(data_dir) as dsn:
            assert await read_row(dsn) == "acknowledged"


async def test_a_stale_pid_file_that_names_another_program_is_not_believed(data_dir: Path, bystander: Process) -> None:
    """After a reboot, or in a new container, the number belongs to somebody else, often of the same user."""
    async with owner(data_dir) as (process, postmaster, dsn):
        await write_row(dsn)
        await kill(process)
        await kill_pid(postmaster)
    for lock_file in (data_dir / "postgres/data/postmaster.pid", data_dir / "postgres/socket/.s.PGSQL.5432.lock"):
        lock_file.write_text(lock_file.read_text().replace(str(postmaster), str(bystander.pid), 1))

    server = EmbeddedPostgres(data_dir)
    dsn = await server.start()
    assert server.postmaster_pid != bystander.pid
    assert await read_row(dsn) == "acknowledged"
    await server.stop()
    assert bystander.running(), "stopping our server must not stop a bystander"


async def test_another_clusters_server_is_never_taken_for_ours(data_dir: Path) -> None:
    """It answers on our socket, but not with our system identifier."""
    ours, theirs = data_dir / "ours", data_dir / "theirs"
    async with EmbeddedPostgres(ours):
        pass
    async with EmbeddedPostgres(theirs) as dsn:
        await write_row(dsn)
        (ours / "postgres" / "socket").rmdir()
        (ours / "postgres" / "socket").symlink_to(socket_dir(dsn))
        pid_file = theirs / "postgres" / "data" / "postmaster.pid"
        (ours / "postgres" / "data" / "postmaster.pid").write_text(pid_file.read_text())
        with pytest.raises(EmbeddedError):
            await EmbeddedPostgres(ours).start()
        assert await read_row(dsn) == "acknowledged"


async def test_an_interrupted_initdb_is_done_again(data_dir: Path) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.store.embedded_owner", str(data_dir))
    try:
        await until(lambda: any(data_dir.glob("postgres/data.draft-*/*")))
    finally:
        await kill(process)
    planted = data_dir / "postgres" / "data.draft-planted"
    planted.mkdir()
    (planted / "PG_VERSION").write_text("18\n")

    async with EmbeddedPostgres(data_dir) as dsn:
        await write_row(dsn)
        assert not list(data_dir.glob("postgres/data.draft-*"))


async def test_ctrl_c_in_the_terminal_does_not_reach_the_server(data_dir: Path) -> None:
    """It would end Postgres before the gateway has drained."""
    server = EmbeddedPostgres(data_dir)
    await server.start()
    try:
        assert server.postmaster_pid is not None
        assert os.getsid(server.postmaster_pid) != os.getsid(0)
    finally:
        await server.stop()


async def test_a_cancelled_start_leaves_nothing_running(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = EmbeddedPostgres(data_dir)
    spawned: list[Process] = []
    waiting = asyncio.Event()

    async def never_ready(process: Process, *, silent_s: float) -> str:
        spawned.append(process)
        waiting.set()
        await asyncio.Event().wait()
        return "ready"

    with monkeypatch.context() as broken:
        broken.setattr(server, "_await_ready", never_ready)
        starting = asyncio.create_task(server.start())
        async with asyncio.timeout(TIMEOUT_S):
            await waiting.wait()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
    assert not spawned[0].running()
    await server.start()
    await server.stop()
