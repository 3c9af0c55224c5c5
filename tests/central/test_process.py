"""The program itself: `twophp central` from start to drain (OPS-1, OPS-2)."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.central.desk import entry, ndjson, token, value_of

PATIENCE_S = 60
KEY = base64.b64encode(b"k" * 32).decode()


def config(directory: Path, url: str | None = None, *, tokens: list[Any] | None = None, more: str = "") -> Path:
    """A configuration with an operator and a service, on a given store or an embedded one."""
    tokens = tokens if tokens is not None else [token("ops", "operations"), token("orders", "sync")]
    lines = "".join(f"  - {{name: {one.name}, role: {one.role}, sha256: {one.sha256}}}\n" for one in tokens)
    store = f"{{data_dir: {directory / 'store'}}}" if url is None else "{url: {env: CENTRAL_URL}}"
    keys = "" if url is None else "encryption: {keys: [{id: k1, env: CENTRAL_KEY}]}\n"
    path = directory / "central.yaml"
    path.write_text(f"listen: {{port: 0}}\nstore: {store}\n{keys}tokens:\n{lines}page: {{enabled: false}}\n{more}")
    return path


class Running:
    """One `twophp central`, and what it says."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said: list[dict[str, Any]] = []
        self.port = 0

    async def until(self, message: str) -> dict[str, Any]:
        """Wait for a line of its log."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            while line := await self.process.stdout.readline():
                with contextlib.suppress(ValueError):
                    self.said.append(json.loads(line))
                    if self.said[-1].get("message") == message:
                        return self.said[-1]
        raise AssertionError(f"ended before saying {message!r}: {self.said}")

    async def ask(
        self, session: ClientSession, path: str, as_: str | None = "ops", method: str = "GET", **sent: Any
    ) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {value_of(as_)}"} if as_ else {}
        headers |= sent.pop("headers", {})
        async with session.request(method, f"http://127.0.0.1:{self.port}{path}", headers=headers, **sent) as response:
            body = await response.read()
            return response.status, json.loads(body) if body.startswith(b"{") else body


@contextlib.asynccontextmanager
async def running(path: Path, url: str | None = None) -> AsyncIterator[Running]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "central", "-c", str(path)),
        env={**os.environ, "CENTRAL_URL": url or "", "CENTRAL_KEY": KEY},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    central = Running(process)
    try:
        central.port = (await central.until("central ledger"))["port"]
        yield central
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_it_starts_serves_reloads_its_tokens_and_drains(central_database: str, tmp_path: Path) -> None:
    """OPS-1, LED-4, SEC-5: a token that is taken out of the file counts no longer after SIGHUP."""
    path = config(tmp_path, central_database)
    async with running(path, central_database) as central, ClientSession() as session:
        assert await central.ask(session, "/readyz", None) == (200, {"ready": True, "reasons": []})
        _, registered = await central.ask(session, "/v1/services", "orders", "POST", json={"name": "orders"})
        id_ = registered["service_ledger_id"]
        batch = {
            "data": ndjson([entry("orders", id_) for _ in range(10)]),
            "headers": {"Content-Type": "application/x-ndjson", "Content-Encoding": "zstd"},
        }
        sync = f"/v1/sync?service_ledger_id={id_}"
        assert await central.ask(session, sync, "orders", "POST", **batch) == (200, {"received": 10, "stored": 10})
        _, metrics = await central.ask(session, "/metrics", None)
        assert b"twophp_central_stored_total 10.0" in metrics
        config(tmp_path, central_database, tokens=[token("ops", "operations")])
        central.process.send_signal(signal.SIGHUP)
        await central.until("configuration reloaded")
        assert (await central.ask(session, sync, "orders", "POST", **batch))[0] == 401
        assert (await central.ask(session, "/v1/ledger/entries"))[0] == 200
        path.write_text("listen: {prt: 1}\n")
        central.process.send_signal(signal.SIGHUP)
        await central.until("reload refused: the configuration is wrong; the old one stays")
        assert (await central.ask(session, "/v1/ledger/entries"))[0] == 200
        central.process.send_signal(signal.SIGTERM)
        await central.until("stopped")
        assert await central.process.wait() == 0
        assert "canary" not in json.dumps(central.said)


async def test_it_brings_its_own_store_and_survives_being_killed(data_dir: Path) -> None:
    """LED-2: what was acknowledged is there after kill -9; the same batch again is stored once."""
    path = config(data_dir)
    batch: dict[str, Any] = {"headers": {"Content-Type": "application/x-ndjson", "Content-Encoding": "zstd"}}
    async with ClientSession() as session:
        async with running(path) as central:
            _, registered = await central.ask(session, "/v1/services", "orders", "POST", json={"name": "orders"})
            id_ = registered["service_ledger_id"]
            batch["data"] = ndjson([entry("orders", id_) for _ in range(50)])
            sync = f"/v1/sync?service_ledger_id={id_}"
            assert (await central.ask(session, sync, "orders", "POST", **batch))[1]["stored"] == 50
            central.process.kill()
            await central.process.wait()
        async with running(path) as central:
            assert (await central.ask(session, sync, "orders", "POST", **batch))[1] == {"received": 50, "stored": 0}
            assert len((await central.ask(session, "/v1/ledger/entries"))[1]["entries"]) == 50
            central.process.send_signal(signal.SIGTERM)
            await central.until("stopped")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("listen: {host: 0.0.0.0}\npage: {}\n", "SEC-6"),
        ("retention: {default: 5}\n", "retention.default"),
        ("retention: {services: {orders: soon}}\n", "retention.services"),
        ("stalled: {procesing: 5m}\n", "did you mean `stalled.processing`"),
        ("page: {}\nstore: {url: postgresql://db/x}\n", "encryption.keys"),
    ],
)
async def test_a_wrong_configuration_is_named_by_check_and_by_start(tmp_path: Path, text: str, said: str) -> None:
    """OPS-2: with line and key."""
    path = tmp_path / "central.yaml"
    path.write_text(text)
    for command in ("check", "central"):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway", command, "-c", str(path)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
        assert process.returncode == 2, command
        assert said in output.decode()
        assert f"{path}:" in output.decode()


async def test_a_gateways_database_is_refused(fresh_database: str, tmp_path: Path) -> None:
    """LED-2: the two roles need a database each."""
    path = config(tmp_path, fresh_database)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "central", "-c", str(path)),
        env={**os.environ, "CENTRAL_URL": fresh_database, "CENTRAL_KEY": KEY},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert process.returncode == 78
    assert "need a database each" in output.decode()
