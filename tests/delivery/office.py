"""A whole outbox: intents with their deliveries in a real Postgres, and dispatchers that work on it."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import asyncpg

from gateway.background.dispatcher import PER_HOST_MAX, Dispatcher
from gateway.delivery.carrier import Carrier
from gateway.delivery.guard import AddressGuard
from gateway.delivery.hosts import Hosts
from gateway.delivery.sender import Sender
from gateway.delivery.signing import Signer
from gateway.delivery.targets import parse
from gateway.delivery.urls import seal_callback, seal_hook
from gateway.protocol.identity import IntentKey, logical_key, new_server_correlation_id
from gateway.store.deliveries import DeliveryStore
from gateway.store.delivery_lists import DeliveryLists
from gateway.vault import Key, KeyRing

SIGNING_KEY = "whsec_" + base64.b64encode(b"s" * 32).decode()
ALICE = b"a" * 16
SCHEDULE_MS = (60_000, 120_000)  # far away: tests make rows due themselves
OPEN_GUARD = AddressGuard(allow_http=True, allow_networks=["127.0.0.0/8"])

_INTENT = """
INSERT INTO intents (
    bucket, logical_key, server_correlation_id, client_correlation_id, replay_key, caller, source, method, path, route,
    execution, replay_policy, parent_reference_id, payload_sha256, payload_bytes, ttl_ms, grace_ms, horizon_ms,
    phase_1_timestamp, ponr_deadline, keep_until, phase, came_from, phase_2_timestamp, fence, attempt_id)
VALUES ($1, $2, $3, $4, '', $5, 'orders', 'POST', '/orders', '/orders', 'sync', 'REJECT', $4, '', 0, 30000, 5000, 60000,
    now(), now() + interval '30 s', now() + interval '1 h', 'PROCESSING', 'WAITING_CONFIRM', now(), 1, $6)
"""
_DELIVERY = """
INSERT INTO deliveries (bucket, logical_key, id, kind, event, host, next_at, sealed_with, sealed)
VALUES ($1, $2, $3, $4, $5, $6, now() + $7 * interval '1 millisecond', $8, $9)
"""


def key_ring() -> KeyRing:
    ring = KeyRing([Key("k1", b"k" * 32)])
    ring.bind({"k1": 1})
    return ring


@dataclass
class Post:
    """One gateway's part in it."""

    store: DeliveryStore
    sender: Sender
    carrier: Carrier
    hosts: Hosts
    dispatcher: Dispatcher

    async def close(self) -> None:
        await self.sender.close()
        await self.store.close()


@dataclass
class Outbox:
    """The shared store."""

    url: str
    owner: asyncpg.Connection[Any]
    buckets: int = 1
    ring: KeyRing = field(default_factory=key_ring)
    posts: list[Post] = field(default_factory=list)
    lists: DeliveryLists = field(init=False)

    def __post_init__(self) -> None:
        self.lists = DeliveryLists(self.url, buckets=self.buckets)

    @classmethod
    async def open(cls, url: str, buckets: int = 1) -> Outbox:
        return cls(url, await asyncpg.connect(url), buckets)

    async def close(self) -> None:
        for post in self.posts:
            await post.close()
        await self.lists.close()
        await self.owner.close()

    def post(
        self,
        *,
        guard: AddressGuard = OPEN_GUARD,
        timeout_s: float = 5.0,
        lease_ms: int = 10_000,
        schedule_ms: tuple[int, ...] = SCHEDULE_MS,
        forgetful: bool = False,
        per_caller: bool = False,
        names: Any = None,
        service: str = "orders",
    ) -> Post:
        """Another gateway. A forgetful one dies, in effect, between sending and recording."""
        store = DeliveryStore(self.url, service=service, lease_ms=lease_ms)
        sender = Sender(guard, timeout_s=timeout_s, names=names)

        async def forget(outcome: object) -> None:
            pass

        carrier = Carrier(
            sender=sender,
            signer=Signer([SIGNING_KEY], per_caller=per_caller),
            guard=guard,
            vault=self.ring,
            schedule_ms=schedule_ms,
            record=forget if forgetful else store.record,
        )
        hosts = Hosts(limit=PER_HOST_MAX)
        post = Post(store, sender, carrier, hosts, Dispatcher(store, carrier.deliver, hosts, buckets=self.buckets))
        self.posts.append(post)
        return post

    async def intent(self, client_id: str | None = None) -> tuple[IntentKey, UUID, str]:
        """An intent past its PONR."""
        row = self._intent(client_id)
        await self.owner.execute(_INTENT, *row)
        return IntentKey(row[0], row[1]), row[2], row[3]

    async def callback(self, url: str, *, due_in_ms: int = 0) -> UUID:
        """An intent with a callback to this URL."""
        (delivery,) = await self.callbacks(url, 1, due_in_ms=due_in_ms)
        return delivery

    async def callbacks(self, url: str, count: int, *, due_in_ms: int = 0) -> list[UUID]:
        """So many intents with a callback to this URL each."""
        intents = [self._intent(None) for _ in range(count)]
        rows = [self._delivery(IntentKey(i[0], i[1]), url, due_in_ms, "callback", "PROCESSING") for i in intents]
        await self.owner.executemany(_INTENT, intents)
        await self.owner.executemany(_DELIVERY, rows)
        return [row[2] for row in rows]

    async def add(
        self, key: IntentKey, url: str, *, due_in_ms: int = 0, kind: str = "callback", event: str = "PROCESSING"
    ) -> UUID:
        """A delivery of an intent that is there."""
        row = self._delivery(key, url, due_in_ms, kind, event)
        await self.owner.execute(_DELIVERY, *row)
        delivery: UUID = row[2]
        return delivery

    def _intent(self, client_id: str | None) -> tuple[Any, ...]:
        client_id = client_id or f"c-{uuid4()}"
        key = logical_key(b"orders", ALICE, client_id.encode(), buckets=self.buckets)
        return key.bucket, key.logical, new_server_correlation_id(key), client_id, ALICE, uuid4()

    def _delivery(self, key: IntentKey, url: str, due_in_ms: int, kind: str, event: str) -> tuple[Any, ...]:
        if kind == "callback":
            sealed, host = seal_callback(self.ring, key, url), parse(url).host_key
        else:
            sealed, host = seal_hook(self.ring, url)
        place = (key.bucket, key.logical, uuid4(), kind, event, host, due_in_ms)
        return *place, sealed.key_number, sealed.blob

    async def row(self, delivery: UUID) -> asyncpg.Record:
        row = await self.owner.fetchrow("SELECT *, next_at - now() AS wait FROM deliveries WHERE id = $1", delivery)
        assert row is not None
        return row

    async def state(self, delivery: UUID) -> str:
        return str((await self.row(delivery))["state"])

    async def make_due(self, *deliveries: UUID) -> None:
        await self.owner.execute("UPDATE deliveries SET next_at = now() WHERE id = ANY ($1)", list(deliveries))

    async def events(self, delivery: UUID) -> list[tuple[str, dict[str, Any]]]:
        rows = await self.owner.fetch(
            "SELECT code, detail FROM events WHERE detail ->> 'delivery' = $1 ORDER BY id", str(delivery)
        )
        return [(row["code"], json.loads(row["detail"])) for row in rows]
