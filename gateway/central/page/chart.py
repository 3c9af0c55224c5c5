"""Where the bars of a chart stand (pure): counts by series over time, stacked, with round numbers on the axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

WIDTH, HEIGHT = 1040, 230
LEFT, RIGHT, TOP, BOTTOM = 44, 8, 10, 24
LABELS_MAX = 8
BAR_MIN_HEIGHT = 1.5  # one failure among thousands stays visible
BAR_MAX_WIDTH = 30.0


@dataclass(frozen=True, slots=True)
class Bucket:
    """What ended, or began, in one stretch of time."""

    at: datetime
    counts: Mapping[str, int]

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class Bar:
    """One series in one bucket."""

    series: str
    count: int
    at: datetime
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the grid and its number."""

    y: float
    text: str


@dataclass(frozen=True, slots=True)
class Label:
    """A time under the bars."""

    x: float
    text: str
    anchor: str


@dataclass(frozen=True, slots=True)
class Chart:
    """All there is to draw, in units of its own view box."""

    bars: list[Bar]
    lines: list[Line]
    labels: list[Label]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT


def stacked(buckets: Sequence[Bucket], series: Sequence[str], *, form: str = "%H:%M") -> Chart:
    """Bars of the series on top of each other, in the order given, from the bottom up."""
    ceiling = _round_up(max((bucket.total for bucket in buckets), default=0))
    floor, room = HEIGHT - BOTTOM, HEIGHT - BOTTOM - TOP
    step = (WIDTH - LEFT - RIGHT) / max(len(buckets), 1)
    width = min(step * 0.72, BAR_MAX_WIDTH)
    bars: list[Bar] = []
    for index, bucket in enumerate(buckets):
        y = float(floor)
        for name in series:
            count = bucket.counts.get(name, 0)
            if count:
                height = max(count / ceiling * room, BAR_MIN_HEIGHT)
                y -= height
                x = LEFT + index * step + (step - width) / 2
                bars.append(Bar(name, count, bucket.at, round(x, 2), round(y, 2), round(width, 2), round(height, 2)))
    lines = [Line(round(floor - room * part / 4, 2), _short(ceiling * part / 4)) for part in range(5)]
    return Chart(bars, lines, _labels(buckets, step, form))


def _labels(buckets: Sequence[Bucket], step: float, form: str) -> list[Label]:
    every = max(1, -(-len(buckets) // LABELS_MAX))
    return [
        Label(round(LEFT + (index + 0.5) * step, 2), bucket.at.astimezone(UTC).strftime(form), "middle")
        for index, bucket in enumerate(buckets)
        if index % every == every // 2
    ]


def _round_up(most: int) -> int:
    """The next of 4, 8, 12, 20, 40, 80, 120 …: quarters of it are whole."""
    size = 1
    while True:
        for digit in (4, 8, 12, 20):
            if most <= digit * size:
                return digit * size
        size *= 10


def _short(value: float) -> str:
    for size, name in ((1_000_000, "M"), (1_000, "k")):
        if value >= size:
            return f"{value / size:g}{name}"
    return f"{value:g}"
