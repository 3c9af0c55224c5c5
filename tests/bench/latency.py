"""One connection, one request after the other: what a handshake adds over two bare round trips.

A blocking socket and a clock; the client's own cost is in both figures and cancels out. Both are taken in turn, so that
whatever else the machine does meets both alike.
"""

from __future__ import annotations

import socket
import statistics
import time
from dataclasses import dataclass

from tests.bench.programs import BenchError

TIMEOUT_S = 10.0
WARM_UP = 100
BODY = b'{"item": "' + b"b" * 1012 + b'"}'
AUTHORIZATION = b"Authorization: Bearer bench\r\n"
ENABLED = b"DTT-2PHP-Enabled: true\r\n"
SERVER_ID = b"DTT-2PHP-Server-Correlation-ID: "


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds of a handshake and of two bare round trips; of a transparent request and of one bare one."""

    handshakes: int
    handshake_p50_ms: float
    handshake_p99_ms: float
    bare_p50_ms: float
    bare_p99_ms: float
    transparent_p50_ms: float
    one_bare_p50_ms: float

    @property
    def transparent_added_p50_ms(self) -> float:
        return self.transparent_p50_ms - self.one_bare_p50_ms

    @property
    def added_p50_ms(self) -> float:
        return self.handshake_p50_ms - self.bare_p50_ms


def measure(port: int, prefix: str, count: int) -> Latency:
    """`count` handshakes and as many pairs of bare requests, in turn."""
    handshakes: list[float] = []
    bare: list[float] = []
    one_bare: list[float] = []
    transparent: list[float] = []
    clock = time.perf_counter
    with Client(port) as client:
        for number in range(WARM_UP + count):
            started = clock()
            client.bare(BODY)
            one_bare.append((clock() - started) * 1e3)
            client.bare(b"")
            between = clock()
            client.handshake(b"%b%d" % (prefix.encode(), number))
            ended = clock()
            bare.append((between - started) * 1e3)
            handshakes.append((ended - between) * 1e3)
            client.transparent(BODY)
            transparent.append((clock() - ended) * 1e3)
    handshake_p50, handshake_p99 = _p50_p99(handshakes[WARM_UP:])
    bare_p50, bare_p99 = _p50_p99(bare[WARM_UP:])
    transparent_p50, _ = _p50_p99(transparent[WARM_UP:])
    one_bare_p50, _ = _p50_p99(one_bare[WARM_UP:])
    return Latency(count, handshake_p50, handshake_p99, bare_p50, bare_p99, transparent_p50, one_bare_p50)


@dataclass(frozen=True, slots=True)
class BlackHole:
    """Milliseconds of an auto-confirm call without a callback, and with one to a host that never answers."""

    calls: int
    plain_p99_ms: float
    black_hole_p99_ms: float

    @property
    def added_p99_ms(self) -> float:
        return self.black_hole_p99_ms - self.plain_p99_ms


def measure_black_hole(port: int, prefix: str, count: int) -> BlackHole:
    """ACM-2: `count` calls of each kind, in turn. The host takes connections and never says a word."""
    plain: list[float] = []
    lost: list[float] = []
    clock = time.perf_counter
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as hole, Client(port) as client:
        callback = b"DTT-2PHP-Callback: http://127.0.0.1:%d/\r\n" % hole.getsockname()[1]
        for number in range(WARM_UP + count):
            started = clock()
            client.auto(b"%bp%d" % (prefix.encode(), number), b"")
            between = clock()
            client.auto(b"%bb%d" % (prefix.encode(), number), callback)
            ended = clock()
            plain.append((between - started) * 1e3)
            lost.append((ended - between) * 1e3)
    return BlackHole(count, _p50_p99(plain[WARM_UP:])[1], _p50_p99(lost[WARM_UP:])[1])


class Client:
    """A keep-alive connection to the gateway."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._host = b"Host: 127.0.0.1:%d\r\n" % port

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def bare(self, body: bytes) -> None:
        """The same request without a word of 2PHP: passed through."""
        self._ask(b"/orders", AUTHORIZATION, body)

    def transparent(self, body: bytes) -> None:
        """The same on a transparent route: the gateway does it all by itself."""
        self._ask(b"/transparent", AUTHORIZATION, body)

    def auto(self, client_id: bytes, callback: bytes) -> None:
        """One round trip with an ID, with or without a callback."""
        ids = AUTHORIZATION + ENABLED + b"DTT-2PHP-Client-Correlation-ID: %b\r\n" % client_id
        head = self._ask(b"/orders", ids + b"DTT-2PHP-Auto-Confirm: true\r\n" + callback, BODY)
        if b"DTT-2PHP-Phase-State: COMMITTED" not in head:
            raise BenchError("an auto-confirm call was answered, but not committed")

    def handshake(self, client_id: bytes) -> None:
        """Both phases."""
        ids = AUTHORIZATION + ENABLED + b"DTT-2PHP-Client-Correlation-ID: %b\r\n" % client_id
        head = self._ask(b"/orders", ids, BODY)
        start = head.index(SERVER_ID)
        server_id = head[start : head.index(b"\r\n", start) + 2]
        if b"DTT-2PHP-Phase-State: COMMITTED" not in self._ask(b"/orders/confirm", ids + server_id, b""):
            raise BenchError("a confirmation was answered, but not committed")

    def _ask(self, target: bytes, headers: bytes, body: bytes) -> bytes:
        """Send a request and read its answer; returns the answer's head."""
        self._socket.sendall(
            b"POST %b HTTP/1.1\r\n%b%bContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (target, self._host, headers, len(body), body)
        )
        answer = b""
        while (end := answer.find(b"\r\n\r\n")) < 0:
            answer += self._receive()
        head = answer[: end + 2]
        if not head.startswith(b"HTTP/1.1 200 "):
            raise BenchError(f"the gateway answered {answer!r}")
        start = head.lower().index(b"\r\ncontent-length: ") + len(b"\r\ncontent-length: ")
        missing = int(head[start : head.index(b"\r\n", start)]) - (len(answer) - end - 4)
        while missing > 0:
            missing -= len(self._receive())
        return head

    def _receive(self) -> bytes:
        part = self._socket.recv(65536)
        if not part:
            raise BenchError("the gateway closed the connection")
        return part


def _p50_p99(taken: list[float]) -> tuple[float, float]:
    percentiles = statistics.quantiles(taken, n=100)
    return statistics.median(taken), percentiles[98]
