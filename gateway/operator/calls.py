"""What every endpoint is made of: a `Call` comes in, an `Answer` goes out.

Knows nothing of sockets. An endpoint that names nobody is closed to everybody (SEC-5).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import orjson
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.operator import refusals
from gateway.operator.access import NOBODY, ROLES, Token
from gateway.protocol.messages import Answer
from gateway.protocol.problems import Problem

Sources = TypeVar("Sources")

NO_HEADERS: CIMultiDictProxy[str] = CIMultiDictProxy(CIMultiDict())


@dataclass(frozen=True, slots=True)
class Call:
    """A request, once it is clear which endpoint it is for: the raw query, and the variable segments of the path."""

    query: str
    segments: Mapping[str, str]
    headers: CIMultiDictProxy[str] = field(default_factory=lambda: NO_HEADERS)
    body: bytes = b""
    token: Token | None = None  # None: the endpoint is open to anyone
    peer: str = ""  # the address it came from

    @property
    def reader(self) -> str:
        """The name of the token."""
        return "" if self.token is None else self.token.name

    @property
    def last_event_id(self) -> str | None:
        """Where a stream of events is to be resumed."""
        return self.headers.get("Last-Event-ID")

    def document(self, *, takes: Collection[str], needs: Collection[str] = ()) -> dict[str, Any]:
        """The body as a JSON object that has exactly the members an endpoint takes, or the 400."""
        try:
            found = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            raise refusals.body_malformed() from None
        if not isinstance(found, dict):
            raise refusals.body_malformed()
        for name in found:
            if name not in takes:
                raise refusals.member_unknown(sorted(takes))
        for name in needs:
            if found.get(name) is None:
                raise refusals.member_missing(name)
        return found


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[Sources]):
    """One thing that can be asked, or done."""

    path: str
    answer: Callable[[Sources, Call], Awaitable[Answer]]
    roles: frozenset[str] = NOBODY
    open: bool = False  # to anyone who reaches the port
    methods: tuple[str, ...] = ("GET", "HEAD")
    stream: Callable[[Sources, Call], AsyncIterator[bytes]] | None = None  # what follows a 200, for as long as it lasts
    body_max_bytes: int = 0  # 0: a request with a body is refused
    refusal: Callable[[Call, Problem], Answer] | None = None  # how it says no; None: as a problem document


def refusing_other_methods(endpoints: Collection[Endpoint[Sources]]) -> Endpoint[Sources]:
    """What a path is to any method but those of its endpoints: known to the same roles, and refused."""
    methods = tuple(method for endpoint in endpoints for method in endpoint.methods)

    async def refuse(sources: Sources, call: Call) -> Answer:
        raise refusals.method_not_allowed(methods)

    first = next(iter(endpoints))
    roles = frozenset[str]().union(*(endpoint.roles for endpoint in endpoints))
    return replace(first, answer=refuse, stream=None, roles=roles, body_max_bytes=0)


def unknown_paths() -> tuple[Endpoint[Any], Endpoint[Any]]:
    """What answers where nothing is. Below /v1, not even what exists is told without a token."""

    async def no_such_path(sources: Any, call: Call) -> Answer:
        raise refusals.no_such_path()

    return (
        Endpoint("/v1/…", no_such_path, roles=ROLES),
        Endpoint("/…", no_such_path, open=True),
    )


def json(document: Any, status: int = 200) -> Answer:
    """An answer of JSON."""
    return Answer(status, [(b"Content-Type", b"application/json")], orjson.dumps(document))
