"""The operator listener of a gateway, with its sources: the crew's readiness and metrics, and the ledger."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from gateway.operator import ENDPOINTS, Access, Listener, Sources, Token
from gateway.protocol.faults import StoreAway
from gateway.protocol.modes import Routes
from gateway.runtime import assembly
from gateway.runtime.crew import Crew
from gateway.runtime.tracking import Tracking
from gateway.settings import Settings
from gateway.store.client_rows import ReportedRows
from gateway.store.delivery_lists import DeliveryLists
from gateway.store.feed import Feed
from gateway.store.ledger import LedgerQueries
from gateway.store.lines import Line
from gateway.store.verdicts import Verdicts
from gateway.telemetry import exposition

log = logging.getLogger(__name__)


class OperatorFront:
    """What operators see of one gateway."""

    def __init__(self, settings: Settings, store_url: str, crew: Crew, draining: Callable[[], bool]) -> None:
        self._settings = settings
        self._crew = crew
        self._draining = draining
        self._ledger = LedgerQueries(store_url, buckets=settings.store.buckets)
        self._deliveries = DeliveryLists(store_url, buckets=settings.store.buckets)
        self.tracking = Tracking(settings, store_url)
        self._reported = ReportedRows(store_url, service=settings.service.name, buckets=settings.store.buckets)
        self._verdicts = Verdicts(store_url, service=settings.service.name, buckets=settings.store.buckets)
        self._pulling: Sequence[Token] = ()
        self._pulse = Line(store_url, pinned=False)
        self._tls = assembly.tls_context(settings.operator.tls)
        self._access = Access(settings.tokens)
        sources = Sources(
            self._ledger,
            self.readiness,
            self._metrics,
            lambda: Feed(store_url),
            self._deliveries,
            self.tracking,
            self._reported,
            self._verdicts,
            self._policy_of,
        )
        self._listener = Listener(sources, self._access, ENDPOINTS)
        self.port = 0

    async def start(self) -> None:
        """Listen."""
        operator = self._settings.operator
        self.port = await self._listener.start(operator.host, operator.port, self._tls)
        log.info("operator listener", extra={"host": operator.host, "port": self.port})

    async def stop(self) -> None:
        """Stop listening and let go of the store."""
        await self._listener.stop()
        await self._ledger.close()
        await self._deliveries.close()
        await self.tracking.close()
        await self._reported.close()
        await self._verdicts.close()
        await self._pulse.close()

    def use(self, settings: Settings) -> None:
        """OPS-1: tokens and certificates of a reloaded configuration."""
        self._settings = settings
        self._access.replace_tokens([*settings.tokens, *self._pulling])
        if self._tls is not None and settings.operator.tls is not None:
            assembly.load_certificates(self._tls, settings.operator.tls)

    def let_pull(self, tokens: Sequence[Token]) -> None:
        """LED-3: whom to let in besides the configuration's tokens, once the store has been opened."""
        self._pulling = tokens
        self._access.replace_tokens([*self._settings.tokens, *tokens])

    def _policy_of(self, method: str, path: bytes) -> str | None:
        """REC-2: what the configuration says about an intent in doubt."""
        route = Routes(self._settings.routes).match(method, path)
        return None if route is None else route.recovery

    async def readiness(self) -> tuple[bool, list[str]]:
        """OPS-1.

        Store reachable and migrated, workers listening, not draining. A dead upstream is not our unreadiness.
        """
        reasons = []
        if self._draining():
            reasons.append("draining")
        if not self._crew.listening:
            reasons.append("a worker is not listening")
        if not self._crew.opened:
            reasons.append("the store has not been opened")
        try:
            await self._pulse.fetch("SELECT 1")
        except StoreAway:
            reasons.append("the store is away")
        return not reasons, reasons

    async def _metrics(self) -> tuple[bytes, str]:
        return exposition.render(await self._crew.snapshot()), exposition.CONTENT_TYPE
