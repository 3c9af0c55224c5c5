"""Large bodies and slow peers (OPT-2, DESIGN decision 15): the gateway holds a few buffers, never a body.

Client and origin are blocking sockets in threads: the bytes are to go through the gateway, not through this process's
loop. What is measured is the worker's peak of resident memory, as the kernel counts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import pytest_asyncio

from tests.e2e.harness import PATIENCE_S
from tests.e2e.wire import Place, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB = 1 << 20
BLOCK = bytes(range(256)) * (MIB // 256)
FRAME = b"%x\r\n%b\r\n" % (len(BLOCK), BLOCK)
GROWTH_KIB_MAX = (
    32 * 1024
)  # what the gateway holds for one exchange is below 1 MiB; the rest is the allocator's freedom
HELD_BYTES_MAX = 32 * MIB  # of a stream that nobody reads: autotuned kernel buffers of four sockets, and ours
STALL_S = 1.0  # a gateway that does not hold back takes a quarter of a GiB in a fraction of this


def digest_of(blocks: int) -> bytes:
    digest = hashlib.sha1(usedforsecurity=False)
    for _ in range(blocks):
        digest.update(BLOCK)
    return digest.digest()


class Stream:
    """A blocking socket with buffered reading of HTTP framing."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self.file = peer.makefile("rb", buffering=MIB)
        self.sent_bytes = 0

    def head(self) -> bytes:
        lines = []
        while (line := self.file.readline()) not in (b"\r\n", b""):
            lines.append(line)
        return b"".join(lines)

    def digest(self, head: bytes) -> bytes:
        """Of the body that follows this head."""
        digest = hashlib.sha1(usedforsecurity=False)
        for size in self._pieces(head.lower()):
            while size:
                data = self.file.read(min(size, MIB))
                if not data:
                    break  # the end of a body that ends with its connection
                digest.update(data)
                size -= len(data)
        return digest.digest()

    def _pieces(self, head: bytes) -> Iterator[int]:
        if b"transfer-encoding: chunked" in head:
            while size := int(self.file.readline(), 16):
                yield size
                assert self.file.readline() == b"\r\n"
            assert self.file.readline() == b"\r\n"
        elif b"content-length: " in head:
            yield int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        else:
            yield 1 << 62

    def send(self, blocks: int, framing: str) -> None:
        """Send a body as fast as it is taken; `sent_bytes` tells how far it got."""
        self.sent_bytes = 0
        for _ in range(blocks):
            view = memoryview(FRAME if framing == "chunked" else BLOCK)
            while view:
                count = self.peer.send(view)
                self.sent_bytes += count
                view = view[count:]
        if framing == "chunked":
            self.peer.sendall(b"0\r\n\r\n")

    def close(self) -> None:
        self.file.close()
        self.peer.close()


def framing_header(framing: str, blocks: int) -> bytes:
    return {
        "length": b"Content-Length: %d\r\n" % (blocks * MIB),
        "chunked": b"Transfer-Encoding: chunked\r\n",
        "close": b"",
    }[framing]


