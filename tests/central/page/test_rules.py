"""The pure parts of the page: states, times, charts and pictures (LED-5)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateway.central.page import chart, drawing, moments, rendering, states, timeline, tree
from gateway.central.page.drawing import Branch
from gateway.central.page.forms import own_path
from gateway.protocol.phases import Phase

NOW = datetime(2026, 11, 18, 12, 0, tzinfo=UTC)


# --- states


def test_every_phase_has_a_word_a_colour_and_a_shape_of_its_own() -> None:
    """Colour is not the only carrier: words differ, and so do the shapes."""
    found = [*(states.of_phase(phase) for phase in Phase), states.IN_DOUBT, states.ABSENT]
    assert len({state.word for state in found}) == len(found)
    assert len({state.key for state in found}) == len(found)
    icons = (rendering.TEMPLATES / "icons.html").read_text()
    css = (rendering.TEMPLATES.parent / "static" / "page.css").read_text()
    for state in found:
        assert f'id="i-{state.key}"' in icons
        assert state.key in ("abandoned", "expired") or f".state.s-{state.key}" in css


def test_doubt_is_shown_instead_of_the_phase_it_hides() -> None:
    """REC-2: an intent in doubt stays PROCESSING."""
    assert states.of_entry({"phase": "PROCESSING", "in_doubt": "2026-11-18T12:00:00Z"}) is states.IN_DOUBT
    assert states.of_entry({"phase": "PROCESSING", "in_doubt": None}).word == "processing"
    assert states.of_entry(None) is states.ABSENT
    assert states.of_entry({"redacted": True, "actor": "client"}) is states.REDACTED


# --- times


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.2, "now"),
        (3, "3 s ago"),
        (125, "2 min 5 s ago"),
        (600, "10 min ago"),
        (3_700, "1 h 1 min ago"),
        (90_000, "1 d 1 h ago"),
        (86_400 * 12, "12 d ago"),
        (-20, "in 20 s"),
    ],
)
def test_ages_are_said_in_the_largest_units(seconds: float, said: str) -> None:
    assert moments.age(NOW - timedelta(seconds=seconds), NOW) == said


def test_times_are_utc_whatever_zone_they_came_in() -> None:
    assert moments.stamp("2026-11-18T13:00:00.250+01:00") == "2026-11-18 12:00:00"
    assert moments.exact("2026-11-18T13:00:00.250+01:00") == "2026-11-18T12:00:00.250Z"
    assert moments.stamp(None) == "–"
    assert moments.stamp("not a time") == "–"


# --- chart


def test_bars_stand_on_each_other_and_a_single_failure_is_seen() -> None:
    buckets = [chart.Bucket(NOW, {"COMMITTED": 90_000, "FAILED": 1}), chart.Bucket(NOW + timedelta(minutes=1), {})]
    drawn = chart.stacked(buckets, ["COMMITTED", "FAILED"])
    committed, failed = drawn.bars
    assert committed.y + committed.height == pytest.approx(chart.HEIGHT - chart.BOTTOM)
    assert failed.y + failed.height == pytest.approx(committed.y)
    assert failed.height == chart.BAR_MIN_HEIGHT
    assert failed.y >= 0
    assert [line.text for line in drawn.lines] == ["0", "30k", "60k", "90k", "120k"]


def test_a_chart_of_nothing_has_an_axis_and_no_bars() -> None:
    drawn = chart.stacked([], ["COMMITTED"])
    assert (drawn.bars, len(drawn.lines)) == ([], 5)


# --- the picture of a tree


def branch(name: str, *children: Branch, notes: tuple[str, ...] = ()) -> Branch:
    return Branch(name, None, None, notes, list(children))


def overlapping(cards: list[drawing.Card]) -> list[tuple[str, str]]:
    """Cards, with what is said below them, that share a place."""
    return [
        (one.branch.client_id, other.branch.client_id)
        for index, one in enumerate(cards)
        for other in cards[index + 1 :]
        if one.x == other.x and one.y < other.y + other.height and other.y < one.y + one.height
    ]


def test_callers_stand_left_of_their_calls_and_nothing_overlaps() -> None:
    """COR-3's shape, with a caller that has more to say than what it called."""
    root = branch(
        "A",
        branch("B1", branch("C1"), branch("D1", branch("E1")), notes=("one", "two", "three", "four", "five", "six")),
        branch("B2", notes=("odd",)),
        branch("B3"),
    )
    drawn = drawing.draw([root])
    places = {card.branch.client_id: card for card in drawn.cards}
    assert len(places) == drawn.total == 7
    assert overlapping(drawn.cards) == []
    for card in drawn.cards:
        assert all(child.x > card.x for child in card.children)
        assert card.x + drawing.CARD_WIDTH <= drawn.width
        assert card.y + card.height <= drawn.height
    assert places["A"].y == places["B1"].y == places["C1"].y
    assert len(drawn.curves) == 6


