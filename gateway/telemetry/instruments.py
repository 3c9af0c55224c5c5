"""Counters, gauges and histograms as plain numbers in one process, cheap enough for every request.

An instrument is bound to its labels once, at start; counting is then an addition on an attribute, with no lock and no
look-up. So instruments belong to one thread: the event loop's. Must not know how values are merged or rendered (see
`aggregation` and `exposition`).
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

CHILDREN_MAX = 128  # label combinations per metric; refusals, the widest, have some fifty types
OVERFLOW = "other"  # what a label says past that: a wrong label costs detail, never memory

Value = Any  # what `Instrument.value()` gives and JSON carries: a number, [number, time], or [bucket counts, sum]


@dataclass(frozen=True, slots=True)
class Spec:
    """What a metric is called and means, and how the workers' values become one."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()  # upper bounds of a histogram's buckets, +Inf aside
    merge: Literal["sum", "min", "latest"] = "sum"


class Instrument(Protocol):
    def __init__(self, spec: Spec) -> None: ...

    def value(self) -> Value | None:
        """The present state, as JSON can carry it; None while there is nothing to tell."""


class Counter:
    """Only goes up."""

    __slots__ = ("total",)

    def __init__(self, spec: Spec) -> None:
        self.total: float = 0

    def inc(self, amount: float = 1) -> None:
        self.total += amount

    def value(self) -> Value:
        return self.total


class Gauge:
    """Goes up and down, or follows a number that somebody else keeps.

    Where the workers' levels are not added up, one that was never set says nothing: a process that does not talk to the
    store must not report it as down.
    """

    __slots__ = ("_follow", "_known", "_set_at", "_stamped", "level")

    def __init__(self, spec: Spec) -> None:
        self.level: float = 0
        self._known = spec.merge == "sum"
        self._stamped = spec.merge == "latest"
        self._set_at = 0.0
        self._follow: Callable[[], float] | None = None

    def inc(self, amount: float = 1) -> None:
        self.level += amount

    def dec(self, amount: float = 1) -> None:
        self.level -= amount

    def set(self, level: float) -> None:
        self.level = level
        self._known = True
        if self._stamped:
            self._set_at = time.monotonic()  # one clock for all processes of a machine

    def follow(self, read: Callable[[], float]) -> None:
        """Ask `read` whenever a snapshot is taken, instead of being told of every change."""
        self._follow = read

    def value(self) -> Value | None:
        if self._follow is not None:
            self.set(self._follow())
        if not self._known:
            return None
        return [self.level, self._set_at] if self._stamped else self.level


class Histogram:
    """How often a value fell into each bucket, and the sum of all values."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, spec: Spec) -> None:
        assert spec.bounds == tuple(sorted(spec.bounds)), f"{spec.name}: buckets out of order"
        self._bounds = spec.bounds
        self.counts = [0] * (len(spec.bounds) + 1)  # the last one is for +Inf
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def value(self) -> Value:
        return [list(self.counts), self.sum]


InstrumentT = TypeVar("InstrumentT", bound=Instrument)


class Family(Generic[InstrumentT]):
    """All instruments of one metric, one per combination of label values."""

    def __init__(self, spec: Spec, instrument: type[InstrumentT]) -> None:
        self.spec = spec
        self._instrument = instrument
        self._children: dict[tuple[str, ...], InstrumentT] = {}

    def labels(self, **values: str) -> InstrumentT:
        """The instrument of these label values. Ask once and keep it: this is no call for the hot path."""
        assert set(values) == set(self.spec.labels), f"{self.spec.name} has the labels {self.spec.labels}"
        key = tuple(values[label] for label in self.spec.labels)
        child = self._children.get(key)
        if child is None:
            if self.spec.labels and len(self._children) >= CHILDREN_MAX - 1:
                key = (OVERFLOW,) * len(self.spec.labels)
            child = self._children.setdefault(key, self._instrument(self.spec))
        return child

    def samples(self) -> list[Any]:
        """`[[label values, value], …]`"""
        values = ((key, child.value()) for key, child in self._children.items())
        return [[list(key), value] for key, value in values if value is not None]
