"""Random kill: load from many clients on several replicas, faults all the while, then healing and the checker.

`make chaos SECONDS=60 SEED=1`. A seed gives the same faults in the same order; what they meet is up to the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from gateway.store.embedded import EmbeddedPostgres
from gateway.store.migrate import migrate
from tests.postgres import make_data_dir
from tests.rig.checker import Findings
from tests.rig.operators import Operators
from tests.rig.storm import Storm
from tests.rig.world import World

LOOK_AT = 0.1  # share of requests for which the upstream reads Postgres: each is a statement of its own
REPLAYS_MAX = 500  # asked for again after healing
HEAL_WITHIN_S = 60.0  # patience; the goal is ten seconds, and what it took is reported
SHOWN_MAX = 20


@dataclass
class Summary:
    """What a run came to."""

    seed: int
    directory: Path
    seconds: float = 0.0
    operations: int = 0
    answered: int = 0
    requests: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    verdicts: int = 0
    heal_s: float = 0.0
    findings: Findings = field(default_factory=Findings)

    @property
    def lines(self) -> list[str]:
        found = self.findings
        counts = {
            "intents": found.intents,
            **{f"  {phase}": count for phase, count in sorted(found.phases.items())},
            "operations begun": self.operations,
            "answers heard": self.answered,
            "requests upstream": self.requests,
            "faults": sum(self.faults.values()),
            **{f"  {name}": count for name, count in sorted(self.faults.items())},
            "operators' verdicts": self.verdicts,
            "in doubt, left": sum(found.in_doubt.values()),
            **{f"  on {name} routes": count for name, count in sorted(found.in_doubt.items())},
            "lost": found.lost,
            "doubled": found.doubled,
            "violations": len(found.violations),
        }
        shown = [f"  {violation}" for violation in found.violations[:SHOWN_MAX]]
        shown += [f"logs and ledger: {self.directory}"] if shown else []
        head = f"seed {self.seed}, {self.seconds:.0f} s, at rest {self.heal_s:.1f} s after the last fault"
        return [head, *(f"{name:<28}{count:>10,}" for name, count in counts.items()), *shown]


class Progress:
    """One line that lives: rewritten on a terminal, repeated now and then elsewhere."""

    def __init__(self, world: World, storm: Storm) -> None:
        self._world = world
        self._storm = storm
        self._started = time.monotonic()
        self._every_s = 0.5 if sys.stderr.isatty() else 10.0
        self._next = 0.0

    def show(self, what: str) -> None:
        passed_s = time.monotonic() - self._started
        if passed_s < self._next:
            return
        self._next = passed_s + self._every_s
        operations = len(self._world.clients.operations)
        line = (
            f"{passed_s:6.0f} s  operations {operations:>8,}  ({operations / max(passed_s, 1):,.0f}/s)"
            f"  effects {len(self._world.upstream.effects):>8,}  faults {sum(self._storm.faults.values()):>5,}  {what}"
        )
        print(f"\r{line:<118}", end="" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)


async def run(seconds: float, seed: int, *, replicas: int = 3, clients: int = 24) -> Summary:
    """One run on a Postgres of its own."""
    directory = make_data_dir()
    server = EmbeddedPostgres(directory / "store")
    try:
        url = await server.start()
        await migrate(url)
        world = World(directory, url, random.Random(f"{seed} world"))
        await world.open()
        try:
            summary = await _run(world, Storm(world, server, random.Random(seed)), seconds, seed, replicas, clients)
        finally:
            await world.close()
    finally:
        await server.stop()
    if not summary.findings.violations:  # else its logs and its ledger are there to be looked at
        shutil.rmtree(directory, ignore_errors=True)
    return summary


async def _run(world: World, storm: Storm, seconds: float, seed: int, replicas: int, clients: int) -> Summary:
    loop = asyncio.get_running_loop()
    summary = Summary(seed, world.directory)
    await world.serve(replicas)
    progress = Progress(world, storm)
    world.upstream.behaviour = world.upstream.chaos
    world.upstream.look_at = LOOK_AT
    started = loop.time()
    over = asyncio.Event()

    async def client() -> None:
        while not over.is_set():
            await world.clients.run(world.clients.new())

    async def weather() -> None:
        while loop.time() - started < seconds:
            await storm.lasting(0.2, 2.0)
            await storm.strike()

    async def watch() -> None:
        while True:
            progress.show(storm.now)
            await asyncio.sleep(0.5)

    operators = Operators(world, random.Random(f"{seed} operators"))
    beside = [asyncio.create_task(watch()), asyncio.create_task(operators.run())]
    async with asyncio.TaskGroup() as load:
        for _ in range(clients):
            load.create_task(client())
        await weather()
        over.set()
        world.upstream.behaviour = lambda method, path: "ok"
        healed_after = asyncio.create_task(world.until_at_rest(HEAL_WITHIN_S))
    for task in beside:
        task.cancel()
    summary.heal_s = await healed_after
    progress.show("asking again")
    await _replays(world)
    await world.until_at_rest(HEAL_WITHIN_S)  # callbacks and expiries of what was begun last
    summary.seconds = loop.time() - started
    summary.operations = len(world.clients.operations)
    summary.answered = world.clients.answered
    summary.requests = len(world.upstream.log)
    summary.faults = storm.faults
    summary.verdicts = operators.verdicts
    summary.findings = await world.findings()
    return summary


async def _replays(world: World) -> None:
    """After healing everybody gets an answer; those who had one get the same."""
    operations = list(world.clients.operations.values())
    chosen = random.Random(len(operations)).sample(operations, min(REPLAYS_MAX, len(operations)))
    chosen += [operation for operation in operations if operation.doubtful][:REPLAYS_MAX]
    gate = asyncio.Semaphore(16)

    async def one(number: int) -> None:
        async with gate:
            await world.clients.ask_again(world.clients.operations[number])

    await asyncio.gather(*(one(operation.number) for operation in chosen))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--clients", type=int, default=24)
    asked = parser.parse_args()
    summary = uvloop.run(run(asked.seconds, asked.seed, replicas=asked.replicas, clients=asked.clients))
    print("", *summary.lines, sep="\n")
    return 1 if summary.findings.violations else 0


if __name__ == "__main__":
    sys.exit(main())
