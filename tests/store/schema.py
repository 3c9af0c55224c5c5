"""The schema of a store as text, from the catalogue: what `schema.txt` holds.

`python -m tests.store.schema` writes it anew after a migration was added on purpose.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import asyncpg

from gateway.store.embedded import EmbeddedPostgres
from gateway.store.migrate import migrate

GOLDEN = Path(__file__).with_name("schema.txt")

TYPES = """
SELECT format('type %s: %s', t.typname, string_agg(e.enumlabel, ', ' ORDER BY e.enumsortorder)) AS line
FROM pg_type t JOIN pg_enum e ON e.enumtypid = t.oid
WHERE t.typnamespace = 'public'::regnamespace
GROUP BY t.typname ORDER BY 1
"""

TABLES = """
SELECT c.oid, c.relname, coalesce(array_to_string(c.reloptions, ', '), '') AS options
FROM pg_class c
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm')
ORDER BY c.relname
"""

COLUMNS = """
SELECT format('    %s %s%s%s%s%s', a.attname, format_type(a.atttypid, a.atttypmod),
    CASE WHEN a.attnotnull THEN ' not null' END,
    ' default ' || pg_get_expr(d.adbin, d.adrelid),
    CASE a.attidentity WHEN 'a' THEN ' identity always' WHEN 'd' THEN ' identity' END,
    CASE WHEN a.attstorage <> t.typstorage THEN ' storage ' || a.attstorage::text END) AS line
FROM pg_attribute a
JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""

CONSTRAINTS = """
SELECT format('    constraint %s: %s', conname, pg_get_constraintdef(oid)) AS line
FROM pg_constraint WHERE conrelid = $1 AND contype <> 'n' ORDER BY conname
"""

INDEXES = """
SELECT '    ' || pg_get_indexdef(indexrelid) AS line FROM pg_index WHERE indrelid = $1 ORDER BY 1
"""

TRIGGERS = """
SELECT '    ' || pg_get_triggerdef(oid) AS line FROM pg_trigger WHERE tgrelid = $1 AND NOT tgisinternal ORDER BY 1
"""

GRANTS = """
SELECT format('    %s may %s%s', grantee, privilege, coalesce(' (' || columns || ')', '')) AS line FROM (
    SELECT x.grantee::regrole::text AS grantee, lower(x.privilege_type) AS privilege, NULL AS columns
    FROM pg_class c, aclexplode(c.relacl) AS x
    WHERE c.oid = $1 AND x.grantee <> c.relowner
    UNION ALL
    SELECT x.grantee::regrole::text, lower(x.privilege_type), string_agg(a.attname, ', ' ORDER BY a.attnum)
    FROM pg_attribute a, aclexplode(a.attacl) AS x
    WHERE a.attrelid = $1
    GROUP BY 1, 2
) AS granted ORDER BY 1
"""


async def dump(connection: asyncpg.Connection[asyncpg.Record]) -> str:
    """Types, tables, columns, constraints, indexes, triggers and grants."""
    lines = [row["line"] for row in await connection.fetch(TYPES)]
    for table in await connection.fetch(TABLES):
        lines += ["", f"table {table['relname']}" + (f" with {table['options']}" if table["options"] else "")]
        for query in (COLUMNS, CONSTRAINTS, INDEXES, TRIGGERS, GRANTS):
            lines += [row["line"] for row in await connection.fetch(query, table["oid"])]
    return "\n".join(lines) + "\n"


async def _write() -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o711)
        async with EmbeddedPostgres(Path(directory)) as dsn:
            await migrate(dsn)
            connection = await asyncpg.connect(dsn)
            GOLDEN.write_text(await dump(connection))
            await connection.close()


if __name__ == "__main__":
    asyncio.run(_write())
