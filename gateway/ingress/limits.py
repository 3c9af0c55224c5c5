"""What clients may take of a worker: time, size, and memory for bodies (decisions 13 and 15)."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.ingress import refusals


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    """Time and size that one connection may take."""

    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    idle_timeout_s: float = 75.0  # also how long a client may take no byte of an answer
    max_header_bytes: int = 32 * 1024
    max_headers: int = 256
    linger_s: float = 1.0  # P1-9
    linger_bytes: int = 1024 * 1024  # P1-9
    read_buffer_bytes: int = 64 * 1024  # a streamed body is read ahead by twice this and one read of the socket


class BufferBudget:
    """Bytes of bodies held by a worker, with a ceiling (`limits.buffered`).

    Not a queue: who finds it full is sent away with 503 and comes back.
    """

    __slots__ = ("held_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0

    def check(self, count: int) -> None:
        """Raise the 503 if `count` more bytes would not fit now. Holds nothing: a promise of bytes blocks nobody."""
        if self.held_bytes + count > self.limit_bytes:
            raise refusals.buffers_full()

    def acquire(self, count: int) -> None:
        """Hold `count` more bytes, or raise the 503 that says to retry."""
        held_bytes = self.held_bytes + count
        if held_bytes > self.limit_bytes:
            raise refusals.buffers_full()
        self.held_bytes = held_bytes

    def release(self, count: int) -> None:
        """Give `count` bytes back."""
        self.held_bytes -= count
        assert self.held_bytes >= 0, "more bytes were released than held"
