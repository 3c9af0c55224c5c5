"""Hop-by-hop and forwarding rules (OPT-2), pure."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.protocol import forwarding
from gateway.protocol.forwarding import request_headers, response_headers

Pairs = list[tuple[bytes, bytes]]
HOST = (b"Host", b"shop.test")


def forward(*headers: tuple[bytes, bytes], **options: Any) -> Pairs:
    defaults: dict[str, Any] = {
        "peer": "192.0.2.7",
        "scheme": b"http",
        "host_header": "preserve",
        "upstream_host": b"10.0.0.1:3000",
        "trusted": False,
    }
    return request_headers(headers, **{**defaults, **options})


def values(headers: Pairs, name: bytes) -> list[bytes]:
    return [value for key, value in headers if key.lower() == name]


def test_end_to_end_headers_keep_their_bytes_order_case_and_repetition() -> None:
    sent = [
        HOST,
        (b"x-B", b"2"),
        (b"X-b", b"\xff"),
        (b"Accept", b""),
        (b"x-B", b"1"),
        (b"Cookie", b"a"),
        (b"Cookie", b"b"),
    ]
    assert forward(*sent)[: len(sent)] == sent


def test_the_request_says_who_it_is_forwarded_for() -> None:
    assert forward(HOST)[1:] == [
        (b"X-Forwarded-For", b"192.0.2.7"),
        (b"X-Forwarded-Proto", b"http"),
        (b"X-Forwarded-Host", b"shop.test"),
        (b"Via", b"1.1 twophp"),
    ]


SPOOFED = (
    (b"x-forwarded-for", b"10.9.9.9"),
    (b"X-Forwarded-Proto", b"https"),
    (b"X-Forwarded-Host", b"evil.test"),
    (b"X-Forwarded-Port", b"1"),
    (b"X_Forwarded_For", b"10.9.9.9"),
    (b"Forwarded", b"for=10.9.9.9"),
    (b"Via", b"1.0 cache"),
)


def test_forwarding_headers_of_an_untrusted_peer_are_replaced() -> None:
    assert forward(HOST, *SPOOFED, version=b"1.0")[1:] == [
        (b"X-Forwarded-For", b"192.0.2.7"),
        (b"X-Forwarded-Proto", b"http"),
        (b"X-Forwarded-Host", b"shop.test"),
        (b"Via", b"1.0 cache, 1.0 twophp"),
    ]


def test_forwarding_headers_of_a_trusted_peer_are_appended_to() -> None:
    sent = forward(HOST, *SPOOFED, (b"X-Forwarded-For", b"10.8.8.8"), trusted=True, peer="2001:db8::1")
    assert values(sent, b"x-forwarded-for") == [b"10.9.9.9, 10.8.8.8, 2001:db8::1"]
    assert values(sent, b"x-forwarded-proto") == [b"https"]
    assert values(sent, b"x-forwarded-host") == [b"evil.test"]
    assert values(sent, b"x-forwarded-port") == [b"1"]
    assert values(sent, b"forwarded") == [b'for=10.9.9.9, for="[2001:db8::1]";proto=http']


@pytest.mark.parametrize(
    "name",
    [
        b"Keep-Alive",
        b"proxy-connection",
        b"TE",
        b"Trailer",
        b"Proxy-Authorization",
        b"Proxy-Authenticate",
        b"HTTP2-Settings",
        b"Upgrade",
    ],
)
def test_hop_by_hop_headers_end_here_in_both_directions(name: bytes) -> None:
    assert values(forward(HOST, (name, b"x")), name.lower()) == []
    assert response_headers([(name, b"x"), (b"X", b"y")]) == [(b"X", b"y")]


def test_headers_named_by_connection_end_here_in_both_directions() -> None:
    named = ((b"X-Hop", b"1"), (b"x-HOP", b"2"), (b"Connection", b"keep-alive, x-hop"), (b"X-Stays", b"3"))
    assert values(forward(HOST, *named), b"x-hop") == []
    assert response_headers(named) == [(b"X-Stays", b"3")]


@pytest.mark.parametrize(
    "name",
    [
        b"Authorization",
        b"Cookie",
        b"Host",
        b"Content-Length",
        b"Transfer-Encoding",
        b"Idempotency-Key",
        b"DTT-2PHP-Client-Correlation-ID",
        b"Baggage",
        b"X-Forwarded-For",
        b"Via",
    ],
)
def test_connection_cannot_remove_what_a_service_relies_on(name: bytes) -> None:
    """RELIABILITY fact 3: `Connection: Authorization` is neutralised."""
    headers = [(b"Connection", b"close, " + name), (name, b"7"), (b"Connection", name)]
    headers += [HOST] if name != b"Host" else []
    assert len(values(forward(*headers), name.lower())) == 1


def test_a_websocket_upgrade_is_passed_on() -> None:
    sent = forward(
        HOST, (b"Upgrade", b"WebSocket"), (b"Connection", b"keep-alive, Upgrade"), (b"Sec-WebSocket-Key", b"k")
    )
    assert (b"Connection", b"Upgrade") in sent
    assert (b"Upgrade", b"WebSocket") in sent
    assert (b"Sec-WebSocket-Key", b"k") in sent
    answer = [(b"Upgrade", b"websocket"), (b"Connection", b"upgrade"), (b"Sec-WebSocket-Accept", b"a")]
    assert response_headers(answer, upgraded=True) == answer


@pytest.mark.parametrize(
    "headers",
    [
        ((b"Upgrade", b"h2c"), (b"Connection", b"Upgrade, HTTP2-Settings"), (b"HTTP2-Settings", b"x")),
        ((b"Upgrade", b"websocket, h2c"), (b"Connection", b"Upgrade")),
        ((b"Upgrade", b"websocket"),),
    ],
    ids=["h2c", "a choice", "not asked for by Connection"],
)
def test_any_other_upgrade_is_not(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    sent = forward(HOST, *headers)
    assert not {b"upgrade", b"connection", b"http2-settings"} & {name.lower() for name, _ in sent}


def test_host_is_preserved_or_rewritten_in_its_place() -> None:
    assert forward((b"A", b"1"), HOST)[1] == HOST
    rewritten = forward((b"A", b"1"), HOST, host_header="rewrite")
    assert rewritten[1] == (b"Host", b"10.0.0.1:3000")
    assert values(rewritten, b"x-forwarded-host") == [b"shop.test"]
    assert forward((b"A", b"1"))[0] == (b"Host", b"10.0.0.1:3000")


def test_a_streamed_body_keeps_its_framing_and_its_expectation() -> None:
    sent = [HOST, (b"Transfer-Encoding", b"chunked"), (b"Expect", b"100-continue")]
    assert forward(*sent)[:3] == sent
    sent = [HOST, (b"content-length", b"5")]
    assert forward(*sent)[:2] == sent


def test_a_buffered_body_is_announced_by_its_length() -> None:
    """P2-3: the registered body goes out byte for byte, however it was framed when it came."""
    chunked = forward(
        HOST, (b"Transfer-Encoding", b"chunked"), (b"Expect", b"100-continue"), (b"A", b"1"), body_bytes=5
    )
    assert chunked[:3] == [HOST, (b"A", b"1"), (b"Content-Length", b"5")]
    assert not values(chunked, b"expect")
    assert forward(HOST, (b"content-length", b"5"), (b"A", b"1"), body_bytes=5)[1] == (b"content-length", b"5")
    assert values(forward(HOST, (b"Transfer-Encoding", b"chunked"), body_bytes=0), b"content-length") == [b"0"]
    assert values(forward(HOST, body_bytes=0), b"content-length") == []


def test_an_answer_loses_its_transfer_coding_and_nothing_end_to_end() -> None:
    answer = [
        (b"Date", b"d"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Set-Cookie", b"a"),
        (b"set-cookie", b"b"),
        (b"Connection", b"keep-alive"),
        (b"Via", b"1.1 inner"),
        (b"Content-Length", b"3"),
        (b"X-Forwarded-For", b"kept"),
    ]
    assert response_headers(answer) == [h for h in answer if h[0] not in (b"Transfer-Encoding", b"Connection")]


def test_names_chosen_by_callers_do_not_fill_the_memory() -> None:
    for number in range(5000):
        forward(HOST, (b"X-Random-%d" % number, b"1"))
    assert len(forwarding._kinds) <= 1024
    assert values(forward(HOST, (b"kEEp-aLIVE", b"1")), b"keep-alive") == []
