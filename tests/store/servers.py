"""What tests of the embedded Postgres do to its processes, and the row that must survive it."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg

from gateway.store.embedded_process import Process

TIMEOUT_S = 60.0


@asynccontextmanager
async def owner(data_dir: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, int, str]]:
    """Another process that owns the server: (the process, its postmaster's pid, DSN)."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.store.embedded_owner", str(data_dir)), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(TIMEOUT_S):
            pid, dsn = (await process.stdout.readline()).decode().split()
        yield process, int(pid), dsn
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def kill(process: asyncio.subprocess.Process) -> None:
    process.kill()
    await process.wait()


async def kill_pid(pid: int) -> None:
    """kill -9 of a process that is not our child, and wait until it is gone."""
    process = Process.attach(pid)
    assert process is not None
    process.send(signal.SIGKILL)
    async with asyncio.timeout(TIMEOUT_S):
        await process.exited()
    process.close()


async def until(condition: Callable[[], bool]) -> None:
    """Poll for what another process does."""
    deadline = asyncio.get_running_loop().time() + TIMEOUT_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.02)


async def run(dsn: str, statement: str) -> object:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def write_row(dsn: str) -> None:
    await run(dsn, "CREATE TABLE kept (name text PRIMARY KEY)")
    await run(dsn, "INSERT INTO kept VALUES ('acknowledged')")


async def read_row(dsn: str) -> object:
    return await run(dsn, "SELECT name FROM kept")


def socket_dir(dsn: str) -> Path:
    return Path(parse_qs(urlsplit(dsn).query)["host"][0])
