"""From a raw path to its endpoint: segments match undecoded, and are decoded once (DESIGN decision 14)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from gateway.operator.calls import Endpoint, refusing_other_methods, unknown_paths

_VARIABLE = re.compile(r"\{(\w+)\}")


class Table:
    """Endpoints by path and method."""

    def __init__(self, endpoints: Sequence[Endpoint[Any]]) -> None:
        by_path: dict[str, list[Endpoint[Any]]] = {}
        for endpoint in endpoints:
            by_path.setdefault(endpoint.path, []).append(endpoint)
        self._places = [(_pattern(path), _Place(found)) for path, found in by_path.items()]
        self._below, self._elsewhere = unknown_paths()

    def find(self, method: str, path: str) -> tuple[Endpoint[Any], dict[str, str]]:
        """Who answers, and the variable segments of the path; where nothing is, who says so."""
        for pattern, place in self._places:
            match = pattern.fullmatch(path)
            if match is not None:
                segments = {name: unquote(value, errors="replace") for name, value in match.groupdict().items()}
                return place.by_method.get(method, place.other), segments
        return (self._below if path.startswith("/v1/") else self._elsewhere), {}


class _Place:
    """One path: its endpoints, and what says no to other methods."""

    def __init__(self, endpoints: Sequence[Endpoint[Any]]) -> None:
        self.by_method = {method: endpoint for endpoint in endpoints for method in endpoint.methods}
        self.other = refusing_other_methods(endpoints)


def _pattern(path: str) -> re.Pattern[str]:
    parts = _VARIABLE.split(path)
    literal = [re.escape(part) for part in parts[0::2]]
    named = [f"(?P<{name}>[^/]+)" for name in parts[1::2]]
    return re.compile("".join(piece for pair in zip(literal, [*named, ""], strict=True) for piece in pair))
