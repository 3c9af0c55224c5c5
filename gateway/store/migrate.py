"""Migrations, applied in order under a lock, by the owner (DESIGN decision 11).

They expand, then contract: the previous release runs on the new schema.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from importlib import resources

import asyncpg

from gateway.protocol.identity import BUCKETS_MAX
from gateway.store.lines import PATIENT_TIMEOUT_S, REQUEST_ROLE, connect, hang_up

log = logging.getLogger(__name__)

LOCK = 0x2F48_5050  # any constant of our own: who migrates this database takes it first
LOCK_PAUSE_S = 0.05
_FILE = re.compile(r"(\d{4})_\w+\.sql")

_TABLE = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    version    integer PRIMARY KEY,
    name       text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)"""

_ROLE = f"""
DO $$ BEGIN
    CREATE ROLE {REQUEST_ROLE} NOLOGIN;
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$"""


class MigrationError(Exception):
    """The store cannot be brought to this release's schema, or is not what the configuration says."""


def available(package: str = "gateway.store") -> list[tuple[int, str, str]]:
    """(version, name, SQL) of every migration of this release, in order: a gateway's, or of another package."""
    folder = resources.files(package).joinpath("migrations")
    found = []
    for file in folder.iterdir():
        match = _FILE.fullmatch(file.name)
        if match:
            found.append((int(match[1]), file.name, file.read_text()))
    return sorted(found)


async def migrate(
    url: str, *, buckets: int | None = 1, request_url: str | None = None, package: str = "gateway.store"
) -> list[str]:
    """Apply what is missing; returns the names applied. `request_url` is what the request path connects with.

    `buckets` is None for a schema without them.
    """
    connection = await connect(url, role=None, pinned=False)
    try:
        await _take_lock(connection)
        await connection.execute(_TABLE)
        await _request_role(connection, request_url)
        applied = await _apply(connection, package)
        if buckets is not None:
            await _fix_buckets(connection, buckets)
        return applied
    finally:
        await hang_up(connection)


async def _take_lock(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """Asked for again and again, so that a lost connection is found out; it ends with the session of whoever has it."""
    give_up = time.monotonic() + PATIENT_TIMEOUT_S
    while not await connection.fetchval(f"SELECT pg_try_advisory_lock({LOCK})"):
        if time.monotonic() > give_up:
            raise MigrationError("somebody else has been migrating this store for an hour")
        await asyncio.sleep(LOCK_PAUSE_S)


async def _apply(connection: asyncpg.Connection[asyncpg.Record], package: str) -> list[str]:
    known = await connection.fetch("SELECT version, name FROM schema_migrations")
    done = {row["version"]: row["name"] for row in known}
    applied = []
    for version, name, sql in available(package):
        if version in done:
            if done[version] != name:
                raise MigrationError(
                    f"this database has another schema ({done[version]} where {name} is ours): a gateway and a central "
                    "ledger need a database each"
                )
            continue
        async with connection.transaction():
            await connection.execute(sql, timeout=PATIENT_TIMEOUT_S)
            await connection.execute("INSERT INTO schema_migrations (version, name) VALUES ($1, $2)", version, name)
        log.info("migration applied", extra={"migration": name})
        applied.append(name)
    return applied


async def _request_role(connection: asyncpg.Connection[asyncpg.Record], request_url: str | None) -> None:
    """The role of the request path, and the right of its login to take it on."""
    try:
        await connection.execute(_ROLE)
        login = await connection.fetchval("SELECT current_user")
        if request_url is not None:
            probe = await connect(request_url, role=None, pinned=False)
            try:
                login = await probe.fetchval("SELECT current_user")
            finally:
                await hang_up(probe)
        # Since 16, who creates a role is its member but may not take it on (SET ROLE) before granting that to itself.
        right = "SET" if connection.get_server_version() >= (16,) else "MEMBER"
        if not await connection.fetchval("SELECT pg_has_role($1::name, $2::name, $3)", login, REQUEST_ROLE, right):
            grant = await connection.fetchval(
                "SELECT format('GRANT %I TO %I', $1::text, $2::text)", REQUEST_ROLE, login
            )
            await connection.execute(grant)
    except asyncpg.InsufficientPrivilegeError as error:
        raise MigrationError(
            f"the owner of the store may not create or grant the role {REQUEST_ROLE}: create it once as a superuser "
            f"(CREATE ROLE {REQUEST_ROLE} NOLOGIN; GRANT {REQUEST_ROLE} TO <user> WITH ADMIN OPTION) and start again"
        ) from error


async def _fix_buckets(connection: asyncpg.Connection[asyncpg.Record], buckets: int) -> None:
    """DESIGN decision 3: the number of buckets is fixed at the first migration."""
    assert 0 < buckets <= BUCKETS_MAX
    assert buckets & (buckets - 1) == 0
    await connection.execute(
        "INSERT INTO facts (name, value) VALUES ('buckets', $1) ON CONFLICT (name) DO NOTHING", str(buckets)
    )
    fixed = int(await connection.fetchval("SELECT value FROM facts WHERE name = 'buckets'"))
    if fixed != buckets:
        raise MigrationError(f"store.buckets is {buckets}, but this store was made with {fixed}; it cannot be changed")
