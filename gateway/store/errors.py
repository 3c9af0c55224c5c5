"""What can go wrong between us and Postgres, sorted by what it means for the caller: by SQLSTATE, never by text."""

from __future__ import annotations

import asyncio

import asyncpg

from gateway.protocol.faults import StoreAway, StoreLost

_CONFLICTS = frozenset({"40001", "40P01"})  # serialization failure, deadlock

# The server said no or rolled back: nothing happened. Out of resources, cancelled, read-only after a failover.
_REFUSED_CLASSES = frozenset({"53", "54", "55", "58", "XX"})
_REFUSED = frozenset({"57014", "25006", "57P03", "3D000", "28000", "28P01"})
_LOST_CLASSES = frozenset({"08", "57"})
# InternalClientError: how asyncpg meets a connection on which a server that goes down has had its last words, unasked.
_LOST = (
    *(asyncpg.InterfaceError, asyncpg.InternalClientError),
    *(OSError, asyncio.TimeoutError, asyncio.IncompleteReadError),
)
_DATA_CLASSES = frozenset({"22", "23"})  # also what asyncpg itself raises for a value that it cannot encode


class BadRow(Exception):
    """One row of a batch that the database refuses for what is in it."""


class StoreConflict(StoreAway):
    """Rolled back because of somebody else's statement: the same one may run again at once."""


def is_bad_data(error: BaseException) -> bool:
    """Whether some row's content is at fault."""
    return isinstance(error, asyncpg.PostgresError) and _class(error) in _DATA_CLASSES


def as_store_error(error: BaseException) -> StoreAway | None:
    """A store error for anything that concerns the connection or the server, None for bugs and bad data."""
    if isinstance(error, StoreAway):
        return error
    if isinstance(error, asyncpg.PostgresError):
        state = str(error.sqlstate)
        if state in _CONFLICTS:
            return StoreConflict(f"store conflict: {state}")
        if state in _REFUSED or _class(error) in _REFUSED_CLASSES:
            return StoreAway(f"store refused: {state}")
        if _class(error) in _LOST_CLASSES:
            return StoreLost(f"store connection lost: {state}")
        return None
    if isinstance(error, _LOST):
        return StoreLost(f"store connection lost: {type(error).__name__}")
    return None


def _class(error: asyncpg.PostgresError) -> str:
    return str(error.sqlstate)[:2]
