"""The first page: what ended how over time, what needs somebody, and how far behind each service's entries are."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from gateway.central.page import chart, moments
from gateway.central.page.desk import Desk
from gateway.central.page.forms import filled
from gateway.central.questions import scope_of
from gateway.operator import parameters
from gateway.operator.calls import Call
from gateway.protocol.messages import Answer
from gateway.protocol.phases import Phase

if TYPE_CHECKING:
    from gateway.central.endpoints import Sources

WINDOWS: Mapping[str, tuple[timedelta, str, str]] = {
    "1h": (timedelta(hours=1), "1 hour", "%H:%M"),
    "24h": (timedelta(hours=24), "24 hours", "%H:%M"),
    "7d": (timedelta(days=7), "7 days", "%d %b"),
    "30d": (timedelta(days=30), "30 days", "%d %b"),
}
OPEN = "open"
# From the bottom up: what went well is the ground that the rest stands on.
SERIES: Mapping[str, tuple[str, str]] = {
    Phase.COMMITTED: ("committed", "committed"),
    OPEN: ("processing", "still open"),
    Phase.TTL_EXPIRED: ("expired", "expired"),
    Phase.ABANDONED: ("abandoned", "abandoned"),
    Phase.FAILED: ("failed", "failed"),
}


async def overview(desk: Desk, sources: Sources, call: Call) -> Answer:
    """`/`"""
    given = filled(call.query, takes=("window",))
    window = parameters.choice(given, "window", WINDOWS) or "1h"
    length, _, form = WINDOWS[window]
    until = desk.now()
    summary = await sources.queries.summary(until - length, until, source=None, scope=scope_of(call))
    buckets = [chart.Bucket(at, step["counts"]) for step in summary["buckets"] if (at := moments.parsed(step["at"]))]
    totals = {name: sum(bucket.counts.get(name, 0) for bucket in buckets) for name in SERIES}
    return desk.show(
        call,
        "overview.html",
        "/",
        window=window,
        windows=[(name, text) for name, (_, text, _) in WINDOWS.items()],
        chart=chart.stacked(buckets, list(SERIES), form=form),
        buckets=[bucket for bucket in buckets if bucket.total],
        series=SERIES,
        totals=totals,
        counts=summary["now"],
        services=await sources.services.all(scope=scope_of(call)),
    )
