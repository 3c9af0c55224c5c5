"""Which way a request goes: request + routes -> Passthrough | Register | Confirm | Direct | Poll | Look.

Routes match the raw path; an encoded slash is data (DESIGN decision 14).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, Protocol, TypeVar
from urllib.parse import unquote_to_bytes
from uuid import UUID

from gateway.protocol import headers, problems
from gateway.protocol.headers import Handshake, HeaderMap

PATHS_REMEMBERED = 512
MUTATIONS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
WELL_KNOWN_INTENTS = b"/.well-known/2php/intents/"
_UUID_V4_SEGMENT = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


class RouteLike(Protocol):
    """What the rules need to know of a route."""

    @property
    def path(self) -> str:
        """`/orders`, or `/orders/**` for it and all below."""
        ...

    @property
    def methods(self) -> frozenset[str]:
        """The mutations it covers."""
        ...

    @property
    def mode(self) -> str:
        """standard, transparent or off."""
        ...

    @property
    def confirm_suffix(self) -> str:
        """What is appended to a Phase 1 path to confirm it."""
        ...


R = TypeVar("R", bound=RouteLike)


@dataclass(frozen=True, slots=True)
class Passthrough:
    """OPT-2: untouched."""


@dataclass(slots=True)
class Register(Generic[R]):
    """Phase 1."""

    route: R
    client_correlation_id: str
    requested_ttl_ms: int | None


@dataclass(slots=True)
class Direct(Generic[R]):
    """No confirmation is waited for: auto-confirm (ACM-1), or transparent mode (TRN-1, TRN-2).

    `silent`: the caller knows nothing of 2PHP, and the route does this for it.
    """

    route: R
    client_correlation_id: str | None
    callback: str | None
    requested_ttl_ms: int | None
    silent: bool


@dataclass(slots=True)
class Confirm:
    """Phase 2. `confirms`: the Phase 1 paths that this path stands for; empty when no route knows it."""

    client_correlation_id: str
    server_correlation_id: UUID
    confirms: tuple[bytes, ...]
    routed: bool


@dataclass(frozen=True, slots=True)
class Poll:
    """ASY-2, REC-6: perhaps one of ours; if not, it goes upstream untouched."""

    server_correlation_id: UUID
    phase_1_path: bytes


@dataclass(frozen=True, slots=True)
class Look:
    """RPL-5: look before you retry."""

    client_correlation_id: str


PASSTHROUGH = Passthrough()
Decision = Passthrough | Register[R] | Direct[R] | Confirm | Poll | Look


class Routes(Generic[R]):
    """The routes of one configuration; the first that matches wins, none means passed through."""

    def __init__(self, routes: Sequence[R], *, enabled: bool = True) -> None:
        self.enabled = enabled
        self._routes = tuple((_pattern(route.path), route) for route in routes)
        self._suffixes = tuple({route.confirm_suffix.encode() for route in routes})
        # Most traffic is on few paths; a path that carries an ID is soon forgotten.
        self.match = lru_cache(PATHS_REMEMBERED)(self._match)
        self.confirms = lru_cache(PATHS_REMEMBERED)(self._confirms)

    def _match(self, method: str, path: bytes) -> R | None:
        """The route of a mutation, unless 2PHP is off there (OPT-3)."""
        number = self._number(method, path)
        return None if number is None else self._routes[number][1]

    def _number(self, method: str, path: bytes) -> int | None:
        for number, ((base, below), route) in enumerate(self._routes):
            if method in route.methods and _matches(base, below, path):
                return None if route.mode == "off" else number
        return None

    def covers(self, path: bytes) -> bool:
        """Whether any mutation of this path can be an intent."""
        return any(_matches(base, below, path) and route.mode != "off" for (base, below), route in self._routes)

    def place(self, path: bytes) -> tuple[object, ...]:
        """What kind of path this is: two paths with equal places are never told apart by route or phase."""
        return (
            tuple(self._number(method, path) for method in MUTATIONS),
            any(path.endswith(suffix) for suffix in self._suffixes) and bool(self.confirms(path)),
            path.startswith(WELL_KNOWN_INTENTS),
            self.polls(path) is not None,
        )

    def polls(self, path: bytes) -> bytes | None:
        """ASY-2: the Phase 1 path whose poll path this may be, by its form."""
        # The two bytes tell nearly every other path apart for the price of two look-ups.
        if len(path) > 37 and path[-37] == 0x2F and path[-22] == 0x34:
            phase_1_path = path[:-37]
            if _UUID_V4_SEGMENT.fullmatch(path, len(path) - 36) and self.covers(phase_1_path):
                return phase_1_path
        return None

    def _confirms(self, path: bytes) -> tuple[bytes, ...]:
        """P2-1: the Phase 1 paths whose confirm path this is."""
        found = []
        for suffix in self._suffixes:
            if not path.endswith(suffix):
                continue
            phase_1_path = path[: -len(suffix)] or b"/"
            if self._has_suffix(phase_1_path, suffix):
                found.append(phase_1_path)
        return tuple(found)

    def _has_suffix(self, path: bytes, suffix: bytes) -> bool:
        return any(
            _matches(base, below, path) and route.mode != "off" and route.confirm_suffix.encode() == suffix
            for (base, below), route in self._routes
        )


def decide(method: str, path: bytes, fields: HeaderMap, routes: Routes[R]) -> Decision[R]:
    """Which way a request goes, or the 400 that says what is wrong with its 2PHP fields."""
    if not routes.enabled:
        return PASSTHROUGH
    if method == "GET":
        return _decide_read(path, routes)
    if method not in MUTATIONS:
        return PASSTHROUGH
    if not headers.is_enabled(fields):
        return _decide_silent(method, path, fields, routes)
    if fields.getall(headers.SERVER_CORRELATION_ID, []):
        return _decide_confirm(method, path, fields, routes)
    route = routes.match(method, path)
    if route is None:
        return PASSTHROUGH
    handshake = headers.parse(fields)
    if handshake.auto_confirm:
        client_id = _client_id(handshake) if handshake.callback is not None else handshake.client_correlation_id
        return Direct(route, client_id, handshake.callback, handshake.requested_ttl_ms, silent=False)
    return Register(route, _client_id(handshake), handshake.requested_ttl_ms)


def _decide_silent(method: str, path: bytes, fields: HeaderMap, routes: Routes[R]) -> Decision[R]:
    """TRN-2: a transparent route does it for requests with no 2PHP header at all."""
    route = routes.match(method, path)
    if route is None or route.mode != "transparent" or headers.speaks(fields):
        return PASSTHROUGH
    return Direct(route, None, None, None, silent=True)


def _decide_confirm(method: str, path: bytes, fields: HeaderMap, routes: Routes[R]) -> Decision[R]:
    confirms = routes.confirms(path)
    routed = bool(confirms) or routes.match(method, path) is not None
    try:
        handshake = headers.parse(fields)
        client_correlation_id = _client_id(handshake)
    except problems.Problem:
        if routed:
            raise
        return PASSTHROUGH
    assert handshake.server_correlation_id is not None
    return Confirm(
        client_correlation_id,
        handshake.server_correlation_id,
        confirms if method == "POST" else (),
        routed,
    )


def _decide_read(path: bytes, routes: Routes[R]) -> Decision[R]:
    if path.startswith(WELL_KNOWN_INTENTS):
        segment = path[len(WELL_KNOWN_INTENTS) :]
        if b"/" not in segment:
            return Look(headers.opaque_id(unquote_to_bytes(segment)))
        return PASSTHROUGH
    phase_1_path = routes.polls(path)
    return PASSTHROUGH if phase_1_path is None else Poll(UUID(path[-36:].decode()), phase_1_path)


def confirm_path(phase_1_path: bytes, suffix: str) -> bytes:
    """P2-1: where an intent of this path is confirmed."""
    return (b"" if phase_1_path == b"/" else phase_1_path) + suffix.encode()


def _client_id(handshake: Handshake) -> str:
    if handshake.client_correlation_id is None:
        raise problems.missing_client_correlation_id()
    return handshake.client_correlation_id


def _pattern(path: str) -> tuple[bytes, bool]:
    raw = path.encode()
    return (raw[:-3], True) if raw.endswith(b"/**") else (raw, False)


def _matches(base: bytes, below: bool, path: bytes) -> bool:
    if not below:
        return path == base
    return path.startswith(base) and (len(path) == len(base) or path[len(base)] == 0x2F)
