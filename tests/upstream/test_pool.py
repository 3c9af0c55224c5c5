"""The pool: bounded, in order, and with no place lost whatever happens to those who hold one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from gateway.upstream import Upstream, UpstreamFailure
from gateway.upstream.connection import Connection
from tests.upstream.fake import OK, WAIT_S, FakeUpstream, Wire, body_of, get, send, until


def gated(fake: FakeUpstream) -> asyncio.Event:
    """Every answer waits for the event."""
    gate = asyncio.Event()

    async def script(wire: Wire) -> None:
        while True:
            await wire.request()
            await gate.wait()
            await wire.send(OK)

    fake.script = script
    return gate


async def test_never_more_connections_than_the_pool_allows(
    fake: FakeUpstream, connect: Callable[..., Upstream]
) -> None:
    client = connect(pool_max=3)
    exchanges = await asyncio.gather(*(get(client, b"/%d" % n) for n in range(30)))
    assert [exchange.status for exchange in exchanges] == [200] * 30
    assert len(fake.wires) <= 3
    assert client.connections == client.idle_connections <= 3


async def test_waiters_are_served_in_their_order(fake: FakeUpstream, connect: Callable[..., Upstream]) -> None:
    gate = gated(fake)
    client = connect(pool_max=1)
    pending = []
    for number in range(5):
        pending.append(asyncio.ensure_future(get(client, b"/%d" % number)))
        await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*pending)
    assert [seen.line.split()[1] for seen in fake.requests] == [b"/0", b"/1", b"/2", b"/3", b"/4"]


async def test_no_free_connection_in_time_was_never_sent(fake: FakeUpstream, connect: Callable[..., Upstream]) -> None:
    """REC-4: an exhausted pool is one of the failures that may be retried."""
    gate = gated(fake)
    client = connect(pool_max=1, connect_timeout_s=0.1)
    first = asyncio.ensure_future(get(client))
    await until(lambda: len(fake.requests) == 1)
    with pytest.raises(UpstreamFailure) as failure:
        await send(client, "PUT", body=b"x")
    assert (failure.value.kind, failure.value.sent) == ("pool", False)
    gate.set()
    assert (await first).status == 200
    assert (await get(client)).status == 200
    assert len(fake.wires) == 1


async def test_a_waiter_gets_the_place_of_a_connection_that_ended(
    fake: FakeUpstream, connect: Callable[..., Upstream]
) -> None:
    async def script(wire: Wire) -> None:
        await wire.request()
        wire.close()

    fake.script = script
    client = connect(pool_max=1)
    results = await asyncio.gather(*(get(client) for _ in range(5)), return_exceptions=True)
    assert [getattr(result, "kind", result) for result in results] == ["reset"] * 5
    assert len(fake.wires) == 5
    assert client.connections == 0


@pytest.mark.parametrize(
    "moment", ["waiting for a place", "connecting", "waiting for the head", "reading", "uploading"]
)
async def test_cancelling_closes_the_connection_and_frees_its_place(
    fake: FakeUpstream, connect: Callable[..., Upstream], moment: str
) -> None:
    client = connect(pool_max=1)
    opened, source_closed = asyncio.Event(), asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.head()
        if moment == "reading":
            await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
        await wire.until_peer_closes()

    async def source() -> AsyncIterator[bytes]:
        try:
            yield b"x"
            await asyncio.Event().wait()
        finally:
            source_closed.set()

    async def exchange() -> None:
        if moment == "uploading":
            await send(client, "POST", headers=[(b"Transfer-Encoding", b"chunked")], body=source())
        else:
            answer = await get(client)
            opened.set()
            await answer.read(100)

    fake.script = script
    holder = asyncio.ensure_future(exchange())
    if moment == "connecting":
        await asyncio.sleep(0)
    else:
        await until(lambda: len(fake.requests) == 1)
    if moment == "reading":
        await opened.wait()
    cancelled = asyncio.ensure_future(exchange()) if moment == "waiting for a place" else holder
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    if cancelled is not holder:
        assert client.connections == 1
        holder.cancel()
        with pytest.raises(asyncio.CancelledError):
            await holder
    assert client.connections == 0
    if moment == "uploading":
        await asyncio.wait_for(source_closed.wait(), WAIT_S)
    for wire in fake.wires:
        await wire.closed_by_peer()
    fake.answer(OK)
    assert await body_of(await get(client)) == b"ok"


@pytest.mark.parametrize("handed", ["a connection", "a place"])
async def test_a_waiter_cancelled_as_it_is_served_passes_it_on(
    fake: FakeUpstream, connect: Callable[..., Upstream], monkeypatch: pytest.MonkeyPatch, handed: str
) -> None:
    gate = gated(fake)
    client = connect(pool_max=1)
    first = asyncio.ensure_future(get(client))
    await until(lambda: len(fake.requests) == 1)
    second, third = asyncio.ensure_future(get(client)), asyncio.ensure_future(get(client))
    await asyncio.sleep(0)
    hand_over = client._pool._hand_over

    def hand_over_and_cancel(granted: Connection | None) -> bool:
        handed_over = hand_over(granted)
        second.cancel()  # before it could run
        return handed_over

    monkeypatch.setattr(client._pool, "_hand_over", hand_over_and_cancel)
    if handed == "a place":
        first.cancel()
        await until(first.done)
    gate.set()
    assert (await third).status == 200
    assert second.cancelled()
    assert client.connections == client.idle_connections == 1
    assert len(fake.wires) == (1 if handed == "a connection" else 2)


async def test_abort_is_safe_at_any_time(fake: FakeUpstream, client: Upstream) -> None:
    done = await get(client)
    done.abort()
    assert client.idle_connections == 1
    assert await body_of(done) == b"ok"

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
        await wire.until_peer_closes()

    fake.script = script
    await client.close()
    client = Upstream(fake.url, connect_timeout_s=WAIT_S)
    unread = await get(client)
    unread.abort()
    unread.abort()
    assert client.connections == 0
    with pytest.raises(UpstreamFailure):
        await unread.read(100)
    waiting = await get(client)
    reading = asyncio.ensure_future(waiting.read(100))
    await asyncio.sleep(0)
    waiting.abort()
    with pytest.raises(UpstreamFailure):
        await reading
    assert client.connections == 0
    await client.close()


async def test_idle_connections_expire(fake: FakeUpstream, connect: Callable[..., Upstream]) -> None:
    client = connect(idle_s=0.05)
    await get(client)
    assert client.idle_connections == 1
    await fake.wires[0].closed_by_peer()
    assert client.connections == 0
    assert (await get(client)).status == 200


async def test_a_busy_connection_outlives_the_idle_time(fake: FakeUpstream, connect: Callable[..., Upstream]) -> None:
    """The one timer of a connection serves idle time and deadlines in turn."""

    async def script(wire: Wire) -> None:
        while True:
            await wire.request()
            await asyncio.sleep(0.15)
            await wire.send(OK)

    fake.script = script
    client = connect(idle_s=0.1)
    for _ in range(3):
        assert (await get(client)).status == 200
    assert len(fake.wires) == 1


async def test_the_upstreams_keep_alive_time_is_honoured(fake: FakeUpstream, client: Upstream) -> None:
    fake.answer(b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=1\r\nContent-Length: 0\r\n\r\n")
    await get(client)  # a second less one for the margin is no time at all
    assert client.connections == 0


async def test_close_ends_what_is_idle_used_and_waited_for(
    fake: FakeUpstream, connect: Callable[..., Upstream]
) -> None:
    fake.answer()
    client = connect(pool_max=1)
    first = asyncio.ensure_future(send(client, "PUT", body=b"x"))
    await until(lambda: len(fake.requests) == 1)
    second = asyncio.ensure_future(get(client))
    await asyncio.sleep(0)
    await client.close()
    failures = await asyncio.gather(first, second, return_exceptions=True)
    assert [(f.kind, f.sent) for f in failures if isinstance(f, UpstreamFailure)] == [("reset", True), ("pool", False)]
    with pytest.raises(UpstreamFailure) as failure:
        await get(client)
    assert (failure.value.kind, failure.value.sent) == ("pool", False)
    await fake.wires[0].closed_by_peer()
