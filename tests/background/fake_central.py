"""A central ledger that remembers what it was told: the wire format of sync, kept in a dictionary."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import zstandard
from aiohttp import web

TOKEN = "sync-token-canary"
Key = tuple[str, str, str]


@dataclass
class FakeCentral:
    """Stores by version, as the real one does; says no, or nothing, when told to."""

    rows: dict[Key, dict[str, Any]] = field(default_factory=dict)
    services: dict[str, dict[str, Any]] = field(default_factory=dict)
    batches: list[list[dict[str, Any]]] = field(default_factory=list)
    stored: int = 0
    connections: set[Any] = field(default_factory=set)
    answer: int | None = None  # instead of 200
    lose_answers: int = 0  # so many batches are stored and never acknowledged
    rows_max: int = 5000
    followed: int = 0  # redirects
    port: int = 0

    async def start(self) -> None:
        application = web.Application(client_max_size=8 << 20)
        application.router.add_post("/v1/services", self._register)
        application.router.add_post("/v1/sync", self._sync)
        application.router.add_route("*", "/elsewhere", self._elsewhere)
        self._runner = web.AppRunner(application, auto_decompress=False)  # aiohttp knows no zstd
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def states(self) -> dict[str, str]:
        """Phase by client correlation ID."""
        return {row["client_correlation_id"]: row["phase"] for row in self.rows.values()}

    async def _register(self, request: web.Request) -> web.Response:
        if self.answer is not None:
            return self._problem(self.answer)
        assert request.headers["Authorization"] == f"Bearer {TOKEN}"
        said = await request.json()
        self.services[said["service_ledger_id"]] = said
        return web.json_response({"service_ledger_id": said["service_ledger_id"]})

    async def _sync(self, request: web.Request) -> web.StreamResponse:
        self.connections.add(request.transport)
        if self.answer is not None:
            return self._problem(self.answer)
        assert request.headers["Authorization"] == f"Bearer {TOKEN}"
        assert request.headers["Content-Type"] == "application/x-ndjson"
        assert request.headers["Content-Encoding"] == "zstd"
        service = request.query["service_ledger_id"]
        if service not in self.services:
            return self._problem(404)
        body = zstandard.ZstdDecompressor().decompressobj().decompress(await request.read())
        batch = [json.loads(line) for line in body.splitlines()]
        if len(batch) > self.rows_max:
            return self._problem(413)
        self.batches.append(batch)
        stored = 0
        for row in batch:
            assert row["service_ledger_id"] == service
            key = (service, row["actor"], row["entry_id"])
            if key not in self.rows or row["version"] > self.rows[key]["version"]:
                self.rows[key] = row
                stored += 1
        self.stored += stored
        if self.lose_answers:
            self.lose_answers -= 1
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return web.json_response({"received": len(batch), "stored": stored})

    async def _elsewhere(self, request: web.Request) -> web.Response:
        self.followed += 1
        return web.json_response({})

    def _problem(self, status: int) -> web.Response:
        headers = {"Location": self.url + "/elsewhere"} if 300 <= status < 400 else {}
        return web.json_response({"detail": "as told"}, status=status, headers=headers)
