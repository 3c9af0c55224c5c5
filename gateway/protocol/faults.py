"""What the outside can do to a flow: the store or the upstream fails. Raised by the rooms that implement the ports."""

from __future__ import annotations

from typing import Literal

FailureKind = Literal[
    "refused",  # no connection: refused, unreachable, closed before the request
    "dns",  # the name does not resolve
    "tls",  # handshake or certificate
    "connect_timeout",  # no connection in time
    "pool",  # no free connection in time, or the client is closed
    "lease",  # the caller's own check right before sending said no
    "timeout",  # no answer, or no further body bytes, in time
    "reset",  # connection lost, or the answer cut before its end
    "protocol",  # the answer is not valid HTTP/1.1
]


class UpstreamFailure(Exception):
    """The upstream gave no complete answer.

    `sent` is what decides between FAILED and in doubt (P2-5, REC-4): False means that no byte of the request was handed
    to a socket, so the upstream cannot have acted on it; True means that it may have.
    """

    def __init__(self, kind: FailureKind, *, sent: bool, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind: FailureKind = kind
        self.sent = sent
        self.detail = detail


class StoreAway(Exception):
    """The store cannot be used now; the statement was certainly not carried out."""

    expected = True  # told to whoever waits; nobody logs it as a failure of ours


class StoreLost(StoreAway):
    """The connection was lost under a statement: it may or may not have been carried out (REC-7)."""


class NonceConsumed(Exception):
    """REP-2: this proof has authorized something before; nothing was changed."""
