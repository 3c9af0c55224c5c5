"""The figures as a table for people and as JSON for machines."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.bench.latency import BlackHole, Latency
from tests.bench.measures import Comparison, Plan, Residence
from tests.bench.wrk import Load

CPU_COLUMNS = ("gateway", "nginx", "postgres", "upstream", "wrk", "pgbench")

METHOD = """\
How this was taken: everything on loopback, in one run. Rounds: {rounds}, of {seconds} s each, peer and gateway in turn
after a warm-up; a ratio is of two neighbours, the median of the rounds counts. wrk: one thread, {connections} kept
connections, 1 KiB in and 1 KiB out. Gateway: one worker, every check and feature on, encrypted, durable (the settings
above). Upstream of both proxies: one nginx that answers at once. nginx as a proxy: one worker, kept connections, no
log, no added headers. pgbench: {connections} clients, prepared statements, on the gateway's own server in another
database; it inserts intent and ledger row, claims and finalizes in three transactions, and stores no answer.
Handshakes: both phases through the gateway; p50 and p99 are of a single request, CPU time is per handshake. For
pgbench, p50 is the mean of a whole handshake.
`others` is what every other process of the machine used meanwhile, of one core: the less, the better the figures.
No request failed, and every confirmed handshake was found COMMITTED in Postgres, not one more and not one less."""


@dataclass(slots=True)
class Results:
    """What was measured; what was not asked for is missing."""

    plan: Plan
    machine: dict[str, object]
    passthrough_post: Comparison | None = None
    passthrough_get: Comparison | None = None
    transparent: Comparison | None = None
    handshake: Comparison | None = None
    latency: Latency | None = None
    black_hole: BlackHole | None = None
    memory: Residence | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Goal:
    """One line of the table. `at_least` says which way is better; without a limit it is only told."""

    name: str
    reached: float
    unit: str = ""
    limit: float | None = None
    at_least: bool = True

    @property
    def met(self) -> bool | None:
        if self.limit is None:
            return None
        return self.reached >= self.limit if self.at_least else self.reached <= self.limit


def goals(results: Results) -> list[Goal]:
    """The measures with their goals, in the order of the issue that set them."""
    found: list[Goal] = []
    if results.passthrough_post is not None:
        found.append(Goal("pass-through ÷ nginx proxy, POST", results.passthrough_post.ratio, limit=0.45))
        found.append(Goal("  the same by CPU time per request", results.passthrough_post.cpu_ratio))
    if results.passthrough_get is not None:
        found.append(Goal("pass-through ÷ nginx proxy, GET", results.passthrough_get.ratio))
    if results.transparent is not None:
        found.append(Goal("transparent ÷ nginx proxy, POST", results.transparent.ratio, limit=0.3))
        found.append(Goal("  the same by CPU time per request", results.transparent.cpu_ratio))
    if results.handshake is not None:
        found.append(Goal("handshakes/s ÷ pgbench's three transactions", results.handshake.ratio, limit=1.7))
        found.append(Goal("  the same by CPU time in Postgres", results.handshake.cpu_ratio))
    if results.latency is not None:
        added = results.latency.added_p50_ms
        found.append(Goal("added p50 of a handshake, one connection", added, "ms", limit=1.2, at_least=False))
        added = results.latency.transparent_added_p50_ms
        found.append(Goal("added p50 of transparent mode, one connection", added, "ms", limit=0.6, at_least=False))
    if results.black_hole is not None:
        added = results.black_hole.added_p99_ms
        found.append(Goal("added p99 of a black-hole callback host", added, "ms", limit=10, at_least=False))
    if results.memory is not None:
        found.append(Goal("idle worker, resident", results.memory.idle.rss_mib, "MiB", limit=70, at_least=False))
        found.append(Goal("  its share of shared pages only (PSS)", results.memory.idle.pss_mib, "MiB"))
        found.append(Goal("worker after the load, resident", results.memory.loaded.rss_mib, "MiB"))
    return found


def as_text(results: Results) -> str:
    """The tables, and how the figures in them were taken."""
    blocks = [_goal_table(goals(results)), _load_table(results), _facts(results), _method(results.plan)]
    if results.latency is not None:
        blocks.insert(2, _latency(results.latency))
    blocks += results.notes
    return "\n\n".join(block for block in blocks if block)


def write_json(results: Results, directory: Path) -> Path:
    """Everything, single rounds included; returns where."""
    document: dict[str, Any] = asdict(results)
    document["goals"] = [{**asdict(goal), "met": goal.met} for goal in goals(results)]
    for name in ("passthrough_post", "passthrough_get", "transparent", "handshake"):
        comparison: Comparison | None = getattr(results, name)
        if comparison is not None:
            document[name] |= {
                "ratios": comparison.ratios,
                "ratio": comparison.ratio,
                "cpu_ratio": comparison.cpu_ratio,
            }
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{datetime.now(UTC):%Y-%m-%dT%H%M%SZ}.json"
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    return path


def table(rows: list[list[str]], right: int = 1) -> str:
    """Aligned columns, the first `right` to the left and the others to the right; the first row is the head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if column < right else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def _goal_table(found: list[Goal]) -> str:
    rows = [["measure", "reached", "goal", ""]]
    for goal in found:
        limit = "" if goal.limit is None else f"{'≥' if goal.at_least else '≤'} {goal.limit:g} {goal.unit}".rstrip()
        verdict = {None: "", True: "met", False: "MISSED"}[goal.met]
        rows.append([goal.name, f"{goal.reached:.2f} {goal.unit}".rstrip(), limit, verdict])
    return table(rows)


