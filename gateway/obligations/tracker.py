"""The tracker: `reserve`, `commit`, `rollback`, durable and all-or-nothing (OBL-1, OBL-2).

    id = await tracker.reserve("publish", "batch-17", {"rows": 250}, trace_id)
    try:
        await push()
    except Refused:
        await tracker.rollback(id, trace_id)
    else:
        await tracker.commit(id, trace_id)

What was neither committed nor rolled back within the leak timeout is taken back by the leak scan. Payloads are sealed
before they leave this module (SEC-4), and are gone once the obligation is settled. Knows nothing of SQL.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Protocol
from uuid import UUID, uuid4

import orjson

from gateway.flows.ports import Vault
from gateway.protocol.obligations import (
    PAYLOAD_BYTES_MAX,
    BadObligation,
    NewObligation,
    Obligation,
    Settled,
    State,
    check,
    check_trace,
    new_obligation_id,
    verdict,
)
from gateway.protocol.records import Sealed

KIND = b"obligation"


class Book(Protocol):
    """Where obligations are kept."""

    async def reserve(self, new: NewObligation) -> None:
        """Write it down, or raise ObligationError where (flow, key) is taken."""
        ...

    async def settle(
        self, obligation: UUID, state: State, *, call: UUID, trace_id: str | None, by: str
    ) -> tuple[bool, Obligation | None]:
        """Commit it or roll it back: whether this call did, and if not, what is there instead."""
        ...

    async def renew(self, obligation: UUID, leak_after_ms: int) -> bool:
        """Move the leak of one of the gateway's own on."""
        ...


class Tracker:
    """Reserves under one configuration; every method may raise StoreAway."""

    def __init__(self, book: Book, vault: Vault, *, leak_timeout_ms: int) -> None:
        self._book = book
        self._vault = vault
        self._leak_timeout_ms = leak_timeout_ms

    async def reserve(
        self, flow: str, key: str, payload: Any, trace_id: str, *, by: str = "gateway", lease_ms: int | None = None
    ) -> UUID:
        """Take a slot for a side effect; ObligationError where (flow, key) is Reserved or Committed.

        `payload` is whatever JSON can carry. With `lease_ms` it is one of the gateway's own (OBL-4), which leaks at the
        end of that lease and the leak timeout, and can be renewed.
        """
        check(flow, key, trace_id)
        plain = _packed(payload)
        obligation = new_obligation_id(flow, key)
        await self._book.reserve(
            NewObligation(
                id=obligation,
                flow=flow,
                key=key,
                trace_id=trace_id,
                reserved_by=by,
                own=lease_ms is not None,
                leak_after_ms=self._leak_timeout_ms + (lease_ms or 0),
                payload_sha256=sha256(plain).digest(),
                payload_bytes=len(plain),
                payload=Sealed(self._vault.seal(KIND, obligation.bytes, plain), self._vault.sealed_with),
            )
        )
        return obligation

    async def commit(self, obligation: UUID, trace_id: str | None = None, *, by: str = "gateway") -> Settled:
        """Make it permanent; ObligationError where it cannot be. Without a trace, under that of its reservation."""
        return await self._settle(obligation, "Committed", trace_id, by)

    async def rollback(self, obligation: UUID, trace_id: str | None = None, *, by: str = "gateway") -> Settled:
        """Give it back. A second time succeeds, changes nothing and says so in `code` (OBL-2)."""
        return await self._settle(obligation, "RolledBack", trace_id, by)

    async def renew(self, obligation: UUID, lease_ms: int) -> bool:
        """Work on one of the gateway's own goes on; False where it was settled or taken back meanwhile."""
        return await self._book.renew(obligation, lease_ms + self._leak_timeout_ms)

    def reveal(self, obligation: UUID, payload: Sealed) -> Any:
        """The payload of a reservation that is still open."""
        return orjson.loads(self._vault.open(KIND, obligation.bytes, payload.blob, payload.key_number))

    async def _settle(self, obligation: UUID, state: State, trace_id: str | None, by: str) -> Settled:
        if trace_id is not None:
            check_trace(trace_id)
        call = uuid4()
        done, found = await self._book.settle(obligation, state, call=call, trace_id=trace_id, by=by)
        return Settled(obligation, state) if done else verdict(found, state, call)


def _packed(payload: Any) -> bytes:
    try:
        plain = orjson.dumps(payload)
    except TypeError:
        raise BadObligation("payload", "what JSON can carry") from None
    if len(plain) > PAYLOAD_BYTES_MAX:
        raise BadObligation("payload", f"at most {PAYLOAD_BYTES_MAX} bytes of JSON")
    return plain
