"""Questions of our own to the upstream: the GET of a probe (REC-2) and of a verification (REC-5).

Each is asked as the caller would ask: to the same Host, with the caller's credentials. Nothing else of the request goes
along, and none of our own headers: a question is no request of the protocol.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.flows.ports import Desk, Route
from gateway.protocol.faults import UpstreamFailure
from gateway.protocol.messages import Header, Headers

ANSWER_BYTES_MAX = 1 << 20  # a document that a JSON pointer is looked up in
ACCEPT: Header = (b"Accept", b"application/json, */*;q=0.5")


@dataclass(frozen=True, slots=True)
class Told:
    """What came back; a body beyond what is read is not complete."""

    status: int
    body: bytes
    complete: bool


def asking_headers(desk: Desk, request: Headers) -> list[Header]:
    """Of a request's headers, those that its question is asked with."""
    wanted = desk.credential_headers | {b"host"}
    headers = [header for header in request if header[0].lower() in wanted]
    if not any(name.lower() == b"host" for name, _ in headers):
        headers.insert(0, (b"Host", desk.upstream.authority))
    return [*headers, ACCEPT]


def with_credentials(desk: Desk, request: Headers, brought: Headers) -> list[Header]:
    """P2-3: a request's headers, with the credentials of its confirmation where that brought any."""
    replaced = {name.lower() for name, _ in brought} & desk.credential_headers
    headers = [header for header in request if header[0].lower() not in replaced]
    return headers + [header for header in brought if header[0].lower() in replaced]


async def ask(desk: Desk, route: Route, target: bytes, headers: Headers) -> Told | str:
    """The upstream's answer, or in a few words why there is none."""
    try:
        exchange = await desk.upstream.open(
            "GET",
            target,
            headers,
            None,
            timeout_s=route.timeout_ms / 1000,
            read_timeout_s=desk.read_timeout_s,
        )
        body, complete = await exchange.read(ANSWER_BYTES_MAX, within_s=route.timeout_ms / 1000)
        if not complete:
            exchange.abort()
        return Told(exchange.status, body, complete)
    except UpstreamFailure as failure:
        return f"no answer from upstream: {failure.kind}"
