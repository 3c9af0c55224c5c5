"""The central ledger's speed: each query of LED-5 through the API over many entries, and the rate of ingest.

python -m tests.bench.ledger [--rows 1000000] [--requests 200] [--batches 20] [--data-dir DIR]

Entries are the draft's fan-out, fourteen rows a tree, over sixty days; some rows are missing, open, in doubt or without
an acknowledged callback. With --data-dir, what was loaded is kept and used again.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import os
import random
import shutil
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from uuid import UUID

import asyncpg
from aiohttp import ClientSession

from gateway.store.embedded import EmbeddedPostgres
from gateway.store.migrate import available, migrate
from tests.bench.ledger_rows import ROWS_PER_TREE, SERVICES, load, trees
from tests.bench.machine import processor
from tests.central.desk import entry, ndjson, now, token, value_of
from tests.postgres import make_data_dir

GOAL_P95_MS = 200.0
GOAL_ENTRIES_PER_S = 20_000.0
START_TIMEOUT_S = 60.0
BATCH = 5000
DAYS = 60


def main() -> int:
    """Exit status 0 unless something broke; goals are reported, not asserted."""
    options = _options()
    directory = options.data_dir or make_data_dir()
    directory.mkdir(exist_ok=True)
    try:
        asyncio.run(_bench(options, directory))
    finally:
        if options.data_dir is None:
            shutil.rmtree(directory, ignore_errors=True)
    return 0


async def _bench(options: argparse.Namespace, directory: Path) -> None:
    async with EmbeddedPostgres(directory / "store") as url:
        await migrate(url, buckets=None, package="gateway.central")
        connection = await asyncpg.connect(url)
        try:
            if not await connection.fetchval("SELECT EXISTS (SELECT FROM entries)"):
                _say(f"loading about {options.rows} entries")
                started = time.perf_counter()
                rows = await load(connection, trees_=options.rows // ROWS_PER_TREE, days=DAYS, schema=_schema())
                _say(f"loaded {rows} entries in {time.perf_counter() - started:.0f} s")
            rows = await connection.fetchval(
                "SELECT sum(reltuples)::bigint FROM pg_class WHERE relname ~ '^entries_[0-9]+_[0-9]+$'"
            )
            size = await connection.fetchval("SELECT pg_size_pretty(pg_database_size(current_database()))")
            count = await connection.fetchval("SELECT trees FROM bench_facts")
            async with _central(url, directory) as (base, pid), ClientSession() as session:
                await _settled(connection)
                print(f"\n{processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {rows} entries, {size}")
                await _queries(session, base, count, options.requests)
                await _ingest(session, base, pid, connection, options.batches)
        finally:
            await connection.close()


async def _settled(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """Until the tallies are counted: what runs once after a load is no part of a query's time."""
    started = time.perf_counter()
    while await connection.fetchval("SELECT EXISTS (SELECT FROM touched)"):  # noqa: ASYNC110
        await asyncio.sleep(0.5)
    _say(f"tallies counted after {time.perf_counter() - started:.0f} s")


async def _queries(session: ClientSession, base: str, count: int, requests: int) -> None:
    headers = {"Authorization": f"Bearer {value_of('ops')}"}
    picked = random.Random(7)

    async def get(path: str) -> int:
        async with session.get(base + path, headers=headers) as response:
            body = await response.read()
            assert response.status == 200, (path, body)
            return len(body)

    def tree() -> tuple[str, str, str]:
        return trees.ids(picked.randrange(count), picked.randrange(7))

    def later() -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - picked.randrange(1, DAYS * 86400)))

    asked: dict[str, Callable[[], str]] = {
        "tree from a root": lambda: f"/v1/ledger/tree/{tree()[0]}",
        "tree from within": lambda: f"/v1/ledger/tree/{tree()[1]}",
        "initiated by a service": lambda: f"/v1/ledger/initiated?source={picked.choice(SERVICES[:4])}",
        "initiated, further back": lambda: f"/v1/ledger/initiated?source={picked.choice(SERVICES[:4])}&to={later()}",
        "dual registration of a pair": lambda: (
            "/v1/ledger/pair?client_correlation_id={1}&server_correlation_id={2}".format(*tree())
        ),
        "unpaired, client-only": lambda: "/v1/ledger/unpaired?side=client-only",
        "unpaired, server-only of a service": lambda: (
            f"/v1/ledger/unpaired?side=server-only&source={picked.choice(SERVICES[1:])}"
        ),
        "stalled": lambda: "/v1/ledger/stalled",
        "stalled of a service": lambda: f"/v1/ledger/stalled?source={picked.choice(SERVICES[1:])}",
        "in doubt": lambda: "/v1/ledger/in-doubt",
        "callback gaps": lambda: "/v1/ledger/callback-gaps",
        "entries, newest": lambda: "/v1/ledger/entries",
        "entries of a client ID": lambda: f"/v1/ledger/entries?client_correlation_id={tree()[1]}",
        "entries of a server ID": lambda: f"/v1/ledger/entries?server_correlation_id={tree()[2]}",
        "entries of any ID": lambda: f"/v1/ledger/entries?q={tree()[2]}",
        "entries, FAILED, further back": lambda: f"/v1/ledger/entries?outcome=FAILED&to={later()}",
        "entries of an endpoint": lambda: f"/v1/ledger/entries?endpoint=/d1&to={later()}",
        "summary of an hour": lambda: f"/v1/ledger/summary?to={later()}",
        "summary of sixty days": lambda: "/v1/ledger/summary?from={}".format(
            time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - DAYS * 86400))
        ),
    }
    print(f"\n{'query':38} {'p50 ms':>8} {'p95 ms':>8} {'max ms':>8}   goal p95 < {GOAL_P95_MS:.0f} ms")
    for name, path in asked.items():
        taken = [await _timed(lambda path=path: get(path())) for _ in range(requests)]
        taken.sort()
        p95 = taken[int(len(taken) * 0.95) - 1]
        verdict = "ok" if p95 < GOAL_P95_MS else "MISSED"
        print(f"{name:38} {statistics.median(taken):8.1f} {p95:8.1f} {taken[-1]:8.1f}   {verdict}", flush=True)


