"""What the figures were taken on."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sysconfig
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import asyncpg

from tests.bench import programs

SYNCS = 200  # a fifth of a second on a slow disk
SYNC_BYTES = 8192  # a page of WAL
PGO = "--enable-optimizations"  # an interpreter built without it is slower by a tenth and more
LIBRARIES = ("aiohttp", "asyncpg", "uvloop", "httptools", "cryptography")
STORE_SETTINGS = (
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_sync_method",
    "shared_buffers",
    "wal_init_zero",
)


async def facts(postgres_url: str, disk: Path) -> dict[str, object]:
    """Cores, processor, versions, what a sync costs, and what Postgres promises."""
    connection = await asyncpg.connect(postgres_url)
    try:
        postgres = await connection.fetchval("SHOW server_version")
        settings = {name: await connection.fetchval(f"SHOW {name}") for name in STORE_SETTINGS}
    finally:
        await connection.close()
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "load_1min_at_start": os.getloadavg()[0],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "python_build": "PGO" if PGO in str(sysconfig.get_config_var("CONFIG_ARGS")) else "no PGO",
        "libraries": {name: version(name) for name in LIBRARIES},
        "postgres": postgres,
        "postgres_settings": settings,
        "nginx": _first_line([programs.find("nginx"), "-v"]).removeprefix("nginx version: "),
        "wrk": _first_line([programs.find("wrk"), "-v"]).split(" [")[0].removeprefix("wrk "),
        "fdatasync_us": round(fdatasync_us(disk), 1),
    }


def fdatasync_us(directory: Path) -> float:
    """The median time of making one overwritten page durable, as a commit does on recycled WAL."""
    taken = []
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        page = os.urandom(SYNC_BYTES)
        file.write(page * SYNCS)
        os.fsync(file.fileno())
        for number in range(SYNCS):
            started = time.perf_counter()
            os.pwrite(file.fileno(), page, number * SYNC_BYTES)
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - started)
    return statistics.median(taken) * 1e6


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _first_line(arguments: list[str]) -> str:
    said = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=10).stdout
    return said.splitlines()[0].strip()
