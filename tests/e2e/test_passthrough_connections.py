"""Connections that are passed through: kept, pipelined, half asked (`Expect`), and failed ones (OPT-2, OPS-3)."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from tests.e2e.fidelity import ask, chunked, get, sent
from tests.e2e.harness import PATIENCE_S, eventually
from tests.e2e.wire import Call, Message, Peer, Place, answering, module_place

pytestmark = pytest.mark.asyncio(loop_scope="module")
place = module_place(upstream={"timeout": "1s", "read_timeout": "1s", "connect_attempts": 1})


def reply(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


async def say_target(call: Call) -> None:
    answer = reply(call.message.target + b":" + await call.body())
    await call.send(answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if call.message.method == "HEAD" else answer)


async def ask_on(peer: Peer, request: bytes) -> Message:
    await peer.send(request)
    return await peer.answer(request.split(b" ", 1)[0].decode())


# --- kept connections


async def test_one_connection_serves_many_requests_on_both_sides(place: Place) -> None:
    """OPT-2: keep-alive is kept, whatever the framing of request and answer."""
    place.origin.behave = say_target
    wires_before = len(place.origin.wires)
    peer = await place.peer()
    for request in (get(b"/1"), sent(b"PUT", b"two"), chunked(b"th", b"ree"), ask(b"HEAD", b"/4"), get(b"/5")):
        answer = await ask_on(peer, request)
        assert answer.status == 200
        assert answer.header(b"connection") is None
        assert answer.body in (b"/1:", b"/x:two", b"/x:three", b"", b"/5:")
    peer.close()
    assert len(place.origin.wires) - wires_before <= 1


async def test_pipelined_requests_are_answered_in_order(place: Place) -> None:
    """OPT-2: the first answer is held until all requests are in, so later ones could overtake it."""
    asked = asyncio.Event()

    async def behave(call: Call) -> None:
        if call.message.target == b"/0":
            await asked.wait()
        await say_target(call)

    place.origin.behave = behave
    peer = await place.peer()
    requests = [sent(b"POST", b"b%d" % n).replace(b"/x", b"/%d" % n) for n in range(30)]
    await peer.send(b"".join(requests))
    asked.set()
    for number in range(30):
        assert (await peer.answer()).body == b"/%d:b%d" % (number, number)
    peer.close()


async def test_a_connection_that_the_upstream_closed_is_replaced(place: Place) -> None:
    """OPT-2: the client's connection does not depend on the upstream's."""
    place.origin.behave = answering(reply(b"ok"), close=True)
    peer = await place.peer()
    for _ in range(5):
        assert (await ask_on(peer, sent(b"POST", b"x"))).body == b"ok"
    peer.close()


async def test_an_http_1_0_client_is_kept_if_it_asks_and_closed_if_not(place: Place) -> None:
    place.origin.behave = answering(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")
    peer = await place.peer()
    kept = await ask_on(peer, ask(b"GET", b"/", b"Connection: keep-alive", version=b"HTTP/1.0"))
    assert (kept.header(b"connection"), kept.framing, kept.body) == (b"keep-alive", "length", b"ok")
    last = await ask_on(peer, ask(b"GET", b"/", version=b"HTTP/1.0"))
    assert (last.header(b"connection"), last.body) == (b"close", b"ok")
    assert await peer.ended() == b""


# --- Expect: 100-continue


EXPECTING = {
    "length": (ask(b"POST", b"/x", b"Expect: 100-continue", b"Content-Length: 5"), b"hello"),
    "chunked": (
        ask(b"PUT", b"/x", b"expect: 100-Continue", b"Transfer-Encoding: chunked"),
        b"5\r\nhello\r\n0\r\n\r\n",
    ),
}


@pytest.mark.parametrize("framing", EXPECTING)
async def test_the_upstreams_100_is_relayed_and_the_body_follows_it(place: Place, framing: str) -> None:
    """OPT-2: the client is told to go on when the upstream says so, and not before."""
    head, body = EXPECTING[framing]
    head_came, go_on = asyncio.Event(), asyncio.Event()

    async def behave(call: Call) -> None:
        head_came.set()
        await go_on.wait()
        await call.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert await call.body() == b"hello"
        await call.send(reply(b"thanks"))

    place.origin.behave = behave
    peer = await place.peer()
    await peer.send(head)
    async with asyncio.timeout(PATIENCE_S):
        await head_came.wait()
    assert peer.reader._buffer == b""  # type: ignore[attr-defined]
    go_on.set()
    assert await peer.exactly(len(b"HTTP/1.1 100 Continue\r\n\r\n")) == b"HTTP/1.1 100 Continue\r\n\r\n"
    await peer.send(body)
    assert (await peer.answer()).body == b"thanks"
    assert peer.interim == []
    assert (place.origin.seen[-1].header(b"expect") or b"").lower() == b"100-continue"
    peer.close()


@pytest.mark.parametrize("framing", EXPECTING)
@pytest.mark.parametrize("status", [b"417 Expectation Failed", b"401 Unauthorized", b"200 OK", b"303 See Other"])
async def test_a_final_answer_instead_of_100_is_relayed_and_no_body_is_asked_for(
    place: Place, framing: str, status: bytes
) -> None:
    """OPT-2: 417 included. The client, who never sent the body, may not use the connection for anything else."""
    head, _ = EXPECTING[framing]

    async def behave(call: Call) -> None:
        await call.send(reply(b"no need", status))
        call.wire.close()

    place.origin.behave = behave
    peer = await place.peer()
    await peer.send(head)
    answer = await peer.answer()
    assert answer.line == b"HTTP/1.1 " + status
    assert (answer.body, peer.interim) == (b"no need", [])
    assert answer.header(b"connection") == b"close"
    assert await peer.ended() == b""


async def test_a_body_sent_without_waiting_is_passed_on(place: Place) -> None:
    """OPT-2: clients need not wait for the 100."""
    place.origin.behave = answering(b"HTTP/1.1 100 Continue\r\n\r\n", reply(b"ok"))
    head, body = EXPECTING["length"]
    answer = await place.through(head + body)
    assert (answer.body, place.origin.seen[-1].body) == (b"ok", b"hello")


async def test_early_hints_are_not_taken_for_the_answer(place: Place) -> None:
    """OPT-2: whether the client hears them or not, the final answer is the final one."""
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    place.origin.behave = answering(hints, hints, b"HTTP/1.1 102 Processing\r\n\r\n", reply(b"made", b"201 Created"))
    answer = await place.through(sent(b"POST", b"x"))
    assert (answer.line, answer.body) == (b"HTTP/1.1 201 Created", b"made")


# --- upstreams that fail


async def end(call: Call) -> None:
    await call.body()
    call.wire.close()


async def reset(call: Call) -> None:
    await call.body()
    call.wire.reset()


async def babble(call: Call) -> None:
    await call.body()
    await call.send(b"SMTP 220 hello\r\n\r\n")


async def fold(call: Call) -> None:
    await call.body()
    await call.send(b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 0\r\n\r\n")


async def say_two_lengths(call: Call) -> None:
    await call.body()
    await call.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab")


async def stay_silent(call: Call) -> None:
    await call.body()
    await call.wire.until_peer_closes()


@pytest.mark.parametrize(
    ("behave", "status", "problem"),
    [
        (end, 502, "upstream-unreachable"),
        (reset, 502, "upstream-unreachable"),
        (babble, 502, "upstream-unreachable"),
        (fold, 502, "upstream-unreachable"),
        (say_two_lengths, 502, "upstream-unreachable"),
        (stay_silent, 504, "upstream-timeout"),
    ],
)
@pytest.mark.parametrize(
    "asked",
    [get(), sent(b"POST", b"abc"), sent(b"PUT", b"abc"), chunked(b"abc")],
    ids=["get", "post", "put", "chunked"],
)
async def test_an_upstream_without_an_answer_is_a_problem_and_is_asked_once(
    place: Place, behave: object, status: int, problem: str, asked: bytes
) -> None:
    """OPT-2, OPS-3; the client's connection stays, and nothing is sent to the upstream a second time."""
    place.origin.behave = behave  # type: ignore[assignment]
    place.origin.seen.clear()
    peer = await place.peer()
    answer = await ask_on(peer, asked)
    assert (answer.status, answer.problem) == (status, problem)
    assert len(place.origin.seen) == 1
    place.origin.behave = answering(reply(b"again"))
    assert (await ask_on(peer, get())).body == b"again"
    peer.close()


