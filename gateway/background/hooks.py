"""Hooks: tools are told of the states their routes name (LED-6). Deciding is done here, telling by the dispatcher."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from gateway.store.hooks import EVENTS_MAX, Hook, HookStore

log = logging.getLogger(__name__)


class Hooks:
    """Follows the events for the hooks of the configuration."""

    def __init__(self, store: HookStore, hooks: Sequence[Hook]) -> None:
        self._store = store
        self._hooks = hooks
        self._begun = False

    def use(self, hooks: Sequence[Hook]) -> None:
        """The hooks of a reloaded configuration."""
        self._hooks = hooks
        self._begun = False

    async def run_once(self) -> int:
        """Turn what happened since the last time into deliveries; returns how many."""
        if not self._begun:
            await (self._store.begin() if self._hooks else self._store.forget())
            self._begun = True
        if not self._hooks:
            return 0
        made = 0
        seen = EVENTS_MAX
        while seen == EVENTS_MAX:
            seen, hooked, self._begun = await self._store.feed(self._hooks)  # a peer without hooks may have forgotten
            made += hooked
        if made:
            log.info("hooks to be called", extra={"deliveries": made})
        return made
