"""Routes: as written (`RouteKeys`, `RouteEntry`), and as they hold (`Route`), with `defaults` and profile merged in.

Which route a request takes is not decided here but in `protocol.modes`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from gateway.settings.addresses import HttpUrl
from gateway.settings.durations import Duration, Size
from gateway.settings.rules import Flag, Refused, Says, Section, Whole
from gateway.settings.texts import ConfirmSuffix, HeaderName, JsonPointer, PathPattern, PathTemplate

Method = Literal["POST", "PUT", "PATCH", "DELETE"]
Mode = Literal["standard", "transparent", "off"]
Execution = Literal["sync", "async"]
Profile = Literal["low-latency", "standard", "long-running"]
ReplayPolicy = Literal["REJECT", "REUSE"]
ReplayProof = Literal["signature", "token"]
Oversize = Literal["reject", "stream"]
RecoveryPolicy = Literal["hold", "redrive", "probe"]
LedgerOutage = Literal["reject", "bypass"]
HookState = Literal[
    "WAITING_CONFIRM",
    "PROCESSING",
    "COMMITTED",
    "FAILED",
    "TTL_EXPIRED",
    "ABANDONED",
    "IN_DOUBT",
    "VERIFY_FAILED",
]

METHODS: frozenset[Method] = frozenset({"POST", "PUT", "PATCH", "DELETE"})

PROFILES: dict[Profile, tuple[int, int]] = {  # TTL-4: (ttl_ms, grace_ms)
    "low-latency": (5_000, 1_000),
    "standard": (30_000, 5_000),
    "long-running": (120_000, 10_000),
}
# P1-2 lets a client ask for more than the route's TTL. Ten times covers a slow human or a retrying batch job, while a
# caller still cannot hold payloads for hours without the operator having said so.
MAX_TTL_FACTOR = 10

# What only a transparent route can do; elsewhere the Contract's default holds (P1-3: no handshake without the ledger).
TRANSPARENT_ONLY: dict[str, Any] = {"oversize": "reject", "ledger_outage": "reject", "reveal_id": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceId(Section):
    """Where a resource's id is found: exactly one of the three. A route without it tries them in turn (P2-6)."""

    header: Annotated[str | None, HeaderName(), Says("Last segment of this response header.")] = None
    json: Annotated[str | None, JsonPointer(), Says("JSON pointer into the response body.")] = None
    path: Annotated[Literal["last"] | None, Says("`last`: the last segment of the request's path.")] = None

    def check(self) -> None:
        if [self.header, self.json, self.path].count(None) != 2:
            raise Refused("exactly one of `{header: NAME}`, `{json: POINTER}` and `{path: last}`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe(Section):
    """The GET that tells whether an intent in doubt took effect (REC-2)."""

    path: Annotated[
        str,
        PathTemplate("server_correlation_id", "client_correlation_id"),
        Says("Path to GET: 2xx is yes, 404 and 410 are no."),
    ]
    json: Annotated[str | None, JsonPointer(), Says("A 2xx in which this does not resolve is a no.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verify(Section):
    """The GET that must confirm an effect after success (REC-5)."""

    path: Annotated[
        str,
        PathTemplate("resource_id", "server_correlation_id", "client_correlation_id"),
        Says("Path to GET after success: 2xx confirms it."),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compensation(Section):
    """A hook that is told about an intent's state (LED-6)."""

    url: Annotated[str, HttpUrl(), Says("Where to POST.")]
    on: Annotated[tuple[HookState, ...], Says("States that are told.")] = (
        "ABANDONED",
        "FAILED",
        "IN_DOUBT",
        "VERIFY_FAILED",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteKeys(Section):
    """What `defaults` and each route may say; None is "not said here"."""

    methods: Annotated[frozenset[Method] | None, Says("Methods; default: all four.")] = None
    mode: Annotated[
        Mode | None, Says("standard: clients opt in by header; transparent: every request; off: plain proxy.")
    ] = None
    execution: Annotated[Execution | None, Says("sync: Phase 2 answers with the outcome; async: 202 and a poll.")] = (
        None
    )
    profile: Annotated[Profile | None, Says("ttl/grace: low-latency 5s/1s, standard 30s/5s, long-running 2m/10s.")] = (
        None
    )
    ttl_ms: Annotated[int | None, Duration(), Says("Time to confirm; overrides the profile's.")] = None
    grace_ms: Annotated[int | None, Duration(0), Says("Private window after it; overrides the profile's.")] = None
    max_ttl_ms: Annotated[int | None, Duration(), Says("Most that a client may ask for; default: 10 times ttl.")] = None
    replay_policy: Annotated[ReplayPolicy | None, Says("A late confirmation: 408, or accepted within grace.")] = None
    replay_proof: Annotated[ReplayProof | None, Says("What REUSE asks of a late confirmation.")] = None
    replay_horizon_ms: Annotated[int | None, Duration(), Says("How long a key stays consumed; default 7d.")] = None
    timeout_ms: Annotated[int | None, Duration(), Says("To the response head; default: upstream.timeout.")] = None
    max_payload_bytes: Annotated[int | None, Size(), Says("Largest payload; default 1MiB.")] = None
    oversize: Annotated[Oversize | None, Says("Transparent routes, larger payloads: 413, or past the ledger.")] = None
    max_response_bytes: Annotated[int | None, Size(), Says("Largest answer that is stored; default 1MiB.")] = None
    max_pending: Annotated[
        int | None, Whole(1, 1_000_000_000), Says("Most unconfirmed intents per caller; default 1000.")
    ] = None
    resource_id: Annotated[ResourceId | None, Says("Where the resource's id is found.")] = None
    recovery: Annotated[RecoveryPolicy | None, Says("In doubt: wait for a verdict, send again, or ask upstream.")] = (
        None
    )
    probe: Annotated[Probe | None, Says("What to ask; for recovery: probe.")] = None
    verify: Annotated[Verify | None, Says("A GET that must confirm the effect.")] = None
    compensation: Annotated[tuple[Compensation, ...] | None, Says("Hooks that are told about states.")] = None
    ledger_outage: Annotated[LedgerOutage | None, Says("Transparent routes, store away: 503, or past the ledger.")] = (
        None
    )
    confirm_suffix: Annotated[str | None, ConfirmSuffix(), Says("Appended to confirm; default /confirm.")] = None
    reveal_id: Annotated[bool | None, Flag(), Says("Transparent routes: add the server correlation ID.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteEntry(RouteKeys):
    """One entry of `routes`."""

    path: Annotated[str, PathPattern(), Says("Exact path, or PATH/** for it and all below. First match wins.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A route as it holds."""

    path: str
    methods: frozenset[Method] = METHODS
    mode: Mode = "standard"
    execution: Execution = "sync"
    ttl_ms: int
    grace_ms: int
    max_ttl_ms: int
    replay_policy: ReplayPolicy = "REJECT"
    replay_proof: ReplayProof | None = None
    replay_horizon_ms: int = 7 * 86_400_000
    timeout_ms: int
    max_payload_bytes: int = 1 << 20
    oversize: Oversize = "reject"
    max_response_bytes: int = 1 << 20
    max_pending: int = 1000
    resource_id: ResourceId | None = None
    recovery: RecoveryPolicy = "hold"
    probe: Probe | None = None
    verify: Verify | None = None
    compensation: tuple[Compensation, ...] = ()
    ledger_outage: LedgerOutage = "reject"
    confirm_suffix: str = "/confirm"
    reveal_id: bool = True

    @property
    def prefix(self) -> bool:
        """Whether all paths below belong to it too."""
        return self.path.endswith("/**")

    @property
    def base(self) -> str:
        """The path without `/**`; empty for `/**`."""
        return self.path.removesuffix("/**")


def merge(entry: RouteEntry, defaults: RouteKeys, *, upstream_timeout_ms: int) -> Route:
    """A route as it holds. What is said nearer wins: a route's profile beats the `ttl` of `defaults`."""
    said = {
        name: value for level in (defaults, entry) for name in _MERGED if (value := getattr(level, name)) is not None
    }
    ttl_ms, grace_ms = _deadlines(entry, defaults)
    said.setdefault("timeout_ms", upstream_timeout_ms)
    said.setdefault("max_ttl_ms", ttl_ms * MAX_TTL_FACTOR)
    if said.get("mode") != "transparent":
        said.update(TRANSPARENT_ONLY)
    elif entry.execution is None:
        said["execution"] = "sync"  # TRN-2: answered on the same channel; an async default is for the other routes
    return Route(path=entry.path, ttl_ms=ttl_ms, grace_ms=grace_ms, **said)


def _deadlines(entry: RouteEntry, defaults: RouteKeys) -> tuple[int, int]:
    ttl_ms, grace_ms = PROFILES["standard"]
    for level in (defaults, entry):
        if level.profile is not None:
            ttl_ms, grace_ms = PROFILES[level.profile]
        ttl_ms = ttl_ms if level.ttl_ms is None else level.ttl_ms
        grace_ms = grace_ms if level.grace_ms is None else level.grace_ms
    return ttl_ms, grace_ms


_MERGED = frozenset(field.name for field in fields(Route)) - {"path", "ttl_ms", "grace_ms"}