async def test_an_upstream_that_falls_silent_within_its_answer_cuts_the_client_off(place: Place) -> None:
    """OPT-2: `upstream.read_timeout`; what came before it has been passed on."""

    async def behave(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
        await call.wire.until_peer_closes()

    place.origin.behave = behave
    answer = await place.through(get())
    assert (answer.status, answer.body, answer.whole) == (200, b"half", False)


def send_until_refused(port: int, head: bytes, block: bytes) -> bytes:
    """A client that looks at the answer only when it can send no more."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as peer:
        with contextlib.suppress(ConnectionError):
            peer.sendall(head)
            for _ in range(256):
                peer.sendall(block)
        return peer.recv(1 << 16)


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_an_early_answer_reaches_a_client_that_is_still_sending(place: Place, framing: str) -> None:
    """OPT-2: the upstream wants no more; neither does the gateway then, and the client can read why."""

    async def behave(call: Call) -> None:
        await call.send(reply(b"enough", b"413 Enough"))
        await call.wire.until_peer_closes()

    place.origin.behave = behave
    block = bytes(1 << 16)
    if framing == "length":
        head = ask(b"POST", b"/x", b"Content-Length: %d" % (256 * len(block)))
    else:
        head = ask(b"POST", b"/x", b"Transfer-Encoding: chunked")
        block = b"%x\r\n%b\r\n" % (len(block), block)
    answer = await asyncio.to_thread(send_until_refused, place.gateway.port, head, block)
    assert answer.startswith(b"HTTP/1.1 413 Enough\r\n")
    assert answer.endswith(b"\r\n\r\nenough")
    assert b"\r\nConnection: close\r\n" in answer


async def test_streamed_answers_are_counted_by_their_own_status(place: Place) -> None:
    """OPS-2: an answer passed on as it comes counts as what it was."""

    async def counted() -> float:
        text = (await place.gateway.operator("GET", "/metrics")).body.decode()
        series = 'twophp_requests_total{mode="passthrough",status_class="5xx"}'
        return sum(float(line.split()[1]) for line in text.splitlines() if line.startswith(series))

    async def fail_slowly(call: Call) -> None:
        await call.send(b"HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n")
        await told.wait()
        await call.send(b"0\r\n\r\n")

    told = asyncio.Event()
    before = await counted()
    place.origin.behave = fail_slowly
    peer = await place.peer()
    await peer.send(get())
    assert (await peer.head()).status == 503
    told.set()

    async def one_more() -> bool:
        return await counted() == before + 1

    await eventually(one_more)
    peer.close()
