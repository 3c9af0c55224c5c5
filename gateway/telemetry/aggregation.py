"""Many workers, one set of numbers. Pure: snapshots in, a snapshot out; how they travel is the supervisor's business.

A worker that ends must not take its counts along: a total that falls looks to Prometheus like a restart, and everything
the other workers ever counted like new. So the counts of ended workers are kept.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from gateway.telemetry import catalogue
from gateway.telemetry.instruments import Spec, Value
from gateway.telemetry.metrics import Snapshot

_SPECS = {spec.name: spec for spec in catalogue.ALL}


def merge(snapshots: Iterable[Snapshot]) -> Snapshot:
    """One snapshot of all: counters and histograms add up, gauges as their spec says."""
    merged: dict[str, dict[tuple[str, ...], Value]] = {}
    for snapshot in snapshots:
        for name, samples in snapshot.items():
            spec = _SPECS.get(name)
            if spec is None or not all(_fits(spec, value) for _, value in samples):
                continue  # a worker restarted from a newer installation: what only it knows is left out
            children = merged.setdefault(name, {})
            for labels, value in samples:
                key = tuple(labels)
                children[key] = _both(spec, children[key], value) if key in children else value
    return {name: [[list(key), value] for key, value in children.items()] for name, children in merged.items()}


def _fits(spec: Spec, value: Value) -> bool:
    return spec.kind != "histogram" or len(value[0]) == len(spec.bounds) + 1


def _both(spec: Spec, one: Value, other: Value) -> Value:
    if spec.kind == "histogram":
        counts = [a + b for a, b in zip(one[0], other[0], strict=True)]
        return [counts, one[1] + other[1]]
    if spec.merge == "latest":
        return max(one, other, key=lambda stamped: stamped[1])
    return min(one, other) if spec.merge == "min" else one + other


class Totals:
    """The latest snapshot of every worker that runs, and what the ended ones had counted."""

    def __init__(self) -> None:
        self._running: dict[Hashable, Snapshot] = {}
        self._ended: Snapshot = {}

    def update(self, worker: Hashable, snapshot: Snapshot) -> None:
        self._running[worker] = snapshot

    def retire(self, worker: Hashable) -> None:
        """Keep an ended worker's counts; its gauges were about a present that is over."""
        last = self._running.pop(worker, {})
        counts = {name: samples for name, samples in last.items() if name in _SPECS and _SPECS[name].kind != "gauge"}
        self._ended = merge((self._ended, counts))

    def snapshot(self, *others: Snapshot) -> Snapshot:
        """Everything at once; `others` are, for instance, the supervisor's own metrics."""
        return merge((self._ended, *self._running.values(), *others))
