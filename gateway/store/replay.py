"""Late confirmations with proof: the nonce is consumed by the statement that crosses the PONR (RPL-3, REP-2).

Rare, so without batches, on a line of its own: the ordinary claim pays nothing for it, and nobody waits behind one that
waits for a row. A lost acknowledgement is resolved as everywhere (REC-7): the same statement again, then one's own
attempt.
"""

from __future__ import annotations

import asyncpg

from gateway.protocol.faults import NonceConsumed
from gateway.protocol.records import Claim, Claimed
from gateway.store import intents, queries
from gateway.store.claims import claimed_of
from gateway.store.intents import IntentStore, resolved

SQL = queries.load("replay.sql")
SINGLE_USE = "nonces_single_use"


class ReplayStore:
    """The late way over the PONR of `IntentStore`'s tables."""

    def __init__(self, store: IntentStore) -> None:
        self._buckets = store.buckets
        self._line = store.line()

    async def claim_late(self, claim: Claim, nonce: bytes) -> Claimed | None:
        """Cross the PONR inside delta, or None when this confirmation may not; `NonceConsumed` for a used nonce."""
        if self._buckets > 1 and await self._consumed(nonce, claim):
            raise NonceConsumed

        async def write() -> Claimed | None:
            row = await self._cross(claim, nonce) or await self._own(claim)
            if row is None:
                return None
            return claimed_of(claim.key, claim.attempt_id, claim.holder, row)

        return await resolved(write)

    async def _cross(self, claim: Claim, nonce: bytes) -> asyncpg.Record | None:
        credentials = claim.credentials
        try:
            rows = await self._line.fetch(
                SQL["claim_late"],
                claim.key.bucket,
                claim.key.logical,
                claim.server_correlation_id,
                claim.path,
                claim.attempt_id,
                claim.holder,
                credentials.blob if credentials else None,
                credentials.key_number if credentials else None,
                nonce,
            )
        except asyncpg.UniqueViolationError as error:
            if error.constraint_name == SINGLE_USE:
                raise NonceConsumed from error
            raise
        return rows[0] if rows else None

    async def _own(self, claim: Claim) -> asyncpg.Record | None:
        """REC-7: what this attempt has claimed before."""
        rows = await self._line.fetch(
            intents.SQL["own_claim"], claim.key.bucket, [claim.key.logical], [claim.attempt_id], [claim.holder]
        )
        return rows[0] if rows else None

    async def _consumed(self, nonce: bytes, claim: Claim) -> bool:
        """In any bucket, by any other attempt."""
        return bool(await self._line.fetch(SQL["consumed"], nonce, claim.attempt_id))
