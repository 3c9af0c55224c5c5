"""ACM-4: one POST, to an address that was checked when it was dialled, within limits, and never a second one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace

import pytest

from gateway.delivery import sender as sender_module
from gateway.delivery.guard import AddressGuard
from gateway.delivery.sender import Sender
from gateway.delivery.targets import Target, parse, trusted
from gateway.protocol.deliveries import Result
from tests.delivery.receiver import OK, Names, Received, Receiver, answer, black_hole

BODY = b'{"ponr_crossed":true}'
HEADERS = {"webhook-id": "1"}
PUBLIC = "93.184.216.34"


def at(receiver: Receiver, path: str = "/hook?x=%41", host: str = "127.0.0.1") -> Target:
    return parse(f"http://{host}:{receiver.port}{path}")


async def test_the_request_is_the_body_and_headers_given_and_little_else(sender: Sender, receiver: Receiver) -> None:
    assert await sender.send(at(receiver), HEADERS, BODY) == Result(status=200)
    (request,) = receiver.requests
    assert (request.target, request.body) == ("/hook?x=%41", BODY)
    assert request.headers == {
        "host": f"127.0.0.1:{receiver.port}",
        "user-agent": "twophp-gateway",
        "content-type": "application/json",
        "content-length": str(len(BODY)),
        "webhook-id": "1",
    }


async def test_it_tells_that_the_request_was_written_before_an_answer_comes(sender: Sender, receiver: Receiver) -> None:
    """ACM-2."""
    receiver.behave = receiver.hang
    written = asyncio.Event()
    sending = asyncio.ensure_future(sender.send(at(receiver), HEADERS, BODY, on_written=written.set))
    async with asyncio.timeout(5):
        await written.wait()
        await receiver.until(1)
    assert not sending.done()
    sending.cancel()
    await asyncio.wait([sending])


async def test_connections_are_kept_and_used_again(sender: Sender, receiver: Receiver) -> None:
    for _ in range(5):
        await sender.send(at(receiver), HEADERS, BODY)
    assert receiver.connections == 1


@pytest.mark.parametrize("status", [200, 201, 204, 301, 302, 307, 308, 400, 410, 429, 500, 503])
async def test_the_status_is_the_result(sender: Sender, receiver: Receiver, status: int) -> None:
    receiver.behave = receiver.say(answer(status))
    assert await sender.send(at(receiver), HEADERS, BODY) == Result(status=status)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(sender: Sender, receiver: Receiver, status: int) -> None:
    """ACM-4."""
    elsewhere = await Receiver().start()
    receiver.behave = receiver.say(answer(status, b"", f"Location: http://127.0.0.1:{elsewhere.port}/"))
    assert await sender.send(at(receiver), HEADERS, BODY) == Result(status=status)
    assert elsewhere.connections == 0
    assert len(receiver.requests) == 1
    await elsewhere.stop()


async def test_proxies_and_credentials_of_the_environment_are_not_used(
    make_sender: Callable[..., Sender], receiver: Receiver, monkeypatch: pytest.MonkeyPatch, tmp_path: os.PathLike[str]
) -> None:
    """ACM-4: a proxy would connect to what we have not checked."""
    proxy = await Receiver().start()
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
    netrc = os.path.join(tmp_path, "netrc")
    with open(netrc, "w") as file:
        file.write("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", netrc)
    assert await make_sender().send(at(receiver), HEADERS, BODY) == Result(status=200)
    assert proxy.connections == 0
    assert "authorization" not in receiver.requests[0].headers
    await proxy.stop()


async def test_cookies_are_neither_kept_nor_sent(sender: Sender, receiver: Receiver) -> None:
    receiver.behave = receiver.say(answer(200, b"", "Set-Cookie: who=me; Path=/"))
    await sender.send(at(receiver), HEADERS, BODY)
    await sender.send(at(receiver), HEADERS, BODY)
    assert all("cookie" not in request.headers for request in receiver.requests)


async def test_a_request_is_never_sent_a_second_time_by_itself(sender: Sender, receiver: Receiver) -> None:
    """RELIABILITY fact 1: also not when a kept connection is dropped under it, where HTTP clients like to try again."""
    await sender.send(at(receiver), HEADERS, BODY)
    receiver.behave = receiver.drop
    assert await sender.send(at(receiver), HEADERS, BODY) == Result(error="disconnected")
    receiver.behave = receiver.say(OK)
    assert await sender.send(at(receiver), HEADERS, BODY) == Result(status=200)
    assert len(receiver.requests) == 3


# --- addresses


async def test_a_literal_address_is_checked_again_when_it_is_dialled(
    make_sender: Callable[..., Sender], receiver: Receiver
) -> None:
    """ACM-4: the socket is what is guarded, whatever was decided before."""
    strict = make_sender(AddressGuard(allow_http=True))
    for host in ("127.0.0.1", "2130706433", "[::ffff:127.0.0.1]"):
        refused = await strict.send(at(receiver, host=host), HEADERS, BODY)
        assert refused == Result(error="loopback", refused=True, asked=False)
    assert receiver.connections == 0


async def test_a_public_name_with_an_internal_address_is_refused(
    make_sender: Callable[..., Sender], receiver: Receiver
) -> None:
    names = Names(hooks_example_com=[["127.0.0.1"]])
    strict = make_sender(AddressGuard(allow_http=True), names=names)
    refused = await strict.send(at(receiver, host="hooks.example.com"), HEADERS, BODY)
    assert refused == Result(error="loopback", refused=True, asked=False)
    assert receiver.connections == 0


@pytest.mark.parametrize(
    "mixed",
    [
        [PUBLIC, "127.0.0.1"],
        ["127.0.0.1", PUBLIC],
        [PUBLIC, "2606:4700:4700::1111", "::1"],
        [PUBLIC, "::ffff:10.0.0.1"],
    ],
)
async def test_an_answer_that_mixes_public_and_internal_addresses_is_refused_whole(
    make_sender: Callable[..., Sender], receiver: Receiver, monkeypatch: pytest.MonkeyPatch, mixed: list[str]
) -> None:
    """ACM-4: not even the public ones are connected to."""
    opened: list[object] = []
    make_socket = sender_module.guarded_sockets

    def watched(guard: AddressGuard) -> Callable[[object], object]:
        inner = make_socket(guard)
        return lambda info: (opened.append(info), inner(info))[1]

    monkeypatch.setattr(sender_module, "guarded_sockets", watched)
    strict = make_sender(AddressGuard(allow_http=True), names=Names(hooks_example_com=[mixed]))
    result = await strict.send(at(receiver, host="hooks.example.com"), HEADERS, BODY)
    assert result.refused
    assert opened == []
    assert receiver.connections == 0


async def test_a_name_that_changes_between_check_and_connect_is_decided_by_what_is_connected_to(
    make_sender: Callable[..., Sender], receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ACM-4, DNS rebinding: the first look-up is harmless, the second is not; each dial uses the one it checked."""
    monkeypatch.setattr(sender_module, "NAMES_KEPT_S", 0)
    names = Names(hooks_example_com=[["127.0.0.1"], ["127.0.0.2"], ["127.0.0.1"]])
    guard = AddressGuard(allow_http=True, allow_networks=["127.0.0.1/32"])
    target = at(receiver, host="hooks.example.com")
    receiver.behave = receiver.say(answer(200, b"", "Connection: close"))
    sender = make_sender(guard, names=names)
    assert await sender.send(target, HEADERS, BODY) == Result(status=200)
    refused = await sender.send(target, HEADERS, BODY)
    assert refused == Result(error="loopback", refused=True, asked=False)
    assert await sender.send(target, HEADERS, BODY) == Result(status=200)
    assert names.asked == ["hooks.example.com"] * 3  # one look-up per dial: there is no second one to lie to
    assert [request.headers["host"] for request in receiver.requests] == [f"hooks.example.com:{receiver.port}"] * 2


