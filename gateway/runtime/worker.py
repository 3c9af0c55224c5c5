"""A worker: the data port on one event loop, with its own lines to the store.

It starts without the store too: pass-through works, the handshake answers 503 until the store has been opened.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any

import uvloop

from gateway import __version__
from gateway.background.loop import every
from gateway.background.recoverer import Recoverer
from gateway.flows.confirm import Confirmations
from gateway.flows.queued import QueueRunner
from gateway.ingress.edge import EdgeServer, require_c_parser
from gateway.ingress.handler import Handler
from gateway.ingress.jwks import KeySets
from gateway.ingress.limits import BufferBudget
from gateway.protocol.faults import StoreAway
from gateway.runtime import assembly
from gateway.runtime.channel import Channel
from gateway.runtime.egress import EgressPorts, shared_socket
from gateway.runtime.observer import WorkerObserver
from gateway.runtime.post import Post
from gateway.runtime.tasks import Tasks
from gateway.settings import Settings
from gateway.store.direct import DirectStore
from gateway.store.hooks import begin_hooks
from gateway.store.intents import IntentStore
from gateway.store.leases import Lease
from gateway.store.lines import Line
from gateway.store.opening import Opened, open_store
from gateway.store.pulse import Pulse
from gateway.store.queue import QueueStore
from gateway.store.recovery import RecoveryStore
from gateway.store.replay import ReplayStore
from gateway.telemetry import logs
from gateway.telemetry.metrics import Metrics
from gateway.upstream import Upstream
from gateway.vault import Key

log = logging.getLogger("gateway.runtime.worker")  # started as __main__

BACKLOG = 2048
OPEN_RETRY_S = 0.5
QUEUE_EVERY_S = 1.0  # what is confirmed here begins at once; this finds what others left
RENEW_PER_LEASE = 3  # a lease survives two lost renewals
GC_THRESHOLDS = (50_000, 20, 100)  # most garbage of a request is freed by counting; fewer passes, shorter tail
WRITES = frozenset({"register", "begin", "claim", "settle", "doubt"})  # statements that leave events
EXIT_REFUSED = 78  # EX_CONFIG: starting again would not help


class Worker:
    """One process of the data port."""

    def __init__(self, settings: Settings, channel: Channel, *, store_url: str, owner_url: str) -> None:
        self._settings = settings
        self._channel = channel
        self._store_url = store_url
        self._owner_url = owner_url
        self._metrics = Metrics(__version__)
        self._observer = WorkerObserver(self._metrics)
        self._tasks = Tasks()
        self._unwritten: set[bytes] = set()
        self._loops = Tasks()
        self._upstream: Upstream = assembly.upstream_of(settings)
        self._store: IntentStore | None = None
        self._directs: DirectStore | None = None
        self._lates: ReplayStore | None = None
        self._lease: Lease | None = None
        self._opened: Opened | None = None
        self._queue: QueueStore | None = None
        self._pulse: Pulse | None = None
        self._runner: QueueRunner | None = None
        self._recoveries: RecoveryStore | None = None
        self._recoverer: Recoverer | None = None
        self._post: Post | None = None
        self._confirmations: Confirmations | None = None
        self._key_sets = KeySets()
        config = assembly.config_of(settings, self._upstream, None, b"", self._key_sets)
        self._handler = Handler(config, None, self._observer)
        self._buffers = BufferBudget(settings.limits.buffered_bytes)
        self._egress = EgressPorts(settings, self._observer, self._tasks.spawn)
        self._tls = assembly.tls_context(settings.listen.tls)
        self._metrics.inflight.follow(lambda: self._handler.in_flight)
        self._metrics.buffered_bytes.follow(lambda: self._buffers.held_bytes)
        self._exit = 0

    async def run(self) -> int:
        """Serve until told to drain."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(logs.log_loop_error)
        sock = shared_socket(self._settings.listen.host, self._settings.listen.port)
        server = EdgeServer(self._handler, buffers=self._buffers, limits=assembly.edge_limits(self._settings))
        listener = await loop.create_server(server, sock=sock, backlog=BACKLOG, ssl=self._tls)
        await self._egress.listen(self._buffers, assembly.edge_limits(self._settings), BACKLOG)
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        self._channel.send("listening")
        opening = self._loops.spawn(self._open(), "open the store")
        await self._obey()
        listener.close()
        opening.cancel()
        await self._drain(server)
        return self._exit

    # --- the store

    async def _open(self) -> None:
        """Open the store as soon as it can be reached; what will never get better ends the gateway."""
        while True:
            try:
                await self._open_once(self._settings)
                self._use(self._settings)  # those of now: a reload may have come meanwhile
                self._observer.store_is_up()
                self._channel.send("opened")
                return
            except StoreAway:
                log.warning("the store is away; only pass-through works until it is back")
                await asyncio.sleep(OPEN_RETRY_S)
            except Exception as error:
                log.error("the store cannot be used", exc_info=error)
                self._exit = EXIT_REFUSED
                self._channel.send("refused", reason=f"{type(error).__name__}: {error}")
                return

    async def _open_once(self, settings: Settings) -> None:
        opened = await open_store(
            self._store_url,
            self._owner_url,
            service=settings.service.name,
            buckets=settings.store.buckets,
            keys=assembly.sealing_keys(settings),
        )
        if self._store is None:
            await self._take_lease(settings)
            self._store = IntentStore(
                self._store_url,
                service=settings.service.name,
                buckets=settings.store.buckets,
                observe=self._flushed,
                on_lost=self._observer.store_lost,
            )
            self._directs = DirectStore(self._store)
            self._lates = ReplayStore(self._store)
            self._pulse = Pulse(self._store_url, self._loops.spawn)
            self._queue = QueueStore(self._store_url, service=settings.service.name, buckets=settings.store.buckets)
            self._recoveries = RecoveryStore(
                self._store_url, service=settings.service.name, buckets=settings.store.buckets
            )
        if any(route.compensation for route in settings.routes):
            # Before the first request, so that nothing happens unheard.
            await begin_hooks(self._store_url, settings.service.name)
        self._opened = opened
        log.info("the store is open", extra={"service_ledger_id": str(opened.service_ledger_id)})

    def _flushed(self, statement: str, rows: int, seconds: float) -> None:
        self._observer.flush(statement, rows, seconds)
        if self._pulse is not None and statement in WRITES:
            self._pulse.beat()

    async def _take_lease(self, settings: Settings) -> None:
        lease = Lease(Line(self._store_url), settings.recovery.lease_ms)
        await lease.enter()
        self._lease = lease
        interval_s = settings.recovery.lease_ms / 1000 / RENEW_PER_LEASE
        # No back-off: after an outage holders come first, and they are known by their renewals (DESIGN decision 7).
        self._loops.spawn(every(interval_s, "lease", lease.renew, pause_max_s=interval_s), "renew the lease")

    def _use(self, settings: Settings) -> None:
        """Serve new requests with these settings."""
        self._settings = settings
        retired = self._post
        desk = None
        pepper = b""
        if self._opened is not None:
            self._post = Post(settings, self._opened, self._store_url)
            assert self._store is not None
            assert self._directs is not None
            assert self._lates is not None
            assert self._lease is not None
            assert self._recoveries is not None
            desk = assembly.desk_of(
                settings,
                self._opened,
                self._store,
                self._directs,
                self._lates,
                self._recoveries,
                self._post.courier(self._tasks.spawn),
                self._upstream,
                self._lease,
                self._tasks.spawn,
                self._unwritten,
                self._observer,
                self._key_sets,
            )
            pepper = self._opened.pepper
            assert self._queue is not None
            if self._confirmations is None or self._runner is None or self._recoverer is None:
                self._runner = QueueRunner(desk, self._queue)
                self._confirmations = Confirmations(desk, self._runner)
                self._loops.spawn(every(QUEUE_EVERY_S, "queue", self._runner.run_once), "run the queue")
                self._recoverer = Recoverer(desk)
                interval_s = settings.recovery.interval_ms / 1000
                self._loops.spawn(every(interval_s, "recoverer", self._recoverer.run_once), "recover")
            else:
                self._runner.under(desk)
                self._recoverer.under(desk)
                self._confirmations.under(desk)
            self._egress.open(self._store_url, settings.service.name)
        self._egress.use(settings)
        config = assembly.config_of(settings, self._upstream, desk, pepper, self._key_sets)
        self._handler.use(config, self._confirmations)
        if retired is not None:
            self._loops.spawn(_close_later(retired, settings.callbacks.timeout_ms / 1000), "close the old post office")

    # --- the supervisor's word

    async def _obey(self) -> None:
        while True:
            message = await self._channel.receive()
            if message is None:
                log.warning("the supervisor is gone; draining")
                return
            kind, content = message
            if kind == "drain":
                return
            if kind == "snapshot":
                self._channel.send("snapshot", ticket=content["ticket"], snapshot=self._metrics.snapshot())
            elif kind == "reload":
                await self._reload(content["settings"])

    async def _reload(self, settings: Settings) -> None:
        """OPS-1: all of a new configuration, or all of the old one."""
        old, old_upstream = self._settings, self._upstream
        try:
            if settings.listen.tls is not None and self._tls is not None:
                assembly.load_certificates(self._tls, settings.listen.tls)
            # By the keys, not by the settings: those of a file, or of the embedded store, change without them.
            if self._opened is not None and _named(assembly.sealing_keys(settings)) != _named(self._opened.ring.keys):
                await self._open_once(settings)
            if settings.upstream != old.upstream:
                self._upstream = assembly.upstream_of(settings)
            self._buffers.limit_bytes = settings.limits.buffered_bytes
            self._use(settings)
        except Exception as error:
            log.error("reload failed; the old configuration stays", exc_info=error)
            self._upstream = old_upstream
            self._buffers.limit_bytes = old.limits.buffered_bytes
            self._use(old)
            self._channel.send("not reloaded", reason=f"{type(error).__name__}: {error}")
            return
        if self._upstream is not old_upstream:
            old_upstream.retire()
        self._channel.send("reloaded")

    async def _drain(self, server: EdgeServer) -> None:
        """OPS-1: finish what is in flight, then hand back what is not finished."""
        if self._runner is not None:
            self._runner.close()
        if self._recoverer is not None:
            self._recoverer.close()
        timeout_s = self._settings.drain.timeout_ms / 1000
        deadline = asyncio.get_running_loop().time() + timeout_s
        await server.shutdown(timeout_s)
        cut = await self._tasks.drain(max(0.1, deadline - asyncio.get_running_loop().time()))
        if cut:
            log.warning("drain timed out; work in flight is handed to others", extra={"cut": cut})
        # Last: what was in flight may have called others through these ports.
        await self._egress.shutdown(max(0.1, deadline - asyncio.get_running_loop().time()))
        await self._loops.drain(0)
        if self._lease is not None:
            await self._lease.hand_back()
        if self._store is not None and self._queue is not None:
            await self._store.close()
            await self._queue.line.close()
        if self._recoveries is not None:
            await self._recoveries.line.close()
        if self._pulse is not None:
            await self._pulse.line.close()
        if self._post is not None:
            await self._post.close()
        await self._upstream.close()
        self._channel.send("drained")
        self._channel.close()


def _named(keys: Sequence[Key]) -> list[tuple[str, bytes]]:
    return [(key.id, key.secret) for key in keys]


async def _close_later(retired: Post, after_s: float) -> None:
    """What a reload replaced, once what is in flight through it has ended."""
    await asyncio.sleep(after_s)
    await retired.close()


async def _serve(descriptor: int) -> int:
    channel = await Channel.over(socket.socket(fileno=descriptor))
    hello = await channel.receive()
    if hello is None:
        return 1
    content: dict[str, Any] = hello[1]
    logs.configure(content["log_level"])
    require_c_parser()
    worker = Worker(content["settings"], channel, store_url=content["store_url"], owner_url=content["owner_url"])
    return await worker.run()


def main() -> None:
    """`python -m gateway.runtime.worker FD`: started by the supervisor only."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C goes to the whole group; the supervisor decides
    sys.exit(uvloop.run(_serve(int(sys.argv[1]))))


if __name__ == "__main__":
    main()
