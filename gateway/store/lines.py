"""A line: one dedicated connection with its prepared statements, reconnected when it is lost.

Hot statements have lines of their own, so that a slow one never waits in another's queue and finalizing always finds a
connection (DESIGN decision 8).

Plans are pinned: a prepared statement planned against an empty table would walk the whole of it and go on doing so as
it grows (PERFORMANCE 4). So whole-table paths are off, tuples are priced above pages (a probe by key then always wins
over a walk), and plans are made anew every now and then: one made while a table was all but empty does walk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import asyncpg

from gateway.protocol.faults import StoreAway
from gateway.store.errors import StoreConflict, as_store_error, is_bad_data

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 3.0  # a store that does not accept within this is away: the caller hears 503 and may retry
STATEMENT_TIMEOUT_S = 10.0  # far above any honest statement of ours; bounds a hung server or network
PATIENT_TIMEOUT_S = 3600.0  # of what walks whole tables, at start only: an index over 10⁷ rows takes minutes
TURN_TIMEOUT_S = CONNECT_TIMEOUT_S + STATEMENT_TIMEOUT_S  # whoever has the line now has given up by then
REPLAN_S = 10.0  # a plan made too early lives no longer than this; planning anew costs about a millisecond
REPLAN_STATEMENTS = 200  # nor longer than this: a burst after a pause fills a table within moments
REQUEST_ROLE = "twophp_request"

SESSION = {
    "application_name": "twophp",
    "default_transaction_isolation": "read committed",  # the guards wait for a row and then look at it again
}
PINNED = {
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
    "cpu_tuple_cost": "1",
    "cpu_index_tuple_cost": "1",
    "random_page_cost": "1",
    "plan_cache_mode": "force_generic_plan",
}


async def connect(
    url: str, *, role: str | None = REQUEST_ROLE, pinned: bool = True
) -> asyncpg.Connection[asyncpg.Record]:
    """A connection that works as the request path's role, with pinned plans."""
    settings = SESSION | PINNED if pinned else dict(SESSION)
    if role is not None:
        settings["role"] = role
    return await asyncpg.connect(
        url, timeout=CONNECT_TIMEOUT_S, command_timeout=STATEMENT_TIMEOUT_S, server_settings=settings
    )


async def hang_up(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """Close a connection; a server that does not take note is not waited for."""
    with contextlib.suppress(Exception):
        await connection.close(timeout=CONNECT_TIMEOUT_S)


class Line:
    """One connection; statements on it run one at a time."""

    def __init__(
        self,
        url: str,
        *,
        role: str | None = REQUEST_ROLE,
        pinned: bool = True,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        self._url = url
        self._role = role
        self._pinned = pinned
        self._on_lost = on_lost
        self._lock = asyncio.Lock()
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self._prepared: dict[str, Any] = {}
        self._planned_at = 0.0
        self._used = 0  # statements since the plans were made
        self._tried = False
        self._back_since = -math.inf
        self._closed = False

    async def fetch(self, sql: str, *args: object) -> list[asyncpg.Record]:
        """Run one statement as its own transaction. StoreAway: certainly not carried out; StoreLost: unknown."""
        await self._turn()
        try:
            return await self._run(self._ready(sql) or await self._statement(sql), args)
        finally:
            self._lock.release()

    async def fetch_unbroken(self, unbroken_s: float, sql: str, *args: object) -> list[asyncpg.Record] | None:
        """The same; but None, and nothing done, when the store was away and is back for less than `unbroken_s`."""
        await self._turn()
        try:
            statement = await self._statement(sql)
            if time.monotonic() - self._back_since < unbroken_s:
                return None
            return await self._run(statement, args)
        finally:
            self._lock.release()

    async def _turn(self) -> None:
        """Take the line. A lane's own is free whenever it asks, which then costs no timer."""
        if not self._lock.locked():
            await self._lock.acquire()
            return
        try:
            async with asyncio.timeout(TURN_TIMEOUT_S):
                await self._lock.acquire()
        except TimeoutError:
            raise StoreAway("the line to the store is busy") from None

    def _ready(self, sql: str) -> Any | None:
        """The prepared statement, if nothing has to be done for it."""
        connection = self._connection
        if connection is None or connection.is_closed() or self._closed or (self._pinned and self._plans_are_old()):
            return None
        statement = self._prepared.get(sql)
        self._used += statement is not None
        return statement

    async def _statement(self, sql: str) -> Any:
        """The prepared statement, on a connection that lives. Nothing is asked for yet: every failure is StoreAway."""
        try:
            if self._closed:
                raise StoreAway("the store is closed")
            connection = self._connection
            if connection is None or connection.is_closed():
                connection = await self._connect()
            elif self._pinned and self._plans_are_old():
                await connection.execute("DISCARD PLANS")
                self._planned_at, self._used = time.monotonic(), 0
            self._used += 1
            statement = self._prepared.get(sql)
            if statement is None:
                statement = self._prepared[sql] = await connection.prepare(sql)
            return statement
        except (Exception, asyncio.CancelledError) as error:
            self._drop()
            if isinstance(error, asyncpg.PostgresError) and as_store_error(error) is None:
                raise _refused(error) from error
            if (store_error := as_store_error(error)) is not None:
                raise StoreAway(str(store_error)) from error
            raise

    def _plans_are_old(self) -> bool:
        return self._used >= REPLAN_STATEMENTS or time.monotonic() - self._planned_at > REPLAN_S

    async def _connect(self) -> asyncpg.Connection[asyncpg.Record]:
        self._prepared.clear()
        again, self._tried = self._tried, True
        connection = await connect(self._url, role=self._role, pinned=self._pinned)
        if self._closed:
            await hang_up(connection)
            raise StoreAway("the store is closed")
        self._connection = connection
        self._planned_at, self._used = time.monotonic(), 0
        if again:
            self._back_since = self._planned_at
        return connection

    async def _run(self, statement: Any, args: Sequence[object]) -> list[asyncpg.Record]:
        try:
            rows: list[asyncpg.Record] = await statement.fetch(*args)
            return rows
        except (Exception, asyncio.CancelledError) as error:
            if is_bad_data(error):
                raise
            store_error = as_store_error(error)
            if not isinstance(store_error, StoreConflict):
                self._drop()  # read-only after a failover, statements gone stale: a new connection is a new chance
            if store_error is not None:
                raise store_error from error
            if isinstance(error, asyncpg.PostgresError):
                raise _refused(error) from error
            raise

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._prepared.clear()
        if connection is not None:
            connection.terminate()
            if self._on_lost is not None:
                self._on_lost()

    async def close(self) -> None:
        """Let the statement in flight end, then close; statements after this find the store away."""
        self._closed = True
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._lock.acquire()
        except TimeoutError:
            self._drop()
            return
        try:
            connection, self._connection = self._connection, None
            self._prepared.clear()
            if connection is not None:
                await hang_up(connection)
        finally:
            self._lock.release()


def _refused(error: asyncpg.PostgresError) -> StoreAway:
    """Neither an outage nor a row's content: a missing grant, another schema. Nothing happened, but it needs a look."""
    log.error("the store refused a statement of ours", extra={"sqlstate": error.sqlstate}, exc_info=error)
    return StoreAway(f"store refused: {error.sqlstate}")
