"""Where the cards of a call tree stand (pure): callers on the left, level with the first of their calls to their right.

Each call is one card with its two registrations side by side (COR-1). A picture has a bounded number of cards, the
nearest to the root first; what is left out is counted on the card it hangs on, never dropped in silence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

CARD_WIDTH, CARD_HEIGHT = 316, 104
GAP_X, GAP_Y = 64, 18
MARGIN = 12
CARDS_MAX = 250  # some megabytes of markup; beyond it a picture is no longer looked at, but searched
CHIP_HEIGHT = 22  # below a card that has something to say

Document = Mapping[str, Any]


@dataclass(slots=True)
class Branch:
    """One call: what either side registered, what it led to, and what is odd about it."""

    client_id: str
    client: Document | None
    server: Document | None
    notes: tuple[str, ...] = ()
    children: list[Branch] = field(default_factory=list)


@dataclass(slots=True)
class Card:
    """A call in its place."""

    branch: Branch
    depth: int
    x: float = 0.0
    y: float = 0.0
    children: list[Card] = field(default_factory=list)

    @property
    def hidden(self) -> int:
        """How many of its direct calls are not in the picture."""
        return len(self.branch.children) - len(self.children)

    @property
    def chips(self) -> list[str]:
        """What is said below the card."""
        more = [f"{self.hidden} more not drawn"] if self.hidden else []
        return [*self.branch.notes, *more]

    @property
    def height(self) -> float:
        """With what is said below it."""
        return CARD_HEIGHT + CHIP_HEIGHT * len(self.chips)

    @property
    def middle(self) -> float:
        """Where lines meet it."""
        return self.y + CARD_HEIGHT / 2


@dataclass(frozen=True, slots=True)
class Drawing:
    """All there is to draw, in units of its own view box."""

    cards: list[Card]
    curves: list[str]
    width: float
    height: float
    total: int


def draw(roots: Sequence[Branch]) -> Drawing:
    """Place the calls below these roots."""
    tops, total = _chosen(roots)
    cards: list[Card] = []
    low = float(MARGIN)
    waiting = [(card, False) for card in reversed(tops)]
    while waiting:
        card, left = waiting.pop()
        if left:  # all below it is placed; it may reach lower than they do
            low = max(low, card.y + card.height + GAP_Y)
            continue
        card.x, card.y = MARGIN + card.depth * (CARD_WIDTH + GAP_X), low  # level with its first call
        cards.append(card)
        waiting.append((card, True))
        waiting.extend((child, False) for child in reversed(card.children))
    right = max((card.x for card in cards), default=0.0) + CARD_WIDTH + MARGIN
    curves = [_curve(card, child) for card in cards for child in card.children]
    return Drawing(cards, curves, right, low - GAP_Y + MARGIN, total)


def _chosen(roots: Sequence[Branch]) -> tuple[list[Card], int]:
    """The cards nearest to the roots, and how many calls there are in all. No recursion: a chain may be deep."""
    tops = [Card(branch, 0) for branch in roots[:CARDS_MAX]]
    drawn, total = len(tops), len(roots)
    waiting: deque[Card] = deque(tops)
    while waiting:
        card = waiting.popleft()
        for branch in card.branch.children[: max(CARDS_MAX - drawn, 0)]:
            card.children.append(Card(branch, card.depth + 1))
            drawn += 1
        waiting.extend(card.children)
    rest = deque(branch for root in roots for branch in root.children)
    while rest:
        branch = rest.popleft()
        total += 1
        rest.extend(branch.children)
    return tops, total


def _curve(card: Card, child: Card) -> str:
    x0, y0, x1, y1 = card.x + CARD_WIDTH, card.middle, child.x, child.middle
    bend = (x0 + x1) / 2
    return f"M{x0:g} {y0:g}C{bend:g} {y0:g} {bend:g} {y1:g} {x1:g} {y1:g}"
