"""What a chunked body costs on the wire, and whether it ended without trailers (decision 13).

Two watches over raw bytes that the HTTP parser does not keep. A chunk may carry extensions of any length around one
byte, so a limit on the payload alone does not bound the work. And the parser keeps the last trailer of one request
and hands it to the next request of the connection as a header: a connection whose chunked body did not end plainly must
carry no further request.
"""

from __future__ import annotations

from typing import Final

from aiohttp.http import RawRequestMessage

# One byte per chunk costs five bytes of framing; eight leaves room for padded sizes. Extensions beyond that must fit
# the free part.
OVERHEAD_RATIO: Final = 8
OVERHEAD_FREE_BYTES: Final = 16 * 1024

_PLAIN_END: Final = b"\r\n0\r\n\r\n"


class ChunkedWatch:
    """The wire bytes of one chunked body while it arrives."""

    __slots__ = ("_tail", "_wire_bytes")

    def __init__(self, wire_bytes: int, segment: bytes) -> None:
        self._wire_bytes = wire_bytes
        self._tail = segment[-len(_PLAIN_END) :]

    def saw(self, segment: bytes) -> None:
        """More bytes came, of the body or of what is behind it."""
        self._wire_bytes += len(segment)
        size = len(_PLAIN_END)
        self._tail = segment[-size:] if len(segment) >= size else (self._tail + segment)[-size:]

    def overspent(self, payload_bytes: int) -> bool:
        """True if the framing costs more than the payload justifies."""
        return self._wire_bytes - payload_bytes > OVERHEAD_FREE_BYTES + OVERHEAD_RATIO * payload_bytes

    @property
    def ended_plainly(self) -> bool:
        """True if the last bytes seen are a last chunk without trailers, and nothing is behind it."""
        return self._tail == _PLAIN_END


def head_bytes(message: RawRequestMessage) -> int:
    """The size of a request head as it is usually written."""
    size = len(message.method) + len(message.path) + len(" HTTP/1.1\r\n \r\n")
    for name, value in message.raw_headers:
        size += len(name) + len(value) + len(": \r\n")
    return size
