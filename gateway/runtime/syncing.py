"""Sync with the central ledger, put together: one per gateway and configuration (LED-2, LED-3, LED-4)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal
from uuid import uuid4

from gateway.background.central_client import Central
from gateway.background.sync import LEASE_MS, Registration, Sync
from gateway.obligations import Tracker
from gateway.protocol.obligations import PUBLISH
from gateway.settings import Settings
from gateway.settings.sections import Ledger
from gateway.store.ledger import LedgerQueries
from gateway.store.opening import Opened
from gateway.store.sync import Lag, SyncStore
from gateway.telemetry.metrics import Metrics
from gateway.vault import pull_token


@dataclass(frozen=True, slots=True)
class PullToken:
    """LED-3: what the central ledger shows this gateway's operator listener; it may read, and nothing else."""

    sha256: str
    name: str = "central"
    role: Literal["audit"] = "audit"
    service: None = None


def pull_token_of(settings: Settings, opened: Opened) -> str | None:
    """The same on every replica; None where no central ledger could use it."""
    ledger = settings.ledger
    if ledger is None or ledger.operator_url is None:
        return None
    return pull_token(opened.pepper, opened.service_ledger_id.bytes)


def pull_access(settings: Settings, opened: Opened) -> list[PullToken]:
    """Whom the operator listener lets in besides the configuration's tokens."""
    token = pull_token_of(settings, opened)
    return [] if token is None else [PullToken(sha256(token.encode()).hexdigest())]


class Syncing:
    """What pushes under one configuration."""

    def __init__(
        self, settings: Settings, ledger: Ledger, opened: Opened, store_url: str, tracker: Tracker, metrics: Metrics
    ) -> None:
        name, buckets = settings.service.name, settings.store.buckets
        self.interval_s = ledger.interval_ms / 1000
        self._metrics = metrics
        self._tracker = tracker
        self._store = SyncStore(store_url, service=name, central=ledger.central, buckets=buckets)
        self._ledger = LedgerQueries(store_url, buckets=buckets, lines=1)
        self._central = Central(ledger.central, ledger.token.reveal())
        who = Registration(name, opened.service_ledger_id, ledger.operator_url, pull_token_of(settings, opened))
        sync = Sync(self._store, self._ledger, self._central, who, measured=self._measured, publishing=self._publishing)
        self.run_once = sync.run_once

    def _measured(self, lag: Lag) -> None:
        self._metrics.ledger_sync_lag.set(lag.seconds)
        self._metrics.ledger_sync_behind.set(lag.behind)

    async def _publishing(self, batch: str, rows: int) -> Callable[[bool], Awaitable[object]]:
        """OBL-4: a batch on its way is an obligation of ours; one that was not acknowledged is given back."""
        trace_id = uuid4().hex
        key = f"{batch}:{trace_id}"  # a batch that is pushed again is another obligation
        obligation = await self._tracker.reserve(PUBLISH, key, {"rows": rows}, trace_id, lease_ms=LEASE_MS)

        async def settle(acknowledged: bool) -> None:
            await (self._tracker.commit if acknowledged else self._tracker.rollback)(obligation, trace_id)

        return settle

    async def close(self) -> None:
        """Let go of store and central ledger."""
        await self._central.close()
        await self._ledger.close()
        await self._store.line.close()
