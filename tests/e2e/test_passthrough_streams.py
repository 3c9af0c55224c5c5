"""Bodies stream both ways (OPT-2), shown by rendezvous: the next part is sent only when the other end has the last one.

A gateway that holds a part back, in either direction, lets these tests wait until they fail.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.fidelity import ask, get
from tests.e2e.harness import PATIENCE_S
from tests.e2e.wire import Call, Peer, Place, answering, module_place

pytestmark = pytest.mark.asyncio(loop_scope="module")
place = module_place(routes=[{"path": "/orders/**"}])

PARTS = [b"one", b"2", b"three" * 5000, b"\x00" * 70_000, b"last"]
SIZE = sum(map(len, PARTS))
HEADS = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % SIZE,
    "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    "close": b"HTTP/1.1 200 OK\r\n\r\n",
}
UPLOADS = {
    "length": ask(b"POST", b"/x", b"Content-Length: %d" % SIZE),
    "chunked": ask(b"PUT", b"/x", b"Transfer-Encoding: chunked"),
    "not ours": ask(b"POST", b"/orders", b"Transfer-Encoding: chunked"),
}


def framed(framing: str, part: bytes) -> bytes:
    return part if framing in ("length", "close") else b"%x\r\n%b\r\n" % (len(part), part)


async def has_come(event: asyncio.Event) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await event.wait()


async def read_part(peer: Peer, framing: str, count: int) -> bytes:
    if framing != "chunked":
        return await peer.exactly(count)
    data = b""
    while len(data) < count:
        data += await peer.chunk()
    return data


@pytest.mark.parametrize("framing", UPLOADS)
async def test_an_upload_reaches_the_upstream_as_it_is_sent(place: Place, framing: str) -> None:
    """OPT-2: the upstream has each part before the next is sent."""
    came: asyncio.Queue[bytes] = asyncio.Queue()

    async def behave(call: Call) -> None:
        for part in PARTS:
            came.put_nowait(await call.some(len(part)))
        assert framing == "length" or await call.some(1) == b""
        await call.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    place.origin.behave = behave
    peer = await place.peer()
    await peer.send(UPLOADS[framing])
    for part in PARTS:
        await peer.send(framed(framing, part))
        async with asyncio.timeout(PATIENCE_S):
            assert await came.get() == part
    if framing != "length":
        await peer.send(b"0\r\n\r\n")
    assert (await peer.answer()).body == b"ok"
    peer.close()


@pytest.mark.parametrize("version", [b"HTTP/1.1", b"HTTP/1.0"])
@pytest.mark.parametrize("framing", HEADS)
async def test_a_download_reaches_the_client_as_it_is_sent(place: Place, framing: str, version: bytes) -> None:
    """OPT-2: the client has the head and each part before the next is sent."""
    turn: asyncio.Queue[None] = asyncio.Queue()

    async def behave(call: Call) -> None:
        await call.send(HEADS[framing])
        for part in PARTS:
            await turn.get()
            await call.send(framed(framing, part))
        if framing == "chunked":
            await call.send(b"0\r\n\r\n")
        elif framing == "close":
            call.wire.close()

    place.origin.behave = behave
    peer = await place.peer()
    await peer.send(ask(b"GET", b"/x", version=version))
    head = await peer.head()
    assert head.framing == {"length": "length"}.get(framing, "chunked" if version == b"HTTP/1.1" else "close")
    for part in PARTS:
        turn.put_nowait(None)
        assert await read_part(peer, head.framing, len(part)) == part
    if head.framing == "chunked":
        assert await peer.exactly(5) == b"0\r\n\r\n"
    elif head.framing == "close":
        assert await peer.ended() == b""
    peer.close()


async def test_server_sent_events_arrive_one_by_one(place: Place) -> None:
    """OPT-2: text/event-stream is live."""
    turn: asyncio.Queue[int] = asyncio.Queue()

    async def behave(call: Call) -> None:
        await call.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        while (number := await turn.get()) < 100:
            await call.send(framed("chunked", b"id: %d\ndata: event\n\n" % number))
        await call.send(b"0\r\n\r\n")

    place.origin.behave = behave
    peer = await place.peer()
    await peer.send(ask(b"GET", b"/events", b"Accept: text/event-stream", b"Last-Event-ID: 7"))
    head = await peer.head()
    assert head.header(b"content-type") == b"text/event-stream"
    assert place.origin.seen[-1].header(b"last-event-id") == b"7"
    for number in range(100):
        turn.put_nowait(number)
        assert await peer.chunk() == b"id: %d\ndata: event\n\n" % number
    turn.put_nowait(100)
    assert await peer.exactly(5) == b"0\r\n\r\n"
    peer.close()


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_both_directions_stream_at_once(place: Place, framing: str) -> None:
    """OPT-2, full duplex: each part of the request is answered before the next is sent."""

    async def behave(call: Call) -> None:
        await call.send(HEADS["chunked"])
        for part in PARTS:
            await call.send(framed("chunked", (await call.some(len(part))).swapcase()))
        assert framing == "length" or await call.some(1) == b""
        await call.send(b"0\r\n\r\n")

    place.origin.behave = behave
    peer = await place.peer()
    await peer.send(UPLOADS[framing])
    assert (await peer.head()).status == 200
    for part in PARTS:
        await peer.send(framed(framing, part))
        assert await read_part(peer, "chunked", len(part)) == part.swapcase()
    if framing == "chunked":
        await peer.send(b"0\r\n\r\n")
    assert await peer.exactly(5) == b"0\r\n\r\n"
    place.origin.behave = answering(b"HTTP/1.1 204 No Content\r\n\r\n")
    await peer.send(get())
    assert (await peer.answer()).status == 204  # the connection is still in step
    peer.close()


# --- clients that leave


async def start_download(call: Call) -> None:
    await call.body()
    await call.send(HEADS["chunked"], framed("chunked", b"part"))


async def say_nothing(call: Call) -> None:
    await call.body()


LEAVING = {
    "before the head": (get(), say_nothing),
    "within the answer": (get(), start_download),
    "within the answer to a post": (UPLOADS["length"] + b"".join(PARTS), start_download),
    "within the upload": (UPLOADS["length"] + PARTS[0], None),
    "within a chunked upload": (UPLOADS["chunked"] + b"3\r\none\r\n", None),
}


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("when", LEAVING)
async def test_a_client_that_leaves_aborts_the_upstream_exchange(place: Place, when: str, how: str) -> None:
    """DESIGN decision 8: nobody works for a client that is gone; half an upload never looks whole."""
    request, begin = LEAVING[when]
    came, cut = asyncio.Event(), asyncio.Event()

    async def behave(call: Call) -> None:
        if begin is None:
            await call.some(len(PARTS[0]))
        else:
            await begin(call)
        came.set()
        try:
            rest = await call.wire.reader.read()
        except ConnectionError:
            rest = b""
        assert rest == b""  # no last chunk, no padding
        cut.set()
        call.wire.close()

    place.origin.behave = behave
    peer = await place.peer()
    await peer.send(request)
    await has_come(came)
    if begin is start_download:
        assert (await peer.head()).status == 200
        assert await peer.chunk() == b"part"
    if how == "close":
        peer.close()
    else:
        peer.reset()
    await has_come(cut)


# --- upstreams that die


@pytest.mark.parametrize("version", [b"HTTP/1.1", b"HTTP/1.0"])
@pytest.mark.parametrize(
    ("framing", "how"),
    [("length", "close"), ("length", "reset"), ("chunked", "close"), ("chunked", "reset"), ("close", "reset")],
)
async def test_an_upstream_that_dies_within_its_answer_cuts_the_client_off(
    place: Place, framing: str, version: bytes, how: str
) -> None:
    """OPT-2: what is not whole must never look whole; where only the end of the connection tells, it is a reset."""
    received = asyncio.Event()

    async def behave(call: Call) -> None:
        await call.send(HEADS[framing], framed(framing, PARTS[0]))
        await received.wait()
        if how == "reset":
            call.wire.reset()
        else:
            call.wire.close()

    place.origin.behave = behave
    peer = await place.peer()
    await peer.send(ask(b"GET", b"/x", version=version))
    head = await peer.head()
    assert await read_part(peer, head.framing, len(PARTS[0])) == PARTS[0]
    received.set()
    async with asyncio.timeout(PATIENCE_S):
        if head.framing == "close":
            with pytest.raises(ConnectionResetError):
                await peer.reader.read()
        else:
            assert await peer.ended() == b""  # and so neither the announced length nor a last chunk
    peer.close()


async def test_an_upstream_that_sends_too_little_or_garbage_cuts_the_client_off(place: Place) -> None:
    """OPT-2: broken framing in the middle of an answer is no end either."""
    for rest in (b"zz\r\n", b"3\r\nabcd\r\n", b"ffffffffffffffffff\r\n"):
        place.origin.behave = answering(HEADS["chunked"], framed("chunked", b"good"), rest)
        answer = await place.through(get())
        assert answer.status in (200, 502)
        assert answer.status == 502 or not answer.whole
