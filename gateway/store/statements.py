"""A statement over a batch of rows, and the same statement for one row.

What is written in the `.sql` file takes arrays. Most batches of a gateway that is not busy hold a single row, and for
that one Postgres and the driver spend less on plain values: the guards are the same text, so they cannot differ.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Sequence
from typing import Any

import asyncpg

from gateway.store.lines import Line

_ROWS = re.compile(r"unnest\((\s*\$\d+::\w+\[\](?:,\s*\$\d+::\w+\[\])*\s*)\)(?=\s+AS \w+ \()")


def for_one(sql: str) -> str:
    """The statement for a single row: what came as arrays of rows comes as values."""
    return _ROWS.sub(lambda rows: f"(VALUES ({rows[1].replace('[]', '')}))", sql)


class BatchStatement:
    """One guarded statement in its two forms. Parameters: the bucket, what all rows share, then the rows' columns."""

    __slots__ = ("many", "one")

    def __init__(self, sql: str) -> None:
        self.many = sql
        self.one = for_one(sql)

    def fetch(
        self, line: Line, bucket: int, shared: Sequence[Any], rows: Sequence[tuple[Any, ...]]
    ) -> Awaitable[Sequence[asyncpg.Record]]:
        """Carry it out for these rows."""
        if len(rows) == 1:
            return line.fetch(self.one, bucket, *shared, *rows[0])
        return line.fetch(self.many, bucket, *shared, *zip(*rows, strict=True))
