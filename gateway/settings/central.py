"""The configuration of the central ledger: its own small model, with the same words and the same located errors.

Read from a file by `central_loading`, which is where pydantic comes in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from gateway.settings.access import Token
from gateway.settings.addresses import Host, is_loopback
from gateway.settings.durations import Duration
from gateway.settings.faults import Fault
from gateway.settings.rules import Flag, Refused, Rule, Says, Section
from gateway.settings.secrets import PostgresUrl, StoreUrl
from gateway.settings.sections import PORT, DataDir, Encryption, PemFile, Tls
from gateway.settings.texts import Name

A_DAY_MS = 86_400_000
KEPT = Duration(A_DAY_MS, 36_500 * A_DAY_MS)  # what the law wants kept is kept: up to a hundred years


@dataclass(frozen=True, slots=True, kw_only=True)
class CentralListen(Section):
    """The API and the page."""

    host: Annotated[str, Host(), Says("Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, PORT, Says("Port to listen on; 0 lets the system pick.")] = 9443
    plaintext: Annotated[
        Literal["loopback", "allowed"], Says("Where http without TLS may listen: only on loopback, or anywhere.")
    ] = "loopback"
    tls: Annotated[Tls | None, Says("Certificates; without them the port speaks http.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CentralStore(Section):
    """Where entries are kept: a database of its own."""

    url: Annotated[
        StoreUrl,
        PostgresUrl(embedded=True),
        Says("`embedded`, or postgresql://… (a password belongs into env or file)."),
    ] = field(default_factory=StoreUrl)
    owner_url: Annotated[
        StoreUrl | None, PostgresUrl(embedded=False), Says("As the owner, for migrations and retention; default: url.")
    ] = None
    data_dir: Annotated[Path, DataDir(), Says("Directory of the embedded store.")] = Path(".twophp-central")

    @property
    def embedded(self) -> bool:
        return self.url.embedded

    @property
    def owner(self) -> StoreUrl:
        """The URL that migrations and retention use."""
        return self.url if self.owner_url is None else self.owner_url


class DurationsByService(Rule):
    """`{orders: 30d, billing: 3650d}`."""

    schema: ClassVar[dict[str, Any]] = {
        "type": "object",
        "additionalProperties": KEPT.json_schema(),
    }

    def parse(self, value: object) -> tuple[tuple[str, int], ...]:
        if not isinstance(value, dict):
            raise Refused("a mapping of service names and durations, such as `{orders: 30d}`")
        found = []
        for name, duration in value.items():
            try:
                found.append((Name().parse(name), KEPT.parse(duration)))
            except Refused as refused:
                raise Refused(f"for each service's name {refused.allowed}", hint=refused.hint) from None
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep(Section):
    """How long entries are kept, by the time of their Phase 1."""

    default_ms: Annotated[int, KEPT, Says("Of services that are not named below.")] = 90 * A_DAY_MS
    services: Annotated[tuple[tuple[str, int], ...], DurationsByService(), Says("Of single services, by name.")] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalled(Section):
    processing_ms: Annotated[
        int, Duration(), Says("How long a transaction may be PROCESSING before it counts as stalled (LED-5).")
    ] = 300_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull(Section):
    """Asking gateways (LED-3)."""

    timeout_ms: Annotated[int, Duration(), Says("Longest time of one request to a gateway.")] = 10_000
    ca: Annotated[Path | None, PemFile(), Says("CA of the gateways' certificates; default: the system's.")] = None
    allow_http: Annotated[
        bool, Flag(), Says("Send pull tokens to gateways' http addresses too, not only to loopback ones.")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSettings(Section):
    enabled: Annotated[bool, Flag(), Says("Whether the page is served, beside the API.")] = True
    session_ms: Annotated[int, Duration(), Says("How long a browser stays logged in.")] = 8 * 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CentralDocument(Section):
    """The configuration as written."""

    listen: Annotated[CentralListen, Says("The API and the page.")] = field(default_factory=CentralListen)
    store: Annotated[CentralStore, Says("Where entries are kept.")] = field(default_factory=CentralStore)
    encryption: Annotated[Encryption, Says("Keys for pull tokens.")] = field(default_factory=Encryption)
    tokens: Annotated[tuple[Token, ...], Says("Who may read and who may write.")] = ()
    retention: Annotated[Keep, Says("How long entries are kept.")] = field(default_factory=Keep)
    stalled: Annotated[Stalled, Says("When something counts as stalled.")] = field(default_factory=Stalled)
    pull: Annotated[Pull, Says("Asking gateways for their latest entries.")] = field(default_factory=Pull)
    page: Annotated[PageSettings, Says("The page.")] = field(default_factory=PageSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class CentralSettings(CentralDocument):
    """The configuration as used: checked, complete, frozen."""

    warnings: tuple[Fault, ...] = field(default=(), compare=False)


def central_changes_needing_restart(old: CentralSettings, new: CentralSettings) -> list[str]:
    """The keys that differ and are bound at start; tokens, certificates, retention and keys can be reloaded."""
    return [key for (key, before), (_, after) in zip(_fixed(old), _fixed(new), strict=True) if before != after]


def _fixed(settings: CentralSettings) -> Iterator[tuple[str, object]]:
    yield "listen.host", settings.listen.host
    yield "listen.port", settings.listen.port
    yield "listen.tls", settings.listen.tls is not None
    yield "store.url", settings.store.url
    yield "store.owner_url", settings.store.owner_url
    yield "store.data_dir", settings.store.data_dir
    yield "encryption", settings.encryption
    yield "pull", settings.pull
    yield "page", settings.page


def reachable_without_tls(settings: CentralDocument) -> bool:
    """SEC-6: http without TLS is for loopback, or said out loud."""
    listen = settings.listen
    return listen.tls is None and listen.plaintext != "allowed" and not is_loopback(listen.host)
