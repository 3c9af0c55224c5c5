"""SEC-5: who may ask what."""

from __future__ import annotations

import logging
import re
from uuid import uuid4

import pytest

from gateway.operator import endpoints
from gateway.operator.endpoints import ENDPOINTS, Endpoint
from gateway.store.ledger import LedgerQueries
from tests.operator.conftest import NOWHERE
from tests.operator.console import ROLES, Console, configured, secret_of

GUARDED = [(endpoint.path, endpoint.methods[0], endpoint.roles) for endpoint in ENDPOINTS if not endpoint.open]
BODIES = {  # what a POST cannot do without
    "/v1/obligations": b'{"flow": "publish", "key": "k", "trace_id": "t"}',
    "/v1/ledger/entries": b'{"client_correlation_id": "c", "target": "t", "service_endpoint": "t:/",'
    b' "phase": "WAITING_CONFIRM", "phase_1_timestamp": "2026-01-31T12:00:00Z"}',
    "/v1/in-doubt/{server_correlation_id}/resolve": b'{"verdict": "failed", "reason": "x"}',
}


def asked(path: str) -> str:
    """A request that an endpoint can answer."""
    path = re.sub(r"\{\w+\}", str(uuid4()), path)
    return path + "?client_correlation_id=x" if path == "/v1/intents" else path


def test_the_table_says_who_may_ask_what() -> None:
    """SEC-5: audit, compliance and operations read; sync reads nothing; only health and metrics are open."""
    readers = {"audit", "compliance", "operations"}
    assert {
        endpoint.path if "GET" in endpoint.methods else f"{endpoint.methods[0]} {endpoint.path}": (
            "open" if endpoint.open else set(endpoint.roles)
        )
        for endpoint in ENDPOINTS
    } == {
        "/healthz": "open",
        "/readyz": "open",
        "/metrics": "open",
        "/v1/intents/{server_correlation_id}": {"audit", "compliance", "operations"},
        "/v1/intents": {"audit", "compliance", "operations"},
        "/v1/ledger/entries": {"audit", "compliance", "operations"},
        "POST /v1/ledger/entries": {"sync"},
        "/v1/in-doubt": {"audit", "compliance", "operations"},
        "/v1/in-doubt/{server_correlation_id}": {"audit", "compliance", "operations"},
        "POST /v1/in-doubt/{server_correlation_id}/resolve": {"operations"},
        "/v1/deliveries": {"audit", "compliance", "operations"},
        "POST /v1/deliveries/{delivery_id}/retry": {"operations"},
        "/v1/callback-gaps": {"audit", "compliance", "operations"},
        "/v1/events": {"audit", "compliance", "operations"},
        "/v1/obligations": readers,
        "POST /v1/obligations": {"operations"},
        "/v1/obligations/{obligation_id}": readers,
        "POST /v1/obligations/{obligation_id}/commit": {"operations"},
        "POST /v1/obligations/{obligation_id}/rollback": {"operations"},
        "/v1/obligation-events": readers,
    }


@pytest.mark.parametrize("role", ROLES)
async def test_each_role_gets_exactly_what_the_table_grants(console: Console, role: str) -> None:
    """SEC-5: role × endpoint."""
    for path, method, roles in GUARDED:
        body = BODIES.get(path) if method == "POST" else None
        reply = await console.ask(asked(path), role=role, method=method, data=body)
        if role in roles:
            assert reply.status == (404 if "{" in path else 201 if body else 200), path
        else:
            assert (reply.status, reply.problem) == (403, "role-not-allowed"), path


@pytest.mark.parametrize(("path", "method", "roles"), GUARDED)
async def test_without_a_token_nothing_is_told(storeless: Console, path: str, method: str, roles: object) -> None:
    """SEC-5."""
    reply = await storeless.ask(asked(path), role=None, method=method)
    assert reply.status == 401
    assert reply.problem == "token-missing"
    assert reply.headers["www-authenticate"] == 'Bearer realm="twophp"'


@pytest.mark.parametrize(
    ("authorization", "problem"),
    [
        ("Bearer wrong", "token-invalid"),
        (f"Bearer {configured('operations').sha256}", "token-invalid"),  # the digest is not the token
        (f"Bearer {secret_of('operations')} x", "token-invalid"),
        (f"Bearer {secret_of('operations')[:-1]}", "token-invalid"),
        (f"Bearer {secret_of('operations').upper()}", "token-invalid"),
        ("Bearer", "token-missing"),
        ("Bearer ", "token-missing"),
        (f"Basic {secret_of('operations')}", "token-missing"),
        (secret_of("operations"), "token-missing"),
        ("Bearer \xff\xfe", "token-invalid"),
    ],
)
async def test_what_is_not_exactly_a_token_is_refused(storeless: Console, authorization: str, problem: str) -> None:
    """SEC-5."""
    raw = b"GET /v1/in-doubt HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: %b\r\n\r\n"
    reply = await storeless.send(raw % authorization.encode("latin-1"))
    assert reply.status == 401
    assert reply.problem == problem


