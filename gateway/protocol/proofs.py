"""What a late confirmation must prove under REUSE, and how its nonce is told apart from every other (SEC-3, REP-2).

A proof authorizes one late confirmation of one intent by its caller; it never makes a second effect. Whether a
signature is genuine is found out elsewhere: here is what it must say to be a proof at all.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from gateway.protocol import headers

TOKEN = "token"
SIGNATURE = "signature"

# One of the two says which intent's path is confirmed.
PATH_COMPONENTS = frozenset({"@path", "@target-uri"})
COVERED = frozenset({"@method", headers.CLIENT_CORRELATION_ID.lower(), headers.SERVER_CORRELATION_ID.lower()})
PARAMETERS = ("created", "expires", "nonce", "keyid")

Component = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Proven:
    """The confirmation may cross the PONR late, if nobody consumed this nonce before."""

    nonce: bytes


@dataclass(frozen=True, slots=True)
class Missing:
    """No proof at all: refused exactly as under REJECT."""


@dataclass(frozen=True, slots=True)
class Unbound:
    """Something that proves nothing for this intent and caller, now. The reason is for the audit trail."""

    reason: str


MISSING = Missing()
Verdict = Proven | Missing | Unbound


def judge_token(sent: str | None, expected: str) -> Verdict:
    """The token of Phase 1's answer, which only this intent and this caller share."""
    if not sent:
        return MISSING
    if not hmac.compare_digest(sent.encode(), expected.encode()):
        return Unbound("not the nonce of this intent and caller")
    return Proven(nonce_digest(TOKEN, "", sent))


def signature_lacks(components: Sequence[Component], parameters: Mapping[str, Any]) -> str | None:
    """What keeps a signature from being a proof; None when it says all that it must.

    A component with parameters of its own covers a part or another form of the thing, so it does not count.
    """
    covered = {name for name, options in components if not options}
    for name in sorted(COVERED - covered):
        return f"the signature does not cover {name}"
    if not PATH_COMPONENTS & covered:
        return "the signature does not cover @path"
    for name in PARAMETERS:
        if name not in parameters or parameters[name] == "":
            return f"the signature has no {name}"
    return None


def nonce_digest(proof: str, keyid: str, nonce: str) -> bytes:
    """How a consumed nonce is remembered. A signature's is its signer's own: others may use the same."""
    parts = [part.encode() for part in (proof, keyid, nonce)]
    return sha256(b"".join(len(part).to_bytes(4, "big") + part for part in parts)).digest()
