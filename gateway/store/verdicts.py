"""Operators' verdicts on intents in doubt (REC-2): once, guarded by the doubt itself, and audited, refused or not."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import orjson

from gateway.protocol.identity import IntentKey, bucket_of
from gateway.protocol.phases import Phase
from gateway.store.lines import Line
from gateway.store.recovery import SQL, rule


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an operator found out, and how."""

    phase: Phase  # COMMITTED or FAILED
    by: str  # the token's name
    reason: str
    resource_id: str | None
    message: str  # what the caller is told


@dataclass(frozen=True, slots=True)
class Standing:
    """How an intent stands."""

    phase: Phase
    in_doubt: bool
    settled_by: str | None
    settled_at: datetime | None


class Verdicts:
    """The operator's hand in one service's part of the store. Every method may raise StoreAway."""

    def __init__(self, url: str, *, service: str, buckets: int) -> None:
        self.line = Line(url)
        self._service = service
        self._buckets = buckets

    async def resolve(self, server_correlation_id: UUID, verdict: Verdict) -> tuple[bool, Standing] | None:
        """Whether this verdict settled the intent, and how it stands now; None when there is no such intent."""
        found = await self._standing(server_correlation_id)
        if found is None:
            return None
        key, _ = found
        settled_by = f"verdict:{verdict.by}"
        detail = {"settled_by": settled_by, "reason": verdict.reason}
        won = await rule(self.line, key, None, verdict.phase, settled_by, verdict.resource_id, verdict.message, detail)
        if not won:
            said = {"by": verdict.by, "verdict": verdict.phase.value, "reason": verdict.reason}
            await self.line.fetch(SQL["refuse_verdict"], *key, orjson.dumps(said).decode())
        now = await self._standing(server_correlation_id)
        return None if now is None else (won, now[1])

    async def _standing(self, server_correlation_id: UUID) -> tuple[IntentKey, Standing] | None:
        bucket = bucket_of(server_correlation_id, buckets=self._buckets)
        rows = await self.line.fetch(SQL["standing"], bucket, server_correlation_id, self._service)
        if not rows:
            return None
        row = rows[0]
        standing = Standing(Phase(row["phase"]), row["in_doubt"], row["settled_by"], row["settled_at"])
        return IntentKey(bucket, row["logical_key"]), standing

    async def close(self) -> None:
        """Let go of the store."""
        await self.line.close()
