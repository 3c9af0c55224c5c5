"""Everything that runs during a bench: Postgres, the upstream, nginx as a proxy and the gateway, all on loopback."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from gateway.store.embedded import EmbeddedPostgres
from tests.bench import pgbench
from tests.bench.nginx import Nginx
from tests.bench.processes import CpuSources, Memory, cpu_of, cpu_of_tree, memory_of
from tests.bench.programs import BenchError
from tests.e2e.harness import Gateway, free_port
from tests.postgres import make_data_dir

# As a user has it, but for the limit on unconfirmed intents: one caller makes the whole load.
CHANGES = {
    "workers": 1,
    "recovery": {"lease": "15s", "interval": "1s"},
    "callbacks": {"allow_http": True, "allow_networks": ["127.0.0.0/8"]},
    "routes": [
        {"path": "/orders/**", "ttl": "30s", "max_pending": 1_000_000},
        {"path": "/transparent", "mode": "transparent"},
    ],
}


@dataclass(slots=True)
class Ground:
    """The peers of one run, and what to ask of them."""

    gateway: Gateway
    worker_pid: int
    upstream: Nginx
    proxy: Nginx
    postgres: EmbeddedPostgres
    postgres_url: str
    peer_url: str
    disk: Path

    @property
    def gateway_sources(self) -> CpuSources:
        """Who works when the gateway does."""
        return {
            "gateway": lambda: cpu_of(self.worker_pid),
            "postgres": self._postgres_cpu_s,
            "upstream": self.upstream.cpu_s,
        }

    @property
    def proxy_sources(self) -> CpuSources:
        """Who works when nginx is the proxy."""
        return {"nginx": self.proxy.cpu_s, "upstream": self.upstream.cpu_s}

    @property
    def peer_sources(self) -> CpuSources:
        """Who works when pgbench does."""
        return {"postgres": self._postgres_cpu_s}

    def worker_memory(self) -> Memory:
        """The worker's resident memory now."""
        return memory_of(self.worker_pid)

    async def checkpoint(self) -> None:
        """Everything written back, so that no measurement pays for the one before."""
        await self._ask("CHECKPOINT")

    async def committed(self) -> int:
        """How many intents are COMMITTED, as Postgres knows it."""
        count: int = await self._ask("SELECT count(*) FROM intents WHERE phase = 'COMMITTED'")
        return count

    async def _ask(self, sql: str) -> int:
        connection = await asyncpg.connect(self.postgres_url)
        try:
            value: int = await connection.fetchval(sql)
            return value
        finally:
            await connection.close()

    def _postgres_cpu_s(self) -> float:
        assert self.postgres.postmaster_pid is not None, "Postgres is gone"
        return cpu_of_tree(self.postgres.postmaster_pid)


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[Ground]:
    """Start it all in a directory of its own, and leave nothing behind."""
    directory = make_data_dir()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        postgres = EmbeddedPostgres(directory / "store")
        postgres_url = await stack.enter_async_context(postgres)
        upstream = Nginx.upstream(directory / "upstream", free_port())
        stack.callback(upstream.stop)
        upstream.start()
        proxy = Nginx.proxy(directory / "proxy", free_port(), upstream.port)
        stack.callback(proxy.stop)
        proxy.start()
        gateway = Gateway(directory, upstream.url, postgres_url, CHANGES)
        stack.push_async_callback(gateway.aclose)
        await gateway.start()
        workers = await gateway.worker_pids()
        if len(workers) != 1:
            raise BenchError(f"one worker was asked for, {len(workers)} run")
        peer_url = await pgbench.make_database(postgres_url)
        yield Ground(gateway, workers[0], upstream, proxy, postgres, postgres_url, peer_url, directory)
        await gateway.stop()
