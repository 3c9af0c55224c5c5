"""Rows for tests of the store: an intent to register, and what follows it; and what a superuser sees of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import asyncpg

from gateway.protocol.identity import IntentKey, logical_key, new_attempt_id, new_server_correlation_id
from gateway.protocol.phases import Phase
from gateway.protocol.records import Claim, Claimed, Doubt, NewIntent, Registered, Sealed, Settlement, StoredResponse
from gateway.store.intents import IntentStore
from gateway.store.lines import Line

SERVICE = "orders"
ALICE, BOB = b"a" * 32, b"b" * 32
PATH = b"/orders"
AN_HOUR_MS = 3_600_000
HOLDER = UUID(int=1)

PATIENCE_S = 30.0

Flushes = list[tuple[str, int]]


def new_intent(client_id: str, *, caller: bytes = ALICE, buckets: int = 1, **changes: Any) -> NewIntent:
    """A Phase 1 of a caller."""
    key = logical_key(SERVICE.encode(), caller, client_id.encode(), buckets=buckets)
    new = NewIntent(
        key=key,
        server_correlation_id=new_server_correlation_id(key),
        client_correlation_id=client_id,
        replay_key=b"r" * 32,
        caller=caller,
        method="POST",
        path=PATH,
        query=b"a=1",
        route="/orders",
        execution="sync",
        replay_policy="REJECT",
        transaction_reference=None,
        payload_sha256=b"h" * 32,
        payload_bytes=3,
        ttl_ms=AN_HOUR_MS,
        grace_ms=AN_HOUR_MS,
        horizon_ms=AN_HOUR_MS,
        max_pending=100_000,
        payload=Sealed(b"sealed request of " + client_id.encode(), 1),
    )
    return replace(new, **changes)


def claim_of(new: NewIntent, *, holder: UUID = HOLDER, **changes: Any) -> Claim:
    """A confirmation of it, under a new attempt."""
    return replace(Claim(new.key, new.server_correlation_id, new.path, new_attempt_id(), holder), **changes)


def settlement_of(claimed: Claimed, phase: Phase = Phase.COMMITTED, **changes: Any) -> Settlement:
    """A known outcome of it."""
    answer = StoredResponse(201, 3, b"s" * 32, True, Sealed(b"sealed answer", 1))
    settled = Settlement(claimed.key, claimed.attempt_id, claimed.fence, phase, "17", None, True, None, answer)
    return replace(settled, **changes)


def doubt_of(claimed: Claimed) -> Doubt:
    """An unknown outcome of it."""
    return Doubt(claimed.key, claimed.attempt_id, claimed.fence, True, None, "no answer in time")


async def claimed_intent(store: IntentStore, client_id: str, *, holder: UUID = HOLDER, **changes: Any) -> Claimed:
    """An intent past its PONR."""
    new = new_intent(client_id, buckets=store.buckets, **changes)
    assert isinstance(await store.register(new), Registered)
    claimed = await store.claim(claim_of(new, holder=holder))
    assert claimed is not None
    return claimed


def observed(url: str, flushes: Flushes, *, buckets: int = 1) -> IntentStore:
    """A store that notes its flushes: (statement, rows)."""
    return IntentStore(
        url, service=SERVICE, buckets=buckets, observe=lambda name, rows, _: flushes.append((name, rows))
    )


@asynccontextmanager
async def opened(url: str, *, buckets: int = 1) -> AsyncIterator[IntentStore]:
    """A store, as one worker has it."""
    store = observed(url, [], buckets=buckets)
    try:
        yield store
    finally:
        await store.close()


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Poll for what another process does."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not await condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.005)


async def until_closed(line: Line) -> None:
    """Wait until a line's connection has noticed that it was cut."""

    async def closed() -> bool:
        assert line._connection is not None
        return line._connection.is_closed()

    await eventually(closed)


class Superuser:
    """Looks at the tables, and turns back the clock of rows."""

    def __init__(self, connection: asyncpg.Connection[Any]) -> None:
        self.connection = connection

    async def value(self, sql: str, *args: object) -> Any:
        return await self.connection.fetchval(sql, *args)

    async def count(self, table: str, key: IntentKey | None = None) -> int:
        if key is None:
            return int(await self.value(f"SELECT count(*) FROM {table}"))
        return int(await self.value(f"SELECT count(*) FROM {table} WHERE logical_key = $1", key.logical))

    async def phase(self, key: IntentKey) -> Phase:
        return Phase(await self.value("SELECT phase::text FROM intents WHERE logical_key = $1", key.logical))

    async def events(self, key: IntentKey) -> list[tuple[str, str | None]]:
        rows = await self.connection.fetch(
            "SELECT code, phase::text FROM events WHERE logical_key = $1 ORDER BY id", key.logical
        )
        return [(row["code"], row["phase"]) for row in rows]

    async def until_blocked(self, count: int = 1) -> None:
        """Wait until so many statements wait for a lock."""

        async def blocked() -> bool:
            return bool(await self.value("SELECT count(*) >= $1 FROM pg_locks WHERE NOT granted", count))

        await eventually(blocked)

    async def age(self, key: IntentKey, by_ms: int) -> None:
        """Let so much time pass for one intent: everything about it is that much longer ago."""
        span = f"interval '{by_ms} milliseconds'"
        await self.connection.execute(
            f"UPDATE intents SET phase_1_timestamp = phase_1_timestamp - {span},"
            f" ponr_deadline = ponr_deadline - {span}, keep_until = keep_until - {span},"
            f" phase_2_timestamp = phase_2_timestamp - {span}, settled_at = settled_at - {span}"
            " WHERE logical_key = $1",
            key.logical,
        )
        await self.connection.execute(
            f"UPDATE payloads SET ponr_deadline = ponr_deadline - {span} WHERE logical_key = $1", key.logical
        )


def random_ids(count: int) -> list[str]:
    """Client correlation IDs in no order."""
    return [f"{os.urandom(4).hex()}-{uuid4()}" for _ in range(count)]
