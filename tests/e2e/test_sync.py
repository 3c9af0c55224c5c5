"""LED-2: sync between processes: kill -9 of either side and a central ledger that is away lose and double nothing."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.fleet import Application, Central, comparable, gateway_of, own_database, walk
from tests.e2e.harness import TOKENS, Gateway, eventually


@pytest.fixture
async def central(tmp_path: Path, postgres_url: str) -> AsyncIterator[Central]:
    async with own_database(postgres_url) as url:
        central = Central(tmp_path, url, ("orders",))
        await central.start()
        yield central
        await central.aclose()


@pytest.fixture
async def gateway(tmp_path: Path, central: Central, fresh_database: str) -> AsyncIterator[Gateway]:
    application = Application("orders")
    await application.start()
    gateway = gateway_of(tmp_path, application, fresh_database, central, {})
    await gateway.start()
    yield gateway
    await gateway.aclose()
    await application.stop()


async def local_entries(gateway: Gateway) -> list[dict[str, Any]]:
    return await walk(lambda path: gateway.operator("GET", path), "/v1/ledger/entries")


async def until_equal(central: Central, gateway: Gateway, *client_ids: str) -> dict[Any, Any]:
    """Wait until central = local, with all of these in it."""

    async def equal() -> Any:
        found, local = comparable(await central.entries()), comparable(await local_entries(gateway))
        there = {entry["client_correlation_id"] for entry in found.values()}
        return found if found == local and there >= set(client_ids) else None

    found: dict[Any, Any] = await eventually(equal)
    return found


async def lag_of(gateway: Gateway) -> tuple[float, float]:
    text = (await gateway.operator("GET", "/metrics", role=None)).body.decode()
    lag = re.search(r"^twophp_ledger_sync_lag_seconds (\S+)$", text, re.MULTILINE)
    behind = re.search(r"^twophp_ledger_sync_behind (\S+)$", text, re.MULTILINE)
    return (float(lag[1]), float(behind[1])) if lag and behind else (-1.0, -1.0)


async def work(gateway: Gateway, name: str, done: list[str]) -> None:
    """Handshakes until cancelled; a gateway that is down for a moment is waited for."""
    number = 0
    while True:
        client_id = f"{name}-{number}"
        with contextlib.suppress(aiohttp.ClientError, AssertionError):
            if (await gateway.handshake(client_id, path="/work")).phase == "COMMITTED":
                done.append(client_id)
                number += 1
                continue
        number += 1
        await asyncio.sleep(0.05)


async def test_kill_9_of_either_side_under_load_ends_with_equal_ledgers(central: Central, gateway: Gateway) -> None:
    """LED-2, RELIABILITY "batch pushed, cursor lost": central = local after healing, nothing twice."""
    done: list[str] = []
    load = asyncio.create_task(work(gateway, "order", done))
    try:
        for side in ("gateway", "central", "gateway"):
            before = len(done)
            await eventually(lambda before=before: len(done) >= before + 10)
            victim: Any = gateway if side == "gateway" else central
            await victim.kill()
            await victim.start()
    finally:
        load.cancel()
    found = await until_equal(central, gateway, *done)
    assert {entry["phase"] for entry in found.values()} <= {"COMMITTED", "WAITING_CONFIRM", "PROCESSING", "TTL_EXPIRED"}


@pytest.mark.parametrize("place", ["sync.pushed", "sync.stamped"])
async def test_a_gateway_that_dies_between_push_and_place_pushes_again(
    central: Central, gateway: Gateway, place: str
) -> None:
    """LED-2, RELIABILITY "batch pushed, cursor lost": pushed again, stored once."""
    await gateway.stop()
    gateway.environment["TWOPHP_TEST_CRASH_AT"] = place
    await gateway.start()
    with contextlib.suppress(aiohttp.ClientError, AssertionError):
        await gateway.handshake("order-1", path="/work")
    assert gateway.process is not None
    await gateway.process.wait()
    assert f"crash point {place}" in gateway.logs()
    assert len(await central.entries()) == 1
    await gateway.kill()
    del gateway.environment["TWOPHP_TEST_CRASH_AT"]
    await gateway.start()
    found = await until_equal(central, gateway, "order-1")
    assert len(found) == 1


async def test_an_outage_of_the_central_ledger_is_seen_and_made_up_for(central: Central, gateway: Gateway) -> None:
    """LED-2: requests go on, the lag is a metric, and everything arrives when the central ledger is back."""
    await gateway.handshake("before", path="/work")
    await until_equal(central, gateway, "before")
    await central.kill()
    for number in range(20):
        assert (await gateway.handshake(f"during-{number}", path="/work")).phase == "COMMITTED"

    async def lagging() -> bool:
        lag_s, behind = await lag_of(gateway)
        return lag_s > 0.5 and behind >= 20

    await eventually(lagging)
    assert "the central ledger is away" in gateway.logs()
    await central.start()
    await until_equal(central, gateway, *(f"during-{number}" for number in range(20)))

    async def caught_up() -> bool:
        return await lag_of(gateway) == (0.0, 0.0)

    await eventually(caught_up)
    assert "sync-token" not in gateway.logs()


async def test_a_revoked_service_stops_and_comes_back(central: Central, gateway: Gateway) -> None:
    """LED-4: a revocation counts at once, the gateway says so, and after a restore nothing is missing."""
    await gateway.handshake("before", path="/work")
    await until_equal(central, gateway, "before")
    (service,) = (await central.ask("GET", "/v1/services")).json["items"]
    path = f"/v1/services/{service['service_ledger_id']}"
    assert (await central.ask("POST", path + "/revoke")).status == 200
    await gateway.handshake("revoked", path="/work")
    await eventually(lambda: "this service was revoked at the central ledger" in gateway.logs())
    assert (await central.ask("POST", path + "/restore")).status == 200
    assert gateway.process is not None
    gateway.process.send_signal(signal.SIGHUP)  # somebody saw to it: tried again now and not in some minutes
    await until_equal(central, gateway, "before", "revoked")


async def test_the_central_ledger_pulls_with_the_services_own_credentials(central: Central, gateway: Gateway) -> None:
    """LED-3, SEC-5: a derived token that reads and does nothing else, gone with the configuration that made it."""
    await eventually(lambda: "registered at the central ledger" in gateway.logs())
    gateway.changes["ledger"] = {**gateway.changes["ledger"], "interval": "1h"}
    gateway.write_config()
    assert gateway.process is not None
    gateway.process.send_signal(signal.SIGHUP)
    await eventually(lambda: gateway.logs().count("registered at the central ledger") == 2)
    await gateway.handshake("pulled", path="/work")
    (service,) = (await central.ask("GET", "/v1/services")).json["items"]
    pulled = await central.ask("POST", f"/v1/services/{service['service_ledger_id']}/pull")
    assert (pulled.status, pulled.json["stored"]) == (200, 1), pulled.body
    await until_equal(central, gateway, "pulled")
    assert '"reader":"central","role":"audit"' in gateway.logs()
    assert TOKENS["sync"] not in gateway.logs()
