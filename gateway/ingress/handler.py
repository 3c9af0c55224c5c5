"""What a request at the data port becomes: the mode is decided, the caller is known, and a flow takes over."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, assert_never

from gateway.flows.confirm import Confirmations
from gateway.flows.direct import PastTheLedger, run_direct
from gateway.flows.execute import Streamed
from gateway.flows.look import find_polled, look, poll
from gateway.flows.passthrough import passthrough, relay
from gateway.flows.ports import Desk
from gateway.flows.register import register
from gateway.ingress import paths
from gateway.ingress.cors import Cors
from gateway.ingress.identity import ANONYMOUS, Identifier
from gateway.ingress.inbound import Inbound
from gateway.ingress.proxies import TrustedProxies
from gateway.protocol import modes, problems
from gateway.protocol.faults import StoreAway
from gateway.protocol.forwarding import request_headers
from gateway.protocol.headers import NO_FIELDS
from gateway.protocol.messages import Answer, Header
from gateway.protocol.modes import Confirm, Direct, Look, Passthrough, Poll, Register, Routes

CONFIRM_BODY_BYTES_MAX = 64 * 1024  # a confirmation needs no body; a small one is read and ignored
CALLERS_REMEMBERED = 4096  # digests are HMACs: a few microseconds each, and callers come back

Told = Answer | int  # an answer to write, or the status of one that has been streamed


class Counts(Protocol):
    """What the data port counts."""

    def request(self, mode: str, status: int, seconds: float) -> None:
        """A request was answered; status 0 when its client had left."""
        ...

    def refusal(self, slug: str) -> None:
        """A request was refused."""
        ...


@dataclass(slots=True)
class Config:
    """One configuration of the data port. A reload makes another."""

    routes: Routes[Any]
    identifier: Identifier
    proxies: TrustedProxies
    cors: Cors
    upstream: Any
    host_header: Any
    timeout_s: float
    read_timeout_s: float
    desk: Desk | None  # None until the store has been opened
    caller_digest: Callable[[bytes], bytes]


class Handler:
    """The data port's one handler."""

    def __init__(self, config: Config, confirmations: Confirmations | None, count: Counts) -> None:
        self._count = count
        self.in_flight = 0
        self.use(config, confirmations)

    def use(self, config: Config, confirmations: Confirmations | None) -> None:
        """Serve the requests that come from now on with this configuration."""
        self._config = config
        self._confirmations = confirmations
        self._digest = lru_cache(maxsize=CALLERS_REMEMBERED)(config.caller_digest)

    async def __call__(self, inbound: Inbound) -> Answer | None:
        """Answer one request; None when a stream has been written."""
        started = time.perf_counter()
        self.in_flight += 1
        mode = "passthrough"
        status = 0
        try:
            config = self._config
            if config.routes.enabled:  # OPT-3: a plain proxy has no routes that a path could be mistaken for
                paths.check(inbound.path, config.routes.place)
            fields = inbound.headers if inbound.speaks_2php else NO_FIELDS
            decision = modes.decide(inbound.method, inbound.path, fields, config.routes)
            if isinstance(decision, Passthrough):
                told = await self._pass(inbound, config)
            else:
                mode = type(decision).__name__.lower()
                told = await self._ours(inbound, config, decision)
            if isinstance(told, Answer):
                status = told.status
                return told
            status = told
            return None
        except StoreAway as error:
            problem = problems.store_away()
            status = problem.status
            self._count.refusal(problem.slug)
            raise problem from error
        except problems.Problem as problem:
            status = problem.status
            self._count.refusal(problem.slug)
            raise
        finally:
            self.in_flight -= 1
            self._count.request(mode, status, time.perf_counter() - started)

    async def _pass(self, inbound: Inbound, config: Config, body: bytes | None = None) -> Told:
        routes = config.routes
        if (
            inbound.method == "OPTIONS"
            and routes.enabled
            and (routes.covers(inbound.path) or routes.confirms(inbound.path))
        ):
            preflight = config.cors.preflight(inbound.method, inbound.raw_headers)
            if preflight is not None:
                return preflight
        headers = self._forwarded(inbound, config, None if body is None else len(body))
        return await passthrough(
            inbound,
            config.upstream,
            headers,
            timeout_s=config.timeout_s,
            read_timeout_s=config.read_timeout_s,
            body=body,
        )

    async def _ours(
        self, inbound: Inbound, config: Config, decision: Register[Any] | Direct[Any] | Confirm | Poll | Look
    ) -> Told:
        desk = config.desk
        if isinstance(decision, Direct) and decision.silent:
            return await self._silent(inbound, config, desk, decision)
        if isinstance(decision, Poll):
            return await self._poll(inbound, config, desk, decision)
        if isinstance(decision, Confirm) and not decision.routed:
            return await self._astray(inbound, config, desk, decision)
        found = config.identifier.identify(inbound.raw_headers, inbound.peer, inbound.certificate)
        identity = found or await config.identifier.examine(inbound.raw_headers)
        if desk is None:
            raise problems.store_away()
        caller = self._digest(identity.name)
        result: Answer | Streamed | None
        match decision:
            case Register():
                result = await register(
                    desk, inbound, decision, caller, lambda size: self._forwarded(inbound, config, size)
                )
            case Confirm():
                await inbound.read_body(CONFIRM_BODY_BYTES_MAX)
                assert self._confirmations is not None
                credentials = [h for h in inbound.raw_headers if h[0].lower() in desk.credential_headers]
                result = await self._confirmations.confirm(decision, caller, credentials, inbound)
                assert result is not None, "a routed confirmation is answered or refused"
            case Direct():
                result = await run_direct(
                    desk, inbound, decision, caller, lambda size: self._forwarded(inbound, config, size)
                )
            case Look():
                result = await look(desk, decision, caller)
            case _:
                assert_never(decision)
        return await self._told(inbound, config, result)

    async def _silent(self, inbound: Inbound, config: Config, desk: Desk | None, decision: Direct[Any]) -> Told:
        """TRN-2: a caller that knows nothing of 2PHP. Nothing about its request or answer may change for it."""
        try:
            found = config.identifier.identify(inbound.raw_headers, inbound.peer, inbound.certificate)
            name = (found or await config.identifier.examine(inbound.raw_headers)).name
        except problems.Problem:
            name = ANONYMOUS.name  # whose credentials are wrong or missing is the upstream's to say
        try:
            if desk is None:
                raise PastTheLedger(b"") if decision.route.ledger_outage == "bypass" else problems.store_away()
            result = await run_direct(
                desk,
                inbound,
                decision,
                self._digest(name),
                lambda size: self._forwarded(inbound, config, size),
            )
        except PastTheLedger as past:
            return await self._pass(inbound, config, past.body or None)
        # No word about origins either: who may read this answer is the upstream's to say.
        if isinstance(result, Streamed):
            return await self._stream(inbound, result, result.answer.headers)
        return result

    async def _astray(self, inbound: Inbound, config: Config, desk: Desk | None, decision: Confirm) -> Told:
        """Two correlation IDs where nothing is routed: P2-1 refuses those of our intents, OPT-3 passes all others on.

        The body is not touched before that is known, and who cannot be an intent's caller needs no look.
        """
        try:
            found = config.identifier.identify(inbound.raw_headers, inbound.peer, inbound.certificate)
            identity = found or await config.identifier.examine(inbound.raw_headers)
            if desk is not None and self._confirmations is not None:
                await self._confirmations.confirm(decision, self._digest(identity.name), [], inbound)
        except StoreAway:
            pass  # nobody waits for the store where 2PHP is off
        except problems.Problem as problem:
            if problem.status != 401 and problem.slug != "identity-unavailable":
                raise
        return await self._pass(inbound, config)

    async def _poll(self, inbound: Inbound, config: Config, desk: Desk | None, decision: Poll) -> Told:
        """A path that may be an intent's or the upstream's own. Only who speaks 2PHP is made to wait for the store."""
        try:
            if desk is None:
                raise StoreAway("not opened yet")
            intent = await find_polled(desk, decision)
        except StoreAway:
            if inbound.speaks_2php:
                raise
            return await self._pass(inbound, config)
        if intent is None:
            return await self._pass(inbound, config)
        found = config.identifier.identify(inbound.raw_headers, inbound.peer, inbound.certificate)
        identity = found or await config.identifier.examine(inbound.raw_headers)
        return await self._told(inbound, config, await poll(desk, intent, self._digest(identity.name)))

    async def _told(self, inbound: Inbound, config: Config, result: Answer | Streamed) -> Told:
        answer = result.answer if isinstance(result, Streamed) else result
        headers = list(answer.headers)  # racing callers share one answer
        config.cors.expose(inbound.raw_headers, headers)
        if isinstance(result, Streamed):
            return await self._stream(inbound, result, headers)
        return Answer(answer.status, headers, answer.body, answer.reason, answer.close)

    async def _stream(self, inbound: Inbound, streamed: Streamed, headers: list[Header]) -> int:
        answer = streamed.answer
        try:
            await relay(inbound, streamed.chunks, answer.status, answer.reason, headers)
        except BaseException:
            streamed.abort()
            raise
        return answer.status

    def _forwarded(self, inbound: Inbound, config: Config, body_bytes: int | None) -> list[Header]:
        return request_headers(
            inbound.raw_headers,
            peer=inbound.peer,
            scheme=b"https" if inbound.secure else b"http",
            host_header=config.host_header,
            upstream_host=config.upstream.authority,
            trusted=config.proxies.trusts(inbound.peer),
            version=b"1.1" if inbound.version == (1, 1) else b"1.0",  # the edge takes no other
            body_bytes=body_bytes,
        )
