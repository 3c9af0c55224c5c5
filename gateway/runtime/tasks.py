"""Tasks that outlive a request, owned: every one is named, its failure is logged, and a drain waits for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)


class Tasks:
    """The tasks of one process."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run something to its end, whoever waits for it."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not getattr(error, "expected", False):
            log.error("a background task failed", extra={"task": task.get_name()}, exc_info=error)

    @property
    def count(self) -> int:
        """How many run now."""
        return len(self._running)

    async def drain(self, timeout_s: float) -> int:
        """Wait for what runs, then cancel the rest; returns how many were cancelled."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + timeout_s
        while self._running and (left_s := ends_at - loop.time()) > 0:  # what runs may start more
            await asyncio.wait(set(self._running), timeout=left_s)
        left = set(self._running)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=1.0)
        return len(left)
