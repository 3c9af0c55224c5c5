"""Refusals in the audit trail (REP-5): durable, and outside the transaction that was rolled back or never begun.

A refusal that concerns an intent leaves an event on it, written beside the answer and never before it. Who is refused
again and again for the same thing leaves one event with a count; a worker writes at most so many a second, and so many
a minute on one intent: a flood of refused requests stays a trickle in the store and buries nobody's trail. What could
not be noted is counted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from gateway.flows.ports import Spawn
from gateway.protocol.faults import StoreAway
from gateway.protocol.identity import IntentKey
from gateway.protocol.problems import Problem

EVENTS_PER_S_MAX = 50  # per worker: far below what a store takes, far above what honest clients are refused
WAITING_MAX = 500  # distinct refusals waiting to be written: ten seconds' worth
PER_INTENT_MAX = 5  # in a window: who reads a trail sees its newest events, and refusals must not push the others out
WINDOW_S = 60.0
REFUSED = "REFUSED"  # of refusals that have no code of their own

Note = Callable[[IntentKey, str, dict[str, Any]], Awaitable[None]]


class _Refusal(NamedTuple):
    key: IntentKey
    code: str
    type: str
    status: int
    caller: bytes
    reason: str | None


class RefusalAudit:
    """What one worker has refused and not yet noted."""

    def __init__(self, note: Note, spawn: Spawn, unaudited: Callable[[int], None]) -> None:
        self._note = note
        self._spawn = spawn
        self._unaudited = unaudited
        self._waiting: dict[_Refusal, int] = {}  # in order of arrival -> how often
        self._writing = False
        self._window_ends = 0.0
        self._in_window: Counter[IntentKey] = Counter()

    def refused(self, key: IntentKey, problem: Problem, caller: bytes, reason: str | None = None) -> Problem:
        """Note that this caller's request about this intent was refused; gives the refusal back, to be raised."""
        code = str(problem.extra.get("code", REFUSED))
        refusal = _Refusal(key, code, problem.slug, problem.status, caller, reason)
        if refusal not in self._waiting and not self._has_room(key):
            self._unaudited(1)
            return problem
        self._waiting[refusal] = self._waiting.get(refusal, 0) + 1
        if not self._writing:
            self._writing = True
            self._spawn(self._write(), "audit refusals")
        return problem

    def _has_room(self, key: IntentKey) -> bool:
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._window_ends:
            self._window_ends = now_s + WINDOW_S
            self._in_window.clear()
        if len(self._waiting) >= WAITING_MAX or self._in_window[key] >= PER_INTENT_MAX:
            return False
        self._in_window[key] += 1
        return True

    async def _write(self) -> None:
        try:
            while self._waiting:
                refusal = next(iter(self._waiting))
                times = self._waiting.pop(refusal)
                try:
                    await self._note(refusal.key, refusal.code, _detail(refusal, times))
                except StoreAway:
                    self._unaudited(times)
                await asyncio.sleep(1 / EVENTS_PER_S_MAX)
        finally:
            self._writing = False


def _detail(refusal: _Refusal, times: int) -> dict[str, Any]:
    """What the event says: kinds and digests, nothing that the caller sent."""
    detail: dict[str, Any] = {
        "refused": refusal.type,
        "status": refusal.status,
        "caller": refusal.caller.hex(),
        "times": times,
    }
    if refusal.reason is not None:
        detail["reason"] = refusal.reason
    return detail
