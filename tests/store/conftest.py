"""A store on a database of the test's own, and a superuser beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from gateway.store.intents import IntentStore
from gateway.store.recovery import RecoveryStore
from gateway.store.verdicts import Verdicts
from tests.faults import FaultProxy, fault_proxy
from tests.store.rows import SERVICE, Superuser, opened


@pytest.fixture
async def store(fresh_database: str) -> AsyncIterator[IntentStore]:
    """One worker's store."""
    async with opened(fresh_database) as made:
        yield made


@pytest.fixture
async def other(fresh_database: str) -> AsyncIterator[IntentStore]:
    """Another replica's store, on the same database."""
    async with opened(fresh_database) as made:
        yield made


@pytest.fixture
async def superuser(fresh_database: str) -> AsyncIterator[Superuser]:
    """A connection that may do everything."""
    connection = await asyncpg.connect(fresh_database)
    yield Superuser(connection)
    await connection.close()


@pytest.fixture
async def proxy(fresh_database: str) -> AsyncIterator[FaultProxy]:
    """A proxy in front of the test's database."""
    async with fault_proxy(fresh_database) as made:
        yield made


@pytest.fixture
async def cut_store(proxy: FaultProxy) -> AsyncIterator[IntentStore]:
    """A store whose way to its database can be cut."""
    async with opened(proxy.url) as made:
        yield made


@pytest.fixture
async def doubts(fresh_database: str) -> AsyncIterator[RecoveryStore]:
    """One worker's hand in what is in doubt."""
    made = RecoveryStore(fresh_database, service=SERVICE, buckets=1)
    yield made
    await made.line.close()


@pytest.fixture
async def others(fresh_database: str) -> AsyncIterator[RecoveryStore]:
    """Another replica's."""
    made = RecoveryStore(fresh_database, service=SERVICE, buckets=1)
    yield made
    await made.line.close()


@pytest.fixture
async def verdicts(fresh_database: str) -> AsyncIterator[Verdicts]:
    """An operator's."""
    made = Verdicts(fresh_database, service=SERVICE, buckets=1)
    yield made
    await made.close()
