"""One attempt, from address to record: sign, send, decide what follows, write it down.

The record comes last: who dies between sending and recording leaves a delivery that is sent again under the same id,
which is what "at least once" means (ACM-3).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from gateway.crash_points import reached
from gateway.delivery import documents
from gateway.delivery.guard import AddressGuard
from gateway.delivery.sender import Sender
from gateway.delivery.signing import Signer
from gateway.delivery.targets import Target
from gateway.delivery.urls import target_of
from gateway.flows.ports import Vault
from gateway.protocol.deliveries import DueDelivery, Outcome, Result, after_attempt
from gateway.protocol.faults import StoreAway
from gateway.protocol.identity import IntentKey
from gateway.protocol.problems import Problem

log = logging.getLogger(__name__)

Record = Callable[[Outcome], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Parcel:
    """Something to send: to whom, on whose behalf (None: our own), and what it says."""

    key: IntentKey
    id: UUID
    attempts: int
    target: Target
    caller: bytes | None
    body: bytes


class Carrier:
    """Makes attempts under one configuration."""

    def __init__(
        self,
        *,
        sender: Sender,
        signer: Signer,
        guard: AddressGuard,
        vault: Vault,
        schedule_ms: Sequence[int],
        record: Record,
    ) -> None:
        self._sender = sender
        self._signer = signer
        self._guard = guard
        self._vault = vault
        self._schedule_ms = tuple(schedule_ms)
        self._record = record

    async def deliver(self, due: DueDelivery) -> Outcome:
        """The next attempt of a stored delivery."""
        try:
            target = target_of(self._vault, self._guard, due)
        except Problem as refused:
            result = Result(error=refused.extra["reason"], refused=True, asked=False)
            return await self._settle(due.key, due.id, due.attempts, result)
        except Exception as error:
            # SEC-4: changed in the store, or its key is missing. A key may be put back, so this is tried again too.
            log.error("a stored address does not open", extra={"delivery": str(due.id)}, exc_info=error)
            return await self._settle(due.key, due.id, due.attempts, Result(error="sealed", asked=False))
        if due.kind == "callback":
            subject = due.subject
            body = documents.callback(subject.server_correlation_id, subject.client_correlation_id, datetime.now(UTC))
            return await self.carry(Parcel(due.key, due.id, due.attempts, target, subject.caller, body))
        return await self.carry(Parcel(due.key, due.id, due.attempts, target, None, documents.compensation(due)))

    async def carry(self, parcel: Parcel, on_written: Callable[[], None] | None = None) -> Outcome:
        """Send one parcel and record what came of it."""
        headers = self._signer.headers(parcel.id, datetime.now(UTC), parcel.body, caller=parcel.caller)
        result = await self._sender.send(parcel.target, headers, parcel.body, on_written=on_written)
        reached("callback.sent")
        return await self._settle(parcel.key, parcel.id, parcel.attempts, result)

    async def _settle(self, key: IntentKey, delivery_id: UUID, attempts: int, result: Result) -> Outcome:
        outcome = after_attempt(
            key, delivery_id, attempts, result, schedule_ms=self._schedule_ms, chance=random.random()
        )
        if outcome.state == "dead":
            log.warning("delivery is dead", extra={"delivery": str(delivery_id), "reason": outcome.error})
        try:
            await self._record(outcome)
        except StoreAway:
            log.warning("a delivery could not be recorded; it will be sent again", extra={"delivery": str(delivery_id)})
        return outcome
