"""The whole configuration: as it is written (`Document`), and as the gateway uses it (`Settings`).

Frozen dataclasses with slots, which pydantic validates but does not have to be there for: settings can be pickled and
handed to workers that never load it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Annotated

from gateway.settings.access import AuthorizationDigestIdentity, ByMethod, Callbacks, Identity, Signatures, Token
from gateway.settings.faults import Fault
from gateway.settings.routes import Route, RouteEntry, RouteKeys, merge
from gateway.settings.rules import Flag, Says, Section, Whole
from gateway.settings.sections import (
    Cors,
    Drain,
    Egress,
    Encryption,
    Ledger,
    Limits,
    Listen,
    Obligations,
    Operator,
    Recovery,
    Service,
    Store,
    Upstream,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sections(Section):
    """Everything but the routes, which are written one way and used another."""

    service: Annotated[Service, Says("The service behind this gateway.")] = field(default_factory=Service)
    enabled: Annotated[bool, Flag(), Says("false: a plain proxy (OPT-3).")] = True
    listen: Annotated[Listen, Says("The data port.")] = field(default_factory=Listen)
    operator: Annotated[Operator, Says("The operator listener.")] = field(default_factory=Operator)
    workers: Annotated[int, Whole(1, 256), Says("Worker processes that share the data port.")] = 1
    drain: Annotated[Drain, Says("Shutdown.")] = field(default_factory=Drain)
    limits: Annotated[Limits, Says("Memory.")] = field(default_factory=Limits)
    cors: Annotated[Cors, Says("Browsers.")] = field(default_factory=Cors)
    upstream: Annotated[Upstream, Says("The service to forward to.")]
    store: Annotated[Store, Says("Where the ledger is kept.")] = field(default_factory=Store)
    encryption: Annotated[Encryption, Says("Keys for what is stored.")] = field(default_factory=Encryption)
    identity: Annotated[Identity, ByMethod(), Says("How callers are told apart.")] = field(
        default_factory=AuthorizationDigestIdentity
    )
    tokens: Annotated[tuple[Token, ...], Says("Who may use the operator listener.")] = ()
    signatures: Annotated[Signatures, Says("Keys of request signatures.")] = field(default_factory=Signatures)
    callbacks: Annotated[Callbacks, Says("Delivery of callbacks and hooks.")] = field(default_factory=Callbacks)
    recovery: Annotated[Recovery, Says("After a crash.")] = field(default_factory=Recovery)
    obligations: Annotated[Obligations, Says("Reservations and their leaks.")] = field(default_factory=Obligations)
    ledger: Annotated[Ledger | None, Says("Sync with a central ledger.")] = None
    egress: Annotated[tuple[Egress, ...], Says("Ports for outgoing calls.")] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Document(Sections):
    """The configuration as written."""

    defaults: Annotated[RouteKeys, Says("What routes do not say themselves.")] = field(default_factory=RouteKeys)
    routes: Annotated[tuple[RouteEntry, ...], Says("First match wins; no match: passed through.")] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Sections):
    """The configuration as used: checked, complete, frozen."""

    routes: tuple[Route, ...] = ()
    warnings: tuple[Fault, ...] = field(default=(), compare=False)


def settings_from(document: Document, warnings: tuple[Fault, ...] = ()) -> Settings:
    """A checked document with its routes merged."""
    sections = {section.name: getattr(document, section.name) for section in fields(Sections)}
    return Settings(**sections, routes=merged_routes(document), warnings=warnings)


def merged_routes(document: Document) -> tuple[Route, ...]:
    """The routes of a document with `defaults` and profiles merged in."""
    return tuple(
        merge(entry, document.defaults, upstream_timeout_ms=document.upstream.timeout_ms) for entry in document.routes
    )
