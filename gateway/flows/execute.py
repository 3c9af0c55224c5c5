"""The shared tail of every mode: attempt -> forward -> record the outcome -> answer.

The attempt is durable before this starts, and the outcome is durable before an answer leaves. Nothing here is undone by
a client that goes away (DESIGN decision 8).
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from hashlib import sha256
from typing import Any
from uuid import UUID

from gateway.crash_points import reached
from gateway.flows.asking import asking_headers
from gateway.flows.outbound import forwarded_headers
from gateway.flows.ports import Desk
from gateway.flows.sealed import open_message, seal_message
from gateway.flows.settle import mark_in_doubt, settle_durably
from gateway.flows.voices import Told, Voice
from gateway.protocol import outcome, recovery
from gateway.protocol.faults import StoreAway, UpstreamFailure
from gateway.protocol.forwarding import response_headers
from gateway.protocol.identity import IntentKey
from gateway.protocol.messages import Answer, Header, Headers, first_value
from gateway.protocol.outcome import Doubtful, Settled
from gateway.protocol.phases import Phase
from gateway.protocol.records import Claimed, Doubt, Sealed, Settlement, StoredResponse

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Streamed:
    """RPL-6.

    An answer passed on as it comes, whose outcome is durable. `replay` is what all but its first reader get.
    """

    answer: Answer
    chunks: AsyncIterator[bytes]
    abort: Callable[[], None]
    replay: Answer


@dataclass(slots=True)
class Attempt:
    """One execution of an intent, durable in the store."""

    key: IntentKey
    attempt_id: UUID
    holder: UUID
    fence: int
    server_id: UUID
    client_id: str
    method: str
    path: bytes
    target: bytes
    repeat: bool = False  # REC-2: an earlier attempt may have taken effect
    payload_kept: bool = True


async def execute_claimed(
    desk: Desk,
    claimed: Claimed,
    server_id: UUID,
    client_id: str,
    credentials: list[Header] | Sealed,
    voice: Voice,
    *,
    repeat: bool = False,
) -> Answer | Streamed:
    """Send the request that Phase 1 registered, once, and record what came of it."""
    attempt = Attempt(
        claimed.key,
        claimed.attempt_id,
        claimed.holder,
        claimed.fence,
        server_id,
        client_id,
        claimed.method,
        claimed.path,
        claimed.target,
        repeat,
    )
    execution = Execution(desk, attempt, voice)
    try:
        headers, body = open_message(desk.vault, b"payload", claimed.key, claimed.payload)
        if isinstance(credentials, Sealed):
            credentials, _ = open_message(desk.vault, b"credentials", claimed.key, credentials)
    except Exception as error:
        # SEC-4: a row that was tampered with or whose key is gone. Nothing was sent, so this is a known failure.
        log.error("a stored request does not open", extra={"server_correlation_id": str(server_id)}, exc_info=error)
        return await execution.fail("The stored request could not be opened; nothing was sent.", "sealed")
    if credentials and execution.may_repeat and not repeat:
        credentials = await execution.keep(credentials, headers)
    return await execution.run(headers, credentials, body)


class Execution:
    """One attempt, from its first byte to its answer."""

    def __init__(self, desk: Desk, attempt: Attempt, voice: Voice) -> None:
        self._desk = desk
        self._attempt = attempt
        self._voice = voice
        self._route = desk.route_of(attempt.method, attempt.path)
        self._exchange: Any = None
        self._headers: Headers = ()

    @property
    def may_repeat(self) -> bool:
        """REC-2: whether the request may have to be sent, or asked about, again."""
        recovery_policy: str = self._route.recovery
        return recovery_policy != "hold"

    async def keep(self, credentials: list[Header], registered: list[Header]) -> list[Header]:
        """P2-3: a confirmation's credentials, kept where the request may be sent again, so that it is the same then.

        None are left where they are those of Phase 1 anyway. If they cannot be kept, a repeat goes with those of
        Phase 1: at worst it is refused, which settles nothing.
        """
        desk, key = self._desk, self._attempt.key
        names = {name.lower() for name, _ in credentials}
        if [header for header in registered if header[0].lower() in names] == credentials:
            return []
        try:
            await desk.recoveries.keep_credentials(key, seal_message(desk.vault, b"credentials", key, credentials, b""))
        except Exception as error:  # whatever it is, the attempt goes on and is ended by somebody
            log.warning("credentials not kept", exc_info=None if isinstance(error, StoreAway) else error)
        return credentials

    async def run(
        self, registered: Headers, credentials: list[Header], body: bytes | AsyncIterator[bytes]
    ) -> Answer | Streamed:
        """Send the request and record what came of it, whatever that is."""
        try:
            return await self._run(registered, credentials, body)
        except Exception as error:
            if self._exchange is not None:
                self._exchange.abort()
            # A bug of ours must not leave an attempt that nobody ends: what it did is not known, so it is in doubt.
            attempt = self._attempt
            log.error("an attempt failed", extra={"server_correlation_id": str(attempt.server_id)}, exc_info=error)
            doubt = Doubt(
                attempt.key, attempt.attempt_id, attempt.fence, True, None, "the gateway failed within the attempt"
            )
            await mark_in_doubt(self._desk, doubt, attempt.server_id)
            return self._voice.in_doubt(attempt.server_id, attempt.path, "reset")

    async def _run(
        self, registered: Headers, credentials: list[Header], body: bytes | AsyncIterator[bytes]
    ) -> Answer | Streamed:
        desk, attempt = self._desk, self._attempt
        headers = self._headers = forwarded_headers(
            registered, credentials, desk.credential_headers, attempt.server_id, attempt.client_id, attempt.attempt_id
        )
        started = time.perf_counter()
        try:
            if not self._may_send() and not await self._lease_renewed():
                raise UpstreamFailure("lease", sent=False, detail="the lease was lost before the first byte")
            exchange = self._exchange = await desk.upstream.open(
                attempt.method,
                attempt.target,
                headers,
                body or None,
                timeout_s=self._route.timeout_ms / 1000,
                read_timeout_s=desk.read_timeout_s,
                before_send=self._may_send,
            )
            content, complete = await self._read(exchange)
        except UpstreamFailure as failure:
            desk.observe.upstream(time.perf_counter() - started, failure.kind)
            return await self._unanswered(failure)
        desk.observe.upstream(time.perf_counter() - started, None)
        return await self._answered(exchange, content, complete)

    def _may_send(self) -> bool:
        """REC-1: only while nobody can have taken this attempt over."""
        return self._desk.lease.surely_held(self._attempt.holder)

    async def _lease_renewed(self) -> bool:
        """A worker that was frozen re-checks its lease before it sends anything."""
        try:
            return await self._desk.lease.renew(self._attempt.holder)
        except StoreAway:
            return False

    async def _read(self, exchange: Any) -> tuple[bytes, bool]:
        """The answer's body as far as it is kept.

        An event stream is never waited for where the caller awaits it live.
        """
        patience_s = self._voice.patience_s
        if patience_s is not None and not exchange.complete:
            content_type = first_value(exchange.headers, b"content-type") or b""
            if content_type.lower().startswith(b"text/event-stream"):
                return b"", False
        found: tuple[bytes, bool] = await exchange.read(self._route.max_response_bytes, within_s=patience_s)
        return found

    async def _unanswered(self, failure: UpstreamFailure) -> Answer:
        attempt = self._attempt
        verdict = outcome.of_failure(failure.kind, sent=failure.sent)
        if isinstance(verdict, Doubtful):
            doubt = Doubt(attempt.key, attempt.attempt_id, attempt.fence, failure.sent, None, verdict.reason)
            await mark_in_doubt(self._desk, doubt, attempt.server_id)
            return self._voice.in_doubt(attempt.server_id, attempt.path, failure.kind)
        assert verdict.message is not None
        return await self.fail(verdict.message, failure.kind)

    async def fail(self, message: str, kind: str) -> Answer:
        """P2-5: provably nothing was sent. Of a repeat that says nothing: the doubt goes on (REC-2)."""
        attempt = self._attempt
        if attempt.repeat:
            reason = f"a repeat was not sent, and an earlier attempt may have taken effect: {message}"
            doubt = Doubt(attempt.key, attempt.attempt_id, attempt.fence, False, None, reason)
            await mark_in_doubt(self._desk, doubt, attempt.server_id)
            return self._voice.in_doubt(attempt.server_id, attempt.path, kind)
        settlement = Settlement(
            attempt.key,
            attempt.attempt_id,
            attempt.fence,
            Phase.FAILED,
            None,
            message,
            False,
            kind,
            None,
            payload_kept=attempt.payload_kept,
        )
        answer = self._voice.unreached(attempt.server_id, Phase.FAILED, None, message, kind)
        return await self._settle(settlement, answer)

    async def _settle(self, settlement: Settlement, answer: Answer) -> Answer:
        attempt = self._attempt
        return await settle_durably(self._desk, settlement, attempt.server_id, attempt.path, answer, self._voice)

    async def _answered(self, exchange: Any, content: bytes, complete: bool) -> Answer | Streamed:
        reached("answer.received")
        attempt, voice = self._attempt, self._voice
        status: int = exchange.status
        kept = end_to_end(exchange.headers)
        verdict = (
            recovery.of_repeat(attempt.method, status, self._desk.in_doubt_statuses)
            if attempt.repeat
            else outcome.of_answer(status, self._desk.in_doubt_statuses)
        )
        if isinstance(verdict, Doubtful):
            doubt = Doubt(attempt.key, attempt.attempt_id, attempt.fence, True, status, verdict.reason)
            await mark_in_doubt(self._desk, doubt, attempt.server_id)
            told = Told(attempt.server_id, Phase.PROCESSING, None, None, status, kept, exchange.reason)
            if complete or voice.patience_s is None:  # None: the caller is told where to ask, not what came
                exchange.abort()
                return voice.in_doubt_answered(told, attempt.path, content)
            answer = voice.in_doubt_answered(told, attempt.path, b"")
            return Streamed(answer, _rest(content, exchange), exchange.abort, answer)
        resource_id = self._resource_id(verdict, kept, content if complete else b"")
        told = Told(attempt.server_id, verdict.phase, resource_id, verdict.message, status, kept, exchange.reason)
        settlement = Settlement(
            attempt.key,
            attempt.attempt_id,
            attempt.fence,
            verdict.phase,
            resource_id,
            verdict.message,
            True,
            None,
            self._stored(status, kept, content if complete else None),
            self._to_verify() if self._route.verify is not None and verdict.phase is Phase.COMMITTED else None,
            attempt.payload_kept,
        )
        if complete:
            return await self._settle(settlement, voice.executed(told, content))
        replay = voice.unkept(told)
        settled = await self._settle(settlement, replay)
        if settled is not replay:
            exchange.abort()
            return settled
        return Streamed(voice.executed(told, b""), self._passed_on(content, exchange, kept), exchange.abort, replay)

    def _to_verify(self) -> Sealed:
        """REC-5: what a verification is asked with; its row is written with the outcome."""
        desk = self._desk
        return seal_message(desk.vault, b"verification", self._attempt.key, asking_headers(desk, self._headers), b"")

    def _stored(self, status: int, headers: Headers, content: bytes | None) -> StoredResponse:
        sealed = seal_message(self._desk.vault, b"response", self._attempt.key, headers, content or b"")
        if content is None:
            return StoredResponse(status, None, None, False, sealed)
        return StoredResponse(status, len(content), sha256(content).digest(), True, sealed)

    async def _passed_on(self, first: bytes, exchange: Any, headers: Headers) -> AsyncIterator[bytes]:
        """Pass an answer on as it comes.

        Record its size and digest, keep it if it stayed small, or note that it was cut.
        """
        desk, key = self._desk, self._attempt.key
        digest = sha256(first)
        size = len(first)
        parts: list[bytes] | None = [first]
        try:
            if first:
                yield first
            async for chunk in exchange:
                digest.update(chunk)
                size += len(chunk)
                if parts is not None:
                    parts.append(chunk)
                    parts = parts if size <= self._route.max_response_bytes else None
                yield chunk
        except UpstreamFailure as failure:
            detail = {"kind": failure.kind, "bytes": size}
            desk.spawn(desk.intents.note(key, "RESPONSE_CUT", detail), "note a cut answer")
            raise
        sealed = None if parts is None else seal_message(desk.vault, b"response", key, headers, b"".join(parts))
        desk.spawn(desk.intents.streamed(key, size, digest.digest(), sealed), "note a streamed answer")

    def _resource_id(self, verdict: Settled, headers: Headers, content: bytes) -> str | None:
        if verdict.phase is not Phase.COMMITTED:
            return None
        attempt = self._attempt
        return outcome.resource_id(
            self._desk.resource_id_rule(self._route),
            method=attempt.method,
            path=attempt.path,
            headers=headers,
            body=content,
            fallback=str(attempt.server_id),
        )


async def _rest(first: bytes, exchange: Any) -> AsyncIterator[bytes]:
    """An answer that settles nothing is passed on like any other; there is nothing of it to record."""
    if first:
        yield first
    async for chunk in exchange:
        yield chunk


def end_to_end(headers: Headers) -> list[Header]:
    """An answer's headers without those of its hop; the edge frames it anew.

    A Date that the upstream left out is added here, once, so that every replay has the same (RPL-1).
    """
    kept = response_headers(headers)
    if first_value(kept, b"date") is None:
        kept.append((b"Date", _date(int(time.time()))))
    return kept


@lru_cache(maxsize=2)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()
