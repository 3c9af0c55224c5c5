"""First attempts, by the worker that took the request: a callback leaves before its request is processed (ACM-2).

`fire` waits until the request's bytes were handed to the socket and no longer, and it does not wait for a host that
is slow or dead: the rest goes on in a task of its own. What is not sent here is not lost: the row is stored, and the
dispatcher sends it when the lease of this first attempt ends. Implements the flows' `Courier`.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from uuid import UUID, uuid4

from gateway.delivery import documents
from gateway.delivery.carrier import Carrier, Parcel
from gateway.delivery.guard import AddressGuard
from gateway.delivery.hosts import Host, Hosts
from gateway.delivery.urls import seal_callback
from gateway.flows.ports import Spawn, Vault
from gateway.protocol.identity import IntentKey
from gateway.protocol.records import Callback

UNDER_WAY_MAX = 512  # first attempts at once, each a socket at most; past it the dispatcher has them
UNDER_WAY_PER_HOST_MAX = 256  # callers at once that one healthy receiver is told about in time, its answers still due
# How long a caller waits for the bytes to leave. On a connection that is up, that is a fraction of a millisecond.
FIRST_BYTE_WAIT_S = 0.005  # a host not heard of yet: a connection nearby is up by then, and nobody notices
KNOWN_HOST_WAIT_S = 0.05  # a host that takes our bytes: worth another TLS handshake, or the end of a burst of our own
SLOW_HOST_WAIT_S = 0.001  # a host that somebody waited for in vain: only what a ready connection needs
GRACE_TURNS = (
    8  # of the loop after that: in a burst, bytes that could leave are behind other callers, not behind a host
)


class Courier:
    """Makes promises and first attempts under one configuration."""

    def __init__(self, carrier: Carrier, guard: AddressGuard, vault: Vault, spawn: Spawn, *, lease_ms: int) -> None:
        self._carrier = carrier
        self._guard = guard
        self._vault = vault
        self._spawn = spawn
        self._lease_ms = lease_ms
        self._hosts = Hosts(limit=UNDER_WAY_PER_HOST_MAX)
        self._under_way = 0

    def promise(self, url: str, key: IntentKey) -> Callback:
        """ACM-4: a delivery to be stored with its intent, or the 400."""
        host = self._guard.check_url(url).host_key
        return Callback(uuid4(), seal_callback(self._vault, key, url), self._lease_ms, host)

    async def fire(
        self, callback: Callback, url: str, key: IntentKey, server_id: UUID, client_id: str, caller: bytes
    ) -> None:
        """ACM-2: hand the first attempt to the wire."""
        if self._under_way >= UNDER_WAY_MAX:
            return
        target = self._guard.check_url(url)
        host = self._hosts.enter(target.host_key)
        if host is None:
            return
        body = documents.callback(server_id, client_id, datetime.now(UTC))
        parcel = Parcel(key, callback.delivery_id, 0, target, caller, body)
        departure = Departure(host)
        self._under_way += 1
        self._spawn(self._carry(parcel, host, departure), "first attempt of a callback")
        await departure.wait()

    async def _carry(self, parcel: Parcel, host: Host, departure: Departure) -> None:
        answered: bool | None = None
        try:
            outcome = await self._carrier.carry(parcel, departure.left)
            answered = not outcome.host_failed
        finally:
            self._under_way -= 1
            departure.failed()  # if nothing has left, nothing will
            if answered is None:
                self._hosts.abandon(host)
            else:
                self._hosts.leave(host, answered=answered)


class Departure:
    """The wait for a request's bytes to leave, as long as it is worth it for what is known of the host by then."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._started = self._loop.time()
        self._turns = GRACE_TURNS

    async def wait(self) -> None:
        """Until the bytes have left, or it makes no sense to wait any longer."""
        timer = self._loop.call_later(self._patience_s(), self._expire)
        try:
            await self._done
        finally:
            timer.cancel()

    def left(self) -> None:
        """They have; the next ones to this host are worth waiting for too."""
        self._host.known = True
        if not self._done.done():
            self._host.slow = False
            self._done.set_result(None)

    def failed(self) -> None:
        """They never will, or nobody knows."""
        if not self._done.done():
            self._host.slow = True
            self._done.set_result(None)

    def _expire(self) -> None:
        if self._done.done():
            return
        left_s = self._patience_s() - (self._loop.time() - self._started)
        if left_s > 0:  # meanwhile the host has taken another caller's bytes
            self._loop.call_later(left_s, self._expire)
        elif self._turns > 0:
            self._turns -= 1
            self._loop.call_soon(self._expire)
        else:
            self.failed()

    def _patience_s(self) -> float:
        if self._host.slow:
            return SLOW_HOST_WAIT_S
        return KNOWN_HOST_WAIT_S if self._host.known else FIRST_BYTE_WAIT_S
