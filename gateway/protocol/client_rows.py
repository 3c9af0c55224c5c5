"""The client's row of a call (COR-1, COR-4): what is written of it, and what may follow what.

This side learns the outcome from the called service, so its steps are fewer than an intent's: a call waits, is being
confirmed, and then is over. What is over never changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from gateway.protocol.identity import IntentKey
from gateway.protocol.phases import Phase

SETTLED = frozenset({Phase.COMMITTED, Phase.FAILED, Phase.TTL_EXPIRED, Phase.ABANDONED})
FOLLOWS: Mapping[Phase, frozenset[Phase]] = {
    Phase.WAITING_CONFIRM: SETTLED | {Phase.PROCESSING},
    Phase.PROCESSING: SETTLED,
    **{phase: frozenset() for phase in SETTLED},
}


@dataclass(slots=True)
class NewClientRow:
    """A call that is about to be made."""

    key: IntentKey
    client_correlation_id: str
    target: str
    method: str
    path: bytes
    parent_reference_id: str
    transaction_reference: str | None
    size_bytes: int = 512


@dataclass(slots=True)
class ClientRow:
    """A call that was registered before, as far as another one must be told apart from it."""

    target: str
    method: str | None
    path: bytes
    phase: Phase


@dataclass(slots=True)
class ClientMove:
    """What this side has learnt of a call. `phase` None: nothing but that its outcome is in doubt."""

    key: IntentKey
    phase: Phase | None
    server_correlation_id: str | None = None
    ttl_ms: int | None = None
    in_doubt: bool = False
    size_bytes: int = 256


@dataclass(slots=True)
class ReportedRow:
    """A client's row in the client's own words, checked."""

    key: IntentKey
    client_correlation_id: str
    server_correlation_id: str | None
    target: str
    path: bytes
    parent_reference_id: str
    transaction_reference: str | None
    phase: Phase
    phase_1_timestamp: datetime
    phase_2_timestamp: datetime | None
    ttl_ms: int | None
