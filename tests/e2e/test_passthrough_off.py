"""2PHP switched off (OPT-3): the headers are passed on and ignored, and a path is nothing but a path."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import ClientConnectionError

from tests.e2e.conftest import MakeGateway
from tests.e2e.fidelity import Row, ask, assert_passed_on, sent, told
from tests.e2e.harness import eventually, free_port
from tests.e2e.wire import Place, exchange, serving
from tests.upstream.fake import FakeUpstream

ROUTES = [{"path": "/orders/**"}, {"path": "/exact"}]
SWITCHES: dict[str, dict[str, Any]] = {
    "off altogether": {"enabled": False, "routes": [{"path": "/orders/**"}, {"path": "/exact", "mode": "transparent"}]},
    "off for the service": {"defaults": {"mode": "off"}, "routes": ROUTES},
    "off on the routes": {"routes": [{**route, "mode": "off"} for route in ROUTES]},
    "no routes": {"routes": []},
}
ENABLED = b"DTT-2PHP-Enabled: true"
CLIENT_ID = b"DTT-2PHP-Client-Correlation-ID: c-1"
SERVER_ID = b"DTT-2PHP-Server-Correlation-ID: 0a8b2f6e-7b1f-4c1e-9d55-1f7c0d1b2a33"
CALLER = b"Authorization: Bearer me"


def post(target: bytes, *headers: bytes) -> bytes:
    return sent(b"POST", b'{"a": 1}', *headers).replace(b" /x ", b" " + target + b" ")


ROWS: dict[str, bytes] = {
    "phase 1": post(b"/orders", ENABLED, CLIENT_ID, CALLER),
    "phase 1 of nobody": post(b"/orders", ENABLED, CLIENT_ID),
    "phase 1 without an id": post(b"/orders", ENABLED, CALLER),
    "phase 1 with all that is malformed": post(
        b"/exact", ENABLED, b"DTT-2PHP-Client-Correlation-ID: a b", b"DTT-2PHP-Requested-TTL: -1"
    ),
    "enabled twice": post(b"/orders", ENABLED, b"dtt-2php-enabled: FALSE", CLIENT_ID),
    "phase 2": post(b"/orders/confirm", ENABLED, CLIENT_ID, SERVER_ID, CALLER),
    "phase 2 of nobody": post(b"/orders/confirm", ENABLED, CLIENT_ID, SERVER_ID),
    "phase 2 with a malformed id": post(b"/orders/confirm", ENABLED, CLIENT_ID, b"DTT-2PHP-Server-Correlation-ID: x"),
    "auto-confirm": post(
        b"/exact", ENABLED, CLIENT_ID, CALLER, b"DTT-2PHP-Auto-Confirm: true", b"DTT-2PHP-Callback: x"
    ),
    "on a transparent route": post(b"/exact", CALLER),
    "poll": ask(b"GET", b"/orders/0a8b2f6e-7b1f-4c1e-9d55-1f7c0d1b2a33", CALLER, CLIENT_ID),
    "preflight": ask(
        b"OPTIONS",
        b"/orders",
        b"Origin: https://shop.test",
        b"Access-Control-Request-Method: POST",
        b"Access-Control-Request-Headers: dtt-2php-enabled",
    ),
    "dots": post(b"/x/../orders/./confirm", ENABLED, CLIENT_ID),
    "encoded slash": post(b"/orders%2fconfirm", ENABLED, CLIENT_ID),
    "encoded letter": post(b"/%6frders", ENABLED, CLIENT_ID),
    "double slash": post(b"//orders//confirm", ENABLED, CLIENT_ID),
    "parameter": post(b"/orders;a=b/confirm", ENABLED, CLIENT_ID),
}
OWN_STATE = told(b"DTT-2PHP-Phase-State: WAITING_CONFIRM", b"Content-Length: 2", body=b"ok")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=SWITCHES)
async def place(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    postgres_url: str,
    template_database: str,
) -> AsyncIterator[Place]:
    changes = {**SWITCHES[request.param], "cors": {"origins": ["https://shop.test"]}}
    async with serving(tmp_path_factory.mktemp("off"), postgres_url, template_database, changes) as made:
        yield made


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", ROWS)
async def test_switched_off_everything_is_passed_on(place: Place, name: str) -> None:
    """OPT-3: request and answer are what they would be without the gateway, and nothing is stored."""
    await assert_passed_on(place, Row(ROWS[name], OWN_STATE))
    assert not any((await place.stored()).values())


async def test_a_preflight_is_answered_where_2php_is_on_and_for_a_confirmation_too(make_gateway: MakeGateway) -> None:
    """The other side of the switch: on an exact route, whose confirm path is its own."""
    gateway = await make_gateway(routes=[{"path": "/exact"}], cors={"origins": ["https://shop.test"]})
    for target in (b"/exact", b"/exact/confirm"):
        answer = await exchange(gateway.port, ROWS["preflight"].replace(b" /orders ", b" " + target + b" "))
        assert answer.status == 204
        assert answer.header(b"access-control-allow-headers") == b"dtt-2php-enabled"


async def test_an_upstream_that_is_not_there_is_a_problem(make_gateway: MakeGateway) -> None:
    """OPT-2, OPS-3."""
    gateway = await make_gateway(upstream={"url": f"http://127.0.0.1:{free_port()}"})
    answer = await exchange(gateway.port, ask(b"GET", b"/x"))
    assert (answer.status, answer.problem) == (502, "upstream-unreachable")


async def test_with_the_store_away_everything_else_still_passes(
    upstream: FakeUpstream, make_gateway: MakeGateway
) -> None:
    """OPT-2, P1-3: only what is 2PHP's has to wait for the store; correlation IDs alone do not make it that."""
    gateway = await make_gateway(start=False)
    gateway.store_url = f"postgresql://nobody@127.0.0.1:{free_port()}/none"
    await gateway.start(wait_ready=False)

    async def listening() -> bool:
        try:
            return (await gateway.request("GET", "/plain")).status == 201
        except ClientConnectionError:
            return False

    await eventually(listening)
    astray = post(b"/plain/confirm", ENABLED, CLIENT_ID, SERVER_ID, CALLER)
    assert (await exchange(gateway.port, astray)).status == 201
    for target in (b"/orders", b"/orders/confirm"):
        ids = (CLIENT_ID, SERVER_ID) if target.endswith(b"/confirm") else (CLIENT_ID,)
        answer = await exchange(gateway.port, post(target, ENABLED, *ids, CALLER))
        assert (answer.status, answer.problem) == (503, "store-unavailable")
    assert {seen.line.split()[1] for seen in upstream.requests} == {b"/plain", b"/plain/confirm"}
