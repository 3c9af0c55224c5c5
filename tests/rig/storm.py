"""The faults of a chaos run, one after the other, each ended before the next begins; what they damage stays damaged."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable

import asyncpg

from gateway.store.embedded import EmbeddedPostgres
from tests.rig.world import LEASE_S, Replica, World

Strike = Callable[["Storm", Replica], Awaitable[None]]


class Storm:
    """`strike` chooses a fault by weight and a replica by chance."""

    def __init__(self, world: World, server: EmbeddedPostgres | None, rng: random.Random) -> None:
        self.world = world
        self.server = server
        self.rng = rng
        self.faults: Counter[str] = Counter()
        self.now = "calm"

    async def strike(self) -> None:
        """One fault, from beginning to end."""
        possible = {name: weight for name, weight in WEIGHTS.items() if self.server or not name.startswith("postgres")}
        name = self.rng.choices(list(possible), list(possible.values()))[0]
        self.now = name
        await STRIKES[name](self, self.rng.choice(self.world.replicas))
        self.faults[name] += 1
        self.now = "calm"

    async def lasting(self, low_s: float, high_s: float) -> None:
        """How long a fault stays."""
        await asyncio.sleep(self.rng.uniform(low_s, high_s))


async def gateway_killed(storm: Storm, replica: Replica) -> None:
    """kill -9 of the supervisor and its workers at once."""
    if replica.process is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(replica.process.pid, signal.SIGKILL)


async def worker_killed(storm: Storm, replica: Replica) -> None:
    replica.signal((await replica.pids())[:1], signal.SIGKILL)


async def supervisor_killed(storm: Storm, replica: Replica) -> None:
    """Its workers notice, drain and go."""
    if replica.process is not None and replica.process.returncode is None:
        replica.signal([replica.process.pid], signal.SIGKILL)


async def gateway_restarted(storm: Storm, replica: Replica) -> None:
    """A rolling restart: SIGTERM, a drain, and the next one."""
    if replica.process is not None and replica.process.returncode is None:
        replica.signal([replica.process.pid], signal.SIGTERM)
        await storm.lasting(0.5, 1.5)


async def workers_frozen(storm: Storm, replica: Replica) -> None:
    """SIGSTOP past the lease: its work is taken over, and then it is back."""
    pids = await replica.pids()
    replica.signal(pids, signal.SIGSTOP)
    await storm.lasting(LEASE_S * 1.2, LEASE_S * 2)
    replica.signal(pids, signal.SIGCONT)


async def gateway_paused(storm: Storm, replica: Replica) -> None:
    """SIGSTOP of everything, within the lease."""
    pids = await replica.pids()
    if replica.process is not None and replica.process.returncode is None:
        pids.append(replica.process.pid)
    replica.signal(pids, signal.SIGSTOP)
    await storm.lasting(0.2, LEASE_S * 0.8)
    replica.signal(pids, signal.SIGCONT)


async def postgres_killed(storm: Storm, replica: Replica) -> None:
    _signal_postmaster(storm, signal.SIGKILL)
    await storm.lasting(0.5, 2.0)


async def postgres_stopped(storm: Storm, replica: Replica) -> None:
    """Immediate shutdown; its owner starts it again."""
    _signal_postmaster(storm, signal.SIGQUIT)
    await storm.lasting(0.5, 2.0)


def _signal_postmaster(storm: Storm, number: int) -> None:
    assert storm.server is not None
    pid = storm.server.postmaster_pid
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


async def backends_terminated(storm: Storm, replica: Replica) -> None:
    try:
        connection = await asyncpg.connect(storm.world.database_url, timeout=2)
    except (OSError, asyncpg.PostgresError, TimeoutError):
        return
    try:
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' AND random() < 0.5"
        )
    finally:
        connection.terminate()


async def link_cut(storm: Storm, replica: Replica) -> None:
    for _ in range(storm.rng.randint(1, 5)):
        replica.proxy.cut_all()
        await storm.lasting(0.0, 0.3)


async def link_down(storm: Storm, replica: Replica) -> None:
    await replica.proxy.refuse()
    await storm.lasting(0.3, LEASE_S * 1.5)
    await replica.proxy.listen()


async def link_half_open(storm: Storm, replica: Replica) -> None:
    """Everything is swallowed; then it arrives after all, late, or the connection is gone."""
    replica.proxy.swallow()
    await storm.lasting(0.3, LEASE_S * 2)
    if storm.rng.random() < 0.5:
        replica.proxy.cut_all()
    replica.proxy.pass_on()


async def link_slow(storm: Storm, replica: Replica) -> None:
    replica.proxy.delay_s = storm.rng.uniform(0.005, 0.05)
    await storm.lasting(1.0, 3.0)
    replica.proxy.delay_s = 0.0


STRIKES: dict[str, Strike] = {
    strike.__name__.replace("_", " "): strike
    for strike in (
        gateway_killed,
        worker_killed,
        supervisor_killed,
        gateway_restarted,
        workers_frozen,
        gateway_paused,
        postgres_killed,
        postgres_stopped,
        backends_terminated,
        link_cut,
        link_down,
        link_half_open,
        link_slow,
    )
}
WEIGHTS = {name: 1 if name.startswith("postgres") else 2 for name in STRIKES}
