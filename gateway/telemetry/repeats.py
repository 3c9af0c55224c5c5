"""The same complaint over and over is said a few times and then counted: an outage must not flood the log."""

from __future__ import annotations

from dataclasses import dataclass

WINDOW_S = 10.0
SAID_MAX = 5  # per window: enough to see several correlation ids
KINDS_MAX = 256  # kinds of complaint remembered at once

Kind = tuple[str, str, str]  # logger, level, first line of the message's template


@dataclass(slots=True)
class _Window:
    since: float
    said: int
    left_out: int


class Repeats:
    """Time is passed in."""

    def __init__(self) -> None:
        self._windows: dict[Kind, _Window] = {}

    def admit(self, kind: Kind, now: float) -> int | None:
        """None: leave it out. Otherwise say it, together with how many of its kind were left out before."""
        window = self._windows.get(kind)
        if window is not None and now - window.since < WINDOW_S:
            if window.said < SAID_MAX:
                window.said += 1
                return 0
            window.left_out += 1
            return None
        if window is None and len(self._windows) >= KINDS_MAX:
            self._windows.pop(next(iter(self._windows)))
        self._windows.pop(kind, None)  # to the end: the dict's order is that of the windows' starts
        self._windows[kind] = _Window(since=now, said=1, left_out=0)
        return window.left_out if window else 0

    def settle(self, now: float) -> list[tuple[Kind, int]]:
        """Forget the windows that are over; returns what they left out and nobody has told yet."""
        over: list[tuple[Kind, int]] = []
        while self._windows:
            kind, window = next(iter(self._windows.items()))
            if now - window.since < WINDOW_S:
                break
            del self._windows[kind]
            if window.left_out:
                over.append((kind, window.left_out))
        return over
