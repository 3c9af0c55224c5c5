"""What we use of aiohttp without a promise (decision 13): each name is there, and no other is used unseen."""

from __future__ import annotations

import ast
import inspect
from importlib.metadata import requires, version

import pytest
from aiohttp import http_parser
from aiohttp.web_protocol import RequestHandler

from gateway.ingress import connection, edge, require_c_parser
from tests.ingress.peer import Gateway

HALVES = (connection.Connection, edge.Edge)


def test_aiohttp_is_the_version_that_was_read() -> None:
    assert version("aiohttp").startswith("3.14.")


@pytest.mark.parametrize("name", connection.AIOHTTP_PRIVATE)
async def test_each_private_name_of_aiohttp_is_still_there(gateway: Gateway, name: str) -> None:
    await gateway.connect()
    made = gateway.server()
    assert hasattr(made, name)
    assert any(name in vars(cls) for cls in RequestHandler.__mro__), "it is ours now, not aiohttp's"


def test_no_other_private_name_of_aiohttp_is_used() -> None:
    ours = {name for half in HALVES for name in (*half.__slots__, *vars(half))} | {"_sweep_timer", "_sweep_every_s"}
    used = {
        node.attr
        for module in (connection, edge)
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
    }
    assert used - ours - {"_sweep"} == set(connection.AIOHTTP_PRIVATE)


@pytest.mark.parametrize("name", ["feed_data", "message_consumed", "pause_reading"])
def test_the_parser_has_what_the_edge_calls(name: str) -> None:
    assert callable(getattr(http_parser.HttpRequestParser, name))


async def test_the_parser_counts_headers_in_the_words_we_know(gateway: Gateway) -> None:
    """It has no type for it; with other words a 431 would become a 400."""
    many = b"".join(b"X: y\r\n" for _ in range(gateway.server.limits.max_headers + 1))
    with pytest.raises(Exception) as raised:
        gateway.server()._parser.feed_data(b"GET / HTTP/1.1\r\n" + many + b"\r\n")
    assert getattr(raised.value, "message", None) == connection.TOO_MANY_HEADERS


def test_the_c_parser_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    require_c_parser()
    monkeypatch.setattr(edge, "HttpRequestParser", http_parser.HttpRequestParserPy)
    with pytest.raises(RuntimeError, match="C parser"):
        require_c_parser()


def test_the_pin_of_aiohttp_is_below_its_next_minor() -> None:
    try:
        pins = requires("twophp-gateway") or []
    except ModuleNotFoundError:
        pytest.skip("not installed as a distribution")
    assert any(pin.replace(" ", "") in ("aiohttp<3.15,>=3.14.5", "aiohttp>=3.14.5,<3.15") for pin in pins)
