"""Lines: one connection each, made again when it is lost, with bounded waits and an end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import asyncpg
import pytest

from gateway.protocol.faults import StoreAway, StoreLost
from gateway.store import lines
from gateway.store.lines import Line
from tests.faults import FaultProxy, exactly
from tests.store.rows import Superuser, eventually, until_closed

ONE = "SELECT 1 AS one"


@pytest.fixture
async def line(proxy: FaultProxy) -> AsyncIterator[Line]:
    made = Line(proxy.url)
    yield made
    await made.close()


async def test_a_line_that_was_cut_while_idle_reconnects_unnoticed(line: Line, proxy: FaultProxy) -> None:
    """REC-7: nothing was asked for, so nothing is lost."""
    await line.fetch(ONE)
    proxy.cut_all()
    await until_closed(line)
    assert (await line.fetch(ONE))[0]["one"] == 1
    assert proxy.connections == 2


@pytest.mark.parametrize("sqlstate", ["57P01", "57P02"])
async def test_a_server_that_goes_down_without_closing_is_no_bug_of_ours(
    line: Line, proxy: FaultProxy, sqlstate: str
) -> None:
    """REC-7: its last words come unasked, and the driver is confused until the connection's end; nobody gets a 500."""
    await line.fetch(ONE)
    proxy.interject(sqlstate)
    await asyncio.sleep(0.05)  # nothing tells when the driver has read them; too early, the statement just works
    with contextlib.suppress(StoreAway):
        await line.fetch(ONE)
    assert (await line.fetch(ONE))[0]["one"] == 1


async def test_a_cut_statement_is_lost_and_the_next_one_reconnects(line: Line, proxy: FaultProxy) -> None:
    """REC-7: unknown, said as such; and told to whoever counts."""
    told = []
    line._on_lost = lambda: told.append(True)
    await line.fetch(ONE)
    proxy.cut("after", exactly(ONE))
    with pytest.raises(StoreLost):
        await line.fetch(ONE)
    assert told == [True]
    assert (await line.fetch(ONE))[0]["one"] == 1


async def end(superuser: Superuser, line: Line, how: str) -> asyncio.Task[object]:
    """A statement on this line that the server ends while it runs."""
    pid = (await line.fetch("SELECT pg_backend_pid() AS pid"))[0]["pid"]
    running: asyncio.Task[object] = asyncio.create_task(line.fetch("SELECT pg_sleep(60)"))

    async def ended() -> bool:
        sql = f"SELECT {how}(pid) FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'PgSleep'"
        return bool(await superuser.value(sql, pid))

    await eventually(ended)
    return running


async def test_a_server_that_ends_a_session_has_lost_its_statement(fresh_database: str, superuser: Superuser) -> None:
    """REC-7: 57P01 while it runs may come before or after the commit."""
    line = Line(fresh_database)
    with pytest.raises(StoreLost):
        await (await end(superuser, line, "pg_terminate_backend"))
    assert (await line.fetch(ONE))[0]["one"] == 1
    await line.close()


async def test_a_statement_cancelled_by_the_server_was_not_carried_out(
    fresh_database: str, superuser: Superuser
) -> None:
    """P1-3: 57014 is a refusal: StoreAway, and certainly nothing done."""
    line = Line(fresh_database)
    with pytest.raises(StoreAway) as refused:
        await (await end(superuser, line, "pg_cancel_backend"))
    assert not isinstance(refused.value, StoreLost)
    await line.close()