def _load_table(results: Results) -> str:
    rows = [["median of the rounds; CPU in µs each", "per second", "p50 ms", "p99 ms", *CPU_COLUMNS, "others %"]]
    for name, comparison, peer in (
        ("POST 1 KiB", results.passthrough_post, "nginx"),
        ("GET", results.passthrough_get, "nginx"),
        ("transparent", results.transparent, "nginx"),
        ("handshake", results.handshake, "pgbench"),
    ):
        if comparison is not None:
            rows.append(_load_row(f"{name}, gateway", comparison.ours))
            rows.append(_load_row(f"{name}, {peer}", comparison.peer))
    return table(rows) if len(rows) > 1 else ""


def _load_row(name: str, rounds: list[Load]) -> list[str]:
    def middle(values: list[float | None]) -> str:
        known = [value for value in values if value is not None]
        return f"{statistics.median(known):.2f}" if known else ""

    return [
        name,
        f"{statistics.median(load.rate for load in rounds):,.0f}",
        middle([load.p50_ms for load in rounds]),
        middle([load.p99_ms for load in rounds]),
        *(middle([load.cpu_us.get(column) for load in rounds]) for column in CPU_COLUMNS),
        f"{max(load.others_cpu_percent for load in rounds):.0f}",
    ]


def _latency(latency: Latency) -> str:
    return (
        f"one connection, {latency.handshakes} handshakes in turn with two bare requests:"
        f" handshake p50 {latency.handshake_p50_ms:.3f} ms, p99 {latency.handshake_p99_ms:.3f} ms;"
        f" two bare p50 {latency.bare_p50_ms:.3f} ms, p99 {latency.bare_p99_ms:.3f} ms"
    )


def _facts(results: Results) -> str:
    machine = results.machine
    settings = machine["postgres_settings"]
    assert isinstance(settings, dict)
    promises = ", ".join(f"{name}={value}" for name, value in settings.items())
    return (
        f"machine: {machine['processor']}, {machine['cores']} cores, Linux {machine['kernel']},"
        f" fdatasync {machine['fdatasync_us']} µs, load {machine['load_1min_at_start']:.1f} at the start\n"
        f"software: Python {machine['python']} ({machine['python_build']}), PostgreSQL {machine['postgres']},"
        f" {machine['nginx']}, wrk {machine['wrk']}\n"
        f"Postgres: {promises}"
    )


def _method(plan: Plan) -> str:
    return METHOD.format(rounds=plan.rounds, seconds=plan.seconds, connections=plan.connections)
