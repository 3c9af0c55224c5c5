"""The measures. Peers and gateway take turns, A B A B; a ratio is of neighbours in time, and the median counts."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.bench import latency, pgbench, wrk
from tests.bench.ground import Ground
from tests.bench.latency import BlackHole, Latency
from tests.bench.processes import CpuSources, Memory
from tests.bench.programs import BenchError
from tests.bench.wrk import Load

WARM_UP_S = 1
ORDERS, TRANSPARENT = "/orders", "/transparent"


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    seconds: int
    rounds: int
    connections: int
    handshakes: int  # at one connection


@dataclass(slots=True)
class Comparison:
    """Rounds of the gateway and of a peer."""

    worker: str  # whose CPU time is ours, …
    peer_worker: str  # … and the peer's
    ours: list[Load] = field(default_factory=list)
    peer: list[Load] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        return [ours.rate / peer.rate for ours, peer in zip(self.ours, self.peer, strict=True)]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def cpu_ratio(self) -> float:
        """The same by CPU time per request: whoever else uses the machine matters less to it."""
        return statistics.median(
            peer.cpu_us[self.peer_worker] / ours.cpu_us[self.worker]
            for ours, peer in zip(self.ours, self.peer, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Residence:
    """The worker's memory after its start and after everything else was measured."""

    idle: Memory
    loaded: Memory


async def passthrough(ground: Ground, plan: Plan, method: str, say: Callable[[str], None]) -> Comparison:
    """Pass-through against nginx as a proxy, in front of the same upstream."""
    comparison = Comparison("gateway", "nginx")
    await _proxied(ground.proxy.url + ORDERS, ground.proxy_sources, plan, method, WARM_UP_S)
    await passed_through(ground, plan, method, WARM_UP_S)
    for number in range(plan.rounds):
        url = ground.proxy.url + ORDERS
        comparison.peer.append(await _proxied(url, ground.proxy_sources, plan, method, plan.seconds))
        comparison.ours.append(await passed_through(ground, plan, method, plan.seconds))
        say(_line(f"pass-through {method}", number, comparison))
    return comparison


async def transparent(ground: Ground, plan: Plan, say: Callable[[str], None]) -> Comparison:
    """Transparent mode, everything durable, against nginx as a plain proxy. Each answer must have its COMMITTED row."""
    comparison = Comparison("gateway", "nginx")

    async def take_ours(seconds: int) -> Load:
        await ground.checkpoint()
        before = await ground.committed()
        url = ground.gateway.url + TRANSPARENT
        taken = await _proxied(url, ground.gateway_sources, plan, "POST", seconds)
        committed = await ground.committed() - before
        if not taken.count <= committed <= taken.count + plan.connections:  # wrk leaves without its last answers
            raise BenchError(f"{taken.count} requests were answered, but {committed} are COMMITTED in Postgres")
        return taken

    await take_ours(WARM_UP_S)
    for number in range(plan.rounds):
        comparison.peer.append(
            await _proxied(ground.proxy.url + ORDERS, ground.proxy_sources, plan, "POST", plan.seconds)
        )
        comparison.ours.append(await take_ours(plan.seconds))
        say(_line("transparent POST", number, comparison))
    return comparison


async def passed_through(ground: Ground, plan: Plan, method: str, seconds: int) -> Load:
    """One load of plain requests on the gateway."""
    return await _proxied(ground.gateway.url + ORDERS, ground.gateway_sources, plan, method, seconds)


async def handshake(ground: Ground, plan: Plan, say: Callable[[str], None]) -> Comparison:
    """Two-phase handshakes against a minimal handshake in pgbench, on the same server."""
    comparison = Comparison("postgres", "postgres")

    async def take_peer(seconds: int) -> Load:
        await ground.checkpoint()
        return await asyncio.to_thread(
            pgbench.handshakes,
            ground.peer_url,
            seconds=seconds,
            connections=plan.connections,
            sources=ground.peer_sources,
        )

    await take_peer(WARM_UP_S)
    await checked_handshakes(ground, plan, "warm-up-", WARM_UP_S)
    for number in range(plan.rounds):
        comparison.peer.append(await take_peer(plan.seconds))
        comparison.ours.append(await checked_handshakes(ground, plan, f"round-{number}-", plan.seconds))
        say(_line("handshakes", number, comparison))
    return comparison


async def checked_handshakes(ground: Ground, plan: Plan, prefix: str, seconds: int) -> Load:
    """One load of handshakes. An answer without its COMMITTED row, or a row without its answer, fails the run."""
    await ground.checkpoint()
    before = await ground.committed()
    taken = await asyncio.to_thread(
        wrk.handshakes,
        ground.gateway.url,
        prefix,
        seconds=seconds,
        connections=plan.connections,
        sources=ground.gateway_sources,
    )
    committed = await ground.committed() - before
    if committed != taken.confirmed:
        raise BenchError(f"{taken.confirmed} handshakes were confirmed, but {committed} are COMMITTED in Postgres")
    return taken.load


async def added_latency(ground: Ground, plan: Plan) -> Latency:
    """What a handshake takes longer than two bare requests, at one connection."""
    await ground.checkpoint()
    return await asyncio.to_thread(latency.measure, ground.gateway.port, "latency-", plan.handshakes)


async def black_hole(ground: Ground, plan: Plan) -> BlackHole:
    """What a callback host that never answers costs its callers, at one connection."""
    await ground.checkpoint()
    return await asyncio.to_thread(latency.measure_black_hole, ground.gateway.port, "hole-", plan.handshakes)


async def _proxied(url: str, sources: CpuSources, plan: Plan, method: str, seconds: int) -> Load:
    return await asyncio.to_thread(
        wrk.plain, url, method, seconds=seconds, connections=plan.connections, sources=sources
    )


def _line(name: str, number: int, comparison: Comparison) -> str:
    ours, peer = comparison.ours[-1], comparison.peer[-1]
    others = max(ours.others_cpu_percent, peer.others_cpu_percent)
    return (
        f"{name}, round {number + 1}: {ours.rate:,.0f}/s ÷ {peer.rate:,.0f}/s = {comparison.ratios[-1]:.3f}"
        f"   (other processes took up to {others:.0f} % of a core)"
    )
