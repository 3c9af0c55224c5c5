"""The central ledger as a process: store, listener, background work, from start to drain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway import __version__
from gateway.background.loop import every
from gateway.central.endpoints import ENDPOINTS, Sources
from gateway.central.ingest import Ingest
from gateway.central.keeping import Keeper
from gateway.central.live import Live
from gateway.central.pull import Puller
from gateway.central.queries import CentralQueries
from gateway.central.services import IN_USE, Services
from gateway.central.trail import Trail
from gateway.operator import Access, Listener
from gateway.operator.access import Gate
from gateway.operator.calls import Endpoint
from gateway.protocol.faults import StoreAway
from gateway.runtime import assembly
from gateway.runtime.supervisor import StartRefused
from gateway.runtime.tasks import Tasks
from gateway.settings import SettingsError
from gateway.settings.central import CentralSettings, central_changes_needing_restart
from gateway.settings.central_loading import load_central
from gateway.store.lines import Line
from gateway.store.migrate import MigrationError
from gateway.store.opening import StoreRefused, open_ring
from gateway.telemetry import exposition
from gateway.telemetry.central import CentralMetrics
from gateway.vault import Key, KeyRing, KeysRefused, local_keys

log = logging.getLogger(__name__)

PARTITIONS_EVERY_S = 3600.0  # two months are made ahead
TALLY_EVERY_S = 2.0  # how far the page's figures are behind
TALLY_MINUTES = 500  # counted in one statement
RETAIN_EVERY_S = 30.0
REOPEN_EVERY_S = 1.0


class Central:
    """One central ledger."""

    def __init__(self, settings: CentralSettings, path: Path | None = None) -> None:
        self._settings = settings
        self._path = path
        self._metrics = CentralMetrics(__version__)
        self._access = Access(settings.tokens)
        self._tasks = Tasks()
        self._stop = asyncio.Event()
        self._draining = False
        self._tls = assembly.tls_context(settings.listen.tls)
        self._queries: CentralQueries | None = None
        self._keeper: Keeper | None = None
        self.port = 0

    async def run(self, ready: Callable[[int], None] | None = None) -> int:
        """Serve until SIGTERM or SIGINT; returns the exit status. `ready` is told the port once it listens."""
        self._signals()
        async with contextlib.AsyncExitStack() as stack:
            url, owner_url = await self._store(stack)
            ring = await self._opened(url, owner_url)
            if ring is None:
                return 0
            sources = self._sources(stack, url, owner_url, ring)
            gate, endpoints = self._doors()
            listener = Listener(sources, gate, endpoints, audit=sources.trail.record)
            listen = self._settings.listen
            try:
                self.port = await listener.start(listen.host, listen.port, self._tls)
            except OSError as error:
                raise StartRefused(f"cannot listen on {listen.host}:{listen.port}: {error.strerror}") from error
            log.info("central ledger", extra={"host": listen.host, "port": self.port})
            self._background(sources, owner_url, stack)
            if ready is not None:
                ready(self.port)
            await self._stop.wait()
            self._draining = True
            log.info("draining")
            await listener.stop()
            await self._tasks.drain(0)
        log.info("stopped")
        return 0

    def stop(self) -> None:
        """Drain and end."""
        self._stop.set()

    async def _store(self, stack: contextlib.AsyncExitStack) -> tuple[str, str]:
        store = self._settings.store
        if not store.embedded:
            return store.url.reveal(), store.owner.reveal()
        from gateway.store.embedded import EmbeddedPostgres

        url = await stack.enter_async_context(EmbeddedPostgres(store.data_dir))
        return url, url

    async def _opened(self, url: str, owner_url: str) -> KeyRing | None:
        """The store, migrated and with the right keys, however long it takes to reach it; None when told to stop."""
        configured = self._settings.encryption.keys
        keys = [Key.from_base64(key.id, key.reveal()) for key in configured]
        keys = keys or list(local_keys(self._settings.store.data_dir))
        while not self._stop.is_set():
            try:
                return await open_ring(url, owner_url, package="gateway.central", in_use=IN_USE, keys=keys)
            except StoreAway:
                log.warning("the store is away")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), REOPEN_EVERY_S)
            except (MigrationError, StoreRefused, KeysRefused) as error:
                raise StartRefused(str(error)) from error
        return None

    def _sources(self, stack: contextlib.AsyncExitStack, url: str, owner_url: str, ring: KeyRing) -> Sources:
        settings = self._settings
        live, trail, pulse = Live(), Trail(url), Line(url)
        queries = self._queries = CentralQueries(url, processing_ms=settings.stalled.processing_ms)
        services = Services(url, ring)
        ingest = Ingest(url, owner_url, live, self._metrics.took)
        ca = settings.pull.ca
        puller = Puller(
            queries,
            services,
            ingest,
            timeout_s=settings.pull.timeout_ms / 1000,
            tls=None if ca is None else ssl.create_default_context(cafile=str(ca)),
            allow_http=settings.pull.allow_http,
        )
        for part in (pulse, trail, services, queries, ingest, puller):
            stack.push_async_callback(part.close)
        self._metrics.followers.follow(lambda: live.followers)

        async def readiness() -> tuple[bool, list[str]]:
            reasons = ["draining"] if self._draining else []
            try:
                await pulse.fetch("SELECT 1")
            except StoreAway:
                reasons.append("the store is away")
            self._metrics.store_up.set("the store is away" not in reasons)
            return not reasons, reasons

        async def metrics() -> tuple[bytes, str]:
            return exposition.render(self._metrics.snapshot()), exposition.CONTENT_TYPE

        return Sources(queries, services, ingest, puller, live, trail, self._access, readiness, metrics)

    def _doors(self) -> tuple[Gate, tuple[Endpoint[Any], ...]]:
        """The API; and the page, unless it is switched off, with sessions beside tokens."""
        page = self._settings.page
        if not page.enabled:
            return self._access, ENDPOINTS
        from gateway.central.page import Desk, page_endpoints

        desk = Desk(self._access, secure=self._tls is not None, session_s=page.session_ms / 1000)
        return desk.gate, (*ENDPOINTS, *page_endpoints(desk))

    def _background(self, sources: Sources, owner_url: str, stack: contextlib.AsyncExitStack) -> None:
        owner, retention = Line(owner_url, role=None), self._settings.retention
        stack.push_async_callback(owner.close)
        keeper = self._keeper = Keeper(
            owner,
            default_ms=retention.default_ms,
            services_ms=dict(retention.services),
            dropped=sources.ingest.forget_months,
        )

        async def retain() -> None:
            self._metrics.forgotten.inc(await keeper.run_once())
            await sources.ingest.tidy()

        async def tally() -> None:
            while await sources.ingest.count_tallies(TALLY_MINUTES) >= TALLY_MINUTES:
                pass

        self._tasks.spawn(every(PARTITIONS_EVERY_S, "partitions", sources.ingest.prepare), "partitions")
        self._tasks.spawn(every(RETAIN_EVERY_S, "retention", retain), "retention")
        self._tasks.spawn(every(TALLY_EVERY_S, "tallies", tally), "tallies")
        self._tasks.spawn(self._reseal(sources.services), "pull tokens under the newest key")

    async def _reseal(self, services: Services) -> None:
        resealed = await services.reseal()
        if resealed:
            log.info("pull tokens sealed with the newest key", extra={"tokens": resealed})

    def _signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop.set)
        loop.add_signal_handler(signal.SIGINT, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)

    def _reload(self) -> None:
        """OPS-1: take over tokens, certificates, retention and limits; or keep the old ones and say what is wrong."""
        if self._path is None:
            return
        try:
            new = load_central(self._path)
        except SettingsError as error:
            for fault in error.errors:
                log.error("configuration", extra={"fault": str(fault)})
            log.error("reload refused: the configuration is wrong; the old one stays")
            return
        stuck = central_changes_needing_restart(self._settings, new)
        if stuck:
            log.error("reload refused: these need a restart; the old configuration stays", extra={"keys": stuck})
            return
        self._settings = new
        self._access.replace_tokens(new.tokens)
        if self._tls is not None and new.listen.tls is not None:
            assembly.load_certificates(self._tls, new.listen.tls)
        if self._queries is not None:
            self._queries.use(processing_ms=new.stalled.processing_ms)
        if self._keeper is not None:
            self._keeper.use(default_ms=new.retention.default_ms, services_ms=dict(new.retention.services))
        log.info("configuration reloaded")
