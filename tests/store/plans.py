"""Tables in the states that a store goes through, and the plans that statements get on them."""

from __future__ import annotations

import re
from typing import Any

import asyncpg
import orjson

from gateway.store import client_rows, direct, intents, queue, recovery, replay, sweeps, sync

BATCHES = {**intents.BATCHES, **direct.BATCHES}
REQUEST_PATH = {
    **{name: batch.many for name, batch in BATCHES.items()},
    **{f"{name} for one": batch.one for name, batch in BATCHES.items()},
    **{name: intents.SQL[name] for name in ("pending", "streamed", "note")},
    "payload_passed_on": direct.SQL["payload_passed_on"],
}
STATEMENTS = {
    **REQUEST_PATH,
    **{name: sql for name, sql in sweeps.SQL.items() if name != "count_in_doubt"},  # that one walks, a bounded way
    **recovery.SQL,
    **replay.SQL,
    "take_one": queue.SQL["take_one"],
    **{f"{name} calls": client_rows.SQL[name] for name in ("open", "read", "move", "retain")},
    **{name: sync.SQL[name] for name in ("stamp_intents", "stamp_calls")},
}
OWNERS = {"retain", "retire_holders", "retain calls"}

# What an index must be asked for: something that few rows share. The bucket alone selects nothing.
KEYS = (
    "logical_key",
    "server_correlation_id",
    "pending_of",
    "holder",
    "ponr_deadline",
    "keep_until",
    "obligation",
    "next_at",
    "nonce",
)
# One row per worker process, one per reader of the events: a handful that is read as a whole.
SMALL = {"holders", "cursors"}
# Empty whenever nothing is under way.
PASSING = ("payloads", "in_doubt", "verifications", "queue", "deliveries")
LASTING = ("intents", "attempts", "responses", "evidence", "events", "nonces", "client_entries", "holders")

FILL = {
    "intents": """
    INSERT INTO intents (
        bucket, logical_key, server_correlation_id, client_correlation_id, replay_key, caller, source, method, path,
        route, execution, replay_policy, parent_reference_id, payload_sha256, payload_bytes, ttl_ms, grace_ms,
        horizon_ms, phase_1_timestamp, ponr_deadline, keep_until, phase, came_from, phase_2_timestamp, fence,
        attempt_id, settled_at)
    SELECT 0, decode(md5(n::text), 'hex'), gen_random_uuid(), n::text, 'r', 'c', 'orders', 'POST', '/orders', '/orders',
        'sync', 'REJECT', n::text, 'h', 1, 1, 1, 1,
        now(), now() + n * interval '1 second', now() + n * interval '1 second', p.phase, p.came_from,
        CASE WHEN p.executed THEN now() END, p.executed::int, CASE WHEN p.executed THEN gen_random_uuid() END,
        CASE WHEN p.settled THEN now() END
    FROM generate_series(1, {rows}) AS n
    JOIN (VALUES
        (0, 'WAITING_CONFIRM'::phase, NULL::phase, false, false), (1, 'PROCESSING', 'WAITING_CONFIRM', true, false),
        (2, 'COMMITTED', 'PROCESSING', true, true)
    ) AS p (kind, phase, came_from, executed, settled) ON p.kind = n % 3""",
    "payloads": """
    INSERT INTO payloads
    SELECT 0, logical_key, hashtext(client_correlation_id) % 100, ponr_deadline, 1, 'sealed'
    FROM intents WHERE phase <> 'COMMITTED'""",
    "attempts": """
    INSERT INTO attempts (bucket, logical_key, number, attempt_id, fence, started_at, holder, ended_at)
    SELECT 0, logical_key, 1, attempt_id, fence, now(),
        CASE phase WHEN 'PROCESSING' THEN md5((row_number() OVER () % 7)::text)::uuid END,
        CASE phase WHEN 'COMMITTED' THEN now() END
    FROM intents WHERE fence > 0""",
    "responses": """
    INSERT INTO responses
    SELECT 0, logical_key, 200, 1, 'h', true, 1, 'sealed' FROM intents WHERE phase = 'COMMITTED'""",
    "in_doubt": "INSERT INTO in_doubt SELECT 0, logical_key, now(), 'why' FROM intents WHERE phase = 'PROCESSING'",
    "verifications": """
    INSERT INTO verifications (bucket, logical_key, sealed_with, sealed)
    SELECT 0, logical_key, 1, '' FROM intents WHERE phase = 'COMMITTED'""",
    "evidence": """
    INSERT INTO evidence (bucket, logical_key, fence, attempt_id, phase)
    SELECT 0, logical_key, fence, attempt_id, 'FAILED' FROM intents WHERE fence > 0""",
    "events": "INSERT INTO events (bucket, logical_key, code) SELECT 0, logical_key, 'PONR' FROM intents",
    "client_entries": """
    INSERT INTO client_entries (
        bucket, logical_key, client_correlation_id, source, target, method, path, parent_reference_id,
        phase_1_timestamp, keep_until, phase, settled_at)
    SELECT 0, sha256(logical_key), client_correlation_id, source, 'stock', method, path, parent_reference_id,
        phase_1_timestamp, keep_until, 'COMMITTED', now()
    FROM intents""",
    "nonces": """
    INSERT INTO nonces SELECT 0, sha256(logical_key), logical_key, attempt_id, now() FROM intents WHERE fence > 0""",
    "deliveries": """
    INSERT INTO deliveries (bucket, logical_key, id, kind, event, state, settled_at, sealed_with, sealed)
    SELECT 0, logical_key, gen_random_uuid(), 'callback', 'PROCESSING', 'delivered', now(), 1, '' FROM intents""",
    "queue": "INSERT INTO queue SELECT 0, logical_key, now(), 1, '' FROM intents WHERE phase = 'PROCESSING'",
    "holders": """
    INSERT INTO holders (holder, lease_until, dead)
    SELECT md5(n::text)::uuid, now() + n * interval '1 second', n % 2 = 0 FROM generate_series(0, 20) AS n""",
}


