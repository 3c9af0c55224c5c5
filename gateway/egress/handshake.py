"""The client's side of one handshake: row, Phase 1, row, confirmation, row, answer (COR-1, COR-4).

Every step is in the client's row before it is taken. Phase 1 is sent once: a service that does not speak 2PHP executes
it. A confirmation may be repeated, for that is what the protocol is for; so a call whose answer is lost is asked for
again until it is known or patience ends. Then the application hears that it is in doubt, and finds out by repeating its
request with the same idempotency key.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from gateway.crash_points import reached
from gateway.egress.ports import Callee, ClientRows
from gateway.protocol import problems
from gateway.protocol.callee import Over, Plain, Refused, Registered, Running, of_phase_1, of_phase_2
from gateway.protocol.client_rows import ClientMove, ClientRow, NewClientRow
from gateway.protocol.faults import StoreAway, UpstreamFailure
from gateway.protocol.forwarding import response_headers
from gateway.protocol.identity import client_key
from gateway.protocol.messages import Answer, Header, Headers
from gateway.protocol.outcome import without_ours
from gateway.protocol.phases import Phase

log = logging.getLogger(__name__)

HELD_BYTES_MAX = 1024 * 1024  # of an answer held whole; what is beyond is passed on as it comes
PATIENCE = 2  # timeouts in all: one for a confirmation that is never answered, one to find out what it came to
PAUSE_MIN_S = 0.05
PAUSE_MAX_S = 1.0
RECORD_AGAIN_S = 1.0  # between tries to write an outcome that the store did not take
RECORD_TRIES_MAX = 60

_OF_THE_BODY = frozenset(
    {b"content-length", b"content-type", b"content-encoding", b"transfer-encoding", b"expect", b"idempotency-key"}
)


@dataclass(slots=True)
class Outgoing:
    """A request of the application's, ready to be sent."""

    method: str
    target: bytes
    path: bytes
    headers: list[Header]
    body: bytes
    client_correlation_id: str
    parent_reference_id: str
    transaction_reference: str | None


@dataclass(slots=True)
class Streamed:
    """An answer too large to hold: what of it has come, and the rest as it comes."""

    answer: Answer
    chunks: AsyncIterator[bytes]
    abort: Callable[[], None]


@dataclass(slots=True)
class _Reply:
    """An answer of the called service, and what is left of it on the wire."""

    status: int
    reason: bytes | None
    headers: Headers
    body: bytes
    exchange: Any
    complete: bool


