"""Requests and answers on a connection: order, framing, keep-alive, and ends (decision 13, OPT-2, OPS-1, OPS-3)."""

from __future__ import annotations

import asyncio
import logging

import pytest

from gateway.ingress import Inbound
from gateway.protocol.messages import Answer
from gateway.protocol.problems import Problem
from tests.ingress.peer import Gateway, Serve

GET = b"GET /%b HTTP/1.1\r\nHost: a\r\n\r\n"


async def test_an_answer_carries_length_and_date_and_keeps_the_connection(gateway: Gateway) -> None:
    peer = await gateway.connect()
    for name in (b"one", b"two"):
        answer = await peer.exchange(GET % name)
        assert (answer.status, answer.reason, answer.body) == (200, "OK", b"/" + name)
        assert answer.header("Content-Length") == "4"
        assert answer.header("Date") is not None
        assert answer.header("Connection") is None


async def test_raw_target_and_headers_reach_the_handler_byte_for_byte(gateway: Gateway) -> None:
    """OPT-2: a trailing empty `?`, repeated headers, order, case, and bytes that are not UTF-8 survive."""
    fields = b"hOST: a\r\nX-A: 1\r\nx-a: 2\r\nX-A: 1\r\nLatin: caf\xe9\xff\r\nEmpty:\r\n\r\n"
    assert (await gateway.exchange(b"GET /a%2Fb//c;x=1/%7e? HTTP/1.1\r\n" + fields)).status == 200
    (seen,) = gateway.seen
    assert seen.target == b"/a%2Fb//c;x=1/%7e?"
    assert seen.inbound.path == b"/a%2Fb//c;x=1/%7e"
    assert seen.inbound.query == b""
    assert seen.headers == (
        (b"hOST", b"a"),
        (b"X-A", b"1"),
        (b"x-a", b"2"),
        (b"X-A", b"1"),
        (b"Latin", b"caf\xe9\xff"),
        (b"Empty", b""),
    )
    assert seen.inbound.headers.getall("X-A") == ["1", "2", "1"]


async def test_a_target_without_question_mark_has_no_query(gateway: Gateway) -> None:
    await gateway.exchange(GET % b"a")
    assert gateway.seen[0].inbound.query is None


async def test_absolute_form_for_the_same_host_becomes_origin_form(gateway: Gateway) -> None:
    await gateway.exchange(b"GET http://A.example:80/x?y=http://b HTTP/1.1\r\nHost: a.example:80\r\n\r\n")
    await gateway.exchange(b"GET http://a.example?y HTTP/1.1\r\nHost: a.example\r\n\r\n")
    assert [seen.target for seen in gateway.seen] == [b"/x?y=http://b", b"/?y"]


async def test_the_peer_address_is_known(gateway: Gateway) -> None:
    await gateway.exchange(GET % b"a")
    assert (gateway.seen[0].inbound.peer, gateway.seen[0].inbound.secure) == ("127.0.0.1", False)


async def test_pipelined_requests_are_answered_in_order_even_if_the_first_is_slowest(serve: Serve) -> None:
    release = asyncio.Event()

    async def handle(inbound: Inbound) -> Answer:
        if inbound.target == b"/0":
            await release.wait()
        return Answer(200, [], inbound.target)

    gateway = await serve(handle)
    peer = await gateway.connect()
    await peer.send(b"".join(GET % str(number).encode() for number in range(100)))
    release.set()
    assert [(await peer.answer()).body for _ in range(100)] == [b"/%d" % number for number in range(100)]


async def test_pipelined_requests_with_bodies_keep_their_bodies_apart(gateway: Gateway) -> None:
    post = b"POST /%b HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n%b"
    peer = await gateway.connect()
    await peer.send(post % (b"1", b"one") + GET % b"2" + post % (b"3", b"thr"))
    assert [(await peer.answer()).body for _ in range(3)] == [b"/1", b"/2", b"/3"]
    assert [seen.body for seen in gateway.seen] == [b"one", b"", b"thr"]


async def test_requests_split_at_every_byte_are_understood(gateway: Gateway) -> None:
    peer = await gateway.connect()
    request = b"POST /x?y HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab"
    for byte in request:
        await peer.send(bytes([byte]))
    assert (await peer.answer()).status == 200
    assert (gateway.seen[0].target, gateway.seen[0].body) == (b"/x?y", b"ab")


