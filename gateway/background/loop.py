"""The loop around a background service: run, wait, run again; a failure is logged and never ends it."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from gateway.protocol.faults import StoreAway

log = logging.getLogger(__name__)

JITTER = 0.2  # replicas started together should not sweep together
BACKOFF_MAX_S = 30.0


async def every(
    interval_s: float, name: str, run_once: Callable[[], Awaitable[object]], *, pause_max_s: float = BACKOFF_MAX_S
) -> None:
    """Call `run_once` about every `interval_s` seconds until cancelled.

    While the store is away, less and less often.
    """
    pause_s = interval_s
    while True:
        try:
            await run_once()
            pause_s = interval_s
        except StoreAway:
            pause_s = min(pause_s * 2, max(interval_s, pause_max_s))
            log.warning("background service waits: the store is away", extra={"service": name})
        except Exception:
            pause_s = min(pause_s * 2, max(interval_s, pause_max_s))
            log.exception("background service failed", extra={"service": name})
        await asyncio.sleep(pause_s * random.uniform(1 - JITTER, 1 + JITTER))
