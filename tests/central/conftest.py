"""A central ledger per test, on uvloop as in production."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

import asyncpg
import pytest
import uvloop

from gateway.store.migrate import migrate
from tests.central.desk import READERS, Desk, token
from tests.postgres import database_url

SERVICES = ("orders", "inventory", "billing")
_numbers = itertools.count(1)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def central_template(postgres_url: str) -> Iterator[str]:
    """The name of a migrated, empty central ledger that tests copy."""
    name = f"twophp_test_{os.getpid()}_central"

    async def make() -> None:
        await _run(postgres_url, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)", f"CREATE DATABASE {name}")
        await migrate(database_url(postgres_url, name), buckets=None, package="gateway.central")

    asyncio.run(make())
    yield name
    asyncio.run(_run(postgres_url, f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture
async def central_database(postgres_url: str, central_template: str) -> AsyncIterator[str]:
    """The URL of a central ledger that no other test has seen; gone after the test."""
    name = f"twophp_test_{os.getpid()}_c{next(_numbers)}"
    await _run(postgres_url, f"CREATE DATABASE {name} TEMPLATE {central_template}")
    yield database_url(postgres_url, name)
    await _run(postgres_url, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
async def desk(central_database: str) -> AsyncIterator[Desk]:
    """A token per role and per service, named `audit`, `orders-sync`, `orders-audit` and so on; services registered."""
    tokens = [token(role, role) for role in READERS]
    tokens += [token(f"{name}-sync", "sync", name) for name in SERVICES]
    tokens += [token(f"{name}-{role}", role, name) for name in SERVICES for role in READERS]
    desk = await Desk.open(central_database, tokens)
    for name in SERVICES:
        await desk.register(name)
    yield desk
    await desk.close()


async def _run(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()
