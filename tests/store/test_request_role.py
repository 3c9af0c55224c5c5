"""REP-6: consumed keys and audit events are append-only in the database itself (DESIGN decision 11)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit
from uuid import uuid4

import asyncpg
import pytest

from gateway.protocol.phases import Phase
from gateway.store.intents import IntentStore
from gateway.store.leases import Lease
from gateway.store.lines import Line, connect
from gateway.store.opening import open_store
from gateway.store.sweeps import Retention, Sweeps
from gateway.vault import Key
from tests.store.rows import SERVICE, Superuser, claimed_intent, new_intent, opened, settlement_of

IMMUTABLE = [
    "bucket",
    "logical_key",
    "server_correlation_id",
    "client_correlation_id",
    "replay_key",
    "caller",
    "source",
    "method",
    "path",
    "query",
    "route",
    "execution",
    "replay_policy",
    "parent_reference_id",
    "transaction_reference",
    "ttl_ms",
    "grace_ms",
    "horizon_ms",
    "phase_1_timestamp",
    "ponr_deadline",
    "keep_until",
]

FORBIDDEN = [
    *(f"UPDATE intents SET {column} = {column}" for column in IMMUTABLE),
    "DELETE FROM intents",
    "TRUNCATE intents",
    "UPDATE events SET code = code",
    "UPDATE events SET at = at",
    "UPDATE events SET detail = detail",
    "DELETE FROM events",
    "TRUNCATE events",
    *(f"UPDATE nonces SET {column} = {column}" for column in ("bucket", "nonce", "logical_key", "consumed_at")),
    "DELETE FROM nonces",
    "TRUNCATE nonces",
    "UPDATE attempts SET attempt_id = attempt_id",
    "DELETE FROM attempts",
    "DELETE FROM responses",
    "UPDATE payloads SET sealed = sealed",
    "UPDATE in_doubt SET reason = reason",
    "UPDATE evidence SET phase = phase",
    "DELETE FROM evidence",
    "UPDATE verifications SET sealed = sealed",
    "DELETE FROM holders",
    "UPDATE client_entries SET parent_reference_id = parent_reference_id",
    "UPDATE client_entries SET client_correlation_id = client_correlation_id",
    "DELETE FROM client_entries",
    "UPDATE facts SET value = value",
    "UPDATE secrets SET sealed = sealed",
    "UPDATE sealing_keys SET check_value = check_value",
    "INSERT INTO services (name) VALUES ('mine')",
    "INSERT INTO schema_migrations (version, name) VALUES (9999, 'mine')",
    "CREATE TABLE mine (x int)",
    "ALTER TABLE intents DISABLE TRIGGER ALL",
    "DROP TABLE events",
]


@pytest.fixture
async def request_role(fresh_database: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    connection = await connect(fresh_database)
    yield connection
    await connection.close()


@pytest.mark.parametrize("statement", FORBIDDEN)
async def test_the_request_path_may_not(request_role: asyncpg.Connection[Any], statement: str) -> None:
    """REP-6: neither change or free a key, nor forget an intent, nor rewrite the audit trail."""
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await request_role.execute(statement)


async def test_every_column_of_an_intent_is_either_immutable_or_meant_to_change(superuser: Superuser) -> None:
    """REP-6: a column added later is on one of the two lists."""
    granted = await superuser.connection.fetch(
        "SELECT column_name FROM information_schema.column_privileges"
        " WHERE table_name = 'intents' AND grantee = 'twophp_request' AND privilege_type = 'UPDATE'"
    )
    columns = await superuser.connection.fetch(
        "SELECT column_name FROM information_schema.columns WHERE table_name = 'intents'"
    )
    assert {row[0] for row in columns} - {row[0] for row in granted} == set(IMMUTABLE)


async def test_lines_work_as_the_request_role(fresh_database: str) -> None:
    """Decision 11: also when the login itself may do everything."""
    line = Line(fresh_database)
    assert (await line.fetch("SELECT current_user AS role"))[0]["role"] == "twophp_request"
    await line.close()


async def test_retention_is_refused_on_the_request_path(fresh_database: str, caplog: pytest.LogCaptureFixture) -> None:
    """REP-6: it runs as the owner only."""
    line = Line(fresh_database)
    with pytest.raises(Exception, match="42501"):
        await Retention(line, buckets=1).retain()
    assert "refused a statement" in caplog.text
    await line.close()


@pytest.fixture
async def login(fresh_database: str) -> AsyncIterator[str]:
    """The URL of a login that owns nothing and may nothing but connect."""
    name = f"login-{os.getpid()}-{uuid4().hex[:8]}"  # a name that must be quoted
    server = await asyncpg.connect(fresh_database)
    await server.execute(f'CREATE ROLE "{name}" LOGIN')
    parts = urlsplit(fresh_database)
    host = parts.netloc.rpartition("@")[2]
    yield urlunsplit(parts._replace(netloc=f"{quote(name)}@{host}"))
    await server.execute(f'DROP ROLE "{name}"')
    await server.close()


async def test_a_login_of_its_own_works_end_to_end(login: str, fresh_database: str, superuser: Superuser) -> None:
    """Decision 11: `store.url` is not the owner; the owner grants it the role and the rest follows."""
    key = Key("k1", b"1" * 32)
    await open_store(login, fresh_database, service=SERVICE, buckets=1, keys=[key])
    line = Line(login)
    lease = Lease(line, 15_000)
    await lease.enter()
    sweeps = Sweeps(login, buckets=1, lease_ms=15_000)
    async with opened(login) as store:
        claimed = await claimed_intent(store, "c-1", holder=lease.holder)
        assert await store.settle(settlement_of(claimed))
        assert await superuser.phase(claimed.key) is Phase.COMMITTED
        await store.register(new_intent("c-2"))
        await superuser.age(new_intent("c-2").key, 2 * 3_600_000)
        assert (await sweeps.expire(), await sweeps.abandon()) == (1, 1)
        assert await lease.renew()
        await lease.hand_back()
        await sweeps.rescue()
    await line.close()
    await sweeps.line.close()
    member = await superuser.value("SELECT count(*) FROM pg_roles WHERE rolname LIKE 'login-%' AND NOT rolsuper")
    assert member >= 1


async def test_nothing_of_a_handshake_needs_more_than_the_role(store: IntentStore) -> None:
    """Decision 11: the counterpart of what is forbidden."""
    claimed = await claimed_intent(store, "c-1")
    await store.note(claimed.key, "EVIDENCE", {"status": 200})
    await store.pending(b"a" * 32, "/orders", 10)
    assert await store.read_by_server_id((await store.read(claimed.key)).server_correlation_id)  # type: ignore[union-attr]
    assert await store.response(claimed.key) is None