async def test_a_statement_that_hangs_is_lost_in_bounded_time(
    fresh_database: str, superuser: Superuser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REC-9: it may still be carried out later."""
    monkeypatch.setattr(lines, "STATEMENT_TIMEOUT_S", 0.2)
    line = Line(fresh_database)
    await line.fetch("SELECT FROM holders")
    async with superuser.connection.transaction():
        await superuser.connection.execute("LOCK TABLE holders")
        with pytest.raises(StoreLost):
            await line.fetch("SELECT FROM holders")
    assert await line.fetch("SELECT FROM holders") == []
    await line.close()


async def test_whoever_waits_too_long_for_the_line_hears_that_it_is_busy(
    fresh_database: str, superuser: Superuser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1-3: waits are bounded, and nothing was asked for."""
    monkeypatch.setattr(lines, "TURN_TIMEOUT_S", 0.1)
    line = Line(fresh_database)
    async with superuser.connection.transaction():
        await superuser.connection.execute("LOCK TABLE holders")
        running = asyncio.create_task(line.fetch("SELECT FROM holders"))
        await superuser.until_blocked()
        with pytest.raises(StoreAway, match="busy"):
            await line.fetch(ONE)
    await running
    assert (await line.fetch(ONE))[0]["one"] == 1
    await line.close()


async def test_a_cancelled_caller_leaves_a_line_that_works(fresh_database: str, superuser: Superuser) -> None:
    line = Line(fresh_database)
    async with superuser.connection.transaction():
        await superuser.connection.execute("LOCK TABLE holders")
        running = asyncio.create_task(line.fetch("SELECT FROM holders"))
        await superuser.until_blocked()
        running.cancel()
        assert (await line.fetch(ONE))[0]["one"] == 1
    with pytest.raises(asyncio.CancelledError):
        await running
    await line.close()


async def test_a_refused_statement_is_said_loudly_and_prepared_anew(
    fresh_database: str, superuser: Superuser, caplog: pytest.LogCaptureFixture
) -> None:
    """Decision 11: a grant that is missing is the store away for callers, and an error for operators, until mended."""
    line = Line(fresh_database)
    await superuser.connection.execute("REVOKE SELECT ON facts FROM twophp_request")
    with pytest.raises(StoreAway, match="42501"):
        await line.fetch("SELECT FROM facts")
    assert "refused a statement of ours" in caplog.text
    await superuser.connection.execute("GRANT SELECT ON facts TO twophp_request")
    await line.fetch("SELECT FROM facts")
    await line.close()


async def test_a_statement_made_stale_by_a_migration_is_prepared_anew(
    fresh_database: str, superuser: Superuser
) -> None:
    """Decision 11: the schema may change under a running release."""
    await superuser.connection.execute("CREATE TABLE widened (x int); GRANT SELECT ON widened TO twophp_request")
    line = Line(fresh_database)
    await line.fetch("SELECT x FROM widened")
    await superuser.connection.execute("ALTER TABLE widened ALTER x TYPE bigint")
    with pytest.raises(StoreAway):
        await line.fetch("SELECT x FROM widened")
    assert await line.fetch("SELECT x FROM widened") == []
    await line.close()


async def test_bad_data_keeps_the_connection(line: Line, proxy: FaultProxy) -> None:
    """Decision 4: the row is at fault, not the store."""
    with pytest.raises(asyncpg.DataError):
        await line.fetch("SELECT 1 / $1::int", 0)
    with pytest.raises(asyncpg.DataError):
        await line.fetch("SELECT $1::smallint", 99_999)
    await line.fetch(ONE)
    assert proxy.connections == 1


async def test_sessions_are_read_committed_whatever_the_database_says(
    fresh_database: str, superuser: Superuser
) -> None:
    """Decision 2: the guards wait for a row and then look at it again; snapshots would fail them instead."""
    name = await superuser.value("SELECT current_database()")
    await superuser.connection.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    line = Line(fresh_database)
    assert (await line.fetch("SELECT current_setting('transaction_isolation') AS level"))[0][
        "level"
    ] == "read committed"
    await line.close()


async def test_closing_lets_the_statement_in_flight_end(fresh_database: str, superuser: Superuser) -> None:
    """REC-1: a drained worker's last outcome is not cut."""
    line = Line(fresh_database)
    async with superuser.connection.transaction():
        await superuser.connection.execute("LOCK TABLE holders")
        running = asyncio.create_task(line.fetch("SELECT 1 AS one FROM (SELECT count(*) FROM holders) AS h"))
        await superuser.until_blocked()
        closing = asyncio.create_task(line.close())
    assert (await running)[0]["one"] == 1
    await closing
    with pytest.raises(StoreAway, match="closed"):
        await line.fetch(ONE)


async def test_closing_does_not_wait_for_a_server_that_is_silent(
    line: Line, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "CONNECT_TIMEOUT_S", 0.1)
    await line.fetch(ONE)
    proxy.swallow()
    running = asyncio.create_task(line.fetch(ONE))
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await line.close()
        with pytest.raises(StoreAway):
            await running
