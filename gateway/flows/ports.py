"""What flows need from the outside, as small Protocol classes, and the bundle of them that a worker hands to every
flow."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from gateway.flows.replay_ports import Audit, LateClaims, Signatures
from gateway.protocol.headers import HeaderMap
from gateway.protocol.identity import IntentKey
from gateway.protocol.intents import Intent
from gateway.protocol.messages import Header, Headers
from gateway.protocol.modes import RouteLike
from gateway.protocol.outcome import ResourceIdRule
from gateway.protocol.phases import Phase
from gateway.protocol.records import (
    Callback,
    Claim,
    Claimed,
    Direct,
    Doubt,
    Doubted,
    NewIntent,
    Registered,
    Sealed,
    Settlement,
    StoredResponse,
    Taken,
    Verification,
)
from gateway.protocol.recovery import Limits


class Intents(Protocol):
    """The store, as the request path uses it. Every method may raise StoreAway."""

    async def register(self, new: NewIntent) -> Registered | Intent | None:
        """Registered now, the intent that consumed the key before, or None when too many are pending."""
        ...

    async def pending(self, caller: bytes, route: str, limit: int) -> int:
        """P1-8: unconfirmed intents of a caller on a route, counted no further than the limit."""
        ...

    async def claim(self, claim: Claim) -> Claimed | None:
        """Cross the PONR, or None."""
        ...

    async def settle(self, settlement: Settlement) -> bool:
        """Write a known outcome; False when fenced off."""
        ...

    async def doubt(self, doubt: Doubt) -> bool:
        """Put an intent in doubt; False when fenced off."""
        ...

    async def read(self, key: IntentKey) -> Intent | None:
        """What is known of an intent."""
        ...

    async def read_by_server_id(self, server_correlation_id: UUID) -> Intent | None:
        """The same, by server correlation ID."""
        ...

    async def response(self, key: IntentKey) -> StoredResponse | None:
        """The stored answer."""
        ...

    async def streamed(self, key: IntentKey, body_bytes: int, body_sha256: bytes, kept: Sealed | None) -> None:
        """RPL-6: size and digest of an answer that was streamed, and the answer itself if it stayed small."""
        ...

    async def note(self, key: IntentKey, code: str, detail: dict[str, Any]) -> None:
        """An audit event that is no transition."""
        ...


class Directs(Protocol):
    """The store, for requests that need no confirmation."""

    async def begin(self, direct: Direct) -> Intent | None:
        """None: begun. Otherwise the intent that consumed the key before."""
        ...

    async def payload_passed_on(self, key: IntentKey, payload_bytes: int, payload_sha256: bytes) -> None:
        """Size and digest of a payload that was too large to keep."""
        ...


class Queue(Protocol):
    """Confirmed work that is begun out of band (ASY-1)."""

    async def take(
        self, holder: UUID, limit: int, key: IntentKey | None = None, without: Collection[str] = ()
    ) -> list[Taken]:
        """Begin the attempts of one intent, or of the oldest that wait, on any route but some."""
        ...

    async def held(self, holder: UUID) -> list[Taken]:
        """What this holder has begun, for a `take` whose acknowledgement was lost."""
        ...


class Recoveries(Protocol):
    """Intents in doubt, and successes to be verified (REC-1, REC-2, REC-5). Every method may raise StoreAway."""

    async def due(self, limit: int, claim_ms: int) -> list[Doubted]:
        """Doubts whose time has come, nobody else's for so long."""
        ...

    async def hold(self, doubted: Doubted, reason: str, *, news: bool) -> None:
        """Wait for a verdict."""
        ...

    async def postpone(self, doubted: Doubted, delay_ms: int, *, asked: int = 0) -> Doubted | None:
        """Come back later, or stay with it for so long; None when it is no longer ours."""
        ...

    async def redrive(self, doubted: Doubted, attempt_id: UUID, holder: UUID) -> Taken | None:
        """Begin the next attempt, or None when the doubt is no longer ours to end."""
        ...

    async def settle_probed(
        self, doubted: Doubted, phase: Phase, resource_id: str | None, message: str, detail: dict[str, Any]
    ) -> bool:
        """A probe told; False when somebody else was quicker."""
        ...

    async def settle_from_evidence(self, doubted: Doubted) -> Phase | None:
        """What a fenced gateway knew becomes the outcome, if nothing was sent since."""
        ...

    async def keep_evidence(self, settlement: Settlement) -> None:
        """What a fenced gateway came back with."""
        ...

    async def payload(self, key: IntentKey) -> tuple[Sealed, Sealed | None] | None:
        """The sealed request, and the credentials that its confirmation brought."""
        ...

    async def keep_credentials(self, key: IntentKey, credentials: Sealed) -> None:
        """P2-3: those of the confirmation, for as long as the payload is kept."""
        ...

    async def due_verifications(self, limit: int, claim_ms: int) -> list[Verification]:
        """Successes that are to be confirmed now."""
        ...

    async def verify_later(self, verification: Verification, delay_ms: int, *, asked: int) -> None:
        """Come back later, having asked so many times more for nothing."""
        ...

    async def verified(self, key: IntentKey, missing: str | None, message: str | None) -> bool:
        """Confirmed, or why not."""
        ...