async def test_the_scheme_is_read_in_any_case(console: Console) -> None:
    """SEC-5, RFC 9110: authentication schemes are case-insensitive."""
    authorization = ("Authorization", f"bEARER {secret_of('audit')}")
    assert (await console.ask("/v1/in-doubt", role=None, headers=[authorization])).status == 200


async def test_two_tokens_in_one_request_are_refused(storeless: Console) -> None:
    """SEC-5: whose request would it be?"""
    authorization = ("Authorization", f"Bearer {secret_of('audit')}")
    reply = await storeless.ask("/v1/in-doubt", role="operations", headers=[authorization])
    assert (reply.status, reply.problem) == (401, "token-missing")


async def test_a_gateway_without_tokens_denies_everything_and_says_so(storeless: Console) -> None:
    """SEC-5: deny by default."""
    storeless.access.replace_tokens([])
    for path, method, _ in GUARDED:
        reply = await storeless.ask(asked(path), method=method)
        assert (reply.status, reply.problem) == (401, "tokens-not-configured")
        assert "tokens" in reply.json["detail"]


async def test_an_endpoint_that_names_nobody_is_closed_to_every_role(
    ledger: LedgerQueries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEC-5: deny by default, also for what is added later."""
    forgotten = Endpoint("/v1/forgotten", endpoints.healthz)
    monkeypatch.setattr("tests.operator.console.ENDPOINTS", (*ENDPOINTS, forgotten))
    console = await Console.open(ledger, NOWHERE)
    try:
        assert (await console.ask("/v1/forgotten", role=None)).status == 401
        for role in ROLES:
            assert (await console.ask("/v1/forgotten", role=role)).status == 403
    finally:
        await console.close()


async def test_a_reload_takes_old_tokens_away_at_once(console: Console) -> None:
    """SEC-5, OPS-1: also on connections that are already open."""
    assert (await console.ask("/v1/in-doubt")).status == 200
    console.access.replace_tokens([configured("operations", secret="another")])
    assert (await console.ask("/v1/in-doubt")).problem == "token-invalid"
    authorization = ("Authorization", "Bearer another")
    assert (await console.ask("/v1/in-doubt", role=None, headers=[authorization])).status == 200


async def test_below_v1_not_even_what_exists_is_told_without_a_token(storeless: Console) -> None:
    """SEC-5: unknown paths and methods look like known ones."""
    assert (await storeless.ask("/v1/nothing", role=None)).status == 401
    assert (await storeless.ask("/v1/in-doubt", role=None, method="DELETE")).status == 401
    assert (await storeless.ask("/v1/in-doubt", role="sync", method="DELETE")).status == 403
    assert (await storeless.ask("/v1/nothing", role="sync")).status == 404


async def test_an_encoded_path_finds_no_way_around_the_guard(storeless: Console) -> None:
    """SEC-5."""
    for target in ("/%76%31/in-doubt", "/v1/%69n-doubt", "//v1/in-doubt", "/healthz/../v1/in-doubt", "/./v1/in-doubt"):
        reply = await storeless.send(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        assert reply.status in (401, 404), target


async def test_every_access_is_logged_by_name_and_never_with_the_token(
    console: Console, caplog: pytest.LogCaptureFixture
) -> None:
    """SEC-5: token name, role, path template and status; no canary anywhere, whatever became of the request."""
    caplog.set_level(logging.DEBUG)
    server_id = str(uuid4())
    await console.ask("/healthz")
    await console.ask(f"/v1/intents/{server_id}", role="audit")
    await console.ask("/v1/in-doubt", role="sync")
    await console.ask("/v1/in-doubt", role=None, headers=[("Authorization", "Bearer wrong-canary")])
    await console.ask("/nothing/the-path-canary")
    await console.send(b"GET /v1/in-doubt HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer the-audit-canary\x00\r\n\r\n")
    records = [record for record in caplog.records if record.getMessage() == "operator access"]
    fields = ("levelname", "reader", "role", "path", "status")
    assert [tuple(getattr(record, field) for field in fields) for record in records] == [
        ("DEBUG", None, None, "/healthz", 200),
        ("INFO", "audit-desk", "audit", "/v1/intents/{server_correlation_id}", 404),
        ("INFO", "sync-desk", "sync", "/v1/in-doubt", 403),
        ("INFO", None, None, "/v1/in-doubt", 401),
        ("DEBUG", None, None, "/…", 404),
    ]
    everything = caplog.text + "".join(str(vars(record)) for record in caplog.records)
    assert "canary" not in everything
    assert server_id not in everything
