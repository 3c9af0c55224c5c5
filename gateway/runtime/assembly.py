"""From settings to the parts of a worker: the one place that knows every room."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Callable
from typing import Any

from gateway.flows.audit import RefusalAudit
from gateway.flows.ports import Courier, Desk, Lease, Observer, Spawn
from gateway.ingress.certificates import ClientCertificate
from gateway.ingress.cors import Cors
from gateway.ingress.handler import Config
from gateway.ingress.identity import Identifier, identifier, or_anonymous
from gateway.ingress.json_web_tokens import JsonWebToken
from gateway.ingress.jwks import KeySets
from gateway.ingress.limits import EdgeLimits
from gateway.ingress.proxies import TrustedProxies
from gateway.ingress.signatures import CONFIGURED, SignatureJudge, VerificationKey
from gateway.protocol.modes import Routes
from gateway.protocol.outcome import ResourceIdRule
from gateway.protocol.recovery import Limits
from gateway.settings import Route, Settings
from gateway.settings.access import JwtIdentity
from gateway.settings.sections import Tls
from gateway.store.direct import DirectStore
from gateway.store.intents import IntentStore
from gateway.store.opening import Opened
from gateway.store.recovery import RecoveryStore
from gateway.store.replay import ReplayStore
from gateway.upstream import Upstream
from gateway.vault import Key, NonceMaker, caller_digest, local_keys

DEFAULT_RESOURCE_ID = ResourceIdRule()


def edge_limits(settings: Settings) -> EdgeLimits:
    """Time and size at the data port."""
    listen = settings.listen
    return EdgeLimits(
        header_timeout_s=listen.header_timeout_ms / 1000,
        body_timeout_s=listen.body_timeout_ms / 1000,
        idle_timeout_s=listen.idle_timeout_ms / 1000,
        max_header_bytes=listen.max_header_bytes,
        max_headers=listen.max_headers,
    )


def upstream_of(settings: Settings) -> Upstream:
    """The client of the service behind us."""
    upstream = settings.upstream
    return Upstream(
        upstream.url,
        connect_timeout_s=upstream.connect_timeout_ms / 1000,
        connect_attempts=upstream.connect_attempts,
    )


def tls_context(tls: Tls | None) -> ssl.SSLContext | None:
    """A listener's TLS (SEC-6)."""
    if tls is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    load_certificates(context, tls)
    return context


