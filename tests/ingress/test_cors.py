"""Cross-origin use of the DTT-2PHP headers."""

from __future__ import annotations

import pytest

from gateway.ingress.cors import Cors
from gateway.protocol.messages import Answer, Header

SHOP = (b"Origin", b"https://shop.example")
ASKS = (b"Access-Control-Request-Method", b"POST")
NAMES = (b"Access-Control-Request-Headers", b"content-type, dtt-2php-enabled,dtt-2php-client-correlation-id")

cors = Cors(["https://shop.example"])


def values(answer: Answer | list[Header], name: bytes) -> list[bytes]:
    headers = answer.headers if isinstance(answer, Answer) else answer
    return [value for key, value in headers if key == name]


def test_a_preflight_that_names_our_headers_is_answered_for_a_listed_origin() -> None:
    answer = cors.preflight("OPTIONS", [SHOP, ASKS, NAMES])
    assert answer is not None
    assert answer.status == 204
    assert values(answer, b"Access-Control-Allow-Origin") == [b"https://shop.example"]
    assert values(answer, b"Access-Control-Allow-Credentials") == [b"true"]
    assert values(answer, b"Access-Control-Allow-Methods") == [b"POST"]
    assert values(answer, b"Access-Control-Allow-Headers") == [
        b"content-type, dtt-2php-enabled, dtt-2php-client-correlation-id"
    ]
    assert b"Origin" in values(answer, b"Vary")[0]


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("OPTIONS", [(b"Origin", b"https://evil.example"), ASKS, NAMES]),
        ("OPTIONS", [(b"Origin", b"null"), ASKS, NAMES]),
        ("OPTIONS", [SHOP, ASKS, (b"Access-Control-Request-Headers", b"content-type")]),
        ("OPTIONS", [SHOP, ASKS]),
        ("OPTIONS", [SHOP, NAMES]),
        ("OPTIONS", [ASKS, NAMES]),
        ("OPTIONS", [SHOP, ASKS, (b"Access-Control-Request-Headers", b"dtt-2php-enabled, a b")]),
        ("OPTIONS", [SHOP, (b"Access-Control-Request-Method", b"PO ST"), NAMES]),
        ("GET", [SHOP, ASKS, NAMES]),
    ],
)
def test_everything_else_passes_through(method: str, headers: list[Header]) -> None:
    """OPT-2: the upstream's own CORS is none of our business."""
    assert cors.preflight(method, headers) is None


def test_without_origins_nothing_is_answered_or_exposed() -> None:
    answer: list[Header] = []
    Cors().expose([SHOP], answer)
    assert answer == []
    assert Cors().preflight("OPTIONS", [SHOP, ASKS, NAMES]) is None


def test_our_headers_are_exposed_on_answers_to_a_listed_origin() -> None:
    answer: list[Header] = [(b"Content-Type", b"application/json")]
    cors.expose([SHOP], answer)
    assert values(answer, b"Access-Control-Allow-Origin") == [b"https://shop.example"]
    assert values(answer, b"Vary") == [b"Origin"]
    (exposed,) = values(answer, b"Access-Control-Expose-Headers")
    assert b"DTT-2PHP-Server-Correlation-ID" in exposed
    assert b"DTT-2PHP-Message" in exposed


def test_what_the_upstream_said_about_origins_stays() -> None:
    answer: list[Header] = [(b"access-control-allow-origin", b"*"), (b"Access-Control-Expose-Headers", b"X-Own")]
    cors.expose([SHOP], answer)
    assert answer[:2] == [(b"access-control-allow-origin", b"*"), (b"Access-Control-Expose-Headers", b"X-Own")]
    assert len(answer) == 3


def test_an_unlisted_origin_gets_nothing() -> None:
    answer: list[Header] = []
    cors.expose([(b"Origin", b"https://shop.example.evil")], answer)
    assert answer == []


def test_a_star_never_comes_with_credentials() -> None:
    answer = Cors(["*"]).preflight("OPTIONS", [SHOP, ASKS, NAMES])
    assert answer is not None
    assert values(answer, b"Access-Control-Allow-Origin") == [b"*"]
    assert values(answer, b"Access-Control-Allow-Credentials") == []
