"""Intents in doubt, for tests of what becomes of them."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

from gateway.protocol.phases import Phase
from gateway.protocol.records import Claimed, Doubted
from gateway.store.intents import IntentStore
from gateway.store.recovery import RecoveryStore
from gateway.store.sweeps import Rescued, Sweeps
from gateway.store.verdicts import Verdict
from tests.store.rows import Superuser, claimed_intent, doubt_of

CLAIM_MS = 60_000
COMMITTED = Verdict(Phase.COMMITTED, "ops", "seen in the warehouse", None, "by verdict")
FAILED = Verdict(Phase.FAILED, "ops", "never arrived", None, "by verdict")


async def in_doubt(store: IntentStore, client_id: str = "c-1", **changes: Any) -> Claimed:
    claimed = await claimed_intent(store, client_id, **changes)
    assert await store.doubt(doubt_of(claimed))
    return claimed


async def rescued(store: IntentStore, superuser: Superuser, url: str, client_id: str = "c-1") -> Claimed:
    """An intent whose gateway died after the PONR and may come back."""
    holder = uuid4()
    await superuser.connection.execute(
        "INSERT INTO holders (holder, lease_until) VALUES ($1, now() - interval '1 second')", holder
    )
    claimed = await claimed_intent(store, client_id, holder=holder)
    sweeps = Sweeps(url, buckets=1, lease_ms=1)
    assert await sweeps.rescue() == Rescued(ended=1, in_doubt=1)
    await sweeps.line.close()
    return claimed


async def the_due(doubts: RecoveryStore) -> Doubted:
    (found,) = await doubts.due(10, CLAIM_MS)
    return found


async def server_id(superuser: Superuser, claimed: Claimed) -> UUID:
    found = await superuser.value(
        "SELECT server_correlation_id FROM intents WHERE logical_key = $1", claimed.key.logical
    )
    assert isinstance(found, UUID)
    return found