async def _timed(doing: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await doing()
    return (time.perf_counter() - started) * 1000


async def _ingest(
    session: ClientSession, base: str, pid: int, connection: asyncpg.Connection[asyncpg.Record], batches: int
) -> None:
    """Fresh calls, both sides by their own services, as two gateways push them at once."""
    sides: dict[str, list[bytes]] = {"bench-caller": [], "bench-called": []}
    ids: dict[str, str] = {}
    for name in sides:
        headers = {"Authorization": f"Bearer {value_of(name)}"}
        async with session.post(base + "/v1/services", headers=headers, json={"name": name}) as response:
            ids[name] = (await response.json())["service_ledger_id"]
    for _ in range(batches // 2):
        called = [entry("bench-called", ids["bench-called"]) for _ in range(BATCH)]
        caller = [_client_row(one, ids["bench-caller"]) for one in called]
        sides["bench-called"].append(ndjson(called))
        sides["bench-caller"].append(ndjson(caller))

    async def push(name: str) -> int:
        headers = {
            "Authorization": f"Bearer {value_of(name)}",
            "Content-Type": "application/x-ndjson",
            "Content-Encoding": "zstd",
        }
        stored = 0
        for body in sides[name]:
            url = f"{base}/v1/sync?service_ledger_id={ids[name]}"
            async with session.post(url, data=body, headers=headers) as response:
                assert response.status == 200, await response.text()
                stored += (await response.json())["stored"]
        return stored

    before = {one: _cpu_s(one) for one in (pid, *await _backends(connection))}
    started = time.perf_counter()
    stored = sum(await asyncio.gather(*(push(name) for name in sides)))
    taken_s = time.perf_counter() - started
    central_s = _cpu_s(pid) - before[pid]
    store_s = sum(_cpu_s(one) - before.get(one, 0.0) for one in await _backends(connection))
    waiting = await connection.fetchval("SELECT count(*) FROM pairs WHERE source IN ('bench-caller', 'bench-called')")
    assert waiting == 0, f"{waiting} fresh calls were not paired"
    rate = stored / taken_s
    verdict = "ok" if rate >= GOAL_ENTRIES_PER_S else "MISSED"
    print(
        f"\ningest: {stored} entries in {taken_s:.1f} s = {rate:,.0f}/s ({verdict}, goal {GOAL_ENTRIES_PER_S:,.0f}/s); "
        f"CPU per entry: central {central_s / stored * 1e6:.0f} us, Postgres {store_s / stored * 1e6:.0f} us"
    )


def _client_row(called: dict[str, object], service_ledger_id: str) -> dict[str, object]:
    return entry(
        "bench-caller",
        service_ledger_id,
        client_id=str(called["client_correlation_id"]),
        server_id=str(called["server_correlation_id"]),
        actor="client",
        target="bench-called",
        at=now(),
    )


async def _backends(connection: asyncpg.Connection[asyncpg.Record]) -> list[int]:
    """The server processes that work for the central ledger, and those that write for all."""
    rows = await connection.fetch("SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    return [row["pid"] for row in rows]


def _cpu_s(pid: int) -> float:
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


@contextlib.asynccontextmanager
async def _central(url: str, directory: Path) -> AsyncIterator[tuple[str, int]]:
    """The program itself, as users run it."""
    tokens = [token("ops", "operations"), token("bench-caller", "sync"), token("bench-called", "sync")]
    lines = "\n".join(f"  - {{name: {one.name}, role: {one.role}, sha256: {one.sha256}}}" for one in tokens)
    config = directory / "central.yaml"
    config.write_text(
        f"listen: {{port: 0}}\nstore: {{url: {{env: BENCH_URL}}}}\nencryption: {{keys: [{{id: k1, env: BENCH_KEY}}]}}\n"
        f"tokens:\n{lines}\nretention: {{default: 400d}}\n"
    )
    key = base64.b64encode(UUID(int=1).bytes * 2).decode()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "central", "-c", str(config)),
        env={**os.environ, "BENCH_URL": url, "BENCH_KEY": key},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        assert process.stdout is not None
        port = await asyncio.wait_for(_port(process.stdout), START_TIMEOUT_S)
        draining = asyncio.create_task(_drain(process.stdout))
        yield f"http://127.0.0.1:{port}", process.pid
        draining.cancel()
    finally:
        process.terminate()
        await process.wait()


async def _port(output: asyncio.StreamReader) -> int:
    while line := await output.readline():
        with contextlib.suppress(ValueError):
            said = json.loads(line)
            if said.get("message") == "central ledger":
                return int(said["port"])
    raise AssertionError("the central ledger ended before it listened")


async def _drain(output: asyncio.StreamReader) -> None:
    while await output.read(65536):
        pass


def _schema() -> str:
    return "\n".join(sql for _, _, sql in available("gateway.central"))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.ledger", description="The central ledger's speed.")
    parser.add_argument("--rows", type=int, default=1_000_000, help="entries to load (default: 1000000)")
    parser.add_argument("--requests", type=int, default=200, help="of each query (default: 200)")
    parser.add_argument("--batches", type=int, default=20, help=f"of {BATCH} entries to ingest (default: 20)")
    parser.add_argument("--data-dir", type=Path, default=None, help="keep what was loaded here, and use it again")
    return parser.parse_args()


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
