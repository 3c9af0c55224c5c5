"""Rules about routes, on what they say themselves and on what holds after `defaults` and profile are merged in."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.settings.checks import Finding
from gateway.settings.durations import duration_text, size_text
from gateway.settings.faults import Location
from gateway.settings.model import Document, merged_routes
from gateway.settings.routes import TRANSPARENT_ONLY, Route, RouteEntry
from gateway.settings.rules import contract_key


def check_routes(document: Document) -> Iterator[Finding]:
    """Everything that is wrong with the routes of a document."""
    routes = merged_routes(document)
    if document.defaults.methods is not None and not document.defaults.methods:
        yield Finding(("defaults", "methods"), "at least one method")
    for index, (entry, route) in enumerate(zip(document.routes, routes, strict=True)):
        yield from _deadlines(document, index, route)
        yield from _replay(document, index, route)
        yield from _recovery(document, index, entry, route)
        yield from _mode(index, entry, route)
        yield from _sizes(document, index, route)
        yield from _reachable(index, entry, routes)


def _at(document: Document, index: int, attribute: str) -> Location:
    """Where a merged value was said: on the route, in `defaults`, or nowhere (then the route itself)."""
    key = contract_key(attribute)
    if getattr(document.routes[index], attribute) is not None:
        return ("routes", index, key)
    if getattr(document.defaults, attribute) is not None:
        return ("defaults", key)
    return ("routes", index)


def _finding(
    document: Document, index: int, attribute: str, message: str, hint: str = "", warning: bool = False
) -> Finding:
    about: tuple[Location, ...] = (("routes", index), ("defaults",))
    return Finding(_at(document, index, attribute), message, hint, about, warning)


def _deadlines(document: Document, index: int, route: Route) -> Iterator[Finding]:
    if route.max_ttl_ms < route.ttl_ms:
        message = (
            f"max_ttl {duration_text(route.max_ttl_ms)} is below the ttl of {route.path}, {duration_text(route.ttl_ms)}"
        )
        said = [
            name for name in ("max_ttl_ms", "ttl_ms", "profile") if getattr(document.routes[index], name) is not None
        ]
        at = said[0] if said else "max_ttl_ms"
        yield _finding(document, index, at, message, "set a larger max_ttl on the route")
    last_ms = route.max_ttl_ms + route.grace_ms
    if route.replay_horizon_ms < last_ms:
        # RPL-4: the key would be free again while its intent can still be confirmed.
        message = f"replay_horizon {duration_text(route.replay_horizon_ms)} ends before an intent of {route.path} can"
        hint = f"at least max_ttl + grace: {duration_text(last_ms)}"
        yield _finding(document, index, "replay_horizon_ms", message, hint)


def _replay(document: Document, index: int, route: Route) -> Iterator[Finding]:
    if route.replay_policy == "REUSE" and route.replay_proof is None:
        message = "REUSE needs a proof for late confirmations (SEC-3)"
        yield _finding(
            document, index, "replay_policy", message, "set `replay_proof: signature` or `replay_proof: token`"
        )
    if route.replay_policy == "REJECT" and document.routes[index].replay_proof is not None:
        yield _finding(document, index, "replay_proof", "has no effect without `replay_policy: REUSE`", warning=True)
    signatures = document.signatures
    if (
        route.replay_policy == "REUSE"
        and route.replay_proof == "signature"
        and not signatures.keys
        and not signatures.jwks
    ):
        at = _at(document, index, "replay_proof")
        about: tuple[Location, ...] = (("routes", index), ("defaults",), ("signatures",))
        yield Finding(at, "no key to check signatures with", "set signatures.keys or signatures.jwks", about)


def _recovery(document: Document, index: int, entry: RouteEntry, route: Route) -> Iterator[Finding]:
    if route.recovery == "probe" and route.probe is None:
        hint = "set `probe: {path: '/orders/by-key/{server_correlation_id}'}`"
        yield _finding(document, index, "recovery", "`recovery: probe` needs `probe.path`", hint)
    if entry.probe is not None and route.recovery != "probe":
        yield _finding(document, index, "probe", "has no effect without `recovery: probe`", warning=True)
    for number, hook in enumerate(route.compensation):
        if not hook.on:
            at = _at(document, index, "compensation")
            yield Finding((*at, number, "on"), "at least one state", about=(("routes", index), ("defaults",)))


def _mode(index: int, entry: RouteEntry, route: Route) -> Iterator[Finding]:
    here: Location = ("routes", index)
    if entry.methods is not None and not entry.methods:
        yield Finding(
            (*here, "methods"), "at least one method", "leave it out for POST, PUT, PATCH and DELETE", (here,)
        )
    if route.mode == "transparent":
        if entry.execution == "async":
            message = "a transparent route answers on the same channel (TRN-2)"
            yield Finding((*here, "execution"), message, "use `sync`, or `mode: standard`", (here,))
        return
    for key, default in TRANSPARENT_ONLY.items():
        if getattr(entry, key) not in (None, default):
            message = f"only for `mode: transparent`; this route's mode is `{route.mode}`"
            yield Finding((*here, key), message, about=(here, ("defaults",)))


def _sizes(document: Document, index: int, route: Route) -> Iterator[Finding]:
    if route.mode == "off":
        return  # nothing is held
    buffered_bytes = document.limits.buffered_bytes
    for attribute in ("max_payload_bytes", "max_response_bytes"):
        size_bytes: int = getattr(route, attribute)
        if size_bytes > buffered_bytes:
            # Decision 15: a body that can never be held is a 503 that no retry cures.
            said = f"{contract_key(attribute)} {size_text(size_bytes)}"
            message = f"{said} is more than limits.buffered, {size_text(buffered_bytes)}"
            about: tuple[Location, ...] = (("routes", index), ("defaults",), ("limits",))
            at = _at(document, index, attribute)
            yield Finding(at, message, "lower it, or raise limits.buffered", about)


def _reachable(index: int, entry: RouteEntry, routes: tuple[Route, ...]) -> Iterator[Finding]:
    """First match wins: a route whose requests all go to earlier ones is never used."""
    route = routes[index]
    same = [(number, other) for number, other in enumerate(routes[:index]) if other.path == route.path]
    if route.methods and route.methods <= frozenset().union(*(other.methods for _, other in same)):
        first = same[0][0]
        message = f"never used: routes[{first}] has the same path and methods"
        about: tuple[Location, ...] = tuple(("routes", number) for number, _ in same)
        yield Finding(("routes", index, "path"), message, "remove one of them", (*about, ("routes", index)))
        return
    for number, other in enumerate(routes[:index]):
        if _covers(other, route):
            message = f"never used: routes[{number}], `{other.path}`, comes first and takes all of it"
            about = (("routes", number), ("routes", index))
            yield Finding(("routes", index, "path"), message, "put the narrower route first", about, warning=True)
            return


def _covers(wide: Route, narrow: Route) -> bool:
    if not wide.prefix or wide.path == narrow.path or not narrow.methods <= wide.methods:
        return False
    return narrow.base == wide.base or narrow.base.startswith(wide.base + "/")
