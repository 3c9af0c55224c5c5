"""WebSockets through the gateway (OPT-2), between a real client and a real server: `websockets` on both ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosedError, ConnectionClosedOK, InvalidStatus
from websockets.http11 import Request, Response

from tests.e2e.harness import PATIENCE_S
from tests.e2e.wire import Place, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB = 1 << 20
Talk = Callable[[ServerConnection], Awaitable[None]]


class Service:
    """A WebSocket server whose talk a test chooses; `/forbidden` is refused."""

    def __init__(self) -> None:
        self.talk: Talk = echo
        self.asked: list[Request] = []

    async def handle(self, connection: ServerConnection) -> None:
        await self.talk(connection)

    def judge(self, connection: ServerConnection, request: Request) -> Response | None:
        self.asked.append(request)
        return connection.respond(403, "not you\n") if request.path.startswith("/forbidden") else None


async def echo(connection: ServerConnection) -> None:
    with contextlib.suppress(ConnectionClosedError):
        async for message in connection:
            await connection.send(message)


service = Service()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(
    tmp_path_factory: pytest.TempPathFactory, postgres_url: str, template_database: str
) -> AsyncIterator[Place]:
    server: Server
    async with serve(
        service.handle,
        "127.0.0.1",
        0,
        process_request=service.judge,
        select_subprotocol=lambda _, offered: offered[0] if offered else None,
        max_size=64 * MIB,
        compression="deflate",
        ping_interval=None,
    ) as server:
        changes = {"upstream": {"url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}}
        async with serving(tmp_path_factory.mktemp("ws"), postgres_url, template_database, changes) as made:
            yield made


@contextlib.asynccontextmanager
async def talking(
    place: Place, talk: Talk = echo, path: str = "/chat", **options: object
) -> AsyncIterator[ClientConnection]:
    service.talk = talk
    settings: dict[str, object] = {"max_size": 64 * MIB, "ping_interval": None, "compression": None, **options}
    async with asyncio.timeout(PATIENCE_S):
        async with connect(f"ws://127.0.0.1:{place.gateway.port}{path}", **settings) as client:  # type: ignore[arg-type]
            yield client


@pytest.mark.parametrize("compression", [None, "deflate"])
async def test_text_and_binary_messages_come_back_as_they_are(place: Place, compression: str | None) -> None:
    """OPT-2: of no byte and of many, in order."""
    messages: list[str | bytes] = ["", b"", "text", "ünï☃", b"\x00\xff" * 300, "x" * 70_000, b"y" * 200_000]
    async with talking(place, compression=compression) as client:
        for message in messages:
            await client.send(message)
        for message in messages:
            assert await client.recv() == message


async def test_the_handshake_is_passed_on(place: Place) -> None:
    """OPT-2: path, query, origin, cookies and subprotocol reach the server; its choice reaches the client."""
    async with talking(
        place,
        path="/chat/%2F?room=1&",
        subprotocols=["chat.v1", "other"],
        origin="https://shop.test",
        additional_headers={"Cookie": "a=1", "Authorization": "Bearer me"},
    ) as client:
        assert client.subprotocol == "chat.v1"
    asked = service.asked[-1]
    assert asked.path == "/chat/%2F?room=1&"
    assert (asked.headers["Origin"], asked.headers["Cookie"]) == ("https://shop.test", "a=1")
    assert (asked.headers["Authorization"], asked.headers["X-Forwarded-For"]) == ("Bearer me", "127.0.0.1")


async def test_pings_are_answered_by_the_other_end(place: Place) -> None:
    """OPT-2: a pong carries the ping's own bytes, both ways."""
    answered = asyncio.Event()

    async def ping_back(connection: ServerConnection) -> None:
        await (await connection.ping(b"from the server"))
        answered.set()
        await echo(connection)

    async with talking(place, ping_back) as client:
        assert await (await client.ping(b"from the client")) >= 0
        await answered.wait()


@pytest.mark.parametrize(("code", "reason"), [(1000, ""), (1001, "going away"), (4321, "bye ☃"), (1011, "x" * 120)])
async def test_the_clients_close_code_reaches_the_server(place: Place, code: int, reason: str) -> None:
    """OPT-2."""
    closed: asyncio.Future[tuple[int | None, str | None]] = asyncio.get_running_loop().create_future()

    async def listen(connection: ServerConnection) -> None:
        await connection.wait_closed()
        closed.set_result((connection.close_code, connection.close_reason))

    async with talking(place, listen) as client:
        await client.close(code, reason)
        assert await closed == (code, reason)


