"""The raw connection after an upgrade: a pipe of bytes with backpressure, aware of half-close.

It copies nothing by itself: the edge feeds it what the client sends and gets what the upstream sends through callbacks.
Nothing is read from the upstream before `on_data` is set, so no byte can be missed.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.upstream.connection import Connection


class Tunnel:
    """The upstream's side of an upgraded connection. Set `on_data` last: it starts the flow."""

    def __init__(self, connection: Connection, leftover: bytes) -> None:
        self._connection = connection
        self._leftover = leftover
        self._closed = False
        self._on_data: Callable[[bytes], None] | None = None
        self._on_eof: Callable[[], None] | None = None
        self._on_close: Callable[[Exception | None], None] | None = None
        self._on_pressure: Callable[[bool], None] | None = None
        connection.disarm()
        connection.sink = self

    @property
    def closed(self) -> bool:
        """True once the connection is gone."""
        return self._closed

    def on_data(self, callback: Callable[[bytes], None]) -> None:
        """Where the upstream's bytes go, those that came along with the 101 first. Starts the reading."""
        self._on_data = callback
        leftover, self._leftover = self._leftover, b""
        if leftover:
            callback(leftover)
        self.resume()

    def on_eof(self, callback: Callable[[], None]) -> None:
        """Called when the upstream sends no more but still listens. Without it, its end is the tunnel's."""
        self._on_eof = callback

    def on_close(self, callback: Callable[[Exception | None], None]) -> None:
        """Called once when the connection is gone, with the error if it was not in order."""
        self._on_close = callback

    def on_pressure(self, callback: Callable[[bool], None]) -> None:
        """Called with True when the upstream does not keep up with what is fed, with False when it has caught up."""
        self._on_pressure = callback

    def feed(self, data: bytes) -> None:
        """Bytes for the upstream."""
        if not self._connection.transport.is_closing():
            self._connection.transport.write(data)

    def feed_eof(self) -> None:
        """The client sends no more. Over TLS, which has no half-close, the tunnel is closed."""
        transport = self._connection.transport
        if transport.is_closing():
            return
        if transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()

    def pause(self) -> None:
        """Stop reading from the upstream: the client does not keep up."""
        if not self._closed:
            self._connection.pause_reading()

    def resume(self) -> None:
        """Read from the upstream again."""
        if not self._closed:
            self._connection.resume_reading()

    def close(self) -> None:
        """Close after what was fed has been sent."""
        self._connection.transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._connection.transport.abort()

    # The connection's sink.

    def receive(self, data: bytes) -> None:
        if self._on_data is not None:
            self._on_data(data)
        else:
            self._leftover += data

    def ended(self) -> bool:
        if self._on_eof is None or not self._connection.transport.can_write_eof():
            return False
        self._on_eof()
        return True

    def lost(self, error: Exception | None) -> None:
        self._closed = True
        if self._on_close is not None:
            self._on_close(error)

    def expired(self) -> None:
        self.abort()

    def pressed(self, full: bool) -> None:
        if self._on_pressure is not None:
            self._on_pressure(full)
