"""Routes: profiles, `defaults`, and what is left of both once a route has spoken."""

from __future__ import annotations

import pytest

from tests.settings.conftest import Read


@pytest.mark.parametrize(
    ("profile", "ttl_ms", "grace_ms"),
    [("low-latency", 5_000, 1_000), ("standard", 30_000, 5_000), ("long-running", 120_000, 10_000)],
)
def test_a_profile_sets_ttl_and_grace(read: Read, profile: str, ttl_ms: int, grace_ms: int) -> None:
    """TTL-4."""
    for text in (
        f"routes: [{{path: /a, profile: {profile}}}]",
        f"defaults: {{profile: {profile}}}\nroutes: [{{path: /a}}]",
    ):
        (route,) = read(text).routes
        assert (route.ttl_ms, route.grace_ms, route.max_ttl_ms) == (ttl_ms, grace_ms, 10 * ttl_ms)


MERGES = [
    # defaults, route, ttl, grace, max_ttl in seconds
    ("", "", 30, 5, 300),
    ("ttl: 10s", "", 10, 5, 100),
    ("ttl: 10s, profile: low-latency", "", 10, 1, 100),
    ("ttl: 10s, grace: 2s", "profile: long-running", 120, 10, 1200),
    ("profile: long-running", "ttl: 10s", 10, 10, 100),
    ("profile: long-running", "grace: 0s", 120, 0, 1200),
    ("max_ttl: 60s", "", 30, 5, 60),
    ("max_ttl: 60s", "max_ttl: 30s", 30, 5, 30),
    ("", "ttl: 40s, grace: 3s, max_ttl: 50s, profile: low-latency", 40, 3, 50),
]


@pytest.mark.parametrize(("defaults", "route", "ttl", "grace", "max_ttl"), MERGES)
def test_what_is_said_nearer_wins(read: Read, defaults: str, route: str, ttl: int, grace: int, max_ttl: int) -> None:
    """TTL-4, P1-2."""
    (merged,) = read(f"defaults: {{{defaults}}}\nroutes: [{{path: /a, {route}}}]").routes
    assert (merged.ttl_ms, merged.grace_ms, merged.max_ttl_ms) == (ttl * 1000, grace * 1000, max_ttl * 1000)


def test_every_key_of_a_route_can_have_a_default(read: Read) -> None:
    said = (
        "methods: [PUT], mode: transparent, ttl: 9s, grace: 8s, max_ttl: 10s, replay_policy: REUSE, "
        "replay_proof: token, replay_horizon: 1d, timeout: 7s, max_payload: 6KiB, oversize: stream, "
        "max_response: 5KiB, max_pending: 4, resource_id: {header: X-Id}, recovery: probe, probe: {path: /p}, "
        "verify: {path: /v}, compensation: [{url: 'http://c'}], ledger_outage: bypass, confirm_suffix: /go, "
        "reveal_id: false"
    )
    (by_default,) = read(f"defaults: {{{said}}}\nroutes: [{{path: /a}}]").routes
    (by_itself,) = read(f"routes: [{{path: /a, {said}}}]").routes
    assert by_default == by_itself
    plain = read("routes: [{path: /a}]").routes[0]
    for name in plain.__dataclass_fields__:
        if name not in ("path", "execution"):
            assert getattr(by_default, name) != getattr(plain, name), name
    assert read("defaults: {execution: async}\nroutes: [{path: /a}]").routes[0].execution == "async"


def test_the_timeout_of_a_route_is_the_upstreams_unless_said(read: Read) -> None:
    text = "upstream: {url: 'http://x', timeout: 12s}\nroutes: [{path: /a}, {path: /b, timeout: 3s}]"
    assert [route.timeout_ms for route in read(text).routes] == [12_000, 3_000]


def test_2php_can_be_switched_off_per_route_and_per_service(read: Read) -> None:
    """OPT-3."""
    settings = read("defaults: {mode: off}\nroutes: [{path: /a}, {path: /b, mode: standard}]\nenabled: false")
    assert [route.mode for route in settings.routes] == ["off", "standard"]
    assert settings.enabled is False


