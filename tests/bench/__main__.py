"""The command behind `make bench`.

python -m tests.bench [--seconds 8] [--rounds 3] [--only passthrough,transparent,handshake,latency] [--profile]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from functools import partial
from pathlib import Path

from tests.bench import measures, profiling, programs, report
from tests.bench.ground import Ground, running
from tests.bench.machine import facts
from tests.bench.measures import Plan, Residence
from tests.bench.programs import BenchError
from tests.bench.report import Results

MEASURES = ("passthrough", "transparent", "handshake", "latency", "memory")


def main() -> int:
    """Exit status 0 unless something broke; goals are reported, not asserted."""
    options = _options()
    try:
        if options.profile:
            profiling.require()
        results = asyncio.run(_bench(options))
    except BenchError as error:
        print(f"\nBENCH FAILED: {error}", file=sys.stderr)
        return 1
    print("\n" + report.as_text(results))
    print(f"\nwritten to {report.write_json(results, options.results)}")
    return 0


async def _bench(options: argparse.Namespace) -> Results:
    for program in ("nginx", "wrk"):
        programs.find(program)
    plan = Plan(options.seconds, options.rounds, options.connections, options.handshakes)
    wanted = options.only
    _say("starting Postgres, upstream, nginx and the gateway")
    async with running() as ground:
        idle = ground.worker_memory()
        results = Results(plan, await facts(ground.postgres_url, ground.disk))
        if "passthrough" in wanted:
            results.passthrough_post = await measures.passthrough(ground, plan, "POST", _say)
            results.passthrough_get = await measures.passthrough(ground, plan, "GET", _say)
        if "transparent" in wanted:
            results.transparent = await measures.transparent(ground, plan, _say)
        if "handshake" in wanted:
            results.handshake = await measures.handshake(ground, plan, _say)
        if "latency" in wanted:
            results.latency = await measures.added_latency(ground, plan)
            results.black_hole = await measures.black_hole(ground, plan)
        if "memory" in wanted:
            if results.handshake is None:
                await measures.checked_handshakes(ground, plan, "memory-", plan.seconds)
            results.memory = Residence(idle, ground.worker_memory())
        if options.profile:
            results.notes += await _profile(ground, plan)
    return results


async def _profile(ground: Ground, plan: Plan) -> list[str]:
    """Rounds of their own: a profiler slows down what it looks at."""
    _say("profiling")
    plain = partial(measures.passed_through, ground, plan, "POST", plan.seconds)
    durable = partial(measures.checked_handshakes, ground, plan, "profile-", plan.seconds)
    return [
        await profiling.top("pass-through POST", ground.worker_pid, plan.seconds, plain),
        await profiling.top("handshakes", ground.worker_pid, plan.seconds, durable),
    ]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description="The gateway's speed as ratios to its peers."
    )
    parser.add_argument("--seconds", type=int, default=8, help="of every single measurement (default: 8)")
    parser.add_argument("--rounds", type=int, default=3, help="peer and gateway in turn (default: 3)")
    parser.add_argument("--connections", type=int, default=64, help="of the load (default: 64)")
    parser.add_argument("--handshakes", type=int, default=2000, help="at one connection (default: 2000)")
    parser.add_argument("--only", type=_measures, default=MEASURES, help=f"some of {','.join(MEASURES)}")
    parser.add_argument("--results", type=Path, default=Path("bench-results"), help="where the JSON goes")
    parser.add_argument("--profile", action="store_true", help="also where the worker's time goes (needs py-spy)")
    options = parser.parse_args()
    if min(options.seconds, options.rounds, options.connections, options.handshakes) < 1:
        parser.error("counts and seconds start at 1")
    return options


def _measures(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in MEASURES]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(MEASURES)}")
    return names


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
