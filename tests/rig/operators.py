"""Operators who look at what is held and judge some of it, truthfully, two of them at once (REC-2)."""

from __future__ import annotations

import asyncio
import json
import random

import aiohttp

from tests.rig.world import LEASE_S, World

EVERY_S = 1.0
JUDGED = 0.5  # share of what they find; the rest stays in doubt
AT_ONCE = 20
LOST = (aiohttp.ClientError, ConnectionError, TimeoutError)


class Operators:
    """They know what the upstream knows."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.verdicts = 0
        self._world = world
        self._rng = rng
        self._left: set[str] = set()  # what is never judged

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            replica = self._rng.choice(self._world.replicas)
            try:
                async with asyncio.timeout(5):
                    found = await replica.operator("GET", "/v1/in-doubt?limit=100")
            except LOST:
                continue
            if found.status != 200:
                continue
            held = [item["server_correlation_id"] for item in found.json["items"] if item["held"] is not None]
            fresh = [server_id for server_id in held if server_id not in self._left]
            judged = [server_id for server_id in fresh if self._rng.random() < JUDGED][:AT_ONCE]
            self._left.update(set(fresh) - set(judged))
            await asyncio.sleep(LEASE_S)  # longer than anything of it can still be on its way to the upstream
            await asyncio.gather(*(self._judge(server_id) for server_id in judged for _ in range(2)))

    async def _judge(self, server_id: str) -> None:
        """One verdict counts; whoever comes second hears so (409)."""
        took_effect = server_id in self._world.upstream.effects
        said = {"verdict": "committed" if took_effect else "failed", "reason": "looked at the upstream's own log"}
        replica = self._rng.choice(self._world.replicas)
        path = f"/v1/in-doubt/{server_id}/resolve"
        try:
            async with asyncio.timeout(5):
                reply = await replica.operator("POST", path, data=json.dumps(said).encode())
        except LOST:
            return
        self.verdicts += reply.status == 200