async def test_a_name_that_changes_within_one_dial_cannot_get_past_the_socket(
    make_sender: Callable[..., Sender], receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ACM-4: were the resolver's check to be passed by, no socket is opened all the same."""
    monkeypatch.setattr(sender_module, "GuardedResolver", lambda names, guard: names)
    strict = make_sender(AddressGuard(allow_http=True), names=Names(hooks_example_com=[["127.0.0.1"]]))
    refused = await strict.send(at(receiver, host="hooks.example.com"), HEADERS, BODY)
    assert refused == Result(error="loopback", refused=True, asked=False)
    assert receiver.connections == 0


async def test_a_host_that_the_operator_trusts_may_resolve_to_anything(
    make_sender: Callable[..., Sender], receiver: Receiver
) -> None:
    """ACM-4: `allow_hosts`."""
    guard = AddressGuard(allow_http=True, allow_hosts=["hooks.internal"])
    sender = make_sender(guard, names=Names(hooks_internal=[["127.0.0.1"]]))
    target = guard.check_url(f"http://hooks.internal:{receiver.port}/")
    assert await sender.send(target, HEADERS, BODY) == Result(status=200)


async def test_a_callers_url_never_rides_on_a_connection_that_was_opened_for_the_operator(
    make_sender: Callable[..., Sender], receiver: Receiver
) -> None:
    """ACM-4: a hook's kept connection is no way in for a callback to the same host."""
    strict = make_sender(AddressGuard(allow_http=True))
    hook = trusted(f"http://127.0.0.1:{receiver.port}/undo")
    assert await strict.send(hook, HEADERS, BODY) == Result(status=200)
    refused = await strict.send(replace(hook, trusted=False), HEADERS, BODY)
    assert refused == Result(error="loopback", refused=True, asked=False)
    assert len(receiver.requests) == 1


# --- what the other side may do


async def test_a_name_that_does_not_resolve_is_a_failure_and_no_refusal(make_sender: Callable[..., Sender]) -> None:
    sender = make_sender(names=Names())
    assert await sender.send(parse("https://hooks.example.com/"), HEADERS, BODY) == Result(error="dns")


async def test_the_systems_resolver_is_asked_on_threads_of_its_own(
    make_sender: Callable[..., Sender], receiver: Receiver
) -> None:
    sender = make_sender(AddressGuard(allow_http=True, allow_networks=["127.0.0.0/8", "::1/128"]))
    assert await sender.send(at(receiver, host="localhost"), HEADERS, BODY) == Result(status=200)
    assert await sender.send(parse("https://no-such-name.invalid/"), HEADERS, BODY) == Result(error="dns")


async def test_a_port_where_nobody_listens(sender: Sender, receiver: Receiver) -> None:
    await receiver.stop()
    assert await sender.send(at(receiver), HEADERS, BODY) == Result(error="connect")


async def test_a_host_that_never_answers_costs_the_timeout(
    make_sender: Callable[..., Sender], receiver: Receiver
) -> None:
    receiver.behave = receiver.hang
    assert await make_sender(timeout_s=0.1).send(at(receiver), HEADERS, BODY) == Result(error="timeout")


async def test_a_host_that_takes_no_connection_costs_the_timeout(make_sender: Callable[..., Sender]) -> None:
    with black_hole() as hole:
        target = parse(f"http://127.0.0.1:{hole.getsockname()[1]}/")
        sender = make_sender(timeout_s=0.1)
        results = await asyncio.gather(*(sender.send(target, HEADERS, BODY) for _ in range(4)))
    assert set(results) == {Result(error="timeout")}


async def test_a_head_that_never_ends_costs_the_timeout_or_its_limit(
    make_sender: Callable[..., Sender], receiver: Receiver
) -> None:
    """ACM-4: neither endless headers nor endless interim answers are collected."""

    def endless(piece: bytes) -> Callable[[Received, asyncio.StreamWriter], object]:
        async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\n" if piece.startswith(b"X") else b"")
            while not writer.is_closing():
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)

        return behave

    sender = make_sender(timeout_s=0.5)
    for piece in (b"X-Header: " + b"x" * 4000 + b"\r\n", b"X" * 8000, b"HTTP/1.1 103 Early Hints\r\n\r\n"):
        receiver.behave = endless(piece)  # type: ignore[assignment]
        result = await sender.send(at(receiver), HEADERS, BODY)
        assert result.error in ("protocol", "timeout")


