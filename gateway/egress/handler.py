"""What an application's outgoing request becomes: mutations get the handshake, everything else is passed on.

An application that speaks 2PHP itself (`DTT-2PHP-Enabled`) is not helped: its requests are passed on as they are.
"""

from __future__ import annotations

import time
from typing import Any
from uuid import uuid4

from gateway.egress.handshake import Handshake, Outgoing, Streamed
from gateway.egress.ports import Callee, Counts
from gateway.flows.passthrough import passthrough, relay
from gateway.protocol import identity, problems
from gateway.protocol.baggage import parent_of, with_parent
from gateway.protocol.entries import trace_id
from gateway.protocol.faults import StoreAway
from gateway.protocol.forwarding import request_headers
from gateway.protocol.headers import CLIENT_CORRELATION_ID, PREFIX, is_enabled, opaque_id
from gateway.protocol.messages import Answer, Header, first_value
from gateway.protocol.modes import MUTATIONS

BODY_BYTES_MAX = 16 * 1024 * 1024  # the called service says what it takes; this bounds what a worker holds
MODE = "egress"


class EgressHandler:
    """The handler of one egress port."""

    def __init__(self, callee: Callee, count: Counts) -> None:
        self._callee = callee
        self._count = count

    def use(self, callee: Callee) -> None:
        """Serve the requests that come from now on with this configuration."""
        self._callee = callee

    async def __call__(self, inbound: Any) -> Answer | None:
        """Answer one request; None when a stream has been written."""
        started = time.perf_counter()
        status = 0
        try:
            if inbound.method in MUTATIONS and not is_enabled(inbound.headers):
                told = await self._handshake(inbound, self._callee)
            else:
                told = await self._pass(inbound, self._callee)
            status = told.status if isinstance(told, Answer) else told
            return told if isinstance(told, Answer) else None
        except StoreAway as error:
            raise self._refused(problems.store_away()) from error
        except problems.Problem as problem:
            status = problem.status
            self._count.refusal(problem.slug)
            raise
        finally:
            self._count.request(MODE, status, time.perf_counter() - started)

    def _refused(self, problem: problems.Problem) -> problems.Problem:
        self._count.refusal(problem.slug)
        return problem

    async def _pass(self, inbound: Any, callee: Callee) -> Answer | int:
        return await passthrough(
            inbound,
            callee.upstream,
            _headers(inbound, callee, None),
            timeout_s=callee.timeout_s,
            read_timeout_s=callee.read_timeout_s,
        )

    async def _handshake(self, inbound: Any, callee: Callee) -> Answer | int:
        client_id = client_correlation_id(inbound, callee)
        if callee.rows is None:
            raise problems.store_away()
        body = await inbound.read_body(BODY_BYTES_MAX)
        received = [value for name, value in inbound.raw_headers if name.lower() == b"baggage"]
        headers = [
            header
            for header in _headers(inbound, callee, len(body))
            if header[0][: len(PREFIX)].lower() != PREFIX and header[0].lower() != b"baggage"
        ]
        # Overwritten by a gateway that registers the call; one that passes it on tells the truth all the same.
        headers.append((b"baggage", with_parent(received, client_id)))
        outgoing = Outgoing(
            method=inbound.method,
            target=inbound.target,
            path=inbound.path,
            headers=headers,
            body=body,
            client_correlation_id=client_id,
            parent_reference_id=parent_of(inbound.raw_headers) or client_id,  # COR-2
            transaction_reference=trace_id(first_value(inbound.raw_headers, b"traceparent")),
        )
        result = await Handshake(callee, callee.rows, outgoing).run()
        if not isinstance(result, Streamed):
            return result
        try:
            await relay(inbound, result.chunks, result.answer.status, result.answer.reason, result.answer.headers)
        except BaseException:
            result.abort()
            raise
        return result.answer.status


def client_correlation_id(inbound: Any, callee: Callee) -> str:
    """The application's own, or one that every retry with its idempotency key shares, or a new one."""
    given = inbound.headers.getall(CLIENT_CORRELATION_ID, [])
    if len(given) > 1:
        raise problems.repeated_header(CLIENT_CORRELATION_ID)
    if given:
        return opaque_id(given[0].strip().encode("utf-8", "surrogateescape"))
    keys = [value for name, value in inbound.raw_headers if name.lower() == b"idempotency-key"]
    if len(keys) > 1:
        raise problems.repeated_header("Idempotency-Key")
    if keys and keys[0].strip():
        call = (inbound.method.encode(), inbound.target, keys[0].strip())
        return identity.derived_client_id(callee.service, callee.target.encode(), *call)
    return str(uuid4())


def _headers(inbound: Any, callee: Callee, body_bytes: int | None) -> list[Header]:
    """The application's headers, credentials and all; only Host is the called service's own."""
    return request_headers(
        inbound.raw_headers,
        peer=inbound.peer,
        scheme=b"https" if inbound.secure else b"http",
        host_header="rewrite",
        upstream_host=callee.upstream.authority,
        trusted=True,  # whoever reaches this port is the application itself
        version=b"%d.%d" % inbound.version[:2],
        body_bytes=body_bytes,
    )
