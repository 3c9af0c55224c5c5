"""A server that knows when each request reached it: the kernel's own time of its last byte, not when somebody read it.

Two loops, threads or processes that read two sockets see them in the order in which they were scheduled. The kernel
stamps a segment when it arrives, in one clock for every socket of the machine (SO_TIMESTAMPNS), so the stamps of two
servers tell their order on the wire.
"""

from __future__ import annotations

import selectors
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SO_TIMESTAMPNS = 35  # Linux, asm-generic/socket.h; the name is not in `socket`
STAMP = struct.Struct("@qq")  # a timespec: seconds, nanoseconds


@dataclass
class _Peer:
    """What a connection has sent of its next request."""

    socket: socket.socket
    received: bytes = b""


class StampedServer:
    """Answers every request with the same bytes, on a thread of its own; `stamps` are its requests by name.

    `name` tells what to call a request by its body.
    """

    def __init__(self, answer: bytes, name: Callable[[bytes], str]) -> None:
        self.stamps: dict[str, int] = {}
        self._answer = answer
        self._name = name
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._listener.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)  # accepted sockets inherit it
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._stop, self._stopped = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="stamped server")

    def __enter__(self) -> StampedServer:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.close()
        self._thread.join()
        self._stopped.close()
        self._listener.close()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._stopped, selectors.EVENT_READ)
            peers: list[_Peer] = []
            try:
                while True:
                    for key, _ in selector.select():
                        if key.fileobj is self._stopped:
                            return
                        if key.fileobj is self._listener:
                            peers.append(_Peer(self._listener.accept()[0]))
                            selector.register(peers[-1].socket, selectors.EVENT_READ, peers[-1])
                        elif not self._read(key.data):
                            selector.unregister(key.data.socket)
            finally:
                for peer in peers:
                    peer.socket.close()

    def _read(self, peer: _Peer) -> bool:
        """Take what came, answer if that was the end of a request; False at the end of the connection."""
        try:
            data, ancillary, _, _ = peer.socket.recvmsg(1 << 16, socket.CMSG_SPACE(STAMP.size))
        except ConnectionError:
            return False
        peer.received += data
        head, found, body = peer.received.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0] or 0) if found else 0
        if found and len(body) >= length:
            assert len(body) == length, "a second request before the answer to the first"
            ((_, _, stamp),) = ancillary
            seconds, nanoseconds = STAMP.unpack(stamp)
            self.stamps[self._name(body)] = seconds * 10**9 + nanoseconds
            peer.received = b""
            peer.socket.sendall(self._answer)
        return bool(data)
