"""Pass-through: a request that 2PHP does not concern, proxied with no change a client or upstream could notice (OPT-2).

Bodies stream both ways with backpressure; a client that leaves ends the exchange (DESIGN decision 8).
"""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.protocol import problems
from gateway.protocol.faults import UpstreamFailure
from gateway.protocol.forwarding import response_headers
from gateway.protocol.messages import Answer, Header


async def passthrough(
    inbound: Any,
    upstream: Any,
    headers: list[Header],
    *,
    timeout_s: float,
    read_timeout_s: float,
    body: bytes | None = None,
) -> Answer | int:
    """Forward a request and its answer; the status alone when the answer has already been written as a stream.

    `body` is given when it has been read already.
    """
    task = asyncio.current_task()
    assert task is not None
    inbound.on_client_left = task.cancel
    try:
        exchange = await upstream.open(
            inbound.method,
            inbound.target,
            headers,
            _body(inbound) if body is None else body,
            timeout_s=timeout_s,
            read_timeout_s=read_timeout_s,
            on_continue=inbound.send_continue if inbound.expects_continue else None,
        )
        if exchange.upgraded:
            inbound.on_client_left = None  # the tunnel sees to its two ends itself
            told = response_headers(exchange.headers, upgraded=True)
            await inbound.tunnel(exchange.status, exchange.reason, told, exchange.tunnel())
            return int(exchange.status)
        told = response_headers(exchange.headers)
        if exchange.complete:
            body, _ = await exchange.read(exchange.buffered_bytes)
            return Answer(exchange.status, told, body, exchange.reason)
        await relay(inbound, exchange, exchange.status, exchange.reason, told)
        return int(exchange.status)
    except UpstreamFailure as failure:
        raise problems.bad_gateway(failure.kind) from failure
    finally:
        inbound.on_client_left = None


def _body(inbound: Any) -> Any:
    """A body that is all here goes out with the head in one write; any other is passed on as it comes."""
    if not inbound.has_body:
        return None
    if inbound.body_received and inbound.content_length is not None:
        return inbound.received()
    return inbound.chunks()


async def relay(inbound: Any, chunks: Any, status: int, reason: bytes | None, headers: list[Header]) -> None:
    """Write a streamed answer. An upstream that dies within it cuts the client's connection: the only honest sign."""
    try:
        await inbound.start(status, reason, headers)
        async for chunk in chunks:
            await inbound.write(chunk)
        await inbound.finish()
    except UpstreamFailure:
        inbound.abort()
    except BaseException:
        abort = getattr(chunks, "abort", None)
        if abort is not None:
            abort()
        raise
