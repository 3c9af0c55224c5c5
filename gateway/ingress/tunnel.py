"""Bytes both ways after an upgrade (OPT-2): the client's connection spliced to the upstream's.

Nothing is parsed and nothing is kept: each side is read only as fast as the other takes it, an end of one direction is
passed on as such, and a loss of either side ends both. Two open directions may be silent for ever; one alone may not,
because a peer that is gone for good looks just like one that only stopped sending.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class ClientGone(ConnectionResetError):
    """The client closed the connection; nobody is left to answer."""


class BytePipe(Protocol):
    """The upstream's side of an upgraded connection. Setting `on_data` starts its flow."""

    def on_data(self, callback: Callable[[bytes], None]) -> None: ...
    def on_eof(self, callback: Callable[[], None]) -> None: ...
    def on_close(self, callback: Callable[[Exception | None], None]) -> None: ...
    def on_pressure(self, callback: Callable[[bool], None]) -> None: ...
    def feed(self, data: bytes) -> None: ...
    def feed_eof(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


class Splice:
    """Two connections as one. The edge calls `receive`, `ended`, `lost` and `pressed` for the client's side."""

    __slots__ = ("_client", "_client_ended", "_closed", "_half_open", "_pipe", "_pipe_ended")

    def __init__(self, pipe: BytePipe, client: asyncio.Transport, half_open: Callable[[], None]) -> None:
        """`half_open` starts, and with every byte restarts, the time that a tunnel with one direction left may take."""
        self._pipe = pipe
        self._client = client
        self._half_open = half_open
        self._client_ended = False
        self._pipe_ended = False
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Let the bytes flow until both sides have ended or one is lost."""
        pipe = self._pipe
        pipe.on_eof(self._upstream_ended)
        pipe.on_close(self._upstream_lost)
        pipe.on_pressure(self._upstream_pressed)
        pipe.on_data(self._to_client)
        await self._closed

    # The client's side.

    def receive(self, data: bytes) -> None:
        if self._pipe_ended:
            self._half_open()
        self._pipe.feed(data)

    def ended(self) -> bool:
        """The client sends no more; True keeps the other direction open."""
        self._client_ended = True
        self._pipe.feed_eof()
        self._settle()
        return not self._closed.done()

    def lost(self) -> None:
        self._client_ended = True
        self._pipe.close()
        self._finish()

    def pressed(self, full: bool) -> None:
        if full:
            self._pipe.pause()
        else:
            self._pipe.resume()

    # The upstream's side.

    def _to_client(self, data: bytes) -> None:
        if self._client_ended:
            self._half_open()
        if not self._client.is_closing():
            self._client.write(data)

    def _upstream_ended(self) -> None:
        self._pipe_ended = True
        if not self._client.is_closing():
            if self._client.can_write_eof():
                self._client.write_eof()
            else:
                self._client.close()
        self._settle()

    def _upstream_lost(self, error: Exception | None) -> None:
        self._pipe_ended = True
        self._client.close()  # what is still to be sent to the client is sent
        self._finish()

    def _upstream_pressed(self, full: bool) -> None:
        if self._client.is_closing():
            return
        if full:
            self._client.pause_reading()
        else:
            self._client.resume_reading()

    def _settle(self) -> None:
        if self._client_ended and self._pipe_ended:
            self._client.close()
            self._pipe.close()
            self._finish()
        else:
            self._half_open()

    def _finish(self) -> None:
        if not self._closed.done():
            self._closed.set_result(None)
