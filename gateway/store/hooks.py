"""Compensation hooks (LED-6): events become deliveries, each exactly once, off the request path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.protocol.records import Sealed
from gateway.store import queries
from gateway.store.lines import Line

SQL = queries.load("hooks.sql")
EVENTS_MAX = 500  # of one statement, as it says itself


@dataclass(frozen=True, slots=True)
class Hook:
    """Whom to tell when an intent of a route comes into a state."""

    route: str
    state: str
    host: int
    url: Sealed


async def begin_hooks(url: str, service: str) -> None:
    """From now on, a service's events are told."""
    store = HookStore(url, service=service)
    try:
        await store.begin()
    finally:
        await store.line.close()


class HookStore:
    """The reader of one service's events whose reading has effects."""

    def __init__(self, url: str, *, service: str) -> None:
        self.line = Line(url)
        self._service = service

    async def begin(self) -> None:
        """From now on, events are told."""
        await self.line.fetch(SQL["begin"], self._service)

    async def forget(self) -> None:
        """No hooks: what happens meanwhile is told to nobody."""
        await self.line.fetch(SQL["forget"], self._service)

    async def feed(self, hooks: Sequence[Hook]) -> tuple[int, int, bool]:
        """Turn the next events into deliveries: events seen, deliveries made, and whether there is a place to go on."""
        rows = await self.line.fetch(
            SQL["feed"],
            [hook.route for hook in hooks],
            [hook.state for hook in hooks],
            [hook.host for hook in hooks],
            [hook.url.key_number for hook in hooks],
            [hook.url.blob for hook in hooks],
            self._service,
        )
        return rows[0]["seen"], rows[0]["hooked"], rows[0]["begun"]
