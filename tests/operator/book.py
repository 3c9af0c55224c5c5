"""Fills a ledger the way the gateway does, through the store's own statements; and turns back the clock of its rows."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import asyncpg

from gateway.protocol.identity import logical_key, new_server_correlation_id
from gateway.protocol.phases import Phase
from gateway.protocol.records import (
    Claim,
    Claimed,
    Doubt,
    NewIntent,
    Registered,
    Sealed,
    Settlement,
    StoredResponse,
)
from gateway.store.intents import IntentStore
from gateway.store.sweeps import Sweeps

SERVICE = "orders"
ALICE = b"a" * 32
BOB = b"b" * 32
TTL_MS = 30_000
GRACE_MS = 5_000
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
AN_HOUR_MS = 3_600_000


@dataclass
class Book:
    """One service's store, with a superuser's connection beside it."""

    store: IntentStore
    sweeps: Sweeps
    owner: asyncpg.Connection[Any]

    @classmethod
    async def open(cls, url: str) -> Book:
        book = cls(
            IntentStore(url, service=SERVICE, buckets=1, observe=lambda *_: None),
            Sweeps(url, buckets=1, lease_ms=15_000),
            await asyncpg.connect(url),
        )
        await book.owner.execute("INSERT INTO services (name) VALUES ($1)", SERVICE)
        return book

    async def close(self) -> None:
        await self.store.close()
        await self.sweeps.line.close()
        await self.owner.close()

    async def register(self, client_id: str, *, caller: bytes = ALICE, path: bytes = b"/orders") -> NewIntent:
        key = logical_key(SERVICE.encode(), caller, client_id.encode(), buckets=1)
        new = NewIntent(
            key=key,
            server_correlation_id=new_server_correlation_id(key),
            client_correlation_id=client_id,
            replay_key=b"r" * 32,
            caller=caller,
            method="POST",
            path=path,
            query=None,
            route="/orders",
            execution="sync",
            replay_policy="REJECT",
            transaction_reference=TRACE,
            payload_sha256=b"\x01" * 32,
            payload_bytes=3,
            ttl_ms=TTL_MS,
            grace_ms=GRACE_MS,
            horizon_ms=AN_HOUR_MS,
            max_pending=100_000,
            payload=Sealed(b"sealed", 1),
        )
        assert isinstance(await self.store.register(new), Registered)
        return new

    async def claim(self, new: NewIntent) -> Claimed:
        claimed = await self.store.claim(
            Claim(new.key, new.server_correlation_id, new.path, uuid.uuid4(), holder=uuid.uuid4())
        )
        assert claimed is not None
        return claimed

    async def settle(self, new: NewIntent, claimed: Claimed, phase: Phase = Phase.COMMITTED) -> None:
        response = StoredResponse(201, 5, b"\x02" * 32, True, Sealed(b"sealed", 1))
        settlement = Settlement(new.key, claimed.attempt_id, claimed.fence, phase, "r1", None, True, None, response)
        assert await self.store.settle(settlement)

    async def commit(self, client_id: str, *, caller: bytes = ALICE) -> NewIntent:
        """A whole handshake."""
        new = await self.register(client_id, caller=caller)
        await self.settle(new, await self.claim(new))
        return new

    async def doubt(self, client_id: str, reason: str = "no answer from upstream in time") -> NewIntent:
        """A handshake whose outcome nobody knows."""
        new = await self.register(client_id)
        claimed = await self.claim(new)
        assert await self.store.doubt(Doubt(new.key, claimed.attempt_id, claimed.fence, True, None, reason))
        return new

    async def age(self, new: NewIntent, ms: int) -> None:
        """Make an intent older than it is; nothing sweeps it."""
        shift = "interval '1 millisecond' * $2::bigint"
        await self.owner.execute(
            f"UPDATE intents SET phase_1_timestamp = phase_1_timestamp - {shift},"
            f" ponr_deadline = ponr_deadline - {shift} WHERE logical_key = $1",
            new.key.logical,
            ms,
        )
        await self.owner.execute(
            f"UPDATE payloads SET ponr_deadline = ponr_deadline - {shift} WHERE logical_key = $1", new.key.logical, ms
        )
