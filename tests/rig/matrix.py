"""The crash matrix: every point x mode x recovery x method (RELIABILITY, "Crash points").

For each cell a gateway of its own is started and made to die at the point; its client goes on at another replica, as it
would after a restart. What must hold right after the crash and what must hold after healing is data, below; the checker
judges all of it together.

    python -m tests.rig.matrix            # every cell
    python -m tests.rig.matrix --short    # a covering selection
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import copy
import itertools
import random
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import uvloop

from gateway.crash_points import VARIABLE
from gateway.store.embedded import EmbeddedPostgres
from gateway.store.migrate import migrate
from tests.e2e.harness import eventually
from tests.faults import batched
from tests.postgres import make_data_dir
from tests.rig.records import METHODS, MODES, RECOVERIES, Operation, Seen
from tests.rig.world import HEALING, World

AT_ONCE = 4
TRIES_MAX = 3
SHOWN_EVERY = 25
HEAL_WITHIN_S = 60.0
HANDSHAKES = ("standard", "async")
DIRECT = ("auto", "transparent")

# An intent's state: its phase, "in doubt", or "none" when there is no row.
AFTER_PONR = frozenset({"PROCESSING"})


@dataclass(frozen=True)
class Point:
    """A place to die at: for which modes, what upstream does there, and how the ledger stands right after it."""

    name: str
    modes: tuple[str, ...]
    left: frozenset[str]
    behaviour: str = "ok"
    ends: str = "by recovery"  # | "committed": whoever retries, or the queue, brings it there | "abandoned" | "either"
    outside: bool = False  # killed by the upstream that has just got the request


POINTS = (
    Point("phase_1.before", HANDSHAKES, frozenset({"none"}), ends="committed"),
    Point("phase_1.committed", HANDSHAKES, frozenset({"WAITING_CONFIRM"}), ends="committed"),
    Point("ponr.before", HANDSHAKES, frozenset({"WAITING_CONFIRM"}), ends="committed"),
    Point("ponr.before", DIRECT, frozenset({"none"}), ends="committed"),
    Point("ponr.crossed", ("standard", *DIRECT), AFTER_PONR),
    # ASY-1: nobody has begun it, so another replica begins it at once.
    Point("ponr.crossed", ("async",), frozenset({"PROCESSING", "COMMITTED"}), ends="committed"),
    Point("queue.taken", ("async",), AFTER_PONR),
    Point("send.before", MODES, AFTER_PONR),
    Point("sent", MODES, AFTER_PONR, outside=True),
    Point("sent, undone", MODES, AFTER_PONR, "cut before", outside=True),
    Point("answer.received", MODES, AFTER_PONR),
    Point("doubt.before", MODES, AFTER_PONR, "bad gateway, done"),
    Point("doubt.written", MODES, frozenset({"in doubt"}), "bad gateway, done"),
    Point("outcome.durable", MODES, frozenset({"COMMITTED"}), ends="committed"),
    Point("callback.sent", ("auto",), frozenset({"PROCESSING", "COMMITTED"}), ends="either"),
)
# REC-7: the gateway lives, and the acknowledgement of one statement is lost: before, while or after it is carried out.
CUTS = tuple(
    Point(
        f"cut {moment} {statement}",
        modes,
        frozenset(),
        behaviour,
        ends="by recovery" if statement == "doubt" else "committed",
    )
    for statement, modes, behaviour in (
        ("register", HANDSHAKES, "ok"),
        ("claim", HANDSHAKES, "ok"),
        ("begin", DIRECT, "ok"),
        ("settle", MODES, "ok"),
        ("doubt", MODES, "bad gateway, done"),
    )
    for moment in ("before", "during", "after")
)
# Who takes over dies too, at one point after the other: what a dead gateway sent, in every mode, recovery and method;
# and what nobody confirmed.
SEQUENCES = {
    "redrive": (("hold", "redrive"), ("rescue.declared", "redrive.before", "redrive.begun")),
    "probe": (("probe",), ("rescue.declared", "probe.answered")),
    "sweeps": (("hold",), ("sweep.expire", "sweep.abandon")),
}


@dataclass(frozen=True)
class Cell:
    """One combination."""

    point: Point
    mode: str
    recovery: str
    method: str

    def __str__(self) -> str:
        return f"{self.point.name} x {self.mode} x {self.recovery} x {self.method}"

    def end(self, effect: bool) -> set[str]:
        """What the intent must be after healing."""
        if self.point.ends == "abandoned":
            return {"ABANDONED"}
        if self.point.ends == "either":
            return {"COMMITTED", *self._recovered(effect)}
        if self.point.ends == "committed":
            if self.mode == "transparent" and "none" in self.point.left:
                return {"none"}  # its client cannot ask again
            return {"COMMITTED"}
        return self._recovered(effect)

    def meanwhile(self, effect: bool) -> set[str]:
        """Where the others may have brought it by the time that somebody looks."""
        return {"in doubt", *self.end(effect)} if self.point.left & {"PROCESSING", "in doubt"} else set()

    def _recovered(self, effect: bool) -> set[str]:
        if self.recovery not in HEALING:
            return {"in doubt"}
        return {"COMMITTED"} if effect or self.recovery == "redrive" else {"FAILED"}


def every_cell() -> Iterator[Cell]:
    for point in POINTS:
        for mode, recovery, method in itertools.product(point.modes, RECOVERIES, METHODS):
            yield Cell(point, mode, recovery, method)
    for turn, point in enumerate(CUTS):  # the gateway lives: recovery has a part only where the doubt itself is cut
        for mode, method in itertools.product(point.modes, METHODS):
            yield Cell(point, mode, RECOVERIES[turn % 3], method)


def covering_cells() -> Iterator[Cell]:
    """Every point in every mode, the two direct ones by turns; recoveries and methods in turn."""
    turn = 0
    for number, point in enumerate(POINTS):
        direct = [mode for mode in point.modes if mode in DIRECT]
        for mode in (*(mode for mode in point.modes if mode in HANDSHAKES), *direct[number % 2 :][:1]):
            turn += 1
            yield Cell(point, mode, RECOVERIES[turn % 3], METHODS[turn % 4])
    for turn, point in enumerate(CUTS):
        yield Cell(point, point.modes[turn % len(point.modes)], RECOVERIES[turn % 3], METHODS[turn % 4])


@dataclass
class Result:
    """What a matrix came to."""

    cells: int = 0
    crashes: int = 0
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.cells} cells, {self.crashes} crashes, {len(self.failures)} failures"


class Matrix:
    """Runs cells in one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._behaviours: dict[str, str] = {}
        self._arrived: dict[int, asyncio.Event] = {}
        self._cells: list[tuple[Cell, Operation]] = []
        self.result = Result()
        world.upstream.behaviour = self._behave
        world.upstream.on_request = self._on_request

    def _behave(self, method: str, path: str) -> str:
        return self._behaviours.pop(path, "ok")  # misbehaves once; a redrive finds it well

    async def _on_request(self, seen: Seen) -> None:
        arrived = self._arrived.pop(seen.number, None)
        if arrived is not None:
            arrived.set()
            await asyncio.sleep(30)  # no answer before the gateway is dead

    async def run(self, cells: Iterable[Cell]) -> None:
        """Cells whose gateway dies while its clients wait."""
        async with asyncio.TaskGroup() as running:
            for cell in cells:
                running.create_task(self._guarded(cell))

    async def _guarded(self, cell: Cell) -> None:
        async with self._gate:
            self.result.cells += 1
            if self.result.cells % SHOWN_EVERY == 0:
                counts = (
                    f"{self.result.cells} cells, {self.result.crashes} crashes, {len(self.result.failures)} failures"
                )
                print(f"{counts}; now {cell}", file=sys.stderr, flush=True)
            try:
                async with asyncio.timeout(90):
                    for _ in range(TRIES_MAX):
                        try:
                            wrong = await self._run(cell)
                        except AssertionError as error:  # it did not start: its port was taken
                            wrong = str(error)
                        if wrong is None:
                            return
                self.result.failures.append(f"{cell}: {wrong}")
            except TimeoutError:
                self.result.failures.append(f"{cell}: the point was not reached, or nothing came back")

    async def _run(self, cell: Cell) -> str | None:
        """One crash; what was wrong right after it. (A replica may die on behalf of what it recovers for others.)"""
        world, point = self._world, cell.point
        operation = world.clients.new(cell.mode, cell.recovery, cell.method)
        operation.callback = point.name == "callback.sent"
        self._behaviours[operation.path] = point.behaviour
        armed = {} if point.outside or point.name.startswith("cut") else {VARIABLE: point.name}
        dying = await world.replica(**armed)
        try:
            await dying.start()
            client = copy.copy(world.clients)
            client._urls = [dying.url]
            if point.name.startswith("cut"):
                _, moment, statement = point.name.split()
                cut = dying.proxy.cut(moment, batched(statement))  # type: ignore[arg-type]
                await client.run(operation, "plain")
                self._cells.append((cell, operation))
                return None if cut.happened.is_set() else "the statement was never sent"
            if point.outside:
                self._arrived[operation.number] = arrived = asyncio.Event()
            asking = asyncio.create_task(client.run(operation, "plain", tries=1))
            if point.outside:
                await arrived.wait()
            else:
                await eventually(lambda: f"crash point {point.name}" in dying.logs())
            await dying.kill()
            self.result.crashes += 1
            await asking
        finally:
            await dying.aclose()
            await dying.proxy.refuse()
        state = await self._state(operation)
        if cell.mode != "transparent":
            await world.clients.run(operation, "plain")
        if state not in point.left | cell.meanwhile(self._effect(operation)):
            return f"right after the crash it is {state}"
        self._cells.append((cell, operation))
        return None

    def _effect(self, operation: Operation) -> bool:
        return any(one.effect for one in self._world.upstream.log if one.number == operation.number)

    async def run_sequence(self, name: str, crashes: int) -> None:
        """A gateway dies with work in its hands; then those who take it over die, `crashes` of them at each point."""
        recoveries, points = SEQUENCES[name]
        sender = await self._world.replica()
        await sender.start()
        client = copy.copy(self._world.clients)
        client._urls = [sender.url]
        async with asyncio.TaskGroup() as asking:
            if name == "sweeps":
                for operation in self._operations(name, HANDSHAKES, recoveries, "abandoned"):
                    asking.create_task(client._register(operation))
            else:
                arrivals = []
                for operation in self._operations(name, MODES, recoveries, "by recovery"):
                    self._arrived[operation.number] = arrived = asyncio.Event()
                    arrivals.append(arrived)
                    asking.create_task(client.run(operation, "plain", tries=1))
                async with asyncio.timeout(30):
                    for arrived in arrivals:
                        await arrived.wait()
                await sender.kill()
        await sender.aclose()
        for point in points:
            for number in range(1 if name == "sweeps" else crashes):  # one sweep takes all there is
                if not await self._dies(point):
                    if number == 0:
                        self.result.failures.append(f"{point}: not reached")
                    break
                self.result.crashes += 1

    def _operations(self, name: str, modes: Iterable[str], recoveries: Iterable[str], ends: str) -> Iterator[Operation]:
        for mode, recovery, method in itertools.product(modes, recoveries, METHODS):
            operation = self._world.clients.new(mode, recovery, method)
            self._cells.append((Cell(Point(name, (mode,), AFTER_PONR, ends=ends), mode, recovery, method), operation))
            self.result.cells += 1
            yield operation

    async def _dies(self, point: str) -> bool:
        """Whether a new replica dies at the point."""
        taker = await self._world.replica(**{VARIABLE: point})
        try:
            await taker.start(wait_ready=False)
            await eventually(lambda: f"crash point {point}" in taker.logs(), within_s=20)
            return True
        except TimeoutError:
            return False
        finally:
            await taker.aclose()

    async def judge(self) -> Result:
        """After healing: each cell's end, and every invariant over all of them."""
        world = self._world
        await world.until_at_rest(HEAL_WITHIN_S)
        await asyncio.gather(*(self._ask_again(cell, operation) for cell, operation in self._cells))
        for cell, operation in self._cells:
            state, wanted = await self._state(operation), cell.end(self._effect(operation))
            if state not in wanted:
                self.result.failures.append(
                    f"{cell}: {state}, not {' or '.join(sorted(wanted))} ({operation.server_id})"
                )
        found = await world.findings()
        self.result.failures += [str(violation) for violation in found.violations]
        return self.result

    async def _ask_again(self, cell: Cell, operation: Operation) -> None:
        if cell.point.ends == "abandoned":  # P2-2: nobody confirms it any more
            operation.confirmed = True
        async with self._gate:
            await self._world.clients.ask_again(operation)

    async def _state(self, operation: Operation) -> str:
        connection = await asyncpg.connect(self._world.database_url)
        try:
            row = await connection.fetchrow(
                "SELECT i.phase::text, d.reason FROM intents i LEFT JOIN in_doubt d USING (bucket, logical_key)"
                " WHERE convert_from(i.path, 'UTF8') = $1",
                operation.path,
            )
        finally:
            await connection.close()
        if row is None:
            return "none"
        return "in doubt" if row["reason"] is not None else str(row["phase"])


async def run(
    database_url: str, directory: Path, cells: Iterable[Cell] = (), sequences: Mapping[str, int] | None = None
) -> Result:
    """A whole matrix on one database. `sequences`: how many die at each point of which."""
    world = World(directory, database_url, random.Random(1))
    await world.open()
    try:
        matrix = Matrix(world)
        for name, crashes in (sequences or {}).items():
            await matrix.run_sequence(name, crashes)
        await world.serve(1)
        await matrix.run(cells)
        return await matrix.judge()
    finally:
        await world.close()


async def _main(short: bool) -> int:
    directory = make_data_dir()
    server = EmbeddedPostgres(directory / "store")
    try:
        url = await server.start()
        await migrate(url)
        cells = covering_cells() if short else every_cell()
        result = await run(url, directory, cells, dict.fromkeys(SEQUENCES, 1 if short else 8))
    finally:
        with contextlib.suppress(Exception):
            await server.stop()
        shutil.rmtree(directory, ignore_errors=True)
    print(*result.failures, sep="\n")
    print(result)
    return 1 if result.failures else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true")
    sys.exit(uvloop.run(_main(parser.parse_args().short)))
