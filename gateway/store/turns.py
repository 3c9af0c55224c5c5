"""In which order buckets are looked at by a reader that stops when it has enough."""

from __future__ import annotations

from collections.abc import Iterator


class Turns:
    """All buckets, each time from the next one on: where the first always has enough, the last gets its turn too."""

    def __init__(self, buckets: int) -> None:
        self._buckets = buckets
        self._first = 0

    def __iter__(self) -> Iterator[int]:
        first, self._first = self._first, (self._first + 1) % self._buckets
        return iter((*range(first, self._buckets), *range(first)))
