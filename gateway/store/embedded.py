"""The embedded Postgres: a real server, run as a child of the gateway (DESIGN decision 9).

    async with EmbeddedPostgres(Path(".twophp")) as dsn:
        ...

It outlives a killed gateway and is adopted by the next one; it is restarted when it dies under a living one; it is
shut down when the gateway stops. This module knows processes and readiness; it holds no SQL of the gateway's own, and
nothing else in the gateway needs to know whether its Postgres is embedded.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
from pathlib import Path
from types import TracebackType
from typing import Literal
from urllib.parse import quote

import asyncpg

from gateway.store import embedded_cluster as cluster
from gateway.store import embedded_home as place
from gateway.store.embedded_account import Account, EmbeddedError, choose_account
from gateway.store.embedded_binaries import reachable_binaries
from gateway.store.embedded_process import Process, is_alive

__all__ = ["EmbeddedError", "EmbeddedPostgres"]

log = logging.getLogger(__name__)

DATABASE = "twophp"
POLL_S = 0.05  # start takes about 0.2 s; asking more often than this gains nothing
RECOVERY_POLL_S = 1.0
CONNECT_TIMEOUT_S = 5.0
STALL_S = 300.0  # recovery reports every 2 s; only its final checkpoint is silent, and that writes 128 MB at most
SILENT_S = 10.0  # a postmaster opens its socket well within a second
LEFTOVER_S = 30.0  # server processes of a killed postmaster notice within a second, unless in the middle of a long scan
FAST_STOP_S = 60.0  # the shutdown checkpoint writes 128 MB at most; past this, recovery does its work at the next start
KILL_STOP_S = 10.0
LOG_CHECK_S = 60.0
RESTART_BACKOFF_S = (0.0, 0.5, 1.0, 2.0, 5.0)  # the last one is repeated for as long as it takes

# What the disk or a dying server may do to us at any line.
FAILURES = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError)

# What is behind the socket: our cluster; a server that is starting or stopping; nothing; somebody else's cluster.
Standing = Literal["ready", "busy", "silent", "foreign"]


class EmbeddedPostgres:
    """One Postgres server on `data_dir`, owned by one gateway at a time."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._home = self._socket_dir = self._binaries = Path()
        self._account: Account | None = None
        self._locks: list[place.DataLock] = []
        self._process: Process | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def postmaster_pid(self) -> int | None:
        """The server's process; None while it is not running."""
        return self._process.pid if self._process is not None else None

    @property
    def dsn(self) -> str:
        """The server's address for asyncpg; it stays the same when the server is restarted."""
        return f"postgresql://{cluster.SUPERUSER}@/{DATABASE}?host={quote(str(self._socket_dir))}&port={place.PORT}"

    async def start(self) -> str:
        """Run the server, or adopt the one that a killed gateway left running; returns the DSN once it answers."""
        assert self._keeper is None, "already started"
        try:
            await self._prepare()
            await self._run()
            await self._ensure_database()
        except FAILURES as error:
            await self._let_go()
            raise EmbeddedError(f"the embedded Postgres cannot use {self._data_dir}: {error}") from error
        except BaseException:
            await self._let_go()
            raise
        self._keeper = asyncio.create_task(self._keep(), name="embedded-postgres")
        return self.dsn

    async def stop(self) -> None:
        """Shut the server down and let go of the data directory. Stopping twice is no error."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None
        await self._let_go()

    async def __aenter__(self) -> str:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _prepare(self) -> None:
        """Everything on disk that a server needs, under the lock."""
        self._data_dir = self._data_dir.expanduser().resolve()
        place.make_data_dir(self._data_dir, choose_account(None))
        await self._take_lock(self._data_dir)
        home = place.recorded_home(self._data_dir)
        account = choose_account(home / "data" if home is not None else None)
        if home is None:
            home = place.make_home(self._data_dir, account, place.SHELF)
        if home.parent != self._data_dir:
            await self._take_lock(home)  # a copied data_dir names the same home
        place.require_open(home, account)
        self._home, self._account = home, account
        self._binaries = await asyncio.to_thread(reachable_binaries, account, place.SHELF)
        await cluster.ensure_cluster(home, self._binaries, account)
        self._socket_dir = place.socket_directory(home, account)

    async def _take_lock(self, directory: Path) -> None:
        lock = place.DataLock(directory)
        await lock.acquire()
        self._locks.append(lock)

    async def _run(self) -> None:
        if not await self._adopt():
            await self._launch()

    async def _adopt(self) -> bool:
        """Take over a running server of this cluster; a pid file proves nothing, it must answer as our cluster."""
        pid = cluster.recorded_postmaster(self._home, self._socket_dir)
        if pid is None:
            return False
        process = Process.attach(pid)
        ours = cluster.works_in(pid, self._home) if process is not None else None
        if (process is None and is_alive(pid)) or ours is False:
            # Dead but not yet collected by its parent, or another program that was given the same number.
            log.info("the pid file of Postgres is stale: process %d is not our server", pid)
            cluster.forget_postmaster(self._home, self._socket_dir)
        elif process is not None:
            log.info("a Postgres server of an earlier gateway may be running as process %d: asking it", pid)
            standing = await self._await_ready(process, silent_s=SILENT_S if ours else 0.0)
            if standing == "ready":
                log.info("adopted the running Postgres, process %d", pid)
                self._process = process
                return True
            if ours and process.running():
                raise EmbeddedError(
                    f"process {pid} is a Postgres server on {self._home / 'data'} that does not answer on our socket "
                    f"in {self._socket_dir}: stop it (kill -INT {pid}) and start again"
                )
        if process is not None:
            process.close()
        return False

    async def _launch(self) -> None:
        """Start a server and wait for it, through crash recovery if need be."""
        assert self._account is not None
        cluster.write_access_rules(self._home, self._account)
        if not self._socket_dir.exists():  # a cleaner of temporary directories may have been here
            place.make_private(self._socket_dir, self._account)
        deadline = asyncio.get_running_loop().time() + LEFTOVER_S
        while True:
            crashed_before = cluster.recorded_postmaster(self._home, self._socket_dir) is not None
            process, offset = self._spawn()
            try:
                standing = await self._await_ready(process, silent_s=STALL_S)
            except BaseException:
                await _end(process)
                raise
            if standing == "ready":
                self._process = process
                return
            await _end(process)
            said = cluster.log_after(self._home, offset).decode("utf-8", "replace").strip()
            if standing == "foreign":
                raise EmbeddedError(f"another Postgres server answers on our socket in {self._socket_dir}")
            if not crashed_before or asyncio.get_running_loop().time() >= deadline:
                raise EmbeddedError(f"Postgres did not start; its log in {self._home / 'postgres.log'} says:\n{said}")
            # Server processes that outlived their postmaster keep the new one out until they have noticed.
            log.warning("Postgres did not start after a crash, trying again: %s", said)
            await asyncio.sleep(0.5)

    def _spawn(self) -> tuple[Process, int]:
        assert self._account is not None
        output = cluster.open_log(self._home)
        try:
            offset = cluster.log_size(self._home)
            arguments = [str(self._binaries / "postgres"), *cluster.server_arguments(self._home, self._socket_dir)]
            process = Process.spawn(arguments, account=self._account, directory=self._home / "data", output=output)
        finally:
            os.close(output)
        return process, offset

    async def _await_ready(self, process: Process, *, silent_s: float) -> Standing:
        """Wait for as long as the server makes progress, and pass on what it says about it."""
        now = asyncio.get_running_loop().time
        offset = cluster.log_size(self._home)
        moved_at = now()
        pause_s = POLL_S
        while True:
            standing = await self._ask()
            said = cluster.log_after(self._home, offset)
            offset += len(said)
            for line in cluster.progress(said):
                moved_at = now()
                log.info("postgres: %s", line)
            if standing in ("ready", "foreign") or not process.running():
                return standing
            if now() - moved_at >= (STALL_S if standing == "busy" else silent_s):
                return standing
            await asyncio.sleep(pause_s)
            if standing == "busy":  # in recovery: every question is a line in the server's log
                pause_s = min(pause_s * 1.5, RECOVERY_POLL_S)

    async def _ask(self) -> Standing:
        """Who answers on the socket; only a real connection tells."""
        try:
            connection = await self._connect("postgres")
        except (asyncpg.CannotConnectNowError, asyncpg.TooManyConnectionsError):
            return "busy"
        except (OSError, asyncpg.PostgresConnectionError):
            return "silent"
        except asyncpg.PostgresError as error:
            raise EmbeddedError(f"the server on {self._socket_dir} does not let us in: {error}") from error
        try:
            found = await connection.fetchval("SELECT system_identifier FROM pg_control_system()")
        except (OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError):
            return "busy"
        finally:
            connection.terminate()
        # The control file has it unsigned, SQL has no unsigned type.
        return "ready" if found % 2**64 == cluster.system_identifier(self._home) else "foreign"

    async def _connect(self, database: str) -> asyncpg.Connection[asyncpg.Record]:
        return await asyncpg.connect(
            host=str(self._socket_dir),
            port=place.PORT,
            user=cluster.SUPERUSER,
            database=database,
            timeout=CONNECT_TIMEOUT_S,
        )

    async def _ensure_database(self) -> None:
        connection = await self._connect("postgres")
        try:
            if not await connection.fetchval("SELECT true FROM pg_database WHERE datname = $1", DATABASE):
                await connection.execute(f"CREATE DATABASE {DATABASE}")
        finally:
            await connection.close()

    async def _keep(self) -> None:
        """Start the server again whenever it ends by itself; pools reconnect to the same socket."""
        while True:
            await self._watch()
            for attempt in itertools.count():
                await asyncio.sleep(RESTART_BACKOFF_S[min(attempt, len(RESTART_BACKOFF_S) - 1)])
                try:
                    await self._run()
                    break
                except (EmbeddedError, *FAILURES) as error:
                    log.error("Postgres could not be started again, trying on: %s", error)

    async def _watch(self) -> None:
        """Until the server has ended; its log is kept in bounds meanwhile."""
        assert self._process is not None
        process = self._process
        while process.running():
            try:
                async with asyncio.timeout(LOG_CHECK_S):
                    await process.exited()
            except TimeoutError:
                await asyncio.to_thread(cluster.bound_log, self._home)
        log.error("Postgres, process %d, has ended by itself: starting it again", process.pid)
        self._process = None
        process.close()

    async def _let_go(self) -> None:
        try:
            if self._process is not None:
                process, self._process = self._process, None
                await _end(process)
                place.remove_socket_directory(self._home, self._socket_dir)
        finally:
            for lock in self._locks:
                lock.release()
            self._locks.clear()


async def _end(process: Process) -> None:
    """End a server, gently first. Whatever way it ends, nothing committed is lost."""
    steps = ((signal.SIGINT, FAST_STOP_S), (signal.SIGQUIT, KILL_STOP_S), (signal.SIGKILL, KILL_STOP_S))
    for number, patience_s in steps:
        process.send(number)
        try:
            async with asyncio.timeout(patience_s):
                await process.exited()
            break
        except TimeoutError:
            log.warning("Postgres, process %d, has not ended %.0f s after %s", process.pid, patience_s, number.name)
    process.close()
