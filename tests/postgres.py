"""A real Postgres for tests: one server per run, one database per test.

The server is the embedded one on a directory of its own, or the one in TWOPHP_TEST_DATABASE_URL (a superuser's URL; its
databases named `twophp_test_…` are made and dropped). A test's database is copied from a migrated template, so it costs
milliseconds.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from gateway.store.embedded import EmbeddedPostgres
from gateway.store.migrate import migrate

START_TIMEOUT_S = 120.0
_numbers = itertools.count(1)


def database_url(dsn: str, database: str) -> str:
    """The same server, another database."""
    return urlunsplit(urlsplit(dsn)._replace(path=f"/{database}"))


class BackgroundPostgres:
    """An embedded Postgres on a loop of its own, so that it outlives the loops of single tests."""

    def __init__(self, data_dir: Path) -> None:
        self._server = EmbeddedPostgres(data_dir)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="test-postgres", daemon=True)

    def start(self) -> str:
        self._thread.start()
        return asyncio.run_coroutine_threadsafe(self._server.start(), self._loop).result(START_TIMEOUT_S)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop).result(START_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_TIMEOUT_S)
        self._loop.close()


def make_data_dir() -> Path:
    """A short directory that the user who runs Postgres can pass through, also when the tests run as root."""
    directory = Path(tempfile.mkdtemp(prefix="twophp-test-"))
    directory.chmod(0o711)
    return directory


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """An empty `store.data_dir`. (pytest's own tmp_path is closed to other users: a root gateway would keep its cluster
    elsewhere and leave it behind.)"""
    directory = make_data_dir()
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of a server's superuser, for the whole run."""
    if url := os.environ.get("TWOPHP_TEST_DATABASE_URL"):
        yield url
        return
    directory = make_data_dir()
    server = BackgroundPostgres(directory)
    try:
        yield server.start()
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def template_database(postgres_url: str) -> Iterator[str]:
    """The name of a migrated, empty database that tests copy."""
    name = f"twophp_test_{os.getpid()}_template"
    asyncio.run(_make_template(postgres_url, name))
    yield name
    asyncio.run(_run(postgres_url, f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture
async def fresh_database(postgres_url: str, template_database: str) -> AsyncIterator[str]:
    """The DSN of a migrated database that no other test has seen; gone after the test."""
    name = f"twophp_test_{os.getpid()}_{next(_numbers)}"
    await _run(postgres_url, f"CREATE DATABASE {name} TEMPLATE {template_database}")
    yield database_url(postgres_url, name)
    await _run(postgres_url, f"DROP DATABASE {name} WITH (FORCE)")


async def _make_template(url: str, name: str) -> None:
    await _run(url, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)", f"CREATE DATABASE {name}")
    await migrate(database_url(url, name))


async def _run(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()
