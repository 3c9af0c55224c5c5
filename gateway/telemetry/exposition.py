"""A snapshot in Prometheus' text format, written by prometheus-client from a registry of its own.

Apart from the instruments so that only the process that serves `/metrics` loads the library.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from gateway.telemetry import catalogue
from gateway.telemetry.instruments import Spec, Value
from gateway.telemetry.metrics import Snapshot

CONTENT_TYPE = CONTENT_TYPE_LATEST


def render(snapshot: Snapshot) -> bytes:
    """The body of `/metrics`; its type is `CONTENT_TYPE`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_SnapshotCollector(snapshot))
    return generate_latest(registry)


class _SnapshotCollector(Collector):
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        for spec in (*catalogue.ALL, *catalogue.CENTRAL):
            if spec.name in self._snapshot:
                yield _metric(spec, self._snapshot[spec.name])


def _metric(spec: Spec, samples: list[tuple[list[str], Value]]) -> Metric:
    match spec.kind:
        case "counter":
            counter = CounterMetricFamily(spec.name, spec.help, labels=spec.labels)
            for labels, value in samples:
                counter.add_metric(labels, value)
            return counter
        case "gauge":
            gauge = GaugeMetricFamily(spec.name, spec.help, labels=spec.labels)
            for labels, value in samples:
                gauge.add_metric(labels, value[0] if spec.merge == "latest" else value)
            return gauge
        case "histogram":
            histogram = HistogramMetricFamily(spec.name, spec.help, labels=spec.labels)
            for labels, (counts, total) in samples:
                bounds = [*map(floatToGoString, spec.bounds), "+Inf"]
                histogram.add_metric(labels, list(zip(bounds, accumulate(counts), strict=True)), total)
            return histogram
