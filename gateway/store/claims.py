"""Claimed work as the store's rows tell of it: one shape for every statement that begins an attempt."""

from __future__ import annotations

from uuid import UUID

import asyncpg

from gateway.protocol.identity import IntentKey
from gateway.protocol.records import Claimed, Sealed, Taken


def claimed_of(key: IntentKey, attempt_id: UUID, holder: UUID, row: asyncpg.Record) -> Claimed:
    """What an attempt has begun, with the sealed request."""
    payload = Sealed(row["sealed"], row["sealed_with"])
    return Claimed(
        key, attempt_id, holder, row["fence"], row["method"], row["path"], row["query"], row["execution"], payload
    )


def taken_of(bucket: int, holder: UUID, row: asyncpg.Record) -> Taken:
    """The same, of work that its caller does not wait for."""
    claimed = claimed_of(IntentKey(bucket, row["logical_key"]), row["attempt_id"], holder, row)
    return Taken(claimed, row["server_correlation_id"], row["client_correlation_id"], credentials_of(row))


def credentials_of(row: asyncpg.Record) -> Sealed | None:
    """Those of the confirmation, where they are kept."""
    return None if row["credentials"] is None else Sealed(row["credentials"], row["credentials_with"])
