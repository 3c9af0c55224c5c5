"""The post office of a process: what sends callbacks and hooks, put together from settings and the opened store."""

from __future__ import annotations

from gateway.background.dispatcher import PER_HOST_MAX, Dispatcher
from gateway.delivery.carrier import Carrier
from gateway.delivery.courier import Courier
from gateway.delivery.guard import AddressGuard
from gateway.delivery.hosts import Hosts
from gateway.delivery.sender import Sender
from gateway.delivery.signing import Signer, store_key
from gateway.delivery.urls import seal_hook
from gateway.flows.ports import Spawn
from gateway.protocol.deliveries import lease_ms
from gateway.settings import Settings
from gateway.store.deliveries import DeliveryStore
from gateway.store.hooks import Hook
from gateway.store.opening import Opened


class Post:
    """Sends under one configuration; a reload makes another."""

    def __init__(self, settings: Settings, opened: Opened, store_url: str) -> None:
        callbacks = settings.callbacks
        self._settings = settings
        self._opened = opened
        self._lease_ms = lease_ms(callbacks.timeout_ms)
        self._store = DeliveryStore(store_url, service=settings.service.name, lease_ms=self._lease_ms)
        self._guard = AddressGuard(
            allow_http=callbacks.allow_http,
            allow_hosts=callbacks.allow_hosts,
            allow_networks=callbacks.allow_networks,
            ports=callbacks.ports,
        )
        self._sender = Sender(self._guard, timeout_s=callbacks.timeout_ms / 1000)
        keys = [key.reveal() for key in callbacks.all_signing_keys] or [store_key(opened.pepper)]
        self._carrier = Carrier(
            sender=self._sender,
            signer=Signer(keys, per_caller=callbacks.per_caller),
            guard=self._guard,
            vault=opened.ring,
            schedule_ms=callbacks.schedule_ms,
            record=self._store.record,
        )

    def courier(self, spawn: Spawn) -> Courier:
        """First attempts, for a worker (ACM-2)."""
        return Courier(self._carrier, self._guard, self._opened.ring, spawn, lease_ms=self._lease_ms)

    def dispatcher(self) -> Dispatcher:
        """All other attempts (ACM-3)."""
        hosts = Hosts(limit=PER_HOST_MAX)
        return Dispatcher(self._store, self._carrier.deliver, hosts, buckets=self._settings.store.buckets)

    def hooks(self) -> list[Hook]:
        """Whom the routes' `compensation` tells of what (LED-6)."""
        found = []
        for route in self._settings.routes:
            for hook in route.compensation:
                url, host = seal_hook(self._opened.ring, hook.url)
                found += [Hook(route.path, state, host, url) for state in hook.on]
        return found

    async def close(self) -> None:
        """Let go of receivers and store."""
        await self._sender.close()
        await self._store.close()
