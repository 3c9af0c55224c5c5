"""Services: registration, revocation, and the sealed tokens to pull from them with (LED-3, LED-4)."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID, uuid4

from gateway.central import refusals
from gateway.central.rows import Columns, Document, age_s
from gateway.protocol.deadlines import iso
from gateway.store import queries
from gateway.store.lines import Line
from gateway.vault import KeyRing

SQL = queries.load("services.sql", "gateway.central")
IN_USE = "SELECT EXISTS (SELECT FROM services WHERE pull_token_key = $1)"
KIND = b"pull token"
LEDGERS_MAX = 100  # of one name: replicas with a store each, stores made anew


@dataclass(frozen=True, slots=True)
class Service:
    """One service's ledger, as far as reading and writing it needs."""

    service_ledger_id: UUID
    name: str
    operator_url: str | None
    pull_token: str | None
    pull_cursor: str | None
    revoked: bool


class Services:
    """The table of services. Every method may raise StoreAway."""

    def __init__(self, url: str, ring: KeyRing) -> None:
        self._line = Line(url)
        self._ring = ring

    async def close(self) -> None:
        """Let go of the store."""
        await self._line.close()

    async def all(self, *, scope: str | None) -> list[Document]:
        """Every service, with how long ago it was heard of."""
        return [_document(row) for row in await self._line.fetch(SQL["all"], scope)]

    async def one(self, service_ledger_id: UUID) -> Service:
        """One service, or the 404."""
        rows = await self._line.fetch(SQL["one"], service_ledger_id)
        if not rows:
            raise refusals.service_unknown()
        row = rows[0]
        return Service(
            service_ledger_id, row["name"], row["operator_url"], self._token(row), row["pull_cursor"],
            row["revoked_at"] is not None,
        )  # fmt: skip

    async def writer(self, service_ledger_id: UUID, name: str) -> Service:
        """The service that a sync token of this name may write for, or the 403, 404 or 410."""
        service = await self.one(service_ledger_id)
        if service.name != name:
            raise refusals.other_service()
        if service.revoked:
            raise refusals.service_revoked()
        return service

    async def register(
        self, name: str, service_ledger_id: UUID | None, operator_url: str | None, pull_token: str | None
    ) -> UUID:
        """LED-4: first contact, or a new address; the ID, or the 409 or 410."""
        if service_ledger_id is None:
            known = await self._line.fetch(SQL["latest_of_name"], name)
            service_ledger_id = known[0]["service_ledger_id"] if known else uuid4()
        assert service_ledger_id is not None
        sealed = number = None
        if pull_token is not None:
            sealed = self._ring.seal(KIND, service_ledger_id.bytes, pull_token.encode())
            number = self._ring.sealed_with
        if await self._line.fetch(SQL["register"], service_ledger_id, name, operator_url, sealed, number, LEDGERS_MAX):
            return UUID(bytes=service_ledger_id.bytes)
        [found] = await self._line.fetch(SQL["why_not"], name, service_ledger_id)
        if found["revoked"]:
            raise refusals.service_revoked()
        raise refusals.service_taken() if found["taken"] else refusals.too_many_ledgers(LEDGERS_MAX)

    async def revoke(self, service_ledger_id: UUID) -> Document:
        """From the next request on, nothing of it is taken, and nothing is pulled from it."""
        return await self._change("revoke", service_ledger_id)

    async def restore(self, service_ledger_id: UUID) -> Document:
        """It may register and sync again."""
        return await self._change("restore", service_ledger_id)

    async def pulled(self, service_ledger_id: UUID, cursor: str | None) -> None:
        """LED-3: how far a pull has come."""
        await self._line.fetch(SQL["pulled"], service_ledger_id, cursor)

    async def reseal(self) -> int:
        """DESIGN decision 12: what is kept for ever goes under the newest key; returns how many tokens did."""
        resealed = 0
        for row in await self._line.fetch(SQL["all"], None):
            number = row["pull_token_key"]
            if number is not None and self._ring.is_stale(number):
                id_ = row["service_ledger_id"]
                sealed = self._ring.reseal(KIND, id_.bytes, row["pull_token"], number)
                await self._line.fetch(SQL["reseal"], id_, sealed, self._ring.sealed_with, number)
                resealed += 1
        return resealed

    async def _change(self, statement: str, service_ledger_id: UUID) -> Document:
        rows = await self._line.fetch(SQL[statement], service_ledger_id)
        if not rows:
            raise refusals.service_unknown()
        return _document(rows[0])

    def _token(self, row: Columns) -> str | None:
        if row["pull_token"] is None:
            return None
        id_: UUID = row["service_ledger_id"]
        return self._ring.open(KIND, id_.bytes, row["pull_token"], row["pull_token_key"]).decode()


def _document(row: Columns) -> Document:
    heard = [moment for moment in (row["last_sync_at"], row["last_pull_at"]) if moment is not None]
    times = ("registered_at", "last_sync_at", "last_pull_at", "revoked_at")
    return {
        "name": row["name"],
        "service_ledger_id": str(row["service_ledger_id"]),
        "operator_url": row["operator_url"],
        "can_pull": row["operator_url"] is not None and row["pull_token"] is not None and row["revoked_at"] is None,
        **{name: None if row[name] is None else iso(row[name]) for name in times},
        "lag_s": age_s(max(heard), row["read_at"]) if heard else None,
    }