def load_certificates(context: ssl.SSLContext, tls: Tls) -> None:
    """Read the certificates, at start and on every reload: new connections use the new ones."""
    context.load_cert_chain(tls.cert, tls.key)
    if tls.client_ca is not None:
        context.load_verify_locations(tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED


def sealing_keys(settings: Settings) -> list[Key]:
    """The key ring of the configuration.

    With the embedded store, one of its own when none is configured (decision 12).
    """
    if settings.encryption.keys:
        return [Key.from_base64(key.id, key.reveal()) for key in settings.encryption.keys]
    return list(local_keys(settings.store.data_dir))


def caller_identity(settings: Settings, key_sets: KeySets) -> Identifier:
    """How callers are told apart (SEC-2)."""
    chosen: Any = settings.identity
    if chosen.method == "jwt":
        return or_anonymous(_json_web_tokens(chosen, key_sets), chosen.anonymous)
    if chosen.method == "mtls":
        return or_anonymous(ClientCertificate(), chosen.anonymous)
    return identifier(
        method=chosen.method,
        anonymous=chosen.anonymous,
        header=getattr(chosen, "header", None),
        keys=[{"name": key.name, "sha256": key.sha256} for key in getattr(chosen, "keys", ())],
        trusted_networks=[str(network) for network in getattr(chosen, "trusted_networks", ())],
    )


def _json_web_tokens(chosen: JwtIdentity, key_sets: KeySets) -> JsonWebToken:
    key_set = None if chosen.jwks is None else key_sets.of(url=chosen.jwks.url, file=chosen.jwks.file)
    return JsonWebToken(
        algorithms=chosen.algorithms,
        keys=key_set if chosen.secret is None else chosen.secret.reveal().encode(),
        issuer=chosen.issuer,
        audience=chosen.audience,
        claims=chosen.claims,
    )


def signature_judge(settings: Settings, key_sets: KeySets) -> SignatureJudge:
    """What signed confirmations are checked with (SEC-3)."""
    keys = {}
    for key in settings.signatures.keys:
        secret = key.reveal()
        material = base64.b64decode(secret) if key.algorithm == "hmac-sha256" else secret.encode()
        keys[key.id] = VerificationKey(CONFIGURED[key.algorithm], material)
    jwks = settings.signatures.jwks
    key_set = None if jwks is None else key_sets.of(url=jwks.url, file=jwks.file)
    return SignatureJudge(keys, key_set, TrustedProxies(settings.listen.trusted_proxies))


def desk_of(
    settings: Settings,
    opened: Opened,
    store: IntentStore,
    directs: DirectStore,
    lates: ReplayStore,
    recoveries: RecoveryStore,
    courier: Courier | None,
    upstream: Upstream,
    lease: Lease,
    spawn: Spawn,
    unwritten: set[bytes],
    observe: Observer,
    key_sets: KeySets,
) -> Desk:
    """What flows work with."""
    routes: Routes[Route] = Routes(settings.routes)
    fallback = settings.routes[0] if settings.routes else None

    def route_of(method: str, path: bytes) -> Any:
        """An intent's route; a reload may have taken it away, and what was confirmed must still run."""
        return routes.match(method, path) or fallback

    nonces = NonceMaker(opened.pepper)
    return Desk(
        service=settings.service.name.encode(),
        run_id=opened.service_ledger_id.bytes,
        buckets=settings.store.buckets,
        intents=store,
        directs=directs,
        lates=lates,
        recoveries=recoveries,
        signatures=signature_judge(settings, key_sets),
        nonce_of=lambda key, server_id, caller: nonces.nonce(key.logical, server_id.bytes, caller),
        audit=RefusalAudit(store.note, spawn, observe.unaudited),
        courier=courier,
        vault=opened.ring,
        upstream=upstream,
        lease=lease,
        spawn=spawn,
        unwritten=unwritten,
        observe=observe,
        read_timeout_s=settings.upstream.read_timeout_ms / 1000,
        in_doubt_statuses=settings.upstream.in_doubt_statuses,
        credential_headers=frozenset(name.lower().encode() for name in settings.upstream.credential_headers),
        queues=any(route.execution == "async" for route in settings.routes),
        verifies=any(route.verify is not None for route in settings.routes),
        limits=Limits(settings.recovery.attempts, settings.recovery.backoff_ms, settings.upstream.timeout_ms),
        route_of=route_of,
        own_route_of=routes.match,
        resource_id_rule=_resource_id_rule,
    )


def _resource_id_rule(route: Any) -> ResourceIdRule:
    chosen = route.resource_id
    if chosen is None:
        return DEFAULT_RESOURCE_ID
    return ResourceIdRule(header=chosen.header, json=chosen.json, path=chosen.path)


def config_of(settings: Settings, upstream: Upstream, desk: Desk | None, pepper: bytes, key_sets: KeySets) -> Config:
    """The data port's configuration."""
    digest: Callable[[bytes], bytes] = lambda name: caller_digest(pepper, name)  # noqa: E731
    return Config(
        routes=Routes(settings.routes, enabled=settings.enabled),
        identifier=caller_identity(settings, key_sets),
        proxies=TrustedProxies(settings.listen.trusted_proxies),
        cors=Cors(settings.cors.origins),
        upstream=upstream,
        host_header=settings.upstream.host_header,
        timeout_s=settings.upstream.timeout_ms / 1000,
        read_timeout_s=settings.upstream.read_timeout_ms / 1000,
        desk=desk,
        caller_digest=digest,
    )
