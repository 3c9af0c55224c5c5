"""What flows hand to the store and get back: plain records, no SQL and no sockets.

Nobody changes one after it was made. They are not frozen all the same: a frozen dataclass takes three times as long
to make, and every request makes several.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from gateway.protocol.identity import IntentKey
from gateway.protocol.phases import Phase


@dataclass(slots=True)
class Sealed:
    """Ciphertext, and the number of the key that made it (SEC-4)."""

    blob: bytes
    key_number: int


NOT_KEPT = Sealed(b"", 0)  # a payload that will never be sent again is not written at all


@dataclass(slots=True)
class NewIntent:
    """A Phase 1 to be registered."""

    key: IntentKey
    server_correlation_id: UUID
    client_correlation_id: str
    replay_key: bytes
    caller: bytes
    method: str
    path: bytes
    query: bytes | None
    route: str
    execution: str
    replay_policy: str
    transaction_reference: str | None
    payload_sha256: bytes | None
    payload_bytes: int | None
    ttl_ms: int
    grace_ms: int
    horizon_ms: int
    max_pending: int
    payload: Sealed

    @property
    def size_bytes(self) -> int:
        """About what it adds to a statement."""
        return len(self.payload.blob) + 512


@dataclass(slots=True)
class Registered:
    """Phase 1 is durable."""

    server_correlation_id: UUID
    phase_1_timestamp: datetime
    ponr_deadline: datetime


@dataclass(slots=True)
class Direct:
    """A request that needs no confirmation.

    An intent, its attempt and its callback, to be written as one (ACM-1, ACM-2).
    """

    intent: NewIntent
    attempt_id: UUID
    holder: UUID
    payload_kept: bool
    callback: Callback | None

    @property
    def key(self) -> IntentKey:
        """Its intent."""
        return self.intent.key

    @property
    def size_bytes(self) -> int:
        """About what it adds to a statement."""
        return self.intent.size_bytes + 128


@dataclass(frozen=True, slots=True)
class Callback:
    """A promised delivery: its constant ID, where to, and how long its maker alone may try it."""

    delivery_id: UUID
    url: Sealed
    lease_ms: int
    host: int = 0  # a hash of the host it goes to


@dataclass(slots=True)
class Claim:
    """A confirmation that wants to cross the PONR."""

    key: IntentKey
    server_correlation_id: UUID
    path: bytes
    attempt_id: UUID
    holder: UUID
    credentials: Sealed | None = None  # of the confirmation, for work that is begun later (ASY-1)

    @property
    def size_bytes(self) -> int:
        """About what it adds to a statement."""
        return 128


@dataclass(slots=True)
class Claimed:
    """The PONR is crossed, durably, by this attempt, under this holder's name."""

    key: IntentKey
    attempt_id: UUID
    holder: UUID
    fence: int
    method: str
    path: bytes
    query: bytes | None
    execution: str
    payload: Sealed

    @property
    def target(self) -> bytes:
        """The raw request target of Phase 1."""
        return self.path if self.query is None else self.path + b"?" + self.query


@dataclass(slots=True)
class Taken:
    """Confirmed work, taken from the queue: its attempt is durable."""

    claimed: Claimed
    server_correlation_id: UUID
    client_correlation_id: str
    credentials: Sealed | None


@dataclass(slots=True)
class StoredResponse:
    """What upstream answered. Without `kept`, the sealed part holds the headers alone (RPL-6)."""

    status: int
    body_bytes: int | None
    body_sha256: bytes | None
    kept: bool
    sealed: Sealed


@dataclass(slots=True)
class Settlement:
    """A known outcome of one attempt."""

    key: IntentKey
    attempt_id: UUID
    fence: int
    phase: Phase
    resource_id: str | None
    message: str | None
    sent: bool
    error: str | None
    response: StoredResponse | None
    verify: Sealed | None = None  # REC-5: the headers to ask with, where a GET must confirm it
    payload_kept: bool = True  # whether there may be one to erase

    @property
    def size_bytes(self) -> int:
        """About what it adds to a statement."""
        return 256 + (len(self.response.sealed.blob) if self.response else 0)


@dataclass(slots=True)
class Doubt:
    """An attempt that ended without an answer and may have taken effect (REC-2)."""

    key: IntentKey
    attempt_id: UUID
    fence: int
    sent: bool
    status: int | None
    reason: str

    @property
    def size_bytes(self) -> int:
        """About what it adds to a statement."""
        return 256


@dataclass(frozen=True, slots=True)
class Doubted:
    """An intent in doubt whose time to be looked at has come, claimed for a while (REC-2)."""

    key: IntentKey
    token: datetime  # what the claim is known by
    fence: int
    server_correlation_id: UUID
    client_correlation_id: str
    method: str
    path: bytes
    asked: int  # probes that told nothing
    tries: int  # attempts, sent or not
    sends: int  # attempts that may have been sent
    ended_at: datetime | None  # the end of the last: nothing of it was sent after that
    read_at: datetime
    payload_kept: bool
    proven: bool  # a fenced gateway's evidence settles it


@dataclass(frozen=True, slots=True)
class Verification:
    """A success that a GET must confirm, claimed for a while (REC-5)."""

    key: IntentKey
    token: datetime
    server_correlation_id: UUID
    client_correlation_id: str
    method: str
    path: bytes
    resource_id: str | None
    asked: int
    headers: Sealed
