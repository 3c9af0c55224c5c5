"""The Contract: every key, with its spelling and its default."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from gateway.settings import Settings, defaults_for, parse
from gateway.settings.access import (
    ApiKeyIdentity,
    AuthorizationDigestIdentity,
    JwtIdentity,
    MtlsIdentity,
    TrustedHeaderIdentity,
)
from gateway.settings.keys import all_keys
from tests.settings.conftest import Read

DEFAULTS: list[tuple[str, Any]] = [
    ("service.name", "gateway"),
    ("enabled", True),
    ("listen.host", "127.0.0.1"),
    ("listen.port", 8080),
    ("listen.header_timeout_ms", 10_000),
    ("listen.body_timeout_ms", 30_000),
    ("listen.idle_timeout_ms", 75_000),
    ("listen.max_header_bytes", 32 * 1024),
    ("listen.max_headers", 256),
    ("listen.trusted_proxies", ()),
    ("listen.plaintext", "loopback"),
    ("listen.tls", None),
    ("operator.host", "127.0.0.1"),
    ("operator.port", 9080),
    ("operator.tls", None),
    ("workers", 1),
    ("drain.timeout_ms", 30_000),
    ("limits.buffered_bytes", 64 * 1024 * 1024),
    ("cors.origins", ()),
    ("upstream.url", "http://127.0.0.1:3000"),
    ("upstream.connect_timeout_ms", 2_000),
    ("upstream.connect_attempts", 2),
    ("upstream.timeout_ms", 30_000),
    ("upstream.read_timeout_ms", 30_000),
    ("upstream.host_header", "preserve"),
    ("upstream.in_doubt_statuses", frozenset({502, 504})),
    ("upstream.credential_headers", ("Authorization", "Cookie")),
    ("store.embedded", True),
    ("store.owner_url", None),
    ("store.data_dir", Path(".twophp")),
    ("store.buckets", 1),
    ("encryption.keys", ()),
    ("identity", AuthorizationDigestIdentity(anonymous="reject")),
    ("tokens", ()),
    ("signatures.keys", ()),
    ("signatures.jwks", None),
    ("callbacks.allow_http", False),
    ("callbacks.allow_hosts", ()),
    ("callbacks.allow_networks", ()),
    ("callbacks.ports", (443, 8443)),
    ("callbacks.timeout_ms", 5_000),
    ("callbacks.schedule_ms", (5_000, 300_000, 1_800_000, 7_200_000, 18_000_000, 36_000_000, 36_000_000)),
    ("callbacks.all_signing_keys", ()),
    ("callbacks.per_caller", False),
    ("recovery.lease_ms", 15_000),
    ("recovery.interval_ms", 1_000),
    ("recovery.attempts", 5),
    ("recovery.backoff_ms", 1_000),
    ("obligations.leak_timeout_ms", 30_000),
    ("obligations.scan_interval_ms", 5_000),
    ("ledger", None),
    ("egress", ()),
    ("routes", ()),
    ("warnings", ()),
]

ROUTE_DEFAULTS: list[tuple[str, Any]] = [
    ("path", "/**"),
    ("methods", frozenset({"POST", "PUT", "PATCH", "DELETE"})),
    ("mode", "standard"),
    ("execution", "sync"),
    ("ttl_ms", 30_000),
    ("grace_ms", 5_000),
    ("max_ttl_ms", 300_000),
    ("replay_policy", "REJECT"),
    ("replay_proof", None),
    ("replay_horizon_ms", 7 * 24 * 3_600_000),
    ("timeout_ms", 30_000),
    ("max_payload_bytes", 1 << 20),
    ("oversize", "reject"),
    ("max_response_bytes", 1 << 20),
    ("max_pending", 1000),
    ("resource_id", None),
    ("recovery", "hold"),
    ("probe", None),
    ("verify", None),
    ("compensation", ()),
    ("ledger_outage", "reject"),
    ("confirm_suffix", "/confirm"),
    ("reveal_id", True),
]

# The Contract's own example, but for the two paths with placeholders, which YAML wants quoted inside of { }.
CONTRACT = """
service:   {name: orders}
enabled:   true
listen:    {host: 127.0.0.1, port: 8080, header_timeout: 10s, body_timeout: 30s, idle_timeout: 75s,
            max_header: 32KiB, max_headers: 256, trusted_proxies: [], plaintext: loopback,
            tls: {cert: tls/server.pem, key: tls/server.key, client_ca: tls/clients.pem}}
