"""Asking a gateway now, with its own token: its latest entries (LED-3), or all it knows of one transaction.

The address is the one that the service registered. No redirects, no proxies of the environment, no answer larger or
slower than bounds say; whatever comes is checked like what is pushed. The token leaves this process only in the
Authorization header to that address.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncIterator, Sequence
from ipaddress import ip_address
from typing import Any
from urllib.parse import quote, urlsplit
from uuid import UUID

import aiohttp
import orjson

from gateway.central import refusals
from gateway.central.ingest import Ingest
from gateway.central.queries import CentralQueries
from gateway.central.rows import Document
from gateway.central.services import Service, Services
from gateway.central.wire import BadEntry, Row, row_of
from gateway.operator import parameters
from gateway.protocol.problems import Problem

PAGE_ROWS = 1000
PAGE_BYTES_MAX = 16 << 20  # a thousand entries have about 1 MB
INTENT_BYTES_MAX = 4 << 20
_CURSOR = re.compile(r"[A-Za-z0-9_-]{0,128}").fullmatch
PULL_S = 20.0  # for one request of an operator; below the listener's own 25 s for an answer


class Refused(Exception):
    """The gateway answered, but not with what was asked for."""

    def __init__(self, why: str, status: int = 0) -> None:
        super().__init__(why)
        self.status = status


class Puller:
    """The client of all gateways."""

    def __init__(
        self,
        queries: CentralQueries,
        services: Services,
        ingest: Ingest,
        *,
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
        allow_http: bool = False,
    ) -> None:
        self._queries = queries
        self._services = services
        self._ingest = ingest
        self._timeout_s = timeout_s
        self._tls = tls
        self._allow_http = allow_http
        self._session: aiohttp.ClientSession | None = None
        self._pulling: dict[UUID, asyncio.Lock] = {}

    async def close(self) -> None:
        """Hang up."""
        if self._session is not None:
            await self._session.close()

    async def pull(self, segment: str) -> Document:
        """Everything that changed since the last pull, stored; `complete` is false if there is more to come.

        `segment` is the service's ID as it stands in a path.
        """
        service_ledger_id = parameters.path_id(segment, refusals.service_id_malformed())
        self._require_pullable(await self._services.one(service_ledger_id))
        async with self._pulling.setdefault(service_ledger_id, asyncio.Lock()):
            service = await self._services.one(service_ledger_id)  # as the pull before this one left it
            self._require_pullable(service)
            counts = {"received": 0, "stored": 0, "foreign": 0, "pages": 0, "complete": False}
            try:
                async with asyncio.timeout(PULL_S):
                    await self._follow(service, counts)
            except TimeoutError:
                if not counts["pages"]:
                    raise refusals.gateway_away("took too long") from None
            except Refused as refused:
                raise refusals.gateway_away(str(refused)) from None
            except (aiohttp.ClientError, OSError):
                raise refusals.gateway_away("could not be reached") from None
            return counts

    async def _follow(self, service: Service, counts: Document) -> None:
        """Page after page until nothing is new; each one is stored before the next is asked for."""
        cursor, started_over = service.pull_cursor, False
        while True:
            try:
                page = await self._page(service, cursor)
            except Refused as refused:
                if refused.status != 400 or cursor is None or started_over:
                    raise
                cursor, started_over = (
                    None,
                    True,
                )  # a store made anew does not know it: from the beginning, which stores nothing twice
                continue
            rows, foreign = _own_rows(page["entries"], service)
            counts["received"] += len(rows)
            counts["foreign"] += foreign
            counts["pages"] += 1
            counts["stored"] += await self._ingest.store(service.service_ledger_id, rows, pulled=True)
            await self._services.pulled(service.service_ledger_id, page["next"])
            if page["next"] == cursor:
                counts["complete"] = True
                return
            cursor = page["next"]

    async def _page(self, service: Service, cursor: str | None) -> Document:
        after = "" if cursor is None else f"&after={quote(cursor, safe='')}"
        page = await self._get(service, f"/v1/ledger/entries?limit={PAGE_ROWS}{after}", PAGE_BYTES_MAX)
        if (
            not isinstance(page, dict)
            or not isinstance(page.get("entries"), list)
            or len(page["entries"]) > PAGE_ROWS
            or not isinstance(page.get("next"), str)
            or not _CURSOR(page["next"])
        ):
            raise Refused("answered with something else than entries")
        return page

    async def intent(self, server_id: str, scope: str | None) -> Document:
        """One transaction: its rows here, and all that the serving gateway knows of it, or why it could not be asked.

        The gateway's own account shows nothing of other services, so whoever may see the server's row may see it.
        """
        entries = await self._queries.of_transaction(server_id, scope=scope)
        if not entries:
            raise refusals.transaction_unknown()
        intent, why = await self._intent(server_id, entries)
        return {
            "server_correlation_id": server_id,
            "entries": entries,
            "intent": intent,
            "from_gateway": intent is not None,
            "why": why,
        }

    async def _intent(self, server_id: str, entries: Sequence[Document]) -> tuple[Document | None, str | None]:
        ledger_id, why = _serving(entries)
        if ledger_id is None:
            return None, why
        try:
            service = await self._services.one(UUID(ledger_id))
            self._require_pullable(service)
            async with asyncio.timeout(self._timeout_s):
                found = await self._get(service, f"/v1/intents/{quote(server_id, safe='')}", INTENT_BYTES_MAX)
        except TimeoutError:
            return None, "its gateway took too long"
        except Refused as refused:
            if refused.status == 404:
                return None, "its gateway has forgotten it: it is past its replay horizon"
            return None, f"its gateway {refused}"
        except (aiohttp.ClientError, OSError):
            return None, "its gateway could not be reached"
        except Problem as problem:
            return None, problem.title
        if not _is_intent(found, server_id):
            return None, "its gateway answered with something else"
        return found, None

    def _require_pullable(self, service: Service) -> None:
        if service.revoked:
            raise refusals.service_revoked()
        if service.operator_url is None or service.pull_token is None:
            raise refusals.cannot_pull()
        url = urlsplit(service.operator_url)
        if url.scheme == "http" and not self._allow_http and not _is_loopback(url.hostname or ""):
            raise refusals.cannot_pull_plainly()

    async def _get(self, service: Service, path: str, max_bytes: int) -> Any:
        async with self._asking(service, path) as response:
            body = bytearray()
            async for chunk in response.content.iter_chunked(64 << 10):
                body += chunk
                if len(body) > max_bytes:
                    raise Refused("answered with more than is taken")
            if response.status != 200:
                raise Refused(f"answered with status {response.status}", response.status)
            try:
                return orjson.loads(body)
            except orjson.JSONDecodeError:
                raise Refused("answered with something else than JSON") from None

    @contextlib.asynccontextmanager
    async def _asking(self, service: Service, path: str) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._timeout_s)
            self._session = aiohttp.ClientSession(timeout=timeout, trust_env=False, cookie_jar=aiohttp.DummyCookieJar())
        async with self._session.get(
            f"{service.operator_url}{path}",
            headers={"Authorization": f"Bearer {service.pull_token}"},
            allow_redirects=False,  # the token is for this address alone
            ssl=True if self._tls is None else self._tls,
        ) as response:
            yield response


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_intent(found: Any, server_id: str) -> bool:
    """Whether it is about this transaction, and can be told on: not nested deeper than we can write."""
    if not isinstance(found, dict) or found.get("server_correlation_id") != server_id:
        return False
    for name in ("events", "attempts", "deliveries"):
        steps = found.get(name, [])
        if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
            return False
    if not isinstance(found.get("in_doubt"), dict | None):
        return False
    try:
        orjson.dumps([found])  # as deep as it will be in the answer
    except orjson.JSONEncodeError:
        return False
    return True


def _serving(entries: Sequence[Document]) -> tuple[str | None, str | None]:
    """Whose gateway to ask, or why none. Anybody can write a server row, so clients say whom they called."""
    servers = [entry for entry in entries if entry["actor"] == "server"]
    if not servers:
        return None, "no server has registered it here"
    called = {entry["target"] for entry in entries if entry["actor"] == "client"}
    ledgers = {entry["service_ledger_id"] for entry in servers if not called or entry["source"] in called}
    if not ledgers:
        return None, "it was registered by another server than its client called, so no gateway was asked"
    if len(ledgers) > 1:
        return None, "several servers say that they served it, so no gateway was asked"
    return str(ledgers.pop()), None


def _own_rows(entries: list[Any], service: Service) -> tuple[list[Row], int]:
    """The service's own rows of a page, and how many were another's: a store may hold several services' ledgers."""
    id_, rows, foreign = str(service.service_ledger_id), [], 0
    for entry in entries:
        writer = (entry.get("service_ledger_id"), entry.get("source")) if isinstance(entry, dict) else (None, None)
        if None not in writer and writer != (id_, service.name):
            foreign += 1
            continue
        try:
            rows.append(row_of(entry, service_ledger_id=id_, source=service.name))
        except BadEntry as bad:
            raise Refused(f"answered with an entry that does not fit the schema: {bad}") from None
    return rows, foreign
