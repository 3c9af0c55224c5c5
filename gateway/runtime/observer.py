"""What a worker counts, with every label bound before the first request."""

from __future__ import annotations

from gateway.protocol.phases import Phase
from gateway.telemetry.metrics import Metrics

MODES = ("passthrough", "register", "confirm", "direct", "poll", "look", "egress")


class WorkerObserver:
    """The flows' and the store's view of the metrics: cheap, and never raises."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._meters = {mode: metrics.meter(mode) for mode in MODES}
        self._phases = {phase.value: metrics.phase_transitions.labels(phase=phase.value) for phase in Phase}
        metrics.store_up.set(0)

    def request(self, mode: str, status: int, seconds: float) -> None:
        """A request was answered; status 0 when its client had left."""
        self._meters[mode].done(status, seconds)

    def refusal(self, slug: str) -> None:
        """A request was refused."""
        self._metrics.refusals.labels(type=slug).inc()

    def transition(self, phase: str) -> None:
        """A phase was written."""
        self._phases[phase].inc()

    def upstream(self, seconds: float, failure: str | None) -> None:
        """An upstream answered a confirmed request, or failed in some way."""
        self._metrics.upstream_seconds.observe(seconds)
        if failure is not None:
            self._metrics.upstream_failures.labels(kind=failure).inc()

    def bypass(self) -> None:
        """TRN-3: a request went past the ledger."""
        self._metrics.bypassed.inc()

    def unaudited(self, count: int) -> None:
        """REP-5: refusals that left no event."""
        self._metrics.refusals_unaudited.inc(count)

    def flush(self, statement: str, rows: int, seconds: float) -> None:
        """A batch was written."""
        self._metrics.store_flush_rows.observe(rows)
        self._metrics.store_flush_seconds.labels(statement=statement).observe(seconds)
        self._metrics.store_up.set(1)

    def store_lost(self) -> None:
        """A line to the store was lost."""
        self._metrics.store_up.set(0)

    def store_is_up(self) -> None:
        """The store was opened."""
        self._metrics.store_up.set(1)
