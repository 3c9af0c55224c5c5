"""The line between the supervisor and a worker: length-prefixed pickles over a socket pair that only they hold.

Its end is a signal too: a worker whose supervisor is gone drains and ends.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
from typing import Any

FRAME_BYTES_MAX = 16 * 1024 * 1024  # a configuration or a metrics snapshot, far below this


class Channel:
    """One end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Channel:
        """Talk over one end of a socket pair."""
        return cls(*await asyncio.open_unix_connection(sock=end))

    def send(self, kind: str, **content: Any) -> None:
        """Say something; lost if the other end is gone."""
        if self._writer.is_closing():
            return
        frame = pickle.dumps((kind, content))
        self._writer.write(len(frame).to_bytes(4, "big") + frame)

    async def receive(self) -> tuple[str, dict[str, Any]] | None:
        """What the other end says next; None when it is gone."""
        try:
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            assert size <= FRAME_BYTES_MAX
            kind, content = pickle.loads(await self._reader.readexactly(size))
            return kind, content
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    def close(self) -> None:
        """End the line."""
        self._writer.close()