async def fill(owner: asyncpg.Connection[Any], rows: int, tables: tuple[str, ...] = LASTING + PASSING) -> None:
    for table in tables:
        await owner.execute(FILL[table].replace("{rows}", str(rows)))


async def vacuum(owner: asyncpg.Connection[Any]) -> None:
    for table in LASTING + PASSING:
        await owner.execute(f"VACUUM ANALYZE {table}")


async def as_never_used(owner: asyncpg.Connection[Any]) -> None:
    """Just migrated."""


async def as_grown(owner: asyncpg.Connection[Any]) -> None:
    """Empty when it was last looked at by a vacuum; full now."""
    await vacuum(owner)
    await fill(owner, 2000)


async def as_busy_after_idle(owner: asyncpg.Connection[Any]) -> None:
    """A long history, all settled when the last vacuum looked, and then a burst of work."""
    await fill(owner, 20_000, LASTING)
    await vacuum(owner)
    await fill(owner, 0, PASSING)


async def as_small(owner: asyncpg.Connection[Any]) -> None:
    await fill(owner, 60)
    await vacuum(owner)


async def as_large(owner: asyncpg.Connection[Any]) -> None:
    await fill(owner, 20_000)
    await vacuum(owner)


STATES = {state.__name__: state for state in (as_never_used, as_grown, as_busy_after_idle, as_small, as_large)}


async def plan_of(connection: asyncpg.Connection[Any], sql: str, prepared: str | None = None) -> dict[str, Any]:
    """The generic plan of a statement, as a line would run it; or the one that a line has prepared."""
    if prepared is None:
        prepared = "probe"
        await connection.execute(f"PREPARE {prepared} AS {sql}")
    parameters = max((int(number) for number in re.findall(r"\$(\d+)", sql)), default=0)
    arguments = f"({', '.join(['NULL'] * parameters)})" if parameters else ""
    explained = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE {prepared}{arguments}")
    found: dict[str, Any] = orjson.loads(explained)[0]["Plan"]
    return found


def walks(plan: dict[str, Any]) -> list[str]:
    """Accesses to a table that are not by one of its keys."""
    found = []
    table, condition = plan.get("Relation Name"), plan.get("Index Cond", "")
    by_key = any(re.search(rf"\b{key} (=|<|<=|>)", condition) for key in KEYS)
    if table not in SMALL | {None} and plan["Node Type"] != "ModifyTable" and not by_key:
        found.append(f"{plan['Node Type']} on {table} {plan.get('Index Name', '')}: {condition or 'no condition'}")
    return found + [walk for below in plan.get("Plans", ()) for walk in walks(below)]


def without_bucket(plan: dict[str, Any]) -> list[str]:
    """Accesses to a per-intent table that do not name its bucket."""
    found = []
    table = plan.get("Relation Name")
    per_intent = table in LASTING + PASSING and table not in SMALL and plan["Node Type"] != "ModifyTable"
    if per_intent and not re.search(r"\bbucket = \$1", plan.get("Index Cond", "")):
        found.append(f"{plan['Node Type']} on {table}")
    return found + [access for below in plan.get("Plans", ()) for access in without_bucket(below)]
