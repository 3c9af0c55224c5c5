"""One connection to the upstream: bytes in and out, one deadline, and whether it can be used again.

It knows sockets and time, not HTTP: what arrives goes to its sink, an exchange or a tunnel. One timer serves the wait
for a head, for body bytes and the idle life; it is moved lazily, so a request costs no timer of its own.
"""

from __future__ import annotations

import asyncio
import select
from math import inf
from typing import Protocol, cast


class Sink(Protocol):
    """Who listens on a connection."""

    def receive(self, data: bytes) -> None:
        """Bytes from the upstream."""

    def ended(self) -> bool:
        """The upstream sends no more; True keeps our direction open."""

    def lost(self, error: Exception | None) -> None:
        """The connection is gone."""

    def expired(self) -> None:
        """The deadline that was armed has passed."""

    def pressed(self, full: bool) -> None:
        """The send buffer is full, or has room again."""


class Owner(Protocol):
    """Who keeps connections between exchanges: the pool."""

    def returned(self, connection: Connection) -> None:
        """It is idle and can be used again."""

    def vacated(self, connection: Connection) -> None:
        """It will not be used again; its place is free."""

    def ended(self, connection: Connection) -> None:
        """Its socket is closed."""


class Connection(asyncio.Protocol):
    """A socket with a sink while in use, without one while idle."""

    __slots__ = (
        "_deadline",
        "_idle_s",
        "_owner",
        "_poll",
        "_reading",
        "_timer",
        "_timer_at",
        "_vacated",
        "loop",
        "sink",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, loop: asyncio.AbstractEventLoop, owner: Owner, idle_s: float) -> None:
        self.loop = loop
        self.sink: Sink | None = None
        self._owner = owner
        self._idle_s = idle_s
        self._reading = True
        self._vacated = False
        self._deadline = inf
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._poll = select.poll()

    def fresh(self) -> bool:
        """True if an idle connection can carry a request.

        Asked of the kernel each time (a quarter of a microsecond): readable while idle means that the upstream has
        closed it or sent bytes that nobody asked for, which the event loop may not have seen yet. A request sent then
        would be in doubt.
        """
        return not self._vacated and self.loop.time() < self._deadline and not self.readable()

    def readable(self) -> bool:
        """True if the kernel holds something for us: bytes, an end or an error."""
        return bool(self._poll.poll(0))

    @property
    def closing(self) -> bool:
        """True if nothing can be sent any more."""
        return self._vacated or self.transport.is_closing()

    def arm(self, delay_s: float) -> None:
        """Let the sink expire (or the idle connection close) after `delay_s`, in place of any earlier deadline."""
        self._deadline = deadline = self.loop.time() + delay_s
        if deadline < self._timer_at:
            self._schedule(deadline)

    def disarm(self) -> None:
        """No deadline: the timer stays, and does nothing when it fires."""
        self._deadline = inf

    def pause_reading(self) -> None:
        """Stop taking bytes from the socket."""
        if self._reading:
            self._reading = False
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Take bytes from the socket again."""
        if not self._reading:
            self._reading = True
            if not self.transport.is_closing():
                self.transport.resume_reading()

    def release(self, keep_for_s: float = inf) -> None:
        """The exchange ended cleanly: back to the owner, for at most `keep_for_s`."""
        self.sink = None
        keep_for_s = min(keep_for_s, self._idle_s)
        if keep_for_s <= 0 or self.closing:
            self.close()
            return
        self.resume_reading()
        self.arm(keep_for_s)
        self._owner.returned(self)

    def close(self) -> None:
        """Close in order; unsent bytes are given up."""
        self.sink = None
        self.leave_pool()
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def abort(self) -> None:
        """Close at once. The sink, if any, hears of it as a lost connection."""
        self.leave_pool()
        self.transport.abort()

    def leave_pool(self) -> None:
        """Give the place in the pool up; the connection itself may live on as a tunnel."""
        if not self._vacated:
            self._vacated = True
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
                self._timer_at = inf
            self._owner.vacated(self)

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        sink = self.sink
        if sink is not None:
            sink.receive(data)
        else:
            self.abort()  # nobody asked for these bytes: the next answer could not be told from them

    def eof_received(self) -> bool:
        if self.sink is not None:
            return self.sink.ended()
        self.leave_pool()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.leave_pool()
        sink, self.sink = self.sink, None
        if sink is not None:
            sink.lost(exc)
        self._owner.ended(self)

    def pause_writing(self) -> None:
        if self.sink is not None:
            self.sink.pressed(True)

    def resume_writing(self) -> None:
        if self.sink is not None:
            self.sink.pressed(False)

    def _schedule(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self.loop.call_at(deadline, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._timer_at = inf
        deadline = self._deadline
        if deadline == inf:
            return
        if self.loop.time() < deadline:
            self._schedule(deadline)  # it was moved since the timer was set
            return
        self._deadline = inf
        if self.sink is not None:
            self.sink.expired()
        else:
            self.close()
