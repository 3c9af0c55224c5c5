"""The central ledger's metrics: its one process counts, and serves them itself (OPS-1)."""

from __future__ import annotations

import platform
from typing import Any

from gateway.telemetry import catalogue
from gateway.telemetry.instruments import Counter, Family, Gauge
from gateway.telemetry.metrics import Snapshot


class CentralMetrics:
    """What is counted."""

    def __init__(self, version: str) -> None:
        self._families: list[Family[Any]] = [
            received := Family(catalogue.CENTRAL_RECEIVED, Counter),
            stored := Family(catalogue.CENTRAL_STORED, Counter),
            forgotten := Family(catalogue.CENTRAL_FORGOTTEN, Counter),
            followers := Family(catalogue.CENTRAL_FOLLOWED, Gauge),
            store_up := Family(catalogue.STORE_UP, Gauge),
            build := Family(catalogue.BUILD, Gauge),
        ]
        self.received = received.labels()
        self.stored = stored.labels()
        self.forgotten = forgotten.labels()
        self.followers = followers.labels()
        self.store_up = store_up.labels()
        build.labels(version=version, python=platform.python_version()).set(1)

    def took(self, received: int, stored: int) -> None:
        """A batch was stored."""
        self.received.inc(received)
        self.stored.inc(stored)

    def snapshot(self) -> Snapshot:
        """The values of the moment."""
        return {family.spec.name: family.samples() for family in self._families}
