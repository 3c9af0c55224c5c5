"""The sections of the configuration that are about the service itself: listeners, upstream, store, background work.

Keys and defaults are the Contract's; attribute names carry units. Rules between sections are in `checks`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from gateway.settings.addresses import Address, Host, HostPort, HttpUrl, Network, NetworkRange, Origin
from gateway.settings.durations import Duration, Size
from gateway.settings.rules import PowerOfTwo, Refused, Rule, Says, Section, Whole
from gateway.settings.secrets import EncryptionKey, PostgresUrl, Secret, StoreUrl
from gateway.settings.texts import HeaderName, Name

PORT = Whole(0, 65535)  # 0: the system picks one


class DataDir(Rule):
    schema: ClassVar[dict[str, Any]] = {"type": "string", "minLength": 1}

    def parse(self, value: object) -> Path:
        if isinstance(value, str) and value and "\0" not in value:
            return Path(value)
        raise Refused("the path of a directory")


class PemFile(Rule):
    """The path of a PEM file that is there. A PEM pasted in its place is refused unshown: it may be a private key."""

    schema: ClassVar[dict[str, Any]] = {"type": "string", "minLength": 1}

    def parse(self, value: object) -> Path:
        if not isinstance(value, str) or not value or "\0" in value or "-----BEGIN" in value:
            raise Refused("the path of a PEM file", shown=False)
        path = Path(value)
        if not path.is_file():
            raise Refused("the path of a PEM file that exists; it is relative to the working directory")
        return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Service(Section):
    name: Annotated[str, Name(), Says("The service's name in ledger rows and metrics.")] = "gateway"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls(Section):
    """Certificates of a listener; files are read again on reload (SEC-6)."""

    cert: Annotated[Path, PemFile(), Says("Certificate chain, PEM.")]
    key: Annotated[Path, PemFile(), Says("Path of the private key, PEM.")]
    client_ca: Annotated[Path | None, PemFile(), Says("CA that client certificates must come from (mTLS).")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen(Section):
    """The data port."""

    host: Annotated[str, Host(), Says("Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, PORT, Says("Port to listen on; 0 lets the system pick.")] = 8080
    header_timeout_ms: Annotated[int, Duration(), Says("Longest time a request head may take.")] = 10_000
    body_timeout_ms: Annotated[int, Duration(), Says("Longest pause between bytes of a request body.")] = 30_000
    idle_timeout_ms: Annotated[int, Duration(), Says("How long an idle connection is kept.")] = 75_000
    max_header_bytes: Annotated[int, Size(1024), Says("Largest request head.")] = 32 * 1024
    max_headers: Annotated[int, Whole(1, 10_000), Says("Most header fields in a request.")] = 256
    trusted_proxies: Annotated[
        tuple[Annotated[Network, NetworkRange()], ...], Says("Networks whose X-Forwarded-* headers are believed.")
    ] = ()
    plaintext: Annotated[
        Literal["loopback", "allowed"],
        Says("Where http without TLS may listen: only on loopback, or anywhere (all listeners)."),
    ] = "loopback"
    tls: Annotated[Tls | None, Says("Certificates; without them the port speaks http.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator(Section):
    """The operator listener: health, metrics, ledger. Apart from the data port (SEC-5)."""

    host: Annotated[str, Host(), Says("Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, PORT, Says("Port to listen on; 0 lets the system pick.")] = 9080
    tls: Annotated[Tls | None, Says("Certificates; without them the port speaks http.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain(Section):
    timeout_ms: Annotated[int, Duration(), Says("How long requests in flight may take to finish at shutdown.")] = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(Section):
    buffered_bytes: Annotated[int, Size(1024), Says("Most bytes of bodies held in memory by one worker.")] = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Cors(Section):
    origins: Annotated[
        tuple[Annotated[str, Origin()], ...], Says("Origins whose preflights for DTT-2PHP headers are answered.")
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream(Section):
    """The service behind the gateway."""

    url: Annotated[
        str, HttpUrl(origin=True), Says("Where the service is: scheme, host and port. The one required key.")
    ]
    connect_timeout_ms: Annotated[int, Duration(), Says("Longest time to connect.")] = 2_000
    connect_attempts: Annotated[int, Whole(1, 10), Says("How often connecting is tried.")] = 2
    timeout_ms: Annotated[int, Duration(), Says("Longest wait for the response head.")] = 30_000
    read_timeout_ms: Annotated[int, Duration(), Says("Longest pause between bytes of a response body.")] = 30_000
    host_header: Annotated[
        Literal["preserve", "rewrite"], Says("Send the client's Host header, or the upstream's own.")
    ] = "preserve"
    in_doubt_statuses: Annotated[
        frozenset[Annotated[int, Whole(400, 599)]],
        Says("Answers that do not say whether the request took effect."),
    ] = frozenset({502, 504})
    credential_headers: Annotated[
        tuple[Annotated[str, HeaderName()], ...], Says("Headers taken from the confirmation when it has them.")
    ] = ("Authorization", "Cookie")


@dataclass(frozen=True, slots=True, kw_only=True)
class Store(Section):
    """Where intents, payloads and the ledger are kept (DESIGN decisions 3, 9, 11)."""

    url: Annotated[
        StoreUrl,
        PostgresUrl(embedded=True),
        Says("`embedded`, or postgresql://… (a password belongs into env or file)."),
    ] = field(default_factory=StoreUrl)
    owner_url: Annotated[
        StoreUrl | None, PostgresUrl(embedded=False), Says("As the owner, for migrate and retention; default: url.")
    ] = None
    data_dir: Annotated[Path, DataDir(), Says("Directory of the embedded store.")] = Path(".twophp")
    buckets: Annotated[int, PowerOfTwo(1, 4096), Says("Shards; fixed at the first migration.")] = 1

    @property
    def embedded(self) -> bool:
        return self.url.embedded

    @property
    def owner(self) -> StoreUrl:
        """The URL that migrate and retention use."""
        return self.url if self.owner_url is None else self.owner_url


@dataclass(frozen=True, slots=True, kw_only=True)
class Encryption(Section):
    keys: Annotated[
        tuple[EncryptionKey, ...], Says("Base64 of 32 bytes each; the first encrypts, all of them decrypt.")
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery(Section):
    """What becomes of work whose replica died (REC-1, REC-2)."""

    lease_ms: Annotated[int, Duration(), Says("How long a replica owns a running intent without renewing.")] = 15_000
    interval_ms: Annotated[int, Duration(), Says("How often expired leases are looked for.")] = 1_000
    attempts: Annotated[int, Whole(1, 100), Says("Most sends of one intent, the first included.")] = 5
    backoff_ms: Annotated[int, Duration(), Says("First pause between attempts; it doubles.")] = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Obligations(Section):
    leak_timeout_ms: Annotated[int, Duration(), Says("When a reservation that nobody settled counts as leaked.")] = (
        30_000
    )
    scan_interval_ms: Annotated[int, Duration(), Says("How often leaks are looked for.")] = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger(Section):
    """Sync with a central ledger (LED-2). Without this section there is none."""

    central: Annotated[str, HttpUrl(origin=True), Says("URL of the central ledger.")]
    token: Annotated[Secret, Says("Token with role sync at the central ledger.")]
    interval_ms: Annotated[int, Duration(), Says("How often changes are pushed.")] = 10_000
    operator_url: Annotated[
        str | None, HttpUrl(origin=True), Says("Where the central ledger reaches this operator listener, to pull.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Egress(Section):
    """A port on which an application's outgoing calls get the handshake."""

    listen: Annotated[Address, HostPort(), Says("HOST:PORT for the application's calls.")]
    target: Annotated[str, Name(), Says("The called service's name in ledger rows.")]
    url: Annotated[str, HttpUrl(origin=True), Says("Where the called service is.")]
