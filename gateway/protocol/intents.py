"""What is known of one intent: the row that rules decide on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from gateway.protocol.deadlines import phase_at
from gateway.protocol.identity import IntentKey
from gateway.protocol.phases import Phase


@dataclass(frozen=True, slots=True)
class Intent:
    """A registered intent as the store gave it, with the store's clock at that moment."""

    key: IntentKey
    server_correlation_id: UUID
    client_correlation_id: str
    replay_key: bytes
    caller: bytes
    method: str
    path: bytes
    query: bytes | None
    execution: str
    replay_policy: str
    ttl_ms: int
    grace_ms: int
    stored_phase: Phase
    phase_1_timestamp: datetime
    ponr_deadline: datetime
    fence: int
    attempt_id: UUID | None
    resource_id: str | None
    message: str | None
    in_doubt: str | None
    read_at: datetime

    @property
    def phase(self) -> Phase:
        """TTL-2: right at `read_at`, swept or not."""
        return phase_at(self.stored_phase, self.ponr_deadline, self.grace_ms, self.read_at)

    @property
    def target(self) -> bytes:
        """The raw request target of Phase 1."""
        return self.path if self.query is None else self.path + b"?" + self.query
