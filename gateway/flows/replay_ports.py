"""What flows need for late confirmations and for refusals: a part of `ports`, apart for its size."""

from __future__ import annotations

from typing import Protocol

from gateway.protocol.identity import IntentKey
from gateway.protocol.messages import Headers
from gateway.protocol.problems import Problem
from gateway.protocol.proofs import Verdict
from gateway.protocol.records import Claim, Claimed


class LateClaims(Protocol):
    """The store, for late confirmations with proof (RPL-3)."""

    async def claim_late(self, claim: Claim, nonce: bytes) -> Claimed | None:
        """Cross the PONR inside delta and consume the nonce, or None; `NonceConsumed` when it was consumed before."""
        ...


class SignedRequest(Protocol):
    """A confirmation at the edge, as far as its proof is concerned."""

    method: str
    target: bytes
    peer: str
    secure: bool

    @property
    def raw_headers(self) -> Headers: ...


class Signatures(Protocol):
    """Checks signed confirmations (SEC-3)."""

    async def judge(self, request: SignedRequest) -> Verdict:
        """What its signatures prove; the 503 when the keys cannot be read."""
        ...


class Audit(Protocol):
    """Refusals in the audit trail (REP-5)."""

    def refused(self, key: IntentKey, problem: Problem, caller: bytes, reason: str | None = None) -> Problem:
        """Note a refusal beside the answer; gives it back, to be raised."""
        ...