async def test_connection_close_is_honoured(gateway: Gateway) -> None:
    peer = await gateway.connect()
    answer = await peer.exchange(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert answer.header("Connection") == "close"
    assert await peer.ended() == b""


async def test_http_1_0_closes_unless_asked_to_stay(gateway: Gateway) -> None:
    peer = await gateway.connect()
    answer = await peer.exchange(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert answer.header("Connection") == "keep-alive"
    answer = await peer.exchange(b"GET / HTTP/1.0\r\n\r\n")
    assert answer.header("Connection") == "close"
    assert await peer.ended() == b""


async def test_head_answers_have_no_body_but_its_length(serve: Serve) -> None:
    answers = {
        b"/measured": Answer(200, [], b"12345"),
        b"/told": Answer(200, [(b"Content-Length", b"77")]),
        b"/unknown": Answer(200),
    }

    async def handle(inbound: Inbound) -> Answer:
        return answers[inbound.target]

    peer = await (await serve(handle)).connect()
    lengths = []
    for target in answers:
        answer = await peer.exchange(b"HEAD %b HTTP/1.1\r\nHost: a\r\n\r\n" % target, head_only=True)
        lengths.append(answer.header("Content-Length"))
    assert lengths == ["5", "77", None]


@pytest.mark.parametrize("status", [204, 304])
async def test_answers_without_body_have_no_length_of_ours(serve: Serve, status: int) -> None:
    async def handle(inbound: Inbound) -> Answer:
        return Answer(status, [(b"X", b"y")])

    peer = await (await serve(handle)).connect()
    for _ in range(2):
        assert (await peer.exchange(GET % b"")).header("Content-Length") is None


async def test_a_problem_is_a_document_and_keeps_the_connection_unless_it_says_otherwise(serve: Serve) -> None:
    """OPS-3."""

    async def handle(inbound: Inbound) -> Answer:
        raise Problem("some-slug", 422, "Title", "Detail.", close=inbound.target == b"/close")

    gateway = await serve(handle)
    peer = await gateway.connect()
    answer = await peer.exchange(GET % b"stay")
    assert (answer.status, answer.problem, answer.header("Connection")) == (422, "some-slug", None)
    answer = await peer.exchange(GET % b"close")
    assert (answer.problem, answer.header("Connection")) == ("some-slug", "close")
    assert await peer.ended() == b""


async def test_a_failing_handler_is_a_500_without_traceback_and_its_text_is_not_logged(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """OPS-3: an exception's text may hold what a client sent."""

    async def handle(inbound: Inbound) -> Answer:
        raise KeyError(f"canary {inbound.headers['Authorization']}")

    gateway = await serve(handle)
    with caplog.at_level(logging.DEBUG):
        answer = await gateway.exchange(b"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: hush\r\n\r\n")
    assert (answer.status, answer.problem) == (500, "internal-error")
    assert b"Traceback" not in answer.body
    assert b"canary" not in answer.body
    assert "KeyError" in caplog.text
    assert "test_requests.py" in caplog.text
    assert "hush" not in caplog.text


async def test_a_handler_without_answer_is_a_500(serve: Serve) -> None:
    async def handle(inbound: Inbound) -> None:
        return None

    assert (await (await serve(handle)).exchange(GET % b"")).problem == "internal-error"


async def test_a_line_break_in_an_answers_header_never_reaches_the_wire(serve: Serve) -> None:
    async def handle(inbound: Inbound) -> Answer:
        return Answer(200, [(b"X", b"a\r\nSet-Cookie: b")], b"x")

    answer = await (await serve(handle)).exchange(GET % b"")
    assert (answer.status, answer.header("Set-Cookie")) == (500, None)


async def test_a_client_that_leaves_is_signalled_and_its_handler_goes_on(serve: Serve) -> None:
    """Decision 8: work after the PONR is not cancelled by a disconnect."""
    entered, finished = asyncio.Event(), asyncio.Event()

    async def handle(inbound: Inbound) -> Answer:
        entered.set()
        await inbound.client_gone
        await asyncio.sleep(0)
        finished.set()
        return Answer(200)

    gateway = await serve(handle)
    for leave in ("close", "reset"):
        entered.clear()
        finished.clear()
        peer = await gateway.connect()
        await peer.send(GET % b"")
        await entered.wait()
        if leave == "close":
            await peer.close()
        else:
            peer.reset()
        async with asyncio.timeout(10):
            await finished.wait()


async def test_a_client_that_leaves_can_cancel_its_handler(serve: Serve) -> None:
    """Decision 8: a pass-through ends with its client, also when the client left before anybody listened."""
    entered, ended = asyncio.Event(), asyncio.Event()

    async def handle(inbound: Inbound) -> Answer:
        entered.set()
        task = asyncio.current_task()
        assert task is not None
        if inbound.target == b"/late":
            await inbound.client_gone
        inbound.on_client_left = task.cancel
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return Answer(200)

    gateway = await serve(handle)
    for target in (b"late", b"soon"):
        entered.clear()
        ended.clear()
        peer = await gateway.connect()
        await peer.send(GET % target)
        await entered.wait()
        await peer.close()
        async with asyncio.timeout(10):
            await ended.wait()


async def test_a_client_that_only_ends_its_sending_side_still_gets_its_answer(gateway: Gateway) -> None:
    peer = await gateway.connect()
    await peer.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab")
    peer.writer.write_eof()
    assert (await peer.answer()).status == 200
    assert await peer.ended() == b""


async def test_draining_closes_idle_connections_and_ends_busy_ones_after_their_answer(serve: Serve) -> None:
    """OPS-1: nothing half-done."""
    entered, release = asyncio.Event(), asyncio.Event()

    async def handle(inbound: Inbound) -> Answer:
        if inbound.target == b"/busy":
            entered.set()
            await release.wait()
        return Answer(200, [], b"done")

    gateway = await serve(handle)
    fresh, idle, busy = [await gateway.connect() for _ in range(3)]
    await idle.exchange(GET % b"")
    await busy.send(GET % b"busy")
    await entered.wait()
    gateway.server.drain()
    assert await idle.ended() == b""
    assert await fresh.ended() == b""
    release.set()
    answer = await busy.answer()
    assert (answer.body, answer.header("Connection")) == (b"done", "close")
    assert await busy.ended() == b""


async def test_shutdown_waits_for_a_request_whose_client_has_left(serve: Serve) -> None:
    """P2-9, OPS-1: the outcome must be recorded before the process ends."""
    entered, release = asyncio.Event(), asyncio.Event()
    outcomes: list[str] = []

    async def handle(inbound: Inbound) -> Answer:
        entered.set()
        await inbound.client_gone
        await release.wait()
        outcomes.append("recorded")
        return Answer(200)

    gateway = await serve(handle)
    peer = await gateway.connect()
    await peer.send(GET % b"")
    await entered.wait()
    peer.reset()
    asyncio.get_running_loop().call_later(0.05, release.set)
    await gateway.server.shutdown(10)
    assert outcomes == ["recorded"]


async def test_shutdown_ends_what_does_not_finish_in_time(serve: Serve) -> None:
    entered = asyncio.Event()
    cancelled: list[bool] = []

    async def handle(inbound: Inbound) -> Answer:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        return Answer(200)

    gateway = await serve(handle)
    peer = await gateway.connect()
    await peer.send(GET % b"")
    await entered.wait()
    await gateway.server.shutdown(0.05)
    assert cancelled == [True]
    assert await peer.ended() == b""


async def test_pipelined_requests_of_one_client_do_not_starve_another(serve: Serve) -> None:
    order: list[bytes] = []

    async def handle(inbound: Inbound) -> Answer:
        order.append(inbound.target)
        return Answer(200)

    gateway = await serve(handle)
    greedy, modest = await gateway.connect(), await gateway.connect()
    greedy.writer.write(GET % b"g" * 2000)
    modest.writer.write(GET % b"m")
    await modest.answer()
    for _ in range(2000):
        await greedy.answer()
    assert order.index(b"/m") < 1900


async def test_a_client_that_reads_no_answers_is_not_read_from_either(serve: Serve) -> None:
    """Pipelining without reading must not fill our memory with answers."""
    handled = 0

    async def handle(inbound: Inbound) -> Answer:
        nonlocal handled
        handled += 1
        return Answer(200, [], bytes(100_000))

    gateway = await serve(handle, idle_timeout_s=0.5)
    peer = await gateway.connect()
    peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
    peer.writer.write(GET % b"" * 5000)
    (connection,) = gateway.server.connections
    async with asyncio.timeout(20):
        await asyncio.wait([connection.task])  # type: ignore[attr-defined]
    assert handled < 500
