"""The upstream's address."""

from __future__ import annotations

import pytest

from gateway.upstream.origin import Origin


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("http://127.0.0.1:3000", Origin("127.0.0.1", 3000, False, b"127.0.0.1:3000")),
        ("http://orders/", Origin("orders", 80, False, b"orders")),
        ("https://Orders.Test", Origin("orders.test", 443, True, b"orders.test")),
        ("https://[::1]:8443", Origin("::1", 8443, True, b"[::1]:8443")),
        ("http://bücher.test:81", Origin("xn--bcher-kva.test", 81, False, b"xn--bcher-kva.test:81")),
    ],
)
def test_an_origin_is_scheme_host_and_port(url: str, origin: Origin) -> None:
    assert Origin.parse(url) == origin


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host",
        "host:80",
        "http://",
        "http://u:p@host",
        "http://host/path",
        "http://host?q",
        "http://host:99999",
        f"http://{'x' * 64}",
    ],
)
def test_anything_else_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        Origin.parse(url)