class BlockingOrigin:
    """Sends `/<framing>/<blocks>` to who gets it, and answers an upload with its digest, once `may_read` is set."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.may_read = threading.Event()
        self.may_read.set()
        self.sending: tuple[Stream, threading.Thread] | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(Stream(peer),), daemon=True).start()

    def _serve(self, stream: Stream) -> None:
        with contextlib.suppress(OSError), contextlib.closing(stream):
            while head := stream.head():
                method, target, *_ = head.split(b" ")
                if method == b"GET":
                    framing, blocks = target.decode().split("/")[1:]
                    self.sending = stream, threading.current_thread()
                    stream.peer.sendall(b"HTTP/1.1 200 OK\r\n" + framing_header(framing, int(blocks)) + b"\r\n")
                    stream.send(int(blocks), framing)
                    if framing == "close":
                        return
                else:
                    self.may_read.wait()
                    stream.peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n" + stream.digest(head))


@contextlib.contextmanager
def client(place: Place, request: bytes) -> Iterator[Stream]:
    with socket.create_connection(("127.0.0.1", place.gateway.port), timeout=PATIENCE_S) as peer:
        peer.sendall(request)
        with contextlib.closing(Stream(peer)) as stream:
            yield stream


def get(framing: str, blocks: int) -> bytes:
    return b"GET /%b/%d HTTP/1.1\r\nHost: a\r\n\r\n" % (framing.encode(), blocks)


def post(framing: str, blocks: int) -> bytes:
    return b"POST /x HTTP/1.1\r\nHost: a\r\n" + framing_header(framing, blocks) + b"\r\n"


origin = BlockingOrigin()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(
    tmp_path_factory: pytest.TempPathFactory, postgres_url: str, template_database: str
) -> AsyncIterator[Place]:
    changes = {"upstream": {"url": origin.url}}
    async with serving(tmp_path_factory.mktemp("memory"), postgres_url, template_database, changes) as made:
        yield made
    origin.listener.close()


@contextlib.asynccontextmanager
async def flat_memory(place: Place, growth_kib: int = GROWTH_KIB_MAX) -> AsyncIterator[None]:
    before = await place.worker_kib()
    yield
    assert await place.worker_kib("VmHWM") - before < growth_kib


async def stalls(stream: Stream, sender: threading.Thread) -> None:
    """It is held back: there is time to finish, and it does not."""
    await asyncio.to_thread(sender.join, STALL_S)
    assert sender.is_alive()
    assert stream.sent_bytes < HELD_BYTES_MAX


def in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(("framing", "blocks"), [("length", 1024), ("chunked", 256), ("close", 256)])
async def test_a_large_download_takes_no_memory(place: Place, framing: str, blocks: int) -> None:
    """OPT-2: a GiB, and what is not announced."""

    def download() -> bytes:
        with client(place, get(framing, blocks)) as stream:
            return stream.digest(stream.head())

    async with flat_memory(place):
        assert await asyncio.to_thread(download) == digest_of(blocks)


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_a_large_upload_takes_no_memory(place: Place, framing: str) -> None:
    """OPT-2: a quarter of a GiB."""

    def upload() -> bytes:
        with client(place, post(framing, 256)) as stream:
            stream.send(256, framing)
            stream.head()
            return stream.file.read(20)

    async with flat_memory(place):
        assert await asyncio.to_thread(upload) == digest_of(256)


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
async def test_a_client_that_does_not_read_holds_the_upstream_back(place: Place, framing: str) -> None:
    """OPT-2: the upstream's writes stall; when the client reads on, everything is there."""
    async with flat_memory(place):
        with client(place, get(framing, 256)) as stream:
            head = await asyncio.to_thread(stream.head)
            assert origin.sending is not None
            upstream, sender = origin.sending
            await stalls(upstream, sender)
            assert await asyncio.to_thread(stream.digest, head) == digest_of(256)


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_an_upstream_that_does_not_read_holds_the_client_back(place: Place, framing: str) -> None:
    """OPT-2: the client's writes stall; when the upstream reads on, everything is there."""
    origin.may_read.clear()
    try:
        async with flat_memory(place):
            with client(place, post(framing, 256)) as stream:
                sender = in_thread(lambda: stream.send(256, framing))
                await stalls(stream, sender)
                origin.may_read.set()
                await asyncio.to_thread(stream.head)
                assert await asyncio.to_thread(stream.file.read, 20) == digest_of(256)
                await asyncio.to_thread(sender.join)
    finally:
        origin.may_read.set()


async def test_many_clients_that_do_not_read_take_a_buffer_each(place: Place) -> None:
    """Decision 15: forty answers of 64 MiB each, none of them read, for less than 1 MiB each beyond that freedom."""
    async with flat_memory(place, GROWTH_KIB_MAX + 40 * 1024):
        with contextlib.ExitStack() as clients:
            for _ in range(40):
                stream = clients.enter_context(client(place, get("length", 64)))
                await asyncio.to_thread(stream.head)
