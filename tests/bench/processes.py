"""What processes cost, as the kernel counts it: CPU time and memory from /proc."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.programs import BenchError

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
OUTPUT_SHOWN_CHARS = 2000

CpuSources = Mapping[str, Callable[[], float]]  # a name, and the CPU seconds its processes have used so far


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory of one process; PSS counts pages shared with others by their share."""

    rss_mib: float
    pss_mib: float


@dataclass(frozen=True, slots=True)
class Finished:
    """A program that ran to its end, and the CPU seconds that each source used meanwhile."""

    output: str
    wall_s: float
    cpu_s: dict[str, float]


def cpu_of(pid: int) -> float:
    """CPU seconds of one process."""
    user, system, _, _ = _times(pid)
    return user + system


def cpu_of_tree(pid: int) -> float:
    """CPU seconds of a process and its children, those that have ended included."""
    total = sum(_times(pid))
    for child in children(pid):
        try:
            total += cpu_of(child)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended: its parent has or will have its times
    return total


def children(pid: int) -> list[int]:
    """The living children of a process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def memory_of(pid: int) -> Memory:
    """Resident memory of one process."""
    fields = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, value, *_ = line.split()
        fields[name] = int(value) / 1024
    return Memory(rss_mib=fields["Rss:"], pss_mib=fields["Pss:"])


def run(arguments: Sequence[str], sources: CpuSources, *, timeout_s: float, client: str) -> Finished:
    """Run a program and account for CPU time meanwhile: its own, named `client`, that of `sources`, all `others`."""
    before = _reading(sources)
    started = time.monotonic()
    try:
        finished = subprocess.run(arguments, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{arguments[0]} did not end within {timeout_s:.0f} s") from error
    wall_s = time.monotonic() - started
    after = _reading(sources)
    if finished.returncode != 0:
        said = (finished.stdout + finished.stderr)[-OUTPUT_SHOWN_CHARS:]
        raise BenchError(f"{arguments[0]} ended with status {finished.returncode}:\n{said}")
    spent = {name: after[name] - before[name] for name in after}
    everything = spent.pop("machine")
    spent[client] = spent.pop("client")
    spent["others"] = max(0.0, everything - sum(spent.values()))
    return Finished(finished.stdout, wall_s, spent)


def _reading(sources: CpuSources) -> dict[str, float]:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)  # the program is the only child that ends in between
    reading = {name: read() for name, read in sources.items()}
    return {**reading, "client": ended.ru_utime + ended.ru_stime, "machine": _busy_s()}


def _times(pid: int) -> tuple[float, float, float, float]:
    """utime, stime, cutime, cstime; the command's name before them may hold spaces and brackets."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system, ended_user, ended_system = (int(field) * TICK_S for field in fields[11:15])
    return user, system, ended_user, ended_system


def _busy_s() -> float:
    """CPU seconds that all cores together were not idle, what the hypervisor took away included."""
    user, nice, system, _idle, _iowait, irq, softirq, steal, *_ = (
        Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    )
    return sum(int(ticks) for ticks in (user, nice, system, irq, softirq, steal)) * TICK_S
