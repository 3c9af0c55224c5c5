"""The connections to one origin: a bounded number, the latest used first, waiters in their order.

A place is taken from the start of dialling to the end of the connection's use; tunnels leave the pool. While somebody
waits, no connection is idle and no place is free: both are handed to the longest waiting.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from gateway.upstream.connection import Connection, Owner
from gateway.upstream.failure import UpstreamFailure

Dial = Callable[[Owner, float], Awaitable[Connection]]


class Pool:
    """Implements `connection.Owner`."""

    def __init__(self, dial: Dial, *, size: int, wait_s: float) -> None:
        if size < 1:
            raise ValueError("a pool needs at least one place")
        self._dial = dial
        self._size = size
        self._wait_s = wait_s
        self._taken = 0  # places: dialling, in use or idle
        self._idle: dict[Connection, None] = {}  # ordered; the last one is the latest used
        self._waiters: deque[asyncio.Future[Connection | None]] = deque()  # a connection, or None: a free place
        self._living: set[Connection] = set()  # every socket not yet closed, tunnels included
        self._closed = False
        self._emptied: asyncio.Future[None] | None = None

    @property
    def taken(self) -> int:
        """Places in use, idle connections included."""
        return self._taken

    @property
    def idle(self) -> int:
        """Connections that wait for a request."""
        return len(self._idle)

    def take(self) -> Connection | None:
        """An idle connection that can carry a request right now."""
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.fresh():
                return connection
            connection.close()
        return None

    async def acquire(self) -> Connection:
        """A connection: an idle one, a new one, or the next that is given back; all within `wait_s`."""
        deadline = asyncio.get_running_loop().time() + self._wait_s
        while True:
            if self._closed:
                raise UpstreamFailure("pool", sent=False, detail="the upstream client is closed")
            connection = self.take()
            if connection is not None:
                return connection
            if self._taken < self._size:
                self._taken += 1
            else:
                connection = await self._queue(deadline)
                if connection is not None:
                    if connection.fresh():
                        return connection
                    connection.close()
                    continue
            return await self._open(deadline)

    def retire(self) -> None:
        """Take no more requests; those in flight, streams and tunnels come to their own end."""
        self._closed = True
        for connection in list(self._idle):
            connection.close()

    async def close(self) -> None:
        """Close every connection, tunnels and those in use included; further requests fail unsent."""
        self._closed = True
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_exception(UpstreamFailure("pool", sent=False, detail="the upstream client is closed"))
        for connection in list(self._living):
            connection.abort()
        if self._living:
            self._emptied = asyncio.get_running_loop().create_future()
            await self._emptied

    # The connections' owner.

    def returned(self, connection: Connection) -> None:
        if self._closed:
            connection.close()
        elif not self._waiters or not self._hand_over(connection):
            self._idle[connection] = None

    def vacated(self, connection: Connection) -> None:
        self._idle.pop(connection, None)
        if connection in self._living:  # else it never got beyond dialling, whose place `_open` gives back
            self._free_place()

    def ended(self, connection: Connection) -> None:
        self._living.discard(connection)
        if self._emptied is not None and not self._living and not self._emptied.done():
            self._emptied.set_result(None)

    async def _open(self, deadline: float) -> Connection:
        """Dial on a place that is already ours."""
        try:
            connection = await self._dial(self, deadline)
        except BaseException:
            self._free_place()
            raise
        self._living.add(connection)
        if self._closed:
            connection.abort()
            raise UpstreamFailure("pool", sent=False, detail="the upstream client is closed")
        return connection

    async def _queue(self, deadline: float) -> Connection | None:
        """Wait in order for a connection, or for a place (None)."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Connection | None] = loop.create_future()
        self._waiters.append(waiter)
        timer = loop.call_at(deadline, self._refuse, waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._pass_on(waiter.result())
            raise
        finally:
            timer.cancel()

    def _refuse(self, waiter: asyncio.Future[Connection | None]) -> None:
        if not waiter.done():
            self._waiters.remove(waiter)
            detail = f"none of {self._size} connections became free in time"
            waiter.set_exception(UpstreamFailure("pool", sent=False, detail=detail))

    def _pass_on(self, granted: Connection | None) -> None:
        """A waiter was cancelled in the very moment it was served."""
        if granted is None:
            self._free_place()
        elif granted.fresh():
            self.returned(granted)
        else:
            granted.close()

    def _free_place(self) -> None:
        if not self._hand_over(None):
            self._taken -= 1

    def _hand_over(self, granted: Connection | None) -> bool:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(granted)
                return True
        return False
