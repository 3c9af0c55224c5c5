"""OPS-1: what a running gateway can take over, and what needs a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.settings import changes_needing_restart
from tests.settings.conftest import UPSTREAM, Read

TLS = "tls: {cert: tls/server.pem, key: tls/server.key"

NEEDS_RESTART = [
    ("service: {name: other}", ["service.name"]),
    ("listen: {host: localhost, port: 81}", ["listen.host", "listen.port"]),
    (f"listen: {{{TLS}}}}}", ["listen.tls"]),
    ("operator: {host: localhost, port: 91}", ["operator.host", "operator.port"]),
    (f"operator: {{{TLS}}}}}", ["operator.tls"]),
    ("workers: 2", ["workers"]),
    ("store: {data_dir: elsewhere, buckets: 2}", ["store.data_dir", "store.buckets"]),
    (
        "store: {url: postgresql://a/b, owner_url: postgresql://o@a/b}\n"
        "encryption: {keys: [{id: k1, env: TWOPHP_KEY_K1}]}",
        ["store.url", "store.owner_url"],
    ),
    ("egress: [{listen: '127.0.0.1:9001', target: a, url: 'http://b'}]", ["egress.listen"]),
]


@pytest.mark.parametrize(("text", "keys"), NEEDS_RESTART, ids=[text for text, _ in NEEDS_RESTART])
def test_what_is_bound_at_the_start_needs_a_restart(
    read: Read, tls_files: Path, key_in_env: str, text: str, keys: list[str]
) -> None:
    old, new = read(""), read(text)
    assert changes_needing_restart(old, new) == keys
    assert changes_needing_restart(new, old) == keys
    assert changes_needing_restart(new, new) == []


@pytest.mark.parametrize(
    "text",
    [
        "enabled: false",
        "listen: {header_timeout: 1s, trusted_proxies: [10.0.0.0/8], max_headers: 9}",
        "drain: {timeout: 1s}",
        "limits: {buffered: 8MiB}",
        "cors: {origins: ['*']}",
        "upstream: {url: 'http://other', timeout: 1s}",
        "encryption: {keys: [{id: k1, env: TWOPHP_KEY_K1}]}",
        "identity: {method: api_key}",
        f"tokens: [{{name: a, role: audit, sha256: {'ab' * 32}}}]",
        "callbacks: {ports: [444]}",
        "recovery: {lease: 1m}",
        "ledger: {central: 'https://x', token: {env: TWOPHP_KEY_K1}}",
        "defaults: {ttl: 1s}\nroutes: [{path: /a}]",
    ],
)
def test_everything_else_can_be_reloaded(read: Read, key_in_env: str, text: str) -> None:
    assert changes_needing_restart(read(""), read(text)) == []
    assert read("") != read(text)


def test_other_certificates_can_be_reloaded(read: Read, tls_files: Path) -> None:
    """SEC-6."""
    old, new = read(f"listen: {{{TLS}}}}}"), read(f"listen: {{{TLS}, client_ca: tls/clients.pem}}}}")
    assert changes_needing_restart(old, new) == []


def test_warnings_do_not_make_settings_differ(read: Read) -> None:
    assert read(UPSTREAM + "routes: [{path: /**}, {path: /a}]") == read(
        UPSTREAM + "\nroutes: [{path: /**}, {path: /a}]"
    )
