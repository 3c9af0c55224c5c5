"""wrk as the client: one thread, many connections, and the scripts in `lua/`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench import programs
from tests.bench.processes import CpuSources, Finished, run
from tests.bench.programs import BenchError

SCRIPTS = Path(__file__).parent / "lua"
SLACK_S = 30.0  # past its duration, a wrk that does not end is broken
DRAIN_S = 2  # for the handshakes begun to be confirmed; the script stops by itself long before
BODY_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Load:
    """One measurement of one server. `count` is of requests or of handshakes, whatever was measured."""

    count: int
    seconds: float
    p50_ms: float | None
    p99_ms: float | None
    cpu_us: dict[str, float]  # per request or handshake, by process
    others_cpu_percent: float  # what everybody else on this machine took meanwhile, of one core

    @property
    def rate(self) -> float:
        return self.count / self.seconds


@dataclass(frozen=True, slots=True)
class Handshakes:
    """A load of handshakes, and how many were confirmed in all, those after the measured time included."""

    load: Load
    confirmed: int


def plain(url: str, method: str, *, seconds: int, connections: int, sources: CpuSources) -> Load:
    """Plain requests as fast as they are answered."""
    finished = _wrk(url, "passthrough.lua", [method], seconds, connections, sources)
    said = _said(finished)
    if said["bytes"] < said["requests"] * BODY_BYTES:
        raise BenchError(f"the answers of {url} are shorter than {BODY_BYTES} bytes")
    return load_of(finished, said["requests"], said["seconds"], said["p50_ms"], said["p99_ms"])


def handshakes(url: str, prefix: str, *, seconds: int, connections: int, sources: CpuSources) -> Handshakes:
    """Register and confirm, as fast as they are answered. The latency is that of single requests."""
    finished = _wrk(url, "handshake.lua", [str(seconds), prefix], seconds + DRAIN_S, connections, sources)
    said = _said(finished)
    load = load_of(finished, said["requests"], said["seconds"], said["p50_ms"], said["p99_ms"], of=said["confirmed"])
    return Handshakes(load, said["confirmed"])


def load_of(
    finished: Finished, count: int, seconds: float, p50_ms: float | None, p99_ms: float | None, *, of: int | None = None
) -> Load:
    """A measurement from what a client said and the processes used; CPU time was spent on `of`, if not on `count`."""
    if not count:
        raise BenchError("nothing was answered")
    per = 1e6 / (of or count)
    spent = {name: round(cpu_s * per, 2) for name, cpu_s in finished.cpu_s.items() if name != "others"}
    others = 100 * finished.cpu_s["others"] / finished.wall_s
    return Load(count, seconds, p50_ms, p99_ms, spent, round(others, 1))


def _wrk(url: str, script: str, arguments: list[str], seconds: int, connections: int, sources: CpuSources) -> Finished:
    command = [programs.find("wrk"), "-t", "1", "-c", str(connections), "-d", f"{seconds}s", "--timeout", "10s"]
    command += ["-s", str(SCRIPTS / script), url, "--", *arguments]
    return run(command, sources, timeout_s=seconds + SLACK_S, client="wrk")


def _said(finished: Finished) -> dict[str, Any]:
    """The line that the scripts print at their end. Any error makes a run worthless."""
    for line in finished.output.splitlines():
        if line.startswith("BENCH "):
            said: dict[str, Any] = json.loads(line.removeprefix("BENCH "))
            if said["errors"]:
                raise BenchError(f"{said['errors']} requests failed:\n{finished.output}")
            return said
    raise BenchError(f"wrk said nothing of its figures:\n{finished.output}")
