"""The rows of the pass-through corpus, as mutations on a transparent route (TRN-2): bytes that few clients send."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.e2e.corpus.world import World, world
from tests.e2e.fidelity import Row
from tests.e2e.test_passthrough_fidelity import CORPUS
from tests.e2e.wire import Origin, answering, exchange

pytestmark = pytest.mark.asyncio(loop_scope="module")

# What a proxy does to these is its own, and the pass-through corpus says what: hop-by-hop and forwarding headers, a
# Host that HTTP/1.0 left out, the form of a target, of a length and of a missing reason, and informational answers.
A_PROXYS_OWN = {
    "request: hop by hop",
    "request: proxy connection",
    "request: an earlier via",
    "request: forged forwarding",
    "request: length with zeros",
    "request: http/1.0 without host",
    "request: absolute form",
    "answer: no reason",
    "answer: hop by hop",
    "answer: early hints",
}


def as_mutation(request: bytes) -> bytes | None:
    """The same request, as one that a transparent route takes; None for what is another's concern."""
    method, _, rest = request.partition(b" ")
    if b"\r\ndtt-2php-" in rest.lower() or method in (b"HEAD", b"OPTIONS", b"PROPFIND"):
        return None
    return (b"POST " if method == b"GET" else method + b" ") + rest


ROWS = {
    name: Row(request, row.answer, row.close)
    for name, row in CORPUS.items()
    if name not in A_PROXYS_OWN and (request := as_mutation(row.request)) is not None
}


class ScriptedOrigin(Origin):
    """Has no state but what it saw."""

    def reset(self) -> None:
        self.seen.clear()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(
    tmp_path_factory: pytest.TempPathFactory, postgres_url: str, template_database: str
) -> AsyncIterator[World]:
    origin = ScriptedOrigin()
    await origin.start()
    async with world(origin, tmp_path_factory.mktemp("rows"), postgres_url, template_database) as made:
        yield made
    await origin.stop()


@pytest.mark.parametrize("name", ROWS)
async def test_an_exchange_is_passed_on_unchanged(place: World, name: str) -> None:
    """TRN-2, OPT-2."""
    row = ROWS[name]
    assert isinstance(place.upstream, ScriptedOrigin)
    place.upstream.behave = answering(*row.answer, close=row.close)

    async def client(url: str) -> bytes:
        answer = await exchange(place.front.port, row.request)
        return answer.body

    await place.same(client)
