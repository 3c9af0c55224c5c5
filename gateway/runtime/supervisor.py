"""The supervisor: store, operator listener, background sweeps, and a crew of workers, from start to drain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from gateway import __version__
from gateway.background.expirer import Expirer
from gateway.background.hooks import Hooks
from gateway.background.loop import every
from gateway.background.rescuer import Rescuer
from gateway.background.retention import Retainer
from gateway.obligations import Tracker
from gateway.protocol.faults import StoreAway
from gateway.runtime import assembly
from gateway.runtime.crew import Crew, Launch
from gateway.runtime.front import OperatorFront
from gateway.runtime.post import Post
from gateway.runtime.revocation import Revocation
from gateway.runtime.syncing import Syncing, pull_access
from gateway.runtime.tasks import Tasks
from gateway.settings import Overrides, Settings, SettingsError, changes_needing_restart, load
from gateway.store.hooks import HookStore
from gateway.store.lines import Line
from gateway.store.opening import Opened, open_store
from gateway.store.sweeps import Retention, Sweeps
from gateway.store.sync import forget_sync
from gateway.telemetry.metrics import Metrics
from gateway.vault import local_keys

log = logging.getLogger(__name__)

EXPIRE_EVERY_S = 0.5  # states are right without it; this bounds how long payloads of the expired are kept
DISPATCH_EVERY_S = 0.5  # how late a due delivery may be
REOPEN_EVERY_S = 1.0
RETAIN_EVERY_S = 30.0


class StartRefused(Exception):
    """The gateway cannot start, and says why."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where the settings came from, for a reload."""

    path: Path | None
    overrides: Overrides


