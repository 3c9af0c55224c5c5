"""The gateway's metrics, ready to be counted on (OPS-1).

One `Metrics` per process, handed to whoever counts; there is no global registry. Values leave a process as a snapshot
that JSON can carry; whoever serves `/metrics` merges the processes' snapshots (`aggregation`) and renders them
(`exposition`).
"""

from __future__ import annotations

import platform
from typing import Any

from gateway.telemetry import catalogue
from gateway.telemetry.instruments import Counter, Family, Gauge, Histogram, InstrumentT, Spec

Snapshot = dict[str, list[Any]]  # metric name -> [[label values, value], …]


class RequestMeter:
    """Counts the answered requests of one mode; `done` is all that the hot path calls."""

    __slots__ = ("_by_class", "_seconds")

    def __init__(self, metrics: Metrics, mode: str) -> None:
        # Indexed by the first digit of a status; 0 is a client that left before an answer.
        classes = ("none", "1xx", "2xx", "3xx", "4xx", "5xx")
        self._by_class = [metrics.requests.labels(mode=mode, status_class=name) for name in classes]
        self._seconds = metrics.request_seconds.labels(mode=mode)

    def done(self, status: int, seconds: float) -> None:
        self._by_class[status // 100 if 0 <= status < 600 else 0].total += 1
        self._seconds.observe(seconds)


class Metrics:
    def __init__(self, version: str) -> None:
        self._families: list[Family[Any]] = []
        self.requests = self._add(catalogue.REQUESTS, Counter)
        self.request_seconds = self._add(catalogue.REQUEST_SECONDS, Histogram)
        self.phase_transitions = self._add(catalogue.PHASE_TRANSITIONS, Counter)
        self.refusals = self._add(catalogue.REFUSALS, Counter)
        self.refusals_unaudited = self._add(catalogue.REFUSALS_UNAUDITED, Counter).labels()
        self.upstream_seconds = self._add(catalogue.UPSTREAM_SECONDS, Histogram).labels()
        self.upstream_failures = self._add(catalogue.UPSTREAM_FAILURES, Counter)
        self.store_flush_rows = self._add(catalogue.STORE_FLUSH_ROWS, Histogram).labels()
        self.store_flush_seconds = self._add(catalogue.STORE_FLUSH_SECONDS, Histogram)
        self.store_up = self._add(catalogue.STORE_UP, Gauge).labels()
        self.inflight = self._add(catalogue.INFLIGHT, Gauge).labels()
        self.buffered_bytes = self._add(catalogue.BUFFERED_BYTES, Gauge).labels()
        self.in_doubt = self._add(catalogue.IN_DOUBT, Gauge).labels()
        self.bypassed = self._add(catalogue.BYPASSED, Counter).labels()
        self.expired = self._add(catalogue.EXPIRED, Counter).labels()
        self.retained_deleted = self._add(catalogue.RETAINED_DELETED, Counter).labels()
        self.obligation_scans = self._add(catalogue.OBLIGATION_SCANS, Counter).labels()
        self.obligations_leaked = self._add(catalogue.OBLIGATIONS_LEAKED, Counter).labels()
        self.worker_restarts = self._add(catalogue.WORKER_RESTARTS, Counter).labels()
        self.ledger_sync_lag = self._add(catalogue.LEDGER_SYNC_LAG, Gauge).labels()
        self.ledger_sync_behind = self._add(catalogue.LEDGER_SYNC_BEHIND, Gauge).labels()
        self._add(catalogue.BUILD, Gauge).labels(version=version, python=platform.python_version()).set(1)

    def meter(self, mode: str) -> RequestMeter:
        """The meter of one mode's requests; ask once per mode, at start."""
        return RequestMeter(self, mode)

    def snapshot(self) -> Snapshot:
        return {family.spec.name: family.samples() for family in self._families}

    def _add(self, spec: Spec, instrument: type[InstrumentT]) -> Family[InstrumentT]:
        family = Family(spec, instrument)
        self._families.append(family)
        return family