async def test_the_body_of_an_answer_is_read_no_further_than_its_limit(sender: Sender, receiver: Receiver) -> None:
    """ACM-4: the status has come; what follows is not waited for, and not kept."""
    cut = asyncio.Event()
    written = 0

    async def endless(request: Received, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
                written += 0x10000
                await writer.drain()
        finally:
            cut.set()

    receiver.behave = endless
    assert await sender.send(at(receiver), HEADERS, BODY) == Result(status=200)
    async with asyncio.timeout(5):
        await cut.wait()  # the connection was closed
    assert written < 64 * 1024 * 1024  # what the buffers of the kernel and the loop took, and no more
    receiver.behave = receiver.say(OK)
    assert await sender.send(at(receiver), HEADERS, BODY) == Result(status=200)
    assert receiver.connections == 2


async def test_the_body_of_an_answer_that_hangs_is_given_up(
    sender: Sender, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_module, "RESPONSE_WAIT_S", 0.05)

    async def half(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 10\r\n\r\nhalf")
        await receiver.released.wait()

    receiver.behave = half
    assert await sender.send(at(receiver), HEADERS, BODY) == Result(status=202)


async def test_a_compressed_answer_is_not_unpacked(sender: Sender, receiver: Receiver) -> None:
    """ACM-4: no bomb goes off; a body that claims to be gzip and is not is none of our business either."""
    receiver.behave = receiver.say(answer(200, b"not gzip at all", "Content-Encoding: gzip"))
    for _ in range(2):
        assert await sender.send(at(receiver), HEADERS, BODY) == Result(status=200)
    assert receiver.connections == 1  # to whoever unpacks it, this body is broken


async def test_an_answer_that_is_not_http_is_a_failure(sender: Sender, receiver: Receiver) -> None:
    receiver.behave = receiver.say(b"SSH-2.0-OpenSSH_9.2\r\n")
    assert await sender.send(at(receiver), HEADERS, BODY) == Result(error="protocol")


async def test_failures_say_nothing_of_the_url(make_sender: Callable[..., Sender], receiver: Receiver) -> None:
    """SEC-4: what is recorded and logged cannot carry a secret of a caller's URL."""
    receiver.behave = receiver.drop
    result = await make_sender(names=Names()).send(at(receiver, path="/canary"), HEADERS, BODY)
    assert "canary" not in repr(result)
