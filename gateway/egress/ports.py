"""What the egress side needs from the outside, and the bundle of it that every call works with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from gateway.flows.ports import Spawn
from gateway.protocol.client_rows import ClientMove, ClientRow, NewClientRow


class ClientRows(Protocol):
    """The store, for client rows. Every method may raise StoreAway."""

    async def open(self, new: NewClientRow) -> ClientRow | None:
        """None: registered now. Otherwise the call that had this ID before."""
        ...

    async def move(self, move: ClientMove) -> bool:
        """Write what was learnt; False when the row knew as much or more."""
        ...


class Counts(Protocol):
    """What is counted."""

    def request(self, mode: str, status: int, seconds: float) -> None:
        """A request was answered; status 0 when its client had left."""
        ...

    def refusal(self, slug: str) -> None:
        """A request was refused."""
        ...


@dataclass(slots=True)
class Callee:
    """One called service, as one configuration knows it."""

    service: bytes  # who calls
    target: str  # who is called
    buckets: int
    upstream: Any
    rows: ClientRows | None  # None until the store has been opened
    spawn: Spawn
    timeout_s: float
    read_timeout_s: float
