"""A central ledger with its page on a real port before a real Postgres, services that write to it, and one gateway that
it can ask."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4, uuid5

from aiohttp import ClientSession, DummyCookieJar, web

from gateway.runtime.central import Central
from gateway.settings.central_loading import load_central
from tests.central.desk import PATIENCE_S, READERS, entry, now, value_of
from tests.operator.console import Reply

PULL_TOKEN = "the-pull-canary"
KEY = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
SERVICES = ("shop", "orders", "stock")
SPACE = UUID("0d9488f4-6a56-4b7f-9f5c-1c3c1d3d7c11")


def server_id_of(client_id: str) -> str:
    """The same for the same call, on both its rows."""
    return str(uuid5(SPACE, client_id))


def registration(
    source: str,
    client_id: str,
    *,
    target: str | None = None,
    parent: str | None = None,
    path: str = "/orders",
    ago_s: float = 30.0,
    **more: Any,
) -> dict[str, Any]:
    """A row as a service sends it: a client's if it has a target, else a server's."""
    return entry(
        source,
        "",
        client_id=client_id,
        server_id=server_id_of(client_id),
        actor="client" if target else "server",
        target=target,
        parent=parent if target else None,
        **{"at": now(ago_s), "service_endpoint": f"{target or source}:{path}", **more},
    )


def both(client: str, server: str, client_id: str, **more: Any) -> list[tuple[str, dict[str, Any]]]:
    """The two registrations of one call (COR-1), each with the service that sends it."""
    return [
        (client, registration(client, client_id, target=server, **more)),
        (server, registration(server, client_id, **more)),
    ]


@dataclass
class FakeGateway:
    """The operator listener of a service, as far as a central ledger asks it."""

    url: str = ""
    entries: list[dict[str, Any]] = field(default_factory=list)
    intents: dict[str, dict[str, Any]] = field(default_factory=dict)
    status: int = 200
    runner: web.AppRunner | None = None

    async def start(self) -> None:
        application = web.Application()
        application.router.add_get("/v1/ledger/entries", self._entries)
        application.router.add_get("/v1/intents/{id}", self._intent)
        self.runner = web.AppRunner(application, access_log=None)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self.runner is not None:
            await self.runner.cleanup()

    async def _entries(self, request: web.Request) -> web.Response:
        if self.status != 200 or request.headers["Authorization"] != f"Bearer {PULL_TOKEN}":
            return web.json_response({}, status=self.status if self.status != 200 else 401)
        seen = int(request.query.get("after", "0"))
        return web.json_response({"entries": self.entries[seen:], "next": str(len(self.entries))})

    async def _intent(self, request: web.Request) -> web.Response:
        found = self.intents.get(request.match_info["id"])
        return web.json_response(found or {}, status=404 if found is None else 200)


class Ledger:
    """The central ledger under test."""

    def __init__(self, config: Path, database: str) -> None:
        self._config = config
        self._database = database
        self._running: asyncio.Task[int] | None = None
        self.session = ClientSession(cookie_jar=DummyCookieJar())
        self.services: dict[str, str] = {}
        self.url = ""
        self.tls: ssl.SSLContext | bool = True

    async def start(self, **settings: Any) -> None:
        self.configure(**settings)
        central = Central(load_central(self._config), self._config)
        listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._running = asyncio.get_running_loop().create_task(central.run(listening.set_result))
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait((self._running, listening), return_when=asyncio.FIRST_COMPLETED)
        if self._running.done():
            self._running.result()
        scheme = "https" if "listen" in settings else "http"
        self.url = f"{scheme}://127.0.0.1:{listening.result()}"
        self._central = central

    async def stop(self) -> None:
        await self.session.close()
        if self._running is not None:
            self._central.stop()
            await self._running

    def configure(self, *, without: str = "", **settings: Any) -> None:
        """Write the configuration: a token for every role, and one that sees a single service's rows."""
        names = [(role, role, None) for role in READERS] + [(service, "sync", service) for service in SERVICES]
        names += [("orders-auditor", "audit", "orders")]
        document = {
            "listen": {"host": "127.0.0.1", "port": 0},
            "store": {"url": self._database},
            "encryption": {"keys": [{"id": "k1", "env": "TWOPHP_TEST_CENTRAL_KEY"}]},
            "tokens": [
                {"name": name, "role": role, "sha256": sha256(value_of(name).encode()).hexdigest()}
                | ({} if service is None else {"service": service})
                for name, role, service in names
                if name != without
            ],
            "page": {"session": "1h"},
            **settings,
        }
        self._config.write_text(json.dumps(document))

    async def reload(self, **settings: Any) -> None:
        """As an operator does it; returns once the process has heard it."""
        self.configure(**settings)
        os.kill(os.getpid(), signal.SIGHUP)
        for _ in range(10):
            await asyncio.sleep(0)

    async def ask(
        self,
        path: str,
        *,
        who: str | None = None,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        data: Any = None,
    ) -> Reply:
        """One request, as somebody or nobody; redirects are answers too."""
        sent = dict(headers or {})
        if who is not None:
            sent["Authorization"] = f"Bearer {value_of(who)}"
        async with asyncio.timeout(PATIENCE_S):
            async with self.session.request(
                method, f"{self.url}{path}", headers=sent, data=data, allow_redirects=False, ssl=self.tls
            ) as response:
                body = await response.read()
                return Reply(response.status, {k.lower(): v for k, v in response.headers.items()}, body)

    async def register(self, name: str, gateway: FakeGateway | None = None) -> str:
        """LED-4: with a gateway, it can be pulled from."""
        self.services.setdefault(name, str(uuid4()))
        document = {"name": name, "service_ledger_id": self.services[name]}
        if gateway is not None:
            document |= {"operator_url": gateway.url, "pull_token": PULL_TOKEN}
        reply = await self.ask("/v1/services", who=name, method="POST", data=json.dumps(document))
        assert reply.status == 200, reply.body
        return self.services[name]

    async def write(self, *rows: tuple[str, dict[str, Any]]) -> None:
        """LED-2: each service's rows, as its gateway sends them."""
        for name in dict.fromkeys(name for name, _ in rows):
            if name not in self.services:
                await self.register(name)
            own = [{**row, "service_ledger_id": self.services[name]} for source, row in rows if source == name]
            reply = await self.ask(
                f"/v1/sync?service_ledger_id={self.services[name]}",
                who=name,
                method="POST",
                headers={"Content-Type": "application/x-ndjson"},
                data="\n".join(json.dumps(row) for row in own).encode(),
            )
            assert reply.status == 200, reply.body

    async def log_in(self, who: str) -> dict[str, str]:
        """The headers of a browser that has logged in."""
        reply = await self.ask("/login", method="POST", data={"token": value_of(who)})
        assert reply.status == 303, reply.body
        return {"Cookie": reply.headers["set-cookie"].partition(";")[0]}