def test_defaults_for_transparent_routes_leave_the_others_alone(read: Read) -> None:
    """P1-3: a bypass of the ledger is never inherited by a route with a handshake. TRN-3."""
    text = (
        "defaults: {ledger_outage: bypass, oversize: stream, reveal_id: false, execution: async}\n"
        "routes: [{path: /a}, {path: /b, mode: transparent}]"
    )
    standard, transparent = read(text).routes
    assert (standard.ledger_outage, standard.oversize, standard.reveal_id) == ("reject", "reject", True)
    assert (transparent.ledger_outage, transparent.oversize, transparent.reveal_id) == ("bypass", "stream", False)
    assert (standard.execution, transparent.execution) == ("async", "sync")


@pytest.mark.parametrize(
    ("path", "prefix", "base"),
    [
        ("/", False, "/"),
        ("/**", True, ""),
        ("/orders", False, "/orders"),
        ("/orders/", False, "/orders/"),
        ("/orders/**", True, "/orders"),
        ("/a%2Fb/**", True, "/a%2Fb"),
        ("/a:b,c;d=e@f~g!h$i&j'k(l)m+n", False, "/a:b,c;d=e@f~g!h$i&j'k(l)m+n"),
        ("/v1.2/..x", False, "/v1.2/..x"),
    ],
)
def test_a_path_is_exact_or_for_all_below(read: Read, path: str, prefix: bool, base: str) -> None:
    (route,) = read(f'routes: [{{path: "{path}"}}]').routes
    assert (route.path, route.prefix, route.base) == (path, prefix, base)


def test_reuse_with_proof_is_accepted(read: Read, key_in_env: str) -> None:
    """SEC-3."""
    (route,) = read("routes: [{path: /a, replay_policy: REUSE, replay_proof: token}]").routes
    assert (route.replay_policy, route.replay_proof) == ("REUSE", "token")
    reuse = "defaults: {replay_policy: REUSE}\nroutes: [{path: /a, replay_proof: signature}]\n"
    read(reuse + f"signatures: {{keys: [{{id: k, algorithm: hmac-sha256, env: {key_in_env}}}]}}")
    read(reuse + "signatures: {jwks: {url: 'https://x'}}")


WARNINGS = [
    ("routes: [{path: /a, replay_proof: token}]", "1:35: routes[0].replay_proof: has no effect without"),
    ("routes: [{path: /a, probe: {path: /p}}]", "1:28: routes[0].probe: has no effect without"),
    ("routes: [{path: /**}, {path: /a}]", "1:30: routes[1].path: never used: routes[0], `/**`, comes first"),
    ("routes: [{path: /a/**}, {path: /a/b/**}]", "1:32: routes[1].path: never used: routes[0], `/a/**`, comes first"),
    ("routes: [{path: /a/**}, {path: /a}]", "1:32: routes[1].path: never used: routes[0], `/a/**`, comes first"),
    ("identity: {method: trusted_header, trusted_networks: [0.0.0.0/0]}", "1:55: identity.trusted_networks[0]: anyone"),
    ("ledger: {central: 'http://x:1', token: {env: PATH}}", "1:19: ledger.central: the token travels over http"),
]


@pytest.mark.parametrize(("text", "warning"), WARNINGS)
def test_what_was_probably_not_meant_is_accepted_with_a_warning(read: Read, text: str, warning: str) -> None:
    (found,) = read(text).warnings
    assert str(found).startswith(f"gateway.yaml:{warning}")


@pytest.mark.parametrize(
    "text",
    [
        "routes: [{path: /a, methods: [POST]}, {path: /a, methods: [PUT]}]",
        "routes: [{path: /a, methods: [POST]}, {path: /a}]",
        "routes: [{path: /a/**, methods: [POST]}, {path: /a/b}]",
        "routes: [{path: /a}, {path: /a/**}]",
        "routes: [{path: /a/**}, {path: /ab}]",
        "ledger: {central: 'http://127.0.0.1:1', token: {env: PATH}}",
        "ledger: {central: 'http://[::1]', token: {env: PATH}}",
        "ledger: {central: 'http://localhost', token: {env: PATH}}",
        "defaults: {replay_proof: token, probe: {path: /p}}\nroutes: [{path: /a}]",
    ],
)
def test_what_makes_sense_is_not_warned_about(read: Read, text: str) -> None:
    assert read(text).warnings == ()
