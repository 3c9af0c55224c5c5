"""PERFORMANCE 4: every statement finds its rows by key, on empty, small and large tables; and updates stay HOT.

On a table with no more than a row or two the planner walks, whatever it is told. Lines make their plans anew for that:
what is asserted here is that a plan made after the table has grown, without an ANALYZE, is by key, and that it is made.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import asyncpg
import pytest

from gateway.store import intents, lines
from gateway.store.intents import IntentStore
from gateway.store.lines import Line, connect
from tests.postgres import database_url
from tests.store.plans import OWNERS, STATEMENTS, STATES, fill, plan_of, vacuum, walks
from tests.store.rows import Superuser, claimed_intent, eventually, random_ids, settlement_of


@pytest.fixture(scope="module")
def databases(postgres_url: str, template_database: str) -> Iterator[dict[str, str]]:
    """A database in each state, made once."""
    names = {state: f"twophp_test_{os.getpid()}_plans_{state}" for state in STATES}

    async def make() -> None:
        server = await asyncpg.connect(postgres_url)
        for state, bring in STATES.items():
            await server.execute(f"CREATE DATABASE {names[state]} TEMPLATE {template_database}")
            owner = await asyncpg.connect(database_url(postgres_url, names[state]))
            await bring(owner)
            await owner.close()
        await server.close()

    async def drop() -> None:
        server = await asyncpg.connect(postgres_url)
        for database in names.values():
            await server.execute(f"DROP DATABASE {database} WITH (FORCE)")
        await server.close()

    asyncio.run(make())
    yield {state: database_url(postgres_url, database) for state, database in names.items()}
    asyncio.run(drop())


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", STATEMENTS)
async def test_a_statement_finds_its_rows_by_key(databases: dict[str, str], name: str, state: str) -> None:
    """PERFORMANCE 4: no sequential scan and no walk along an index."""
    connection = await connect(databases[state], role=None if name in OWNERS else "twophp_request")
    try:
        assert walks(await plan_of(connection, STATEMENTS[name])) == []
    finally:
        await connection.close()


async def test_the_check_knows_a_walk_when_it_sees_one(databases: dict[str, str]) -> None:
    connection = await connect(databases["as_large"], pinned=False)
    assert walks(await plan_of(connection, "SELECT FROM intents WHERE phase = 'PROCESSING'"))
    await connection.close()
    connection = await connect(databases["as_large"])
    assert walks(await plan_of(connection, "SELECT FROM intents WHERE bucket = $1"))
    await connection.close()


@pytest.mark.parametrize("because", ["of its age", "of a burst"])
async def test_a_plan_made_on_an_empty_table_does_not_last(
    fresh_database: str, superuser: Superuser, monkeypatch: pytest.MonkeyPatch, because: str
) -> None:
    """PERFORMANCE 4: it is made anew after some seconds, and after so many statements."""
    monkeypatch.setattr(lines, "REPLAN_STATEMENTS", 3 if because == "of a burst" else 1000)
    await vacuum(superuser.connection)
    line = Line(fresh_database)
    sql = intents.SQL["read_by_key"]
    await line.fetch(sql, 0, [b"key"])
    assert line._connection is not None
    prepared = line._prepared[sql].get_name()
    assert walks(await plan_of(line._connection, sql, prepared)) != []
    await fill(superuser.connection, 2000)
    await line.fetch(sql, 0, [b"key"])
    assert walks(await plan_of(line._connection, sql, prepared)) != []
    if because == "of its age":
        monkeypatch.setattr(lines, "REPLAN_S", 0.0)
    await line.fetch(sql, 0, [b"key"])
    await line.fetch(sql, 0, [b"key"])
    assert walks(await plan_of(line._connection, sql, prepared)) == []
    await line.close()


async def test_updates_of_intents_stay_hot(store: IntentStore, superuser: Superuser) -> None:
    """Decision 5: no index of `intents` names a column that changes."""
    for name in random_ids(200):
        await store.settle(settlement_of(await claimed_intent(store, name)))
    await store.close()  # a session hands in its statistics at its end
    statistics = "FROM pg_stat_user_tables WHERE relname = 'intents'"

    async def handed_in() -> bool:
        return bool(await superuser.value(f"SELECT n_tup_upd >= 400 {statistics}"))

    await eventually(handed_in)
    assert await superuser.value(f"SELECT (n_tup_upd, n_tup_hot_upd) {statistics}") == (400, 400)