class Courier(Protocol):
    """Sends callbacks (ACM-2 .. ACM-4)."""

    def promise(self, url: str, key: IntentKey) -> Callback:
        """A delivery to be stored with its intent; the 400 when the URL is not one we would call."""
        ...

    async def fire(
        self, callback: Callback, url: str, key: IntentKey, server_id: UUID, client_id: str, caller: bytes
    ) -> None:
        """Hand the first attempt to the wire; never waits for its reply, nor noticeably for a dead host."""
        ...


class Vault(Protocol):
    """Seals and opens what is kept (SEC-4)."""

    @property
    def sealed_with(self) -> int:
        """The number of the key that seals."""
        ...

    def seal(self, kind: bytes, row: bytes, plaintext: bytes) -> bytes:
        """Encrypt, bound to kind and row."""
        ...

    def open(self, kind: bytes, row: bytes, blob: bytes, number: int) -> bytes:
        """Decrypt."""
        ...


class Exchange(Protocol):
    """An upstream's answer, being read."""

    status: int
    reason: bytes
    headers: list[Header]
    complete: bool

    async def read(self, limit: int, *, within_s: float | None = None) -> tuple[bytes, bool]:
        """Up to `limit` bytes, and whether the body ended within them."""
        ...

    def __aiter__(self) -> AsyncIterator[bytes]:
        """The remaining body."""
        ...

    def abort(self) -> None:
        """Give it up."""
        ...


class Upstream(Protocol):
    """The service behind us. It never re-sends and never follows (REC-8)."""

    @property
    def authority(self) -> bytes:
        """Its own Host."""
        ...

    async def open(
        self,
        method: str,
        target: bytes,
        headers: Headers,
        body: bytes | AsyncIterator[bytes] | None,
        *,
        timeout_s: float,
        read_timeout_s: float,
        on_continue: Callable[[], None] | None = None,
        before_send: Callable[[], bool] | None = None,
    ) -> Any:
        """Send a request and wait for the head of its answer."""
        ...


class Lease(Protocol):
    """This worker's right to work (REC-1)."""

    holder: UUID

    def surely_held(self, holder: UUID | None = None) -> bool:
        """Whether nobody can have taken over what this name holds."""
        ...

    async def renew(self, holder: UUID | None = None) -> bool:
        """Keep it; False when it was lost, or the name is an older one."""
        ...


class Route(RouteLike, Protocol):
    """A route's settings, as flows use them."""

    @property
    def execution(self) -> str: ...
    @property
    def replay_policy(self) -> str: ...
    @property
    def replay_proof(self) -> str | None: ...
    @property
    def ttl_ms(self) -> int: ...
    @property
    def grace_ms(self) -> int: ...
    @property
    def max_ttl_ms(self) -> int: ...
    @property
    def replay_horizon_ms(self) -> int: ...
    @property
    def timeout_ms(self) -> int: ...
    @property
    def max_payload_bytes(self) -> int: ...
    @property
    def max_response_bytes(self) -> int: ...
    @property
    def max_pending(self) -> int: ...
    @property
    def oversize(self) -> str: ...
    @property
    def recovery(self) -> str: ...
    @property
    def probe(self) -> Any: ...
    @property
    def verify(self) -> Any: ...
    @property
    def ledger_outage(self) -> str: ...
    @property
    def reveal_id(self) -> bool: ...


class Request(Protocol):
    """A request at the edge, as flows read it."""

    method: str
    target: bytes
    path: bytes
    query: bytes | None
    expects_continue: bool
    content_length: int | None
    has_body: bool

    @property
    def headers(self) -> HeaderMap: ...

    async def read_body(self, limit: int) -> bytes:
        """The whole body, or the refusal."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives."""
        ...

    def send_continue(self) -> None:
        """Tell a client that waits for it to send its body."""
        ...


Spawn = Callable[[Coroutine[Any, Any, Any], str], Any]


class Observer(Protocol):
    """What is counted. Cheap, and never raises."""

    def transition(self, phase: str) -> None:
        """A phase was written."""
        ...

    def upstream(self, seconds: float, failure: str | None) -> None:
        """An upstream answered, or failed in some way."""
        ...

    def bypass(self) -> None:
        """TRN-3: a request went past the ledger."""
        ...

    def unaudited(self, count: int) -> None:
        """REP-5: refusals that left no event."""
        ...


@dataclass(slots=True)
class Desk:
    """Everything a flow works with: one per worker and configuration."""

    service: bytes
    run_id: bytes
    buckets: int
    intents: Intents
    directs: Directs
    recoveries: Recoveries
    lates: LateClaims
    signatures: Signatures
    nonce_of: Callable[[IntentKey, UUID, bytes], str]  # the authorization nonce of an intent and its caller
    audit: Audit
    courier: Courier | None
    vault: Vault
    upstream: Upstream
    lease: Lease
    spawn: Spawn
    unwritten: set[bytes]  # logical keys whose outcome is known here and not yet in the store (REC-9)
    observe: Observer
    read_timeout_s: float
    in_doubt_statuses: Collection[int]
    credential_headers: frozenset[bytes]
    queues: bool  # whether some route executes asynchronously
    verifies: bool  # whether some route's successes are verified
    limits: Limits
    route_of: Callable[[str, bytes], Any]
    own_route_of: Callable[[str, bytes], Any | None]  # the same, but None where the configuration has none any more
    resource_id_rule: Callable[[Any], ResourceIdRule]
