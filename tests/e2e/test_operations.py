"""What operators rely on: readiness, drain, reload, logs, metrics, outages of the store (OPS-1, P1-3, REC-9, SEC-5)."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.conftest import CREATED, MakeGateway
from tests.e2e.harness import Gateway, database, eventually
from tests.postgres import BackgroundPostgres
from tests.upstream.fake import FakeUpstream, Wire


async def test_ready_without_an_upstream(make_gateway: MakeGateway, upstream: FakeUpstream) -> None:
    """OPS-1: a dead upstream is not our unreadiness."""
    await upstream.stop()
    gateway = await make_gateway()
    assert (await gateway.operator("GET", "/healthz", role=None)).status == 200
    assert (await gateway.operator("GET", "/readyz", role=None)).status == 200
    answer = await gateway.request("GET", "/anything")
    assert (answer.status, answer.problem) == (502, "upstream-unreachable")


async def test_sigterm_drains(gateway: Gateway, upstream: FakeUpstream) -> None:
    """OPS-1: ready off, in-flight finished, nothing half-done, exit 0."""
    release = asyncio.Event()

    async def slow(wire: Wire) -> None:
        await wire.request()
        await release.wait()
        await wire.send(CREATED)

    upstream.script = slow
    registered = await gateway.register("c-1")
    confirming = asyncio.create_task(gateway.confirm("c-1", registered.server_id))
    await eventually(lambda: bool(upstream.requests))
    assert gateway.process is not None
    gateway.process.terminate()

    async def not_ready() -> bool:
        return (await gateway.operator("GET", "/readyz", role=None)).status == 503

    await eventually(not_ready)
    release.set()
    answer = await confirming
    assert (answer.status, answer.phase) == (200, "COMMITTED")
    assert await gateway.process.wait() == 0
    with pytest.raises(aiohttp.ClientError):
        await gateway.request("GET", "/")


async def test_what_a_drain_cannot_finish_is_handed_back(
    make_gateway: MakeGateway, upstream: FakeUpstream, fresh_database: str
) -> None:
    """REC-1: a drained gateway's unfinished work is in doubt at once at another replica, not after a lease."""

    async def silence(wire: Wire) -> None:
        await wire.request()
        await wire.until_peer_closes()

    upstream.script = silence
    long_lease = {"recovery": {"lease": "10m", "interval": "100ms"}}
    leaving = await make_gateway(drain={"timeout": "200ms"}, **long_lease)
    staying = await make_gateway(**long_lease)
    registered = await leaving.register("c-1")
    confirming = asyncio.create_task(leaving.confirm("c-1", registered.server_id))
    await eventually(lambda: bool(upstream.requests))
    await leaving.stop()
    await asyncio.gather(confirming, return_exceptions=True)

    async def held() -> bool:
        return (await staying.intent(registered.server_id))["in_doubt"] is not None

    await eventually(held)


async def test_sighup_takes_over_a_new_configuration(gateway: Gateway, upstream: FakeUpstream) -> None:
    """OPS-1, OPT-3: without dropping a connection."""
    assert (await gateway.register("c-1")).headers["DTT-2PHP-TTL"] == "30000"
    gateway.changes["routes"] = [{"path": "/orders/**", "ttl": "42s"}]
    gateway.changes["tokens"] = []
    await _hup(gateway, "configuration reloaded")
    assert (await gateway.register("c-2")).headers["DTT-2PHP-TTL"] == "42000"
    assert (await gateway.operator("GET", "/v1/ledger/entries")).status == 401
    gateway.changes["enabled"] = False
    await _hup(gateway, "configuration reloaded")
    assert (await gateway.register("c-3")).status == 201
    assert b"DTT-2PHP-Enabled: true" in upstream.requests[-1].head


async def test_a_wrong_configuration_changes_nothing(gateway: Gateway) -> None:
    """OPS-1, OPS-2: the old one stays, and the log names file, line, key and what is allowed."""
    gateway.changes["routes"] = [{"path": "/orders/**", "ttl": "soon", "tll": "1s"}]
    await _hup(gateway, "reload refused: the configuration is wrong")
    assert "routes[0].ttl" in gateway.logs()
    assert gateway.config_path.name in gateway.logs()
    assert (await gateway.register("c-1")).headers["DTT-2PHP-TTL"] == "30000"
    gateway.changes["routes"] = [{"path": "/orders/**"}]
    gateway.changes["service"] = {"name": "another"}
    await _hup(gateway, "reload refused: these need a restart")
    assert (await gateway.register("c-1")).status == 200


async def _hup(gateway: Gateway, message: str) -> None:
    before = gateway.logs().count(message)
    gateway.write_config()
    assert gateway.process is not None
    gateway.process.send_signal(signal.SIGHUP)
    await eventually(lambda: gateway.logs().count(message) > before)


async def test_logs_are_json_with_correlation_ids(gateway: Gateway, upstream: FakeUpstream) -> None:
    """OPS-1."""

    async def drop(wire: Wire) -> None:
        await wire.request()
        wire.close()

    upstream.script = drop
    registered = await gateway.register("c-1")
    await gateway.confirm("c-1", registered.server_id)
    await gateway.stop()
    lines = [json.loads(line) for line in gateway.logs().splitlines()]
    told = [line for line in lines if line["message"] == "outcome in doubt"]
    assert [line["server_correlation_id"] for line in told] == [registered.server_id]
    assert all({"ts", "level", "logger", "message"} <= set(line) for line in lines)