@pytest.mark.parametrize(("code", "reason"), [(1000, ""), (1001, "restarting"), (4000, "ünï")])
async def test_the_servers_close_code_reaches_the_client(place: Place, code: int, reason: str) -> None:
    """OPT-2."""

    async def hang_up(connection: ServerConnection) -> None:
        await connection.send("last words")
        await connection.close(code, reason)

    async with talking(place, hang_up) as client:
        assert await client.recv() == "last words"
        with pytest.raises((ConnectionClosedOK, ConnectionClosedError)):
            await client.recv()
        assert (client.close_code, client.close_reason) == (code, reason)


async def test_a_refused_handshake_is_the_servers_own_answer(place: Place) -> None:
    """OPT-2: no upgrade, an ordinary answer."""
    with pytest.raises(InvalidStatus) as refused:
        async with talking(place, path="/forbidden"):
            pass
    assert refused.value.response.status_code == 403
    assert refused.value.response.body == b"not you\n"


async def test_big_messages_and_fragments(place: Place) -> None:
    """OPT-2: 32 MiB in one frame, and in many."""
    big = bytes(range(256)) * (32 * MIB // 256)
    before = await place.worker_kib()
    async with talking(place) as client:
        await client.send(big)
        assert await client.recv() == big
        await client.send(big[start : start + MIB] for start in range(0, len(big), MIB))
        assert await client.recv() == big
    assert await place.worker_kib("VmHWM") - before < 24 * 1024


async def test_a_server_that_does_not_read_holds_the_client_back(place: Place) -> None:
    """OPT-2: what is not taken is not buffered by the gateway; when the server reads on, everything is there."""
    go_on, counted = asyncio.Event(), asyncio.Event()
    total = 0

    async def wait_then_count(connection: ServerConnection) -> None:
        nonlocal total
        connection.transport.pause_reading()
        await go_on.wait()
        connection.transport.resume_reading()
        async for message in connection:
            total += len(message)
            if total == 256 * MIB:
                counted.set()

    sent_messages = 0

    async def send_all(client: ClientConnection) -> None:
        nonlocal sent_messages
        for _ in range(256):
            await client.send(bytes(MIB))
            sent_messages += 1

    before = await place.worker_kib()
    async with talking(place, wait_then_count) as client:
        sending = asyncio.create_task(send_all(client))
        _, stalled = await asyncio.wait([sending], timeout=1.0)
        assert stalled
        assert sent_messages < 32
        go_on.set()
        await sending
        await counted.wait()
    assert await place.worker_kib("VmHWM") - before < 24 * 1024


async def test_a_client_that_does_not_read_holds_the_server_back(place: Place) -> None:
    """OPT-2: the other direction."""
    sent_messages = 0
    all_sent = asyncio.Event()

    async def send_all(connection: ServerConnection) -> None:
        nonlocal sent_messages
        for _ in range(256):
            await connection.send(bytes(MIB))
            sent_messages += 1
        all_sent.set()

    async with talking(place, send_all, max_queue=1) as client:
        client.transport.pause_reading()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(all_sent.wait(), 1.0)
        assert sent_messages < 32
        client.transport.resume_reading()
        for _ in range(256):
            assert len(await client.recv()) == MIB


@pytest.mark.parametrize("who", ["client", "server"])
async def test_a_lost_end_is_lost_for_the_other(place: Place, who: str) -> None:
    """OPT-2: without a close frame, nobody gets one."""
    lost: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    async def watch(connection: ServerConnection) -> None:
        await connection.send("ready")
        if who == "server":
            connection.transport.abort()
            return
        await connection.wait_closed()
        lost.set_result(connection.close_code)

    async with talking(place, watch) as client:
        assert await client.recv() == "ready"
        if who == "client":
            client.transport.abort()
            assert await lost == 1006
        else:
            with pytest.raises(ConnectionClosedError):
                await client.recv()
            assert client.close_code == 1006


async def test_more_sockets_than_the_pool_has_places_leave_room_for_requests(place: Place) -> None:
    """OPT-2: a tunnel may live for days; the 256 connections of the upstream pool are for requests."""

    async def one(number: int) -> None:
        async with connect(f"ws://127.0.0.1:{place.gateway.port}/", compression=None, ping_interval=None) as client:
            await all_open.wait()
            await client.send(f"{number}")
            assert await client.recv() == f"{number}"
            await all_answered.wait()

    async def plain() -> None:
        await all_open.wait()
        answer = await place.through(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (answer.status, answer.header(b"content-type")) == (426, b"text/plain; charset=utf-8")
        await all_answered.wait()

    service.talk = echo
    all_open, all_answered = asyncio.Barrier(301), asyncio.Barrier(301)
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        for number in range(300):
            group.create_task(one(number))
        group.create_task(plain())