def test_a_tree_too_large_to_draw_says_what_it_leaves_out() -> None:
    """The nearest to the root are drawn, the rest is counted."""
    wide = branch("A", *(branch(f"B{number}", branch(f"C{number}")) for number in range(drawing.CARDS_MAX)))
    drawn = drawing.draw([wide])
    assert len(drawn.cards) == drawing.CARDS_MAX
    assert drawn.total == 2 * drawing.CARDS_MAX + 1
    hidden = sum(card.hidden for card in drawn.cards)
    assert len(drawn.cards) + hidden <= drawn.total
    assert "1 more not drawn" in drawn.cards[0].chips
    assert overlapping(drawn.cards) == []


def test_a_chain_deeper_than_any_stack_is_drawn_and_listed() -> None:
    deep: dict[str, Any] = {"client_correlation_id": "end", "client": None, "server": None, "notes": [], "children": []}
    for number in range(3_000):
        deep = {"client_correlation_id": f"c{number}", "client": None, "server": None, "notes": [], "children": [deep]}
    roots = tree.branches([deep])
    drawn = drawing.draw(roots)
    assert (len(drawn.cards), drawn.total) == (drawing.CARDS_MAX, 3_001)
    assert len(tree.outline(roots)) == tree.LISTED_MAX


# --- the timeline


def test_a_timeline_holds_events_attempts_and_callbacks_in_order() -> None:
    intent = {
        "events": [
            {"at": "2026-11-18T12:00:00Z", "code": "P1-001", "phase": "WAITING_CONFIRM", "detail": None},
            {"at": "2026-11-18T12:00:05Z", "code": "OUT-001", "phase": "COMMITTED", "detail": {"status": 201}},
            {"at": "2026-11-18T12:00:01Z", "code": "RPL-001", "phase": None, "detail": {"refused": "x"}},
        ],
        "attempts": [
            {"number": 1, "started_at": "2026-11-18T12:00:02Z", "ended_at": "2026-11-18T12:00:04Z",
             "status": 201, "error": None},
        ],
        "deliveries": [
            {"kind": "callback", "event": "COMMITTED", "state": "dead", "attempts": 8, "last_status": 503,
             "last_error": None, "created_at": "2026-11-18T12:00:05Z", "next_at": None,
             "settled_at": "2026-11-18T14:00:00Z"},
        ],
    }  # fmt: skip
    steps = timeline.of_intent(intent)
    assert [(step.what, step.code) for step in steps] == [
        ("waiting", "P1-001"),
        ("noted", "RPL-001"),
        ("attempt 1 began", None),
        ("attempt 1 ended", None),
        ("committed", "OUT-001"),
        ("callback for COMMITTED promised", None),
        ("callback for COMMITTED given up", None),
    ]
    assert steps[3].text == "the service answered 201"
    assert steps[-1].text == "8 tries, answered 503"


# --- text


@pytest.mark.parametrize(
    "elsewhere", ["//evil.example", "https://evil.example/", "/\\evil.example", "", "/a b", "/\r\nX: y"]
)
def test_after_the_login_one_stays_here(elsewhere: str) -> None:
    """No open redirect, and nothing that could break out of a header."""
    assert own_path(elsewhere) == "/"
    assert own_path("/tree/a%2Fb?x=1") == "/tree/a%2Fb?x=1"


@pytest.mark.parametrize("client_id", ["a/b", "../..", "a?b#c", "%2F", "<script>"])
def test_an_id_is_one_segment_whatever_it_holds(client_id: str) -> None:
    """DESIGN decision 14."""
    url = rendering.tree_url(client_id)
    assert url.startswith("/tree/")
    assert url.count("/") == 2
    assert not set("?#<>\"'") & set(url)


def test_dots_that_a_browser_would_resolve_travel_as_a_parameter() -> None:
    assert rendering.tree_url("..") == "/tree?client_correlation_id=.."


def test_a_template_that_misses_a_value_fails_instead_of_showing_nothing() -> None:
    from jinja2 import UndefinedError

    with pytest.raises(UndefinedError):
        rendering.html("login.html", reader=None, next="/")
