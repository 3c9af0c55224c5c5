"""Trackers of two replicas on one database, and a superuser beside them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tests.faults import FaultProxy, fault_proxy
from tests.obligations.desk import Desk


@pytest.fixture
async def desk(fresh_database: str) -> AsyncIterator[Desk]:
    """One replica's."""
    made = Desk(fresh_database)
    yield made
    await made.close()


@pytest.fixture
async def peer(fresh_database: str) -> AsyncIterator[Desk]:
    """Another replica's, on the same database."""
    made = Desk(fresh_database)
    yield made
    await made.close()


@pytest.fixture
async def proxy(fresh_database: str) -> AsyncIterator[FaultProxy]:
    """A proxy in front of the test's database."""
    async with fault_proxy(fresh_database) as made:
        yield made


class Clock:
    """A superuser who looks at the tables and turns back the clock of rows."""

    def __init__(self, connection: asyncpg.Connection[Any]) -> None:
        self.connection = connection

    async def pass_over(self, obligation: UUID) -> None:
        """Let the leak timeout of one obligation pass."""
        await self.connection.execute(
            "UPDATE obligations SET reserved_at = reserved_at - interval '1 hour',"
            " leaks_at = now() - interval '1 second' WHERE id = $1",
            obligation,
        )

    async def state(self, obligation: UUID) -> str:
        return str(await self.connection.fetchval("SELECT state FROM obligations WHERE id = $1", obligation))

    async def codes(self, obligation: UUID) -> list[str]:
        rows = await self.connection.fetch(
            "SELECT code FROM obligation_events WHERE obligation = $1 ORDER BY id", obligation
        )
        return [row["code"] for row in rows]


@pytest.fixture
async def clock(fresh_database: str) -> AsyncIterator[Clock]:
    connection = await asyncpg.connect(fresh_database)
    yield Clock(connection)
    await connection.close()
