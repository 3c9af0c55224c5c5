"""Who the client is behind trusted proxies."""

from __future__ import annotations

import pytest

from gateway.ingress.proxies import Client, TrustedProxies
from gateway.protocol.messages import Header

proxies = TrustedProxies(["10.0.0.0/8", "fd00::/8"])


def forwarded(*values: bytes) -> list[Header]:
    return [(b"X-Forwarded-For", value) for value in values]


@pytest.mark.parametrize(
    ("peer", "chain", "address"),
    [
        ("203.0.113.9", [b"198.51.100.1"], "203.0.113.9"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", [b"198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", [b"6.6.6.6, 198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", [b"6.6.6.6", b"198.51.100.1, 10.0.0.2"], "198.51.100.1"),
        ("10.0.0.1", [b"10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ("10.0.0.1", [b"198.51.100.1, unknown, 10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", [b"unknown"], "10.0.0.1"),
        ("10.0.0.1", [b"198.51.100.1:4711"], "198.51.100.1"),
        ("10.0.0.1", [b"[2001:db8::1]:4711"], "2001:db8::1"),
        ("10.0.0.1", [b"2001:DB8::1"], "2001:db8::1"),
        ("::ffff:10.0.0.1", [b"198.51.100.1"], "198.51.100.1"),
        ("fd00::1%eth0", [b"198.51.100.1"], "198.51.100.1"),
        ("", [b"198.51.100.1"], ""),
    ],
)
def test_the_client_is_the_rightmost_address_that_is_not_trusted(peer: str, chain: list[bytes], address: str) -> None:
    assert proxies.client(peer, False, forwarded(*chain)).address == address


def test_a_chain_without_end_is_followed_only_so_far() -> None:
    chain = b"198.51.100.1, " + b", ".join([b"10.0.0.2"] * 1000)
    assert proxies.client("10.0.0.1", False, forwarded(chain)).address == "10.0.0.2"


@pytest.mark.parametrize(
    ("peer", "secure", "told", "scheme"),
    [
        ("10.0.0.1", False, b"https", b"https"),
        ("10.0.0.1", True, b"http", b"http"),
        ("10.0.0.1", False, b"http, HTTPS", b"https"),
        ("10.0.0.1", False, b"gopher", b"http"),
        ("203.0.113.9", False, b"https", b"http"),
        ("203.0.113.9", True, b"http", b"https"),
    ],
)
def test_the_scheme_is_believed_from_trusted_peers_only(peer: str, secure: bool, told: bytes, scheme: bytes) -> None:
    assert proxies.client(peer, secure, [(b"x-forwarded-proto", told)]).scheme == scheme


def test_without_trusted_proxies_the_peer_is_the_client() -> None:
    assert TrustedProxies().client("10.0.0.1", True, forwarded(b"1.2.3.4")) == Client("10.0.0.1", b"https", False)
