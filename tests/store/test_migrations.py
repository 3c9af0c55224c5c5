"""Migrations (DESIGN decision 11): once, in order, by whoever comes first; and the schema that they lead to."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from uuid import uuid4

import asyncpg
import pytest

from gateway.store import migrate as migrations
from gateway.store.migrate import MigrationError, migrate
from tests.postgres import database_url
from tests.store.rows import Superuser
from tests.store.schema import GOLDEN, dump


@pytest.fixture
async def empty_database(postgres_url: str) -> AsyncIterator[str]:
    """A database that nobody has migrated."""
    name = f"twophp_test_{os.getpid()}_{uuid4().hex[:8]}"
    server = await asyncpg.connect(postgres_url)
    await server.execute(f"CREATE DATABASE {name}")
    yield database_url(postgres_url, name)
    await server.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await server.close()


def names() -> list[str]:
    return [name for _, name, _ in migrations.available()]


async def test_eight_at_once_on_an_empty_database_apply_everything_once(empty_database: str) -> None:
    """Decision 11: replicas start together."""
    applied = await asyncio.gather(*(migrate(empty_database) for _ in range(8)))
    assert sorted(applied, key=len) == [[]] * 7 + [names()]


async def test_migrating_again_changes_nothing(empty_database: str) -> None:
    assert await migrate(empty_database) == names()
    assert await migrate(empty_database) == []


async def test_a_migration_is_applied_whole_or_not_at_all(empty_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decision 11: one that fails leaves the schema before it, and is applied by the next start."""
    whole = migrations.available()
    broken = [*whole, (9999, "9999_broken.sql", "CREATE TABLE half (x int); SELECT 1 / 0")]
    monkeypatch.setattr(migrations, "available", lambda package: broken)
    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate(empty_database)
    unnoted = [*whole, (9999, None, "CREATE TABLE half (x int)")]  # done, but the note of it fails
    monkeypatch.setattr(migrations, "available", lambda package: unnoted)
    with pytest.raises(asyncpg.NotNullViolationError):
        await migrate(empty_database)
    mended = [*whole, (9999, "9999_broken.sql", "CREATE TABLE half (x int)")]
    monkeypatch.setattr(migrations, "available", lambda package: mended)
    assert await migrate(empty_database) == ["9999_broken.sql"]


async def test_the_previous_release_runs_on_a_newer_schema(
    empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decision 11: expand, then contract; a version that this release does not know is no error."""
    newer = [*migrations.available(), (9999, "9999_newer.sql", "ALTER TABLE intents ADD COLUMN newer text")]
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "available", lambda package: newer)
        await migrate(empty_database)
    assert await migrate(empty_database) == []


async def test_the_number_of_buckets_is_fixed_by_the_first_migration(empty_database: str) -> None:
    """Decision 3: another value is refused, and says what is stored."""
    await migrate(empty_database, buckets=16)
    await migrate(empty_database, buckets=16)
    with pytest.raises(MigrationError, match=r"store\.buckets is 4, but this store was made with 16"):
        await migrate(empty_database, buckets=4)


async def test_who_finds_the_lock_taken_for_too_long_says_so(
    empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decision 11: waiting for another migrator is bounded."""
    monkeypatch.setattr(migrations, "PATIENT_TIMEOUT_S", 0.0)
    another = await asyncpg.connect(empty_database)
    await another.execute(f"SELECT pg_advisory_lock({migrations.LOCK})")
    with pytest.raises(MigrationError, match="somebody else"):
        await migrate(empty_database)
    await another.close()
    monkeypatch.undo()
    assert await migrate(empty_database) == names()


async def test_an_owner_without_superuser_rights_makes_the_role_and_may_take_it_on(
    empty_database: str, postgres_url: str
) -> None:
    """Decision 11: since PostgreSQL 16, who creates a role may not SET ROLE to it by that alone."""
    owner, role = f"owner_{uuid4().hex[:8]}", f"request_{uuid4().hex[:8]}"
    server = await asyncpg.connect(empty_database)
    database = await server.fetchval("SELECT current_database()")
    await server.execute(f"CREATE ROLE {owner} LOGIN CREATEROLE")
    await server.execute(f"ALTER DATABASE {database} OWNER TO {owner}")
    connection = await asyncpg.connect(empty_database, user=owner)
    patched = pytest.MonkeyPatch()
    patched.setattr(migrations, "REQUEST_ROLE", role)
    patched.setattr(migrations, "_ROLE", migrations._ROLE.replace("twophp_request", role))
    try:
        await migrations._request_role(connection, None)
        await connection.execute(f"SET ROLE {role}")
    finally:
        patched.undo()
        await connection.close()
        await server.execute(f"DROP ROLE {role}")
        await server.execute(f"REASSIGN OWNED BY {owner} TO CURRENT_USER")
        await server.execute(f"DROP OWNED BY {owner}")
        await server.execute(f"DROP ROLE {owner}")
        await server.close()


async def test_the_schema_is_the_one_in_the_golden_file(superuser: Superuser) -> None:
    """Decision 11, REP-6: every column, constraint, index and grant; a change of it is made on purpose."""
    assert await dump(superuser.connection) == GOLDEN.read_text(), "run python -m tests.store.schema if this is meant"


async def test_every_per_intent_table_has_its_bucket_in_its_primary_key(superuser: Superuser) -> None:
    """Decision 3: the same schema can be distributed by bucket: no unique index without it, no trigger."""
    wrong = await superuser.connection.fetch("""
        SELECT i.indexrelid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
        WHERE c.relnamespace = 'public'::regnamespace AND i.indisunique
            AND EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'logical_key')
            AND NOT EXISTS (
                SELECT FROM pg_attribute a
                WHERE a.attrelid = c.oid AND a.attname = 'bucket' AND a.attnum = ANY (i.indkey::int2[]))""")
    assert wrong == []
    assert await superuser.value("SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal") == 0
