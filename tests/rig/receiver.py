"""Where callbacks go: it notes which ids came for which operation, checks signatures, and sometimes does not listen."""

from __future__ import annotations

import asyncio
import base64
import random
from typing import Any

from aiohttp import web
from standardwebhooks import Webhook, WebhookVerificationError

from tests.rig.records import Heard

SIGNING_KEY = "whsec_" + base64.b64encode(b"s" * 32).decode()
SIGNING_VARIABLE = "TWOPHP_TEST_SIGNING"
CALLBACKS: dict[str, Any] = {
    "allow_http": True,
    "allow_networks": ["127.0.0.0/8"],
    "signing_keys": [{"env": SIGNING_VARIABLE}],
    "schedule": ["200ms", "500ms", "500ms", *["1s"] * 40],  # no delivery dies within a run
    "timeout": "2s",
}


class CallbackReceiver:
    """`unwilling`: the share of deliveries that it refuses."""

    def __init__(self, rng: random.Random, unwilling: float = 0.0) -> None:
        self.heard: dict[int, Heard] = {}
        self._rng = rng
        self._unwilling = unwilling
        self._webhook = Webhook(SIGNING_KEY)

    async def start(self) -> str:
        application = web.Application()
        application.router.add_post("/callback/{number}", self._take)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}/callback"

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        heard = self.heard.setdefault(int(request.match_info["number"], 16), Heard())
        try:
            body = await request.read()
            self._webhook.verify(body, {name.lower(): value for name, value in request.headers.items()})
        except WebhookVerificationError:
            heard.unsigned += 1
        except asyncio.IncompleteReadError:
            return web.Response(status=400)
        heard.ids.add(request.headers.get("webhook-id", ""))
        return web.Response(status=503 if self._rng.random() < self._unwilling else 204)
