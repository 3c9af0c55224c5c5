"""A service's ledger, a central ledger that remembers, and the sync between them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from gateway.background.central_client import Central
from gateway.background.sync import Registration, Sync
from gateway.store.client_rows import ClientRows
from gateway.store.ledger import LedgerQueries
from gateway.store.sync import Lag, SyncStore
from tests.background.fake_central import TOKEN, FakeCentral
from tests.operator.book import SERVICE, Book


@dataclass
class Gateway:
    """One replica's sync, with a clock of the test's own."""

    sync: Sync
    store: SyncStore
    ledger: LedgerQueries
    central: Central
    lags: list[Lag]
    published: list[tuple[str, int, bool]]
    clock: list[float] = field(default_factory=lambda: [0.0])

    async def close(self) -> None:
        await self.central.close()
        await self.ledger.close()
        await self.store.line.close()


MakeReplica = Callable[..., Any]


@pytest.fixture
async def book(fresh_database: str) -> AsyncIterator[Book]:
    """A ledger to write in."""
    book = await Book.open(fresh_database)
    yield book
    await book.close()


@pytest.fixture
async def calls(fresh_database: str) -> AsyncIterator[ClientRows]:
    """The client rows of the same ledger."""
    rows = ClientRows(fresh_database, service=SERVICE)
    yield rows
    await rows.close()


@pytest.fixture
async def fake() -> AsyncIterator[FakeCentral]:
    central = FakeCentral()
    await central.start()
    yield central
    await central.stop()


@pytest.fixture
async def service_ledger_id(book: Book) -> UUID:
    found: UUID = await book.owner.fetchval("SELECT service_ledger_id FROM services WHERE name = $1", SERVICE)
    return UUID(bytes=found.bytes)


@pytest.fixture
async def make_replica(fresh_database: str, fake: FakeCentral, service_ledger_id: UUID) -> AsyncIterator[MakeReplica]:
    """Makes syncs of this test's ledger with the fake central, or with another address."""
    made: list[Gateway] = []

    def make(central_url: str | None = None) -> Gateway:
        url = central_url or fake.url
        lags: list[Lag] = []
        published: list[tuple[str, int, bool]] = []
        clock = [0.0]

        async def publishing(batch: str, rows: int) -> Any:
            async def settle(done: bool) -> None:
                published.append((batch, rows, done))

            return settle

        store = SyncStore(fresh_database, service=SERVICE, central=url, buckets=1)
        ledger = LedgerQueries(fresh_database, buckets=1, lines=1)
        central = Central(url, TOKEN)
        who = Registration(SERVICE, service_ledger_id, "http://127.0.0.1:1", "pull-token")
        sync = Sync(store, ledger, central, who, measured=lags.append, publishing=publishing, clock=lambda: clock[0])
        made.append(Gateway(sync, store, ledger, central, lags, published, clock))
        return made[-1]

    yield make
    for gateway in made:
        await gateway.close()


@pytest.fixture
async def replica(make_replica: MakeReplica) -> Gateway:
    made: Gateway = make_replica()
    return made