class Supervisor:
    """One gateway."""

    def __init__(self, settings: Settings, source: Source, *, log_level: str = "info") -> None:
        self._settings = settings
        self._source = source
        self._log_level = log_level
        self._metrics = Metrics(__version__)
        self._tasks = Tasks()
        self._changed = asyncio.Event()
        self._stop = asyncio.Event()
        self._reloaded = asyncio.Event()
        self._draining = False
        self._crew: Crew | None = None
        self._front: OperatorFront | None = None
        self._lines: list[Line] = []
        self._reloading = asyncio.Lock()

    async def run(self, ready: Callable[[Settings], None] | None = None) -> int:
        """Serve until SIGTERM or SIGINT; returns the exit status. `ready` is told once the gateway is ready."""
        async with contextlib.AsyncExitStack() as stack:
            reserved = stack.enter_context(_reserve(self._settings.listen.host, self._settings.listen.port))
            listen = replace(self._settings.listen, port=reserved.getsockname()[1])
            self._settings = replace(self._settings, listen=listen)
            for egress in self._settings.egress:
                stack.enter_context(_reserve(egress.listen.host, egress.listen.port))
            store_url, owner_url = await self._store(stack)
            launch = Launch(self._settings, store_url, owner_url, self._log_level)
            crew = self._crew = Crew(launch, self._metrics, self._changed.set)
            front = self._front = OperatorFront(self._settings, store_url, crew, lambda: self._draining)
            try:
                await front.start()
            except OSError as error:
                operator = self._settings.operator
                raise StartRefused(f"cannot listen on {operator.host}:{operator.port}: {error.strerror}") from error
            stack.push_async_callback(front.stop)
            crew.start()
            self._signals()
            self._tasks.spawn(self._sweep(store_url, owner_url), "start the sweeps")
            if ready is not None:
                self._tasks.spawn(self._announce(front, ready), "announce")
            await self._until_stopped(crew)
            self._draining = True
            log.info("draining")
            await crew.drain()
            await self._tasks.drain(0)
            await asyncio.gather(*(line.close() for line in self._lines))
        if crew.refused is not None:
            log.error("the gateway cannot run", extra={"reason": crew.refused})
            raise StartRefused(crew.refused)
        log.info("stopped")
        return 0

    async def _store(self, stack: contextlib.AsyncExitStack) -> tuple[str, str]:
        store = self._settings.store
        if not store.embedded:
            return store.url.reveal(), store.owner.reveal()
        from gateway.store.embedded import EmbeddedPostgres

        url = await stack.enter_async_context(EmbeddedPostgres(store.data_dir))
        if not self._settings.encryption.keys:
            local_keys(store.data_dir)  # made once, here, before workers race for it
        return url, url

    def _signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop.set)
        loop.add_signal_handler(signal.SIGINT, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._tasks.spawn(self._reload(), "reload"))

    async def _until_stopped(self, crew: Crew) -> None:
        stop = asyncio.create_task(self._stop.wait())
        try:
            while not stop.done() and crew.refused is None:
                changed = asyncio.create_task(self._changed.wait())
                await asyncio.wait({stop, changed}, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                self._changed.clear()
        finally:
            stop.cancel()

    async def _announce(self, front: OperatorFront, ready: Callable[[Settings], None]) -> None:
        assert self._crew is not None
        await self._crew.all_opened.wait()
        ready(replace(self._settings, operator=replace(self._settings.operator, port=front.port)))

    async def _sweep(self, store_url: str, owner_url: str) -> None:
        assert self._crew is not None
        await self._crew.store_opened.wait()
        store, recovery = self._settings.store, self._settings.recovery
        sweeps = Sweeps(store_url, buckets=store.buckets, lease_ms=recovery.lease_ms)
        owner = Line(owner_url, role=None)
        self._lines += [sweeps.line, owner]
        expirer = Expirer(sweeps, self._metrics.expired.inc)
        rescuer = Rescuer(sweeps, self._metrics.in_doubt.set)
        retainer = Retainer(Retention(owner, buckets=store.buckets), self._metrics.retained_deleted.inc)
        self._tasks.spawn(every(EXPIRE_EVERY_S, "expirer", expirer.run_once), "expirer")
        self._tasks.spawn(every(recovery.interval_ms / 1000, "rescuer", rescuer.run_once), "rescuer")
        self._tasks.spawn(every(RETAIN_EVERY_S, "retention", retainer.run_once), "retention")
        await self._dispatch(store_url, owner_url)

    async def _dispatch(self, store_url: str, owner_url: str) -> None:
        """Callbacks, hooks and obligations, from this process on."""
        front = self._front
        assert front is not None
        leaks = front.tracking.scan(self._metrics)
        hook_store = HookStore(store_url, service=self._settings.service.name)
        self._lines.append(hook_store.line)
        while True:
            settings = self._settings
            self._reloaded.clear()
            opened = await self._opened(settings, store_url, owner_url)
            post = Post(settings, opened, store_url)
            tracker = front.tracking.use(settings, opened)
            front.let_pull(pull_access(settings, opened))
            syncing = await self._syncing(settings, opened, store_url, tracker)
            scan_every_s = settings.obligations.scan_interval_ms / 1000
            hooks = Hooks(hook_store, post.hooks())
            loops = [
                self._tasks.spawn(every(DISPATCH_EVERY_S, "dispatcher", post.dispatcher().run_once), "dispatcher"),
                self._tasks.spawn(every(DISPATCH_EVERY_S, "hooks", hooks.run_once), "hooks"),
                self._tasks.spawn(every(scan_every_s, "leak scan", leaks.run_once), "leak scan"),
            ]
            if syncing is not None:
                sync = every(syncing.interval_s, "ledger sync", syncing.run_once)
                loops.append(self._tasks.spawn(sync, "ledger sync"))
            try:
                await self._reloaded.wait()
            finally:
                for loop in loops:
                    loop.cancel()
                await asyncio.gather(*loops, return_exceptions=True)
                await post.close()
                if syncing is not None:
                    await syncing.close()

    async def _syncing(self, settings: Settings, opened: Opened, store_url: str, tracker: Tracker) -> Syncing | None:
        """LED-2; without a central ledger nothing is kept for one."""
        if settings.ledger is not None:
            return Syncing(settings, settings.ledger, opened, store_url, tracker, self._metrics)
        line = Line(store_url)
        try:
            await forget_sync(line, settings.service.name)
        except StoreAway:
            log.warning("what was kept for a central ledger stays kept: the store is away")
        finally:
            await line.close()
        return None

    async def _opened(self, settings: Settings, store_url: str, owner_url: str) -> Opened:
        """The store with these settings' keys, however long it takes to reach it."""
        while True:
            try:
                return await open_store(
                    store_url,
                    owner_url,
                    service=settings.service.name,
                    buckets=settings.store.buckets,
                    keys=assembly.sealing_keys(settings),
                )
            except StoreAway:
                log.warning("deliveries wait: the store is away")
                await asyncio.sleep(REOPEN_EVERY_S)

    async def _reload(self) -> None:
        """OPS-1: take over a changed configuration, or keep the old one and say what is wrong with the new."""
        async with self._reloading:
            try:
                new = load(self._source.path, overrides=self._source.overrides)
            except SettingsError as error:
                for fault in error.errors:
                    log.error("configuration", extra={"fault": str(fault)})
                log.error("reload refused: the configuration is wrong; the old one stays")
                return
            fixed = replace(new, listen=replace(new.listen, port=new.listen.port or self._settings.listen.port))
            stuck = changes_needing_restart(self._settings, fixed)
            if stuck:
                log.error("reload refused: these need a restart; the old configuration stays", extra={"keys": stuck})
                return
            assert self._crew is not None
            assert self._front is not None
            revocation = Revocation(self._settings, fixed)
            await revocation.reserve(self._front.tracking.tracker)
            failed = await self._crew.reload(fixed)
            if failed:
                await revocation.rollback()
                log.error("reload failed in a worker; the old configuration stays there", extra={"reasons": failed})
                return
            self._settings = fixed
            self._front.use(fixed)
            self._reloaded.set()
            await revocation.commit()
            for warning in fixed.warnings:
                log.warning("configuration", extra={"warning": str(warning)})
            log.info("configuration reloaded")


def _reserve(host: str, port: int) -> socket.socket:
    """Hold the data port: workers share it, and a stranger who already has it is found now and named clearly."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as alone:  # SO_REUSEPORT alone would share it with a stranger
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind((host, port))
            port = alone.getsockname()[1]
        held = socket.socket(family, socket.SOCK_STREAM)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((host, port))
        return held
    except OSError as error:
        raise StartRefused(f"cannot listen on {host}:{port}: {error.strerror}") from error
