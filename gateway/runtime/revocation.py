"""Tokens that a reload takes away, as obligations of the flow `revoke` (OBL-4): reserved before, committed after.

A store that is away never keeps a token alive: the revocation is then in the log alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID, uuid4

from gateway.obligations import Tracker
from gateway.protocol.faults import StoreAway
from gateway.protocol.obligations import REVOKE, ObligationError
from gateway.settings import Settings

log = logging.getLogger(__name__)

RECORD_TIMEOUT_S = 5.0  # a hung store does not keep a token alive for longer
LEASE_MS = 60_000  # above what the workers have for taking over a configuration


class Revocation:
    """One reload's."""

    def __init__(self, old: Settings, new: Settings) -> None:
        kept = {token.sha256.lower() for token in new.tokens}
        self._gone = [token for token in old.tokens if token.sha256.lower() not in kept]
        self._trace_id = f"reload-{uuid4()}"
        self._reserved: list[UUID] = []
        self._tracker: Tracker | None = None

    async def reserve(self, tracker: Callable[[], Awaitable[Tracker]]) -> None:
        """Say which tokens are about to go."""
        try:
            async with asyncio.timeout(RECORD_TIMEOUT_S):
                for token in self._gone:
                    self._tracker = await tracker()
                    key = f"token/{token.sha256.lower()[:16]}/{self._trace_id}"
                    about = {"name": token.name, "role": token.role}
                    reserved = await self._tracker.reserve(REVOKE, key, about, self._trace_id, lease_ms=LEASE_MS)
                    self._reserved.append(reserved)
        except (StoreAway, TimeoutError):
            log.warning("revocation not recorded: the store is away", extra={"tokens": self._names()})

    async def commit(self) -> None:
        """They are gone."""
        if self._gone:
            log.info("tokens revoked", extra={"tokens": self._names()})
        if self._tracker is not None:
            await _each(self._reserved, self._tracker.commit)

    async def rollback(self) -> None:
        """They stay: the reload was refused."""
        if self._tracker is not None:
            await _each(self._reserved, self._tracker.rollback)

    def _names(self) -> list[str]:
        return [token.name for token in self._gone]


async def _each(reserved: Sequence[UUID], settle: Callable[[UUID], Awaitable[object]]) -> None:
    for obligation in reserved:
        try:
            await settle(obligation)
        except (StoreAway, ObligationError) as error:
            log.warning("revocation not settled; the leak scan says so", extra={"reason": str(error)})