async def test_metrics_count_what_happened(make_gateway: MakeGateway) -> None:
    """OPS-1: over all workers."""
    gateway = await make_gateway(workers=2)
    for number in range(10):
        assert (await gateway.handshake(f"c-{number}")).phase == "COMMITTED"
    await gateway.request("GET", "/")
    text = (await gateway.operator("GET", "/metrics", role=None)).body.decode()
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[:1] != "#"}
    assert values['twophp_phase_transitions_total{phase="COMMITTED"}'] == 10
    assert values['twophp_requests_total{mode="register",status_class="2xx"}'] == 10
    assert values['twophp_requests_total{mode="passthrough",status_class="2xx"}'] == 1
    assert values["twophp_store_up"] == 1


async def test_several_workers_share_the_port(make_gateway: MakeGateway, upstream: FakeUpstream) -> None:
    """DESIGN decision 10, P2-8: a confirmation may arrive at another worker than its registration."""
    gateway = await make_gateway(workers=3)
    assert len(await gateway.worker_pids()) == 3
    answers = await asyncio.gather(*(gateway.handshake() for _ in range(60)))
    assert {answer.phase for answer in answers} == {"COMMITTED"}
    assert len(upstream.requests) == 60


async def test_a_port_that_is_taken_is_named(gateway: Gateway, make_gateway: MakeGateway) -> None:
    """OPS-2: two gateways never share a port by accident."""
    second = await make_gateway(start=False)
    second.port = gateway.port
    second.directory = second.directory / "second"
    second.directory.mkdir()
    await second.start(wait_ready=False)
    assert second.process is not None
    assert await second.process.wait() != 0
    assert f"cannot listen on 127.0.0.1:{gateway.port}" in second.logs()


async def test_the_store_goes_away_and_comes_back(data_dir: Path, upstream: FakeUpstream) -> None:
    """P1-3, OPS-1, OPT-2: 503 with Retry-After and nothing forwarded; pass-through goes on; all heals by itself."""
    server = BackgroundPostgres(data_dir / "private")
    url = server.start()
    gateway = Gateway(data_dir, upstream.url, url)
    try:
        await gateway.start()
        registered = await gateway.register("c-1")
        server.stop()
        refused = await gateway.register("c-2")
        assert (refused.status, refused.problem) == (503, "store-unavailable")
        assert refused.headers["Retry-After"]
        confirmed = await gateway.confirm("c-1", registered.server_id)
        assert confirmed.status == 503
        assert upstream.requests == []
        assert (await gateway.operator("GET", "/readyz", role=None)).status == 503
        assert (await gateway.request("GET", "/orders")).status == 201
        server = BackgroundPostgres(data_dir / "private")
        server.start()
        await gateway.until_ready()

        async def confirmed_again() -> bool:
            return (await gateway.confirm("c-1", registered.server_id)).phase == "COMMITTED"

        await eventually(confirmed_again)
        assert (await gateway.register("c-2")).status == 200
        posts = [seen for seen in upstream.requests if seen.line.startswith(b"POST")]
        assert len(posts) == 1
    finally:
        await gateway.aclose()
        server.stop()


async def test_an_outcome_is_kept_until_the_store_is_back(data_dir: Path, upstream: FakeUpstream) -> None:
    """REC-9: answered while the store is away; the client hears in doubt, never a success that is not durable."""
    server = BackgroundPostgres(data_dir / "private")
    url = server.start()
    gateway = Gateway(data_dir, upstream.url, url, {"recovery": {"lease": "1s", "interval": "100ms"}})
    release = asyncio.Event()

    async def slow(wire: Wire) -> None:
        await wire.request()
        await release.wait()
        await wire.send(CREATED)

    upstream.script = slow
    try:
        await gateway.start()
        registered = await gateway.register("c-1")
        confirming = asyncio.create_task(gateway.confirm("c-1", registered.server_id))
        await eventually(lambda: bool(upstream.requests))
        server.stop()
        release.set()
        answer = await confirming
        assert (answer.status, answer.phase) == (202, "PROCESSING")
        server = BackgroundPostgres(data_dir / "private")
        server.start()
        async with database(url) as store:

            async def settled() -> bool:
                phase: str = await store.fetchval("SELECT phase::text FROM intents")
                return phase == "COMMITTED"

            await eventually(settled)
        await gateway.until_ready()
        replayed = await gateway.confirm("c-1", registered.server_id)
        assert (replayed.status, replayed.phase, replayed.body) == (200, "COMMITTED", b'{"id": "17"}')
        assert len(upstream.requests) == 1
    finally:
        await gateway.aclose()
        server.stop()


async def test_it_starts_before_its_store_does(data_dir: Path, upstream: FakeUpstream) -> None:
    """OPS-1: not ready, pass-through works, and it opens the store once that is there."""
    server = BackgroundPostgres(data_dir / "private")
    url = server.start()
    server.stop()
    gateway = Gateway(data_dir, upstream.url, url)
    try:
        await gateway.start(wait_ready=False)

        async def passing() -> bool:
            try:
                return (await gateway.request("GET", "/")).status == 201
            except aiohttp.ClientError:
                return False

        await eventually(passing)
        assert (await gateway.register("c-1")).problem == "store-unavailable"
        server = BackgroundPostgres(data_dir / "private")
        server.start()
        await gateway.until_ready()
        assert (await gateway.handshake("c-1")).phase == "COMMITTED"
    finally:
        await gateway.aclose()
        server.stop()