class Handshake:
    """One call, from the application's request to its answer."""

    def __init__(self, callee: Callee, rows: ClientRows, outgoing: Outgoing) -> None:
        self._callee = callee
        self._rows = rows
        self._call = outgoing
        self._key = client_key(callee.service, outgoing.client_correlation_id.encode(), buckets=callee.buckets)
        self._server_id: str | None = None

    async def run(self) -> Answer | Streamed:
        """Make the call."""
        before = await self._open()
        reached("egress.opened")
        reply = await self._phase_1(before)
        reached("egress.phase_1_answered")
        found = of_phase_1(reply.status, reply.headers, reply.body, self._call.path)
        if isinstance(found, Plain):
            await self._record(found.phase)
            return self._told(reply, reply.status)
        if isinstance(found, Refused):
            # No effect, unless an earlier try had one: what that came to is not this answer's to say.
            if before is None or before.phase is not Phase.PROCESSING:
                await self._record(Phase.ABANDONED)
            return self._told(reply, reply.status)
        reply.exchange.abort()
        self._server_id = found.server_correlation_id
        if found.phase in (Phase.TTL_EXPIRED, Phase.ABANDONED):
            await self._record(Phase.TTL_EXPIRED)
            raise self._named(_too_late())
        await self._rows.move(ClientMove(self._key, Phase.PROCESSING, found.server_correlation_id, found.ttl_ms))
        reached("egress.confirming")
        return await self._phase_2(found)

    async def _open(self) -> ClientRow | None:
        """COR-4: durable before anything is sent."""
        call = self._call
        new = NewClientRow(
            key=self._key,
            client_correlation_id=call.client_correlation_id,
            target=self._callee.target,
            method=call.method,
            path=call.path,
            parent_reference_id=call.parent_reference_id,
            transaction_reference=call.transaction_reference,
        )
        before = await self._rows.open(new)
        if before is not None and (before.target, before.method, before.path) != (new.target, new.method, new.path):
            raise problems.key_reused()
        return before

    async def _phase_1(self, before: ClientRow | None) -> _Reply:
        call = self._call
        try:
            return await self._exchange(call.method, call.target, [*call.headers, *self._ours()], call.body)
        except UpstreamFailure as failure:
            if failure.sent:
                await self._record(None)
                raise self._named(_in_doubt(failure.kind)) from failure
            if before is None:
                await self._record(Phase.ABANDONED)
            raise problems.bad_gateway(failure.kind) from failure

    async def _phase_2(self, found: Registered) -> Answer | Streamed:
        """Confirm until the outcome is known."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + PATIENCE * self._callee.timeout_s
        headers = [header for header in self._call.headers if header[0].lower() not in _OF_THE_BODY]
        headers += [*self._ours(), (b"DTT-2PHP-Server-Correlation-ID", found.server_correlation_id.encode())]
        poll: bytes | None = None
        pause_s = PAUSE_MIN_S
        asked = 0
        while True:
            asked += 1
            try:
                if poll is None:
                    reply = await self._exchange("POST", found.confirm, [*headers, (b"Content-Length", b"0")], b"")
                else:
                    reply = await self._exchange("GET", poll, headers, b"")
            except UpstreamFailure as failure:
                log.info("a confirmation was not answered", extra={"kind": failure.kind, "target": self._callee.target})
                poll = None
            else:
                answer = of_phase_2(reply.status, reply.headers)
                if isinstance(answer, Over):
                    reached("egress.answered")
                    await self._record(answer.phase)
                    return self._told(reply, answer.status or reply.status)
                if isinstance(answer, Refused) and not answer.later:
                    # A first confirmation that is refused had no effect; of a later one nobody knows.
                    fresh = asked == 1 and found.phase is Phase.WAITING_CONFIRM
                    await self._record(Phase.ABANDONED if fresh else None)
                    return self._told(reply, reply.status)
                reply.exchange.abort()
                poll = answer.poll if isinstance(answer, Running) else None
            if loop.time() + pause_s >= give_up:
                await self._record(None)
                raise self._named(_in_doubt("timeout"))
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_MAX_S)

    async def _exchange(self, method: str, target: bytes, headers: Headers, body: bytes) -> _Reply:
        callee = self._callee
        exchange = await callee.upstream.open(
            method,
            target,
            headers,
            body or None,
            timeout_s=callee.timeout_s,
            read_timeout_s=callee.read_timeout_s,
        )
        content, complete = await exchange.read(HELD_BYTES_MAX)
        return _Reply(exchange.status, exchange.reason, exchange.headers, content, exchange, complete)

    def _ours(self) -> list[Header]:
        return [
            (b"DTT-2PHP-Enabled", b"true"),
            (b"DTT-2PHP-Client-Correlation-ID", self._call.client_correlation_id.encode()),
        ]

    async def _record(self, phase: Phase | None) -> None:
        """What became of the call. The outcome is over there and durable: a store that is away must not hide it."""
        move = ClientMove(self._key, phase, self._server_id, in_doubt=phase is None)
        try:
            await self._rows.move(move)
        except StoreAway:
            self._callee.spawn(self._record_later(move), "record the outcome of a call")

    async def _record_later(self, move: ClientMove) -> None:
        for _ in range(RECORD_TRIES_MAX):
            await asyncio.sleep(RECORD_AGAIN_S)
            try:
                await self._rows.move(move)
                return
            except StoreAway:
                continue
        log.error("the outcome of a call is not in the ledger: the store stayed away")

    def _told(self, reply: _Reply, status: int) -> Answer | Streamed:
        """The called service's own answer, without the handshake's traces but with its two IDs."""
        headers = [*without_ours(response_headers(reply.headers)), *self._ids()]
        reason = reply.reason if status == reply.status else None
        if reply.complete:
            return Answer(status, headers, reply.body, reason)
        answer = Answer(status, headers, b"", reason)
        return Streamed(answer, _whole(reply), reply.exchange.abort)

    def _ids(self) -> list[Header]:
        found = [(b"DTT-2PHP-Client-Correlation-ID", self._call.client_correlation_id.encode())]
        if self._server_id is not None:
            found.append((b"DTT-2PHP-Server-Correlation-ID", self._server_id.encode()))
        return found

    def _named(self, problem: problems.Problem) -> problems.Problem:
        problem.headers += self._ids()
        return problem


async def _whole(reply: _Reply) -> AsyncIterator[bytes]:
    if reply.body:
        yield reply.body
    async for chunk in reply.exchange:
        yield chunk


def _in_doubt(kind: str) -> problems.Problem:
    return problems.Problem(
        "outcome-in-doubt",
        504 if kind == "timeout" else 502,
        "Outcome in doubt",
        "The call was sent and its outcome is not known: it may have taken effect. Repeat it with the same "
        "Idempotency-Key or DTT-2PHP-Client-Correlation-ID to find out; it is not carried out twice.",
    )


def _too_late() -> problems.Problem:
    return problems.Problem(
        "ttl-expired",
        408,
        "Request TTL exceeded",
        "An earlier try of this call was registered and never confirmed in time; it had no effect. Send it with a new "
        "Idempotency-Key or DTT-2PHP-Client-Correlation-ID.",
    )