operator:  {host: 127.0.0.1, port: 9080, tls: {cert: tls/server.pem, key: tls/server.key}}
workers:   1
drain:     {timeout: 30s}
limits:    {buffered: 64MiB}
cors:      {origins: []}
upstream:  {url: http://127.0.0.1:3000, connect_timeout: 2s, connect_attempts: 2, timeout: 30s, read_timeout: 30s,
            host_header: preserve, in_doubt_statuses: [502, 504], credential_headers: [Authorization, Cookie]}
store:     {url: embedded, data_dir: .twophp, buckets: 1}
encryption: {keys: [{id: k1, env: TWOPHP_KEY_K1}]}
identity:  {method: authorization_digest, anonymous: reject}
tokens:    [{name: ops, role: operations, sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08}]
signatures: {keys: [{id: k, algorithm: hmac-sha256, env: TWOPHP_KEY_K1}]}
callbacks: {allow_http: false, allow_hosts: [], allow_networks: [], ports: [443, 8443], timeout: 5s,
            schedule: [5s, 5m, 30m, 2h, 5h, 10h, 10h], signing_keys: [{env: WEBHOOK_KEY}]}
recovery:  {lease: 15s, interval: 1s, attempts: 5, backoff: 1s}
obligations: {leak_timeout: 30s, scan_interval: 5s}
ledger:    {central: https://ledger.internal:9443, interval: 10s, token: {env: TWOPHP_KEY_K1}, operator_url: https://me:9080}
egress:    [{listen: 127.0.0.1:9001, target: inventory, url: http://inventory:8080}]
defaults:  {profile: standard}
routes:
  - path: /orders
    methods: [POST]
    mode: standard
    execution: sync
    profile: standard
    replay_policy: REJECT
    replay_horizon: 7d
    timeout: 30s
    max_payload: 1MiB
    max_response: 1MiB
    max_pending: 1000
    resource_id: {json: /id}
    recovery: probe
    probe: {path: "/orders/by-key/{server_correlation_id}", json: /id}
    verify: {path: "/orders/{resource_id}"}
    compensation: [{on: [ABANDONED, FAILED, IN_DOUBT], url: http://127.0.0.1:7000/undo}]
    ledger_outage: reject
    confirm_suffix: /confirm
    reveal_id: true
"""


def _value(settings: Any, dotted: str) -> Any:
    for name in dotted.split("."):
        settings = getattr(settings, name)
    return settings


@pytest.mark.parametrize(("attribute", "value"), DEFAULTS, ids=[attribute for attribute, _ in DEFAULTS])
def test_every_key_but_the_upstream_has_the_default_of_the_contract(read: Read, attribute: str, value: Any) -> None:
    assert _value(read(""), attribute) == value


@pytest.mark.parametrize(("attribute", "value"), ROUTE_DEFAULTS, ids=[attribute for attribute, _ in ROUTE_DEFAULTS])
def test_a_route_that_says_only_its_path_has_the_defaults_of_the_contract(
    read: Read, attribute: str, value: Any
) -> None:
    (route,) = read("routes: [{path: /**}]").routes
    assert getattr(route, attribute) == value


def test_the_tables_above_leave_no_attribute_out() -> None:
    settings = defaults_for("http://127.0.0.1:3000")
    assert {name.split(".")[0] for name, _ in DEFAULTS} == set(Settings.__dataclass_fields__)
    for section in ("listen", "operator", "upstream", "recovery", "obligations"):
        named = {name.split(".")[1] for name, _ in DEFAULTS if name.startswith(f"{section}.")}
        assert named == set(getattr(settings, section).__dataclass_fields__)
    assert {name for name, _ in ROUTE_DEFAULTS} == set(settings.routes[0].__dataclass_fields__)


def test_the_example_of_the_contract_is_accepted(
    key_in_env: str, tls_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEBHOOK_KEY", "whsec_" + "A" * 32)
    settings = parse(CONTRACT, "contract.yaml")
    assert settings.warnings == ()
    assert settings.listen.tls is not None
    assert settings.listen.tls.client_ca == Path("tls/clients.pem")
    assert settings.encryption.keys[0].id == "k1"
    assert settings.ledger is not None
    assert (settings.ledger.central, settings.ledger.interval_ms) == ("https://ledger.internal:9443", 10_000)
    assert str(settings.egress[0].listen) == "127.0.0.1:9001"
    (route,) = settings.routes
    assert route.probe is not None
    assert (route.probe.path, route.probe.json) == ("/orders/by-key/{server_correlation_id}", "/id")
    assert route.verify is not None
    assert route.verify.path == "/orders/{resource_id}"
    assert route.compensation[0].on == ("ABANDONED", "FAILED", "IN_DOUBT")
    assert route.resource_id is not None
    assert route.resource_id.json == "/id"


def test_the_keys_of_the_contract_are_the_keys_of_the_model() -> None:
    expected = {
        "listen": "host port header_timeout body_timeout idle_timeout max_header max_headers trusted_proxies plaintext "
        "tls",
        "upstream": "url connect_timeout connect_attempts timeout read_timeout host_header in_doubt_statuses "
        "credential_headers",
        "store": "url owner_url data_dir buckets",
        "callbacks": "allow_http allow_hosts allow_networks ports timeout schedule signing_keys signing_key per_caller",
        "routes[]": "path methods mode execution profile ttl grace max_ttl replay_policy replay_proof replay_horizon "
        "timeout max_payload oversize max_response max_pending resource_id recovery probe verify compensation "
        "ledger_outage confirm_suffix reveal_id",
        "identity": "method anonymous header keys trusted_networks algorithms jwks secret issuer audience claims",
    }
    for section, keys in expected.items():
        found = {key.rpartition(".")[2] for key in all_keys() if key.rpartition(".")[0] == section}
        assert found == set(keys.split()), section


@pytest.mark.parametrize(
    ("text", "identity"),
    [
        ("{anonymous: allow}", AuthorizationDigestIdentity(anonymous="allow")),
        ("{method: api_key}", ApiKeyIdentity(header="X-Api-Key", keys=())),
        ("{method: trusted_header}", TrustedHeaderIdentity(trusted_networks=(ip_network("127.0.0.0/8"),))),
        (
            "{method: trusted_header, header: X-User, trusted_networks: [10.0.0.0/8, fd00::/8, 192.0.2.7]}",
            TrustedHeaderIdentity(
                header="X-User",
                trusted_networks=(ip_network("10.0.0.0/8"), ip_network("fd00::/8"), ip_network("192.0.2.7/32")),
            ),
        ),
    ],
)
def test_callers_are_told_apart_by_the_method_that_is_named(read: Read, text: str, identity: object) -> None:
    """SEC-2."""
    assert read(f"identity: {text}").identity == identity


def test_the_identities_with_keys_of_their_own(read: Read, key_in_env: str, tls_files: Path) -> None:
    """SEC-2."""
    jwt = read("identity: {method: jwt, jwks: {url: https://id/jwks}, issuer: i, audience: a, claims: [sub]}").identity
    assert isinstance(jwt, JwtIdentity)
    assert (jwt.algorithms, jwt.claims, jwt.issuer, jwt.audience) == (("RS256",), ("sub",), "i", "a")
    shared = read("identity: {method: jwt, algorithms: [HS256], secret: {env: TWOPHP_KEY_K1}}").identity
    assert isinstance(shared, JwtIdentity)
    assert shared.claims == ("iss", "sub")
    tls = "listen: {tls: {cert: tls/server.pem, key: tls/server.key, client_ca: tls/clients.pem}}"
    assert isinstance(read(f"identity: {{method: mtls}}\n{tls}").identity, MtlsIdentity)


def test_a_sync_token_writes_for_its_own_service(read: Read) -> None:
    """SEC-5."""
    tokens = read(
        "tokens:\n"
        f"  - {{name: orders, role: sync, sha256: {'ab' * 32}}}\n"
        f"  - {{name: s, role: sync, service: x, sha256: {'ba' * 32}}}\n"
        f"  - {{name: ops, role: operations, sha256: {'CD' * 32}}}\n"
    ).tokens
    assert [token.writes_for for token in tokens] == ["orders", "x", None]
    assert tokens[2].sha256 == "cd" * 32


def test_settings_are_frozen(read: Read) -> None:
    settings = read("routes: [{path: /a}]")
    for part, attribute in ((settings, "workers"), (settings.listen, "port"), (settings.routes[0], "ttl_ms")):
        with pytest.raises(AttributeError):
            setattr(part, attribute, 1)
