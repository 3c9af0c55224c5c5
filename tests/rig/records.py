"""What the three witnesses know: clients, the upstream, and the ledger. Compact, since a long run has many.

An operation has a number; its path, its client correlation ID and its body carry it, so that every witness can name the
operation that it speaks of.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

Mode = Literal["standard", "auto", "transparent", "async"]
Recovery = Literal["hold", "redrive", "probe"]
MODES: tuple[Mode, ...] = ("standard", "auto", "transparent", "async")
RECOVERIES: tuple[Recovery, ...] = ("hold", "redrive", "probe")
METHODS = ("POST", "PUT", "PATCH", "DELETE")
FINAL = frozenset({"COMMITTED", "FAILED"})
OF_THE_HOP = frozenset({b"connection", b"keep-alive"})
UPSTREAMS = b"x-rig"  # a header of every answer of the upstream
CANARY = "canary-7f3a91"  # in every body and every credential: it may be nowhere in the clear


@dataclass(slots=True)
class Operation:
    """One operation as its client sees it."""

    number: int
    mode: Mode
    recovery: Recovery
    method: str
    confirmed: bool = False  # a confirmation was sent, or the request needs none
    callback: bool = False
    server_id: str | None = None  # acknowledged in Phase 1, or with a first answer
    deadline: str | None = None
    outcome: str | None = None  # acknowledged
    answer: bytes | None = None  # a digest of the final answer
    expired: bool = False  # 408 was heard
    doubtful: bool = False  # heard that the outcome is in doubt
    contradictions: list[str] = field(default_factory=list)

    @property
    def client_id(self) -> str:
        return f"c-{self.number:x}"

    @property
    def path(self) -> str:
        route = "standard" if self.mode == "auto" else self.mode
        return f"/{route}/{self.recovery}/{self.number:x}"

    @property
    def caller(self) -> str:
        return f"Bearer {CANARY}-{self.number % 50}"

    @property
    def body(self) -> bytes:
        return b"" if self.method == "DELETE" else b'{"canary": "%s", "number": %d}' % (CANARY.encode(), self.number)

    def registered(self, server_id: str, deadline: str | None) -> None:
        """Phase 1 was acknowledged, for the first time or again (P1-5)."""
        if self.server_id not in (None, server_id):
            self.contradictions.append(f"server id {self.server_id}, then {server_id}")
        if deadline is not None and self.deadline not in (None, deadline):
            self.contradictions.append(f"deadline {self.deadline}, then {deadline}")
        self.server_id = server_id
        self.deadline = deadline or self.deadline

    def settled(self, outcome: str, status: int, headers: Collection[tuple[bytes, bytes]], body: bytes) -> None:
        """A final answer was heard, for the first time or again (RPL-1)."""
        if self.outcome not in (None, outcome):
            self.contradictions.append(f"{self.outcome}, then {outcome}")
        # An answer of the gateway's own, without one from upstream, is dated when it is sent.
        upstreams = any(name.lower() == UPSTREAMS for name, _ in headers)
        moving = OF_THE_HOP if upstreams else OF_THE_HOP | {b"date"}
        kept = [header for header in headers if header[0].lower() not in moving]
        digest = hashlib.blake2b(repr((status, kept, body)).encode(), digest_size=8).digest()
        if self.answer not in (None, digest):
            self.contradictions.append(f"another answer than before: {status} {kept} {body[:80]!r}")
        self.outcome, self.answer = outcome, digest


@dataclass(slots=True)
class Seen:
    """One request as the upstream saw it, in the upstream's own log."""

    number: int
    server_id: str
    key: str  # Idempotency-Key
    attempt: str
    body_sha256: bytes
    at: float  # seconds since the epoch
    effect: bool = False
    status: int | None = None  # what it answered, if anything
    durable: bool | None = None  # whether the PONR was in Postgres when the request came; None: not looked


@dataclass(slots=True)
class Row:
    """One intent as the ledger has it."""

    number: int
    server_id: str
    client_id: str
    phase: str
    in_doubt: str | None = None
    body_sha256: bytes | None = None
    attempts: frozenset[str] = frozenset()
    running: bool = False  # an attempt that nobody has ended, or work that nobody has begun
    phases: tuple[str, ...] = ()  # in the order of its events
    phase_1_at: datetime | None = None
    deadline: datetime | None = None
    phase_2_at: datetime | None = None
    settled_at: datetime | None = None
    expired_at: datetime | None = None  # when the event says that it expired
    deliveries: tuple[tuple[str, str], ...] = ()  # callbacks: (id, state)


@dataclass(slots=True)
class Heard:
    """The callbacks that came for one operation."""

    ids: set[str] = field(default_factory=set)
    unsigned: int = 0
