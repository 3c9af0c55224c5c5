"""An operator listener on a real port before a real Postgres.

On uvloop, as in production; what is about bytes and connections also on asyncio's own loop, whose transports differ.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop

from gateway.store.ledger import LedgerQueries
from tests.operator.book import Book
from tests.operator.console import Console

NOWHERE = "postgresql://nobody@127.0.0.1:1/nowhere"


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"uvloop": uvloop.new_event_loop}
    if item.path.name in ("test_health.py", "test_problems.py"):
        loops["asyncio"] = asyncio.new_event_loop
    return loops


@pytest.fixture
async def book(fresh_database: str) -> AsyncIterator[Book]:
    """A ledger to write in."""
    book = await Book.open(fresh_database)
    yield book
    await book.close()


@pytest.fixture
async def ledger(fresh_database: str) -> AsyncIterator[LedgerQueries]:
    """The same ledger, to read from."""
    ledger = LedgerQueries(fresh_database, buckets=1)
    yield ledger
    await ledger.close()


@pytest.fixture
async def console(ledger: LedgerQueries, fresh_database: str) -> AsyncIterator[Console]:
    """The listener with a token per role, and a client that holds the operations token."""
    console = await Console.open(ledger, fresh_database)
    yield console
    await console.close()


@pytest.fixture
async def storeless() -> AsyncIterator[Console]:
    """A listener whose store cannot be reached."""
    ledger = LedgerQueries(NOWHERE, buckets=1)
    console = await Console.open(ledger, NOWHERE)
    yield console
    await console.close()
    await ledger.close()
