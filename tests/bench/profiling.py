"""Where the worker's time goes, as py-spy sees it from outside. Optional: only `--profile` needs py-spy.

A function's own time holds what it calls in C. Looking stops the worker for a moment, which happens most easily in a
system call: functions that write to sockets look dearer than they are.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path

from tests.bench import programs
from tests.bench.programs import BenchError
from tests.bench.report import table
from tests.bench.wrk import Load

RATE_HZ = 200
LEAD_S = 2  # the load is longer than the recording, so that neither its start nor its end is in it
SHOWN = 40
EVENT_LOOP = "runtime/worker.py"  # in every stack of the thread that works; the others only wait


def require() -> str:
    """The profiler's path."""
    path = programs.py_spy()
    if path is None:
        raise BenchError("--profile needs py-spy in this environment: pip install py-spy")
    return path


async def top(name: str, pid: int, seconds: int, load: Callable[[], Coroutine[object, object, Load]]) -> str:
    """Run the load and look at the worker meanwhile: its functions by own time, and by all below them."""
    recorded_s = max(1, seconds - LEAD_S)
    task = asyncio.create_task(load())
    try:
        await asyncio.sleep(min(1.0, seconds / 4))
        stacks = await asyncio.to_thread(_record, pid, recorded_s)
    finally:
        await task
    own: Counter[str] = Counter()
    below: Counter[str] = Counter()
    for stack, samples in stacks:
        own[stack[-1]] += samples
        for frame in set(stack):
            below[frame] += samples
    total = sum(own.values()) or 1
    rows = [[f"{name}: functions of the worker", "own %", "with callees %"]]
    ranked = sorted(below, key=lambda frame: (-own[frame], -below[frame]))
    rows += [
        [frame, f"{100 * own[frame] / total:.1f}", f"{100 * below[frame] / total:.1f}"] for frame in ranked[:SHOWN]
    ]
    return table(rows)


def _record(pid: int, seconds: int) -> list[tuple[list[str], int]]:
    """Stacks from the outermost frame inwards, and how often each was seen."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "stacks"
        command = [require(), "record", "--pid", str(pid), "--duration", str(seconds), "--rate", str(RATE_HZ)]
        command += ["--function", "--format", "raw", "--output", str(path)]
        said = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60)
        if not path.exists():
            raise BenchError(f"py-spy recorded nothing:\n{said.stdout}{said.stderr}")
        stacks = []
        for line in path.read_text().splitlines():
            frames, _, samples = line.rpartition(" ")
            if EVENT_LOOP in frames:
                stacks.append((frames.split(";"), int(samples)))
        return stacks
