"""What the pages hold, read as a browser without script would (LED-5)."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape

from gateway.central.page.drawing import CARDS_MAX
from gateway.central.page.forms import ROWS
from tests.central.desk import now
from tests.central.page.ledger import Ledger, both, registration, server_id_of


async def text_of(ledger: Ledger, path: str, session: dict[str, str]) -> str:
    reply = await ledger.ask(path, headers=session)
    assert reply.status == 200, reply.body
    return unescape(reply.body.decode())


def ids_in(page: str) -> list[str]:
    """The client correlation IDs of the rows, from top to bottom."""
    return re.findall(r'href="/tree/([^"]+)"', page)


async def test_a_long_search_goes_on_page_by_page(ledger: Ledger) -> None:
    """LED-5: keyset paging: all rows once, newest first, and the way back to the beginning."""
    rows = [("orders", registration("orders", f"c-{number:03}", ago_s=number)) for number in range(ROWS + 7)]
    await ledger.write(*rows)
    session = await ledger.log_in("audit")
    first = await text_of(ledger, "/search?actor=server", session)
    assert "First page" not in first
    following = re.search(r'rel="next" href="([^"]+)"', first)
    assert following is not None
    second = await text_of(ledger, following[1], session)
    assert 'rel="next"' not in second
    assert ids_in(first) + ids_in(second) == [f"c-{number:03}" for number in range(ROWS + 7)]
    assert 'href="/search?actor=server">First page' in second


async def test_searches_filter_by_every_field(ledger: Ledger) -> None:
    """LED-5: service, side, phase, outcome, time, endpoint and any correlation ID."""
    await ledger.write(
        *both("shop", "orders", "c-1", path="/orders/1"),
        *both("orders", "stock", "c-2", path="/stock", phase="FAILED", ago_s=7_200),
        ("stock", registration("stock", "c-3", phase="PROCESSING")),
    )
    session = await ledger.log_in("audit")
    an_hour_ago = (now() - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M")
    for query, found in (
        ("source=stock", {"c-2", "c-3"}),
        ("source=orders&actor=client", {"c-2"}),
        ("phase=PROCESSING", {"c-3"}),
        ("outcome=FAILED", {"c-2"}),
        (f"from={an_hour_ago}", {"c-1", "c-3"}),
        (f"to={an_hour_ago}", {"c-2"}),
        ("endpoint=%2Forders", {"c-1", "c-3"}),
        ("endpoint=stock%3A", {"c-2", "c-3"}),
        (f"q=+{server_id_of('c-1')}+", {"c-1"}),
        ("q=unheard-of", set()),
        ("source=&actor=&phase=&outcome=&from=&to=&endpoint=&q=", {"c-1", "c-2", "c-3"}),
    ):
        page = await text_of(ledger, f"/search?{query}", session)
        assert set(ids_in(page)) == found, query
        assert ("Nothing found" in page) is (not found)


async def test_empty_pages_say_what_to_do(ledger: Ledger) -> None:
    session = await ledger.log_in("operations")
    for path, words in (
        ("/", "No service has registered"),
        ("/search", "The ledger is empty"),
        ("/tree", "Which call?"),
        ("/stalled", "Nothing is stalled"),
        ("/in-doubt", "Nothing is in doubt"),
        ("/unpaired", "Every call has both registrations"),
        ("/callback-gaps", "Every callback was acknowledged"),
        ("/services", "it registers by itself"),
    ):
        assert words in await text_of(ledger, path, session)


async def test_cycles_missing_parents_and_repeated_ids_are_drawn_and_noted(ledger: Ledger) -> None:
    """LED-5: annotated, never hidden."""
    await ledger.write(
        *both("shop", "orders", "c-a", parent="c-b"),
        *both("orders", "shop", "c-b", parent="c-a"),
        *both("shop", "orders", "c-orphan", parent="c-nowhere"),
    )
    session = await ledger.log_in("audit")
    around = await text_of(ledger, "/tree/c-a", session)
    assert "cycle: leads back to a call above" in around
    assert {"c-a", "c-b"} <= set(ids_in(around))
    orphan = await text_of(ledger, "/tree/c-orphan", session)
    assert "its parent is not in this ledger" in orphan
    assert "c-nowhere" in orphan


async def test_a_large_tree_stays_usable(ledger: Ledger) -> None:
    """LED-5: a bounded picture that says what it leaves out, and the whole of it as a list."""
    calls = CARDS_MAX + 50
    await ledger.write(
        ("orders", registration("orders", "c-root")),
        *(("orders", registration("orders", f"c-{n}", target="stock", parent="c-root")) for n in range(calls)),
    )
    session = await ledger.log_in("audit")
    page = await text_of(ledger, "/tree/c-root", session)
    assert f"{calls + 1} calls, {CARDS_MAX} drawn" in page
    assert "51 more not drawn" in page
    assert page.count('class="t-card') == CARDS_MAX
    assert len(set(ids_in(page))) == calls + 1
    assert len(page) < 3_000_000


async def test_ids_that_a_browser_would_resolve_have_a_tree_too(ledger: Ledger) -> None:
    """DESIGN decision 14."""
    await ledger.write(("orders", registration("orders", "..")), ("orders", registration("orders", "a/b%2F?c#d")))
    session = await ledger.log_in("audit")
    links = re.findall(r'class="id" href="(/tree[^"]+)"', await text_of(ledger, "/search", session))
    assert len(links) == 2
    for link in links:
        assert "1 call" in await text_of(ledger, link, session)
