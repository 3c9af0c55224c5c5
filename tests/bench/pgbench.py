"""pgbench as the peer of the handshake: on the gateway's own server, in a database beside it."""

from __future__ import annotations

import base64
import re
import secrets
from pathlib import Path

import asyncpg

from tests.bench import programs
from tests.bench.processes import CpuSources, run
from tests.bench.programs import BenchError
from tests.bench.wrk import SLACK_S, Load, load_of
from tests.postgres import database_url

SQL = Path(__file__).parent / "sql"
DATABASE = "bench_peer"
PAYLOAD_BYTES = 1024


async def make_database(postgres_url: str) -> str:
    """The peer's database, empty; returns its URL."""
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute(f"CREATE DATABASE {DATABASE}")
    finally:
        await connection.close()
    url = database_url(postgres_url, DATABASE)
    connection = await asyncpg.connect(url)
    try:
        await connection.execute((SQL / "peer_schema.sql").read_text())
    finally:
        await connection.close()
    return url


def handshakes(url: str, *, seconds: int, connections: int, sources: CpuSources) -> Load:
    """Handshakes as fast as Postgres commits them, one client per connection of the gateway's load."""
    payload = base64.b64encode(secrets.token_bytes(PAYLOAD_BYTES * 3 // 4)).decode()  # as little compressible as ours
    command = [programs.pgbench(), "--no-vacuum", "--protocol=prepared", f"--client={connections}", "--jobs=1"]
    command += [f"--time={seconds}", f"--file={SQL / 'peer_handshake.sql'}", f"--define=payload={payload}", url]
    finished = run(command, sources, timeout_s=seconds + SLACK_S, client="pgbench")
    done = int(_number(r"number of transactions actually processed: (\d+)", finished.output))
    if _number(r"number of failed transactions: (\d+)", finished.output):
        raise BenchError(f"transactions of pgbench failed:\n{finished.output}")
    rate = _number(r"tps = ([\d.]+) \(without initial connection time\)", finished.output)
    return load_of(finished, done, done / rate, _number(r"latency average = ([\d.]+) ms", finished.output), None)


def _number(pattern: str, output: str) -> float:
    found = re.search(pattern, output)
    if found is None:
        raise BenchError(f"pgbench said nothing of its figures:\n{output}")
    return float(found[1])
