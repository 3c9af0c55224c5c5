"""Opening the store: is it durable, is it migrated, are the keys right, who are we in it.

Everything here is safe to do by several workers of several replicas at once. What raises `StoreAway` may be tried
again; what raises anything else will not get better by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import asyncpg

from gateway.protocol.faults import StoreAway
from gateway.store.errors import as_store_error
from gateway.store.lines import PATIENT_TIMEOUT_S, REQUEST_ROLE, connect, hang_up
from gateway.store.migrate import migrate
from gateway.vault import Key, KeyRing, KnownKey, admit, new_pepper

SINGLE_USE = {"intents": "logical_key", "nonces": "nonce"}  # table -> what it consumes (REP-1, REP-2)
_UNIQUE = """
SELECT EXISTS (
    SELECT FROM pg_index x
    WHERE x.indrelid = to_regclass($1) AND x.indisunique AND x.indisvalid AND x.indpred IS NULL AND x.indexprs IS NULL
        AND (SELECT array_agg(a.attname::text ORDER BY a.attname) FROM pg_attribute a
             WHERE a.attrelid = x.indrelid AND a.attnum = ANY (x.indkey))
            = (SELECT array_agg(c ORDER BY c) FROM unnest($2::text[]) AS c))"""
DURABLE = frozenset({"on", "local", "remote_write", "remote_apply"})  # of synchronous_commit: the commit is on a disk

_IN_USE = (
    "SELECT EXISTS (SELECT FROM secrets WHERE sealed_with = $1)"
    " OR EXISTS (SELECT FROM payloads WHERE sealed_with = $1)"
    " OR EXISTS (SELECT FROM responses WHERE sealed_with = $1) OR EXISTS (SELECT FROM queue WHERE sealed_with = $1)"
    " OR EXISTS (SELECT FROM deliveries WHERE sealed_with = $1 AND state <> 'delivered')"
    " OR EXISTS (SELECT FROM obligations WHERE sealed_with = $1)"
)


class StoreRefused(Exception):
    """The store cannot be used as it is, and says why."""


@dataclass(frozen=True, slots=True)
class Opened:
    """What a worker needs to know of the store."""

    service_ledger_id: UUID
    pepper: bytes
    ring: KeyRing


async def open_store(url: str, owner_url: str, *, service: str, buckets: int, keys: Sequence[Key]) -> Opened:
    """Check, migrate, and agree with the store on keys and names."""
    try:
        await migrate(owner_url, buckets=buckets, request_url=url)
        request = await connect(url)  # as workers do: its login may have settings of its own
        try:
            await _require_durability(request)
            await _require_single_use(request)
        finally:
            await hang_up(request)
        owner = await connect(owner_url, role=None, pinned=False)
        try:
            ring = await _bind_keys(owner, keys, _IN_USE)
            return Opened(await _service_ledger_id(owner, service), await _pepper(owner, ring), ring)
        finally:
            await hang_up(owner)
    except Exception as error:
        store_error = as_store_error(error)
        if store_error is not None:
            raise StoreAway(str(store_error)) from error
        raise


async def open_ring(url: str, owner_url: str, *, package: str, in_use: str, keys: Sequence[Key]) -> KeyRing:
    """The same for the schema beside another package: migrated, durable, with the right keys.

    `in_use` is the statement that tells whether something is still sealed with a key.
    """
    try:
        await migrate(owner_url, buckets=None, request_url=url, package=package)
        request = await connect(url)
        try:
            await _require_durability(request)
        finally:
            await hang_up(request)
        owner = await connect(owner_url, role=None, pinned=False)
        try:
            return await _bind_keys(owner, keys, in_use)
        finally:
            await hang_up(owner)
    except Exception as error:
        store_error = as_store_error(error)
        if store_error is not None:
            raise StoreAway(str(store_error)) from error
        raise


async def _require_durability(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """DESIGN decision 9: an acknowledged intent must survive a power cut."""
    fsync = await connection.fetchval("SHOW fsync")
    commit = await connection.fetchval("SHOW synchronous_commit")
    if fsync != "on" or commit not in DURABLE:
        raise StoreRefused(
            f"the store runs with fsync={fsync} and synchronous_commit={commit}: acknowledged intents could be lost. "
            "Turn both on."
        )


async def _require_single_use(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """RP-10: a key or a nonce is consumed once because the database says so, or the store is not fit for it.

    The constraint must be on exactly the key and its bucket: with an attempt's number in it, a new attempt would bring
    a new effect. And the request path must not be able to free what was consumed (REP-6).
    """
    for table, key in SINGLE_USE.items():
        unique = await connection.fetchval(_UNIQUE, table, [key, "bucket"])
        erasable = await connection.fetchval(
            "SELECT has_table_privilege($1, $2, 'DELETE') OR has_column_privilege($1, $2, $3, 'UPDATE')",
            REQUEST_ROLE,
            table,
            key,
        )
        if not unique or erasable:
            raise StoreRefused(
                f"REPLAY_SURFACE_NOT_FIT: {table} does not keep its {key} single-use, so that an effect could be "
                "doubled. Restore its primary key and its grants as the migrations made them."
            )


async def _bind_keys(connection: asyncpg.Connection[asyncpg.Record], keys: Sequence[Key], in_use_sql: str) -> KeyRing:
    """DESIGN decision 12: a wrong key, or the absence of one still in use, is found now and not when it is needed."""
    async with connection.transaction():
        await connection.execute("LOCK TABLE sealing_keys IN SHARE ROW EXCLUSIVE MODE")
        present = {key.id for key in keys}
        known = []
        for row in await connection.fetch("SELECT number, id, check_value FROM sealing_keys"):
            in_use = row["id"] not in present and await _in_use(connection, in_use_sql, row["number"])
            known.append(KnownKey(row["id"], row["number"], row["check_value"], in_use))
        numbers = {key.id: key.number for key in known}
        for key in admit(keys, known):
            numbers[key.id] = await connection.fetchval(
                "INSERT INTO sealing_keys (id, check_value) VALUES ($1, $2) RETURNING number", key.id, key.check_value()
            )
    ring = KeyRing(keys)
    ring.bind(numbers)
    return ring


async def _in_use(connection: asyncpg.Connection[asyncpg.Record], sql: str, number: int) -> bool:
    """Asked only for a key that is missing from the configuration, so a walk through the tables is affordable."""
    used: bool = await connection.fetchval(sql, number, timeout=PATIENT_TIMEOUT_S)
    return used


async def _service_ledger_id(connection: asyncpg.Connection[asyncpg.Record], service: str) -> UUID:
    await connection.execute("INSERT INTO services (name) VALUES ($1) ON CONFLICT DO NOTHING", service)
    found: UUID = await connection.fetchval("SELECT service_ledger_id FROM services WHERE name = $1", service)
    return UUID(bytes=found.bytes)


async def _pepper(connection: asyncpg.Connection[asyncpg.Record], ring: KeyRing) -> bytes:
    """Made once per store, sealed by the ring, and sealed anew under the newest key so that old ones can be dropped."""
    fresh = ring.seal(b"secret", b"pepper", new_pepper())
    await connection.execute(
        "INSERT INTO secrets (name, sealed, sealed_with) VALUES ('pepper', $1, $2) ON CONFLICT DO NOTHING",
        fresh,
        ring.sealed_with,
    )
    row = await connection.fetchrow("SELECT sealed, sealed_with FROM secrets WHERE name = 'pepper'")
    assert row is not None
    pepper = ring.open(b"secret", b"pepper", row["sealed"], row["sealed_with"])
    if ring.is_stale(row["sealed_with"]):
        await connection.execute(
            "UPDATE secrets SET sealed = $1, sealed_with = $2 WHERE name = 'pepper' AND sealed_with = $3",
            ring.seal(b"secret", b"pepper", pepper),
            ring.sealed_with,
            row["sealed_with"],
        )
    return pepper
