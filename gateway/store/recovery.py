"""The statements about intents in doubt (REC-2): claims of what is due, redrives, probes, verdicts and evidence.

Each is one guarded statement: whoever settles a doubt, or sends its request again, finds it still there and its fence
unmoved, or does nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import asyncpg
import orjson

from gateway.protocol.identity import IntentKey
from gateway.protocol.phases import Phase
from gateway.protocol.records import Doubted, Sealed, Settlement, Taken, Verification
from gateway.store import queries
from gateway.store.claims import credentials_of, taken_of
from gateway.store.intents import resolved
from gateway.store.lines import Line
from gateway.store.turns import Turns

SQL = queries.load("recovery.sql")


class RecoveryStore:
    """Doubts and verifications of one service, shared by every worker of every replica."""

    def __init__(self, url: str, *, service: str, buckets: int) -> None:
        self.line = Line(url)
        self._service = service
        self._doubt_turns = Turns(buckets)
        self._verification_turns = Turns(buckets)

    # --- doubts

    async def due(self, limit: int, claim_ms: int) -> list[Doubted]:
        """Doubts whose time has come, nobody else's for so long."""
        found: list[Doubted] = []
        for bucket in self._doubt_turns:
            if len(found) >= limit:
                break
            rows = await self.line.fetch(SQL["due"], bucket, limit - len(found), self._service, claim_ms)
            found += [_doubted(bucket, row) for row in rows]
        return found

    async def hold(self, doubted: Doubted, reason: str, *, news: bool) -> None:
        """Wait for a verdict."""
        await self.line.fetch(SQL["hold"], *doubted.key, doubted.token, reason, news)

    async def postpone(self, doubted: Doubted, delay_ms: int, *, asked: int = 0) -> Doubted | None:
        """Come back later, having asked so many times more for nothing; or stay with it for so long."""
        rows = await self.line.fetch(SQL["postpone"], *doubted.key, doubted.token, delay_ms, asked)
        return replace(doubted, token=rows[0]["token"], asked=doubted.asked + asked) if rows else None

    async def redrive(self, doubted: Doubted, attempt_id: UUID, holder: UUID) -> Taken | None:
        """Begin the next attempt, or None when the doubt is no longer ours to end.

        REC-7: asked again with the same attempt, it finds what that attempt has begun.
        """

        async def write() -> Taken | None:
            key = doubted.key
            rows = await self.line.fetch(SQL["redrive"], *key, doubted.fence, doubted.token, attempt_id, holder)
            if not rows:
                rows = await self.line.fetch(SQL["own_redrive"], *key, attempt_id, holder)
            return taken_of(key.bucket, holder, rows[0]) if rows else None

        return await resolved(write)

    async def settle_probed(
        self, doubted: Doubted, phase: Phase, resource_id: str | None, message: str, detail: dict[str, Any]
    ) -> bool:
        """REC-2: a probe told; False when somebody else was quicker."""
        return await rule(self.line, doubted.key, doubted.fence, phase, "probe", resource_id, message, detail)

    async def settle_from_evidence(self, doubted: Doubted) -> Phase | None:
        """DESIGN decision 7: what a fenced gateway knew, if nothing was sent since; None when it is not to be used."""
        rows = await self.line.fetch(SQL["settle_from_evidence"], *doubted.key, doubted.fence)
        return Phase(rows[0]["phase"]) if rows else None

    async def keep_evidence(self, settlement: Settlement) -> None:
        """REC-1: what a fenced gateway came back with."""
        answer = settlement.response
        await self.line.fetch(
            SQL["keep_evidence"],
            *settlement.key,
            settlement.fence,
            settlement.attempt_id,
            settlement.phase.value,
            settlement.resource_id,
            settlement.message,
            settlement.sent,
            answer.status if answer else None,
            answer.body_bytes if answer else None,
            answer.body_sha256 if answer else None,
            answer.kept if answer else None,
            answer.sealed.key_number if answer else None,
            answer.sealed.blob if answer else None,
            settlement.verify.key_number if settlement.verify else None,
            settlement.verify.blob if settlement.verify else None,
        )

    # --- what the request was, while it may have to be sent or asked about again

    async def payload(self, key: IntentKey) -> tuple[Sealed, Sealed | None] | None:
        """The sealed request and the credentials that its confirmation brought."""
        rows = await self.line.fetch(SQL["payload"], *key)
        return (Sealed(rows[0]["sealed"], rows[0]["sealed_with"]), credentials_of(rows[0])) if rows else None

    async def keep_credentials(self, key: IntentKey, credentials: Sealed) -> None:
        """P2-3: those of the confirmation, for a redrive."""
        await self.line.fetch(SQL["keep_credentials"], *key, credentials.blob, credentials.key_number)

    # --- verifications

    async def due_verifications(self, limit: int, claim_ms: int) -> list[Verification]:
        """Successes that are to be confirmed now."""
        found: list[Verification] = []
        for bucket in self._verification_turns:
            if len(found) >= limit:
                break
            rows = await self.line.fetch(SQL["due_verifications"], bucket, limit - len(found), self._service, claim_ms)
            found += [_verification(bucket, row) for row in rows]
        return found

    async def verify_later(self, verification: Verification, delay_ms: int, *, asked: int) -> None:
        """Come back later, having asked so many times more for nothing."""
        await self.line.fetch(SQL["verify_later"], *verification.key, verification.token, delay_ms, asked)

    async def verified(self, key: IntentKey, missing: str | None, message: str | None) -> bool:
        """REC-5: confirmed, or why not, with what replays then say; False when that was known before."""
        return bool(await self.line.fetch(SQL["verified"], *key, missing, message))


async def rule(
    line: Line,
    key: IntentKey,
    fence: int | None,
    phase: Phase,
    settled_by: str,
    resource_id: str | None,
    message: str,
    detail: dict[str, Any],
) -> bool:
    """Settle a doubt from outside, once; False when it is no doubt any more, or another one."""
    said = orjson.dumps(detail).decode()
    return bool(await line.fetch(SQL["rule"], *key, fence, phase.value, settled_by, resource_id, message, said))


def _doubted(bucket: int, row: asyncpg.Record) -> Doubted:
    return Doubted(
        key=IntentKey(bucket, row["logical_key"]),
        token=row["token"],
        fence=row["fence"],
        server_correlation_id=row["server_correlation_id"],
        client_correlation_id=row["client_correlation_id"],
        method=row["method"],
        path=row["path"],
        asked=row["asked"],
        tries=row["tries"],
        sends=row["sends"],
        ended_at=row["ended_at"],
        read_at=row["read_at"],
        payload_kept=row["payload_kept"],
        proven=row["proven"],
    )


def _verification(bucket: int, row: asyncpg.Record) -> Verification:
    return Verification(
        key=IntentKey(bucket, row["logical_key"]),
        token=row["token"],
        server_correlation_id=row["server_correlation_id"],
        client_correlation_id=row["client_correlation_id"],
        method=row["method"],
        path=row["path"],
        resource_id=row["resource_id"],
        asked=row["asked"],
        headers=Sealed(row["sealed"], row["sealed_with"]),
    )
