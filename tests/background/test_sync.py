"""LED-2: the central ledger ends with what the local one holds, whatever happens in between; nothing twice."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from gateway.protocol.client_rows import ClientMove, NewClientRow
from gateway.protocol.identity import client_key
from gateway.protocol.phases import Phase
from gateway.protocol.records import Doubt
from gateway.store.client_rows import ClientRows
from gateway.store.ledger import LedgerQueries
from gateway.store.lines import Line
from gateway.store.sweeps import Retention
from gateway.store.sync import forget_sync
from tests.background.conftest import Gateway, MakeReplica
from tests.background.fake_central import FakeCentral
from tests.e2e.harness import eventually
from tests.operator.book import SERVICE, Book
from tests.operator.test_entries import EXPIRE

LONG_AGO = "interval '30 days'"
PROMISE = """
INSERT INTO deliveries (bucket, logical_key, id, kind, event, next_at, sealed_with, sealed)
VALUES (0, $1, gen_random_uuid(), 'callback', 'PROCESSING', now(), 1, '')"""
REDRIVE = """
WITH over AS (DELETE FROM in_doubt WHERE logical_key = $1 RETURNING logical_key)
INSERT INTO events (bucket, logical_key, code) SELECT 0, logical_key, 'REDRIVE' FROM over"""
DELIVER = """
WITH recorded AS (
    UPDATE deliveries SET state = 'delivered', next_at = NULL, settled_at = now() WHERE logical_key = $1
    RETURNING logical_key
)
INSERT INTO events (bucket, logical_key, code, detail)
SELECT 0, logical_key, 'OBL-002', '{"flow": "callback"}' FROM recorded"""


async def open_call(calls: ClientRows, client_id: str, parent: str | None = None) -> NewClientRow:
    key = client_key(SERVICE.encode(), client_id.encode(), buckets=1)
    new = NewClientRow(key, client_id, "stock", "POST", b"/reserve", parent or client_id, None)
    assert await calls.open(new) is None
    return new


async def local(ledger: LedgerQueries) -> dict[tuple[str, str], dict[str, Any]]:
    page = await ledger.entries({}, after=None, limit=1000)
    return {(row["actor"], row["entry_id"]): row for row in page.rows}


def untimed(rows: dict[Any, dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    return {key[-2:]: {name: row[name] for name in row if name != "sync_timestamp"} for key, row in rows.items()}


async def assert_equal(fake: FakeCentral, gateway: Gateway) -> None:
    """Central = local."""
    assert untimed(fake.rows) == untimed(await local(gateway.ledger))


async def test_both_actors_rows_arrive_as_they_are(
    replica: Gateway, fake: FakeCentral, book: Book, calls: ClientRows, service_ledger_id: UUID
) -> None:
    """LED-2, LED-4: the service registers, then its rows come in the order of their last change."""
    await book.commit("in-1")
    call = await open_call(calls, "out-1", parent="in-1")
    await book.doubt("in-2")
    await calls.move(ClientMove(call.key, Phase.PROCESSING, "server-1", 5_000))
    done = await replica.sync.run_once()
    assert (done.batches, done.entries) == (1, 3)
    assert list(fake.services) == [str(service_ledger_id)]
    assert fake.services[str(service_ledger_id)]["name"] == SERVICE
    assert fake.services[str(service_ledger_id)]["pull_token"] == "pull-token"
    assert [row["client_correlation_id"] for row in fake.batches[0]] == ["in-1", "in-2", "out-1"]
    await assert_equal(fake, replica)
    sent = fake.rows[(str(service_ledger_id), "client", "out-1")]
    assert (sent["target"], sent["service_endpoint"], sent["parent_reference_id"]) == (
        "stock",
        "stock:/reserve",
        "in-1",
    )
    assert (sent["server_correlation_id"], sent["ttl_ms"]) == ("server-1", 5_000)


async def test_only_what_changed_since_is_pushed_again(replica: Gateway, fake: FakeCentral, book: Book) -> None:
    """LED-2: the place is durable, and syncing itself is no change."""
    await book.commit("first")
    second = await book.register("second")
    await replica.sync.run_once()
    assert (await replica.sync.run_once()).entries == 0
    await book.claim(second)
    assert (await replica.sync.run_once()).entries == 1
    assert [len(batch) for batch in fake.batches] == [2, 1]
    assert replica.lags[-1] == (0.0, 0)
    await assert_equal(fake, replica)


async def test_an_acknowledged_row_says_when_it_was_synced_without_a_new_event(
    replica: Gateway, fake: FakeCentral, book: Book, calls: ClientRows
) -> None:
    """LED-1, LED-2: `sync_timestamp` on rows of both actors, by HOT updates, as the central ledger was told."""
    await book.commit("in-1")
    await open_call(calls, "out-1")
    events = await book.owner.fetchval("SELECT count(*) FROM events")
    await replica.sync.run_once()
    rows = await local(replica.ledger)
    assert {row["sync_timestamp"] for row in rows.values()} == {row["sync_timestamp"] for row in fake.rows.values()}
    assert None not in {row["sync_timestamp"] for row in rows.values()}
    assert await book.owner.fetchval("SELECT count(*) FROM events") == events
    indexes = await book.owner.fetchval(
        "SELECT string_agg(indexdef, ' ') FROM pg_indexes WHERE tablename IN ('intents', 'client_entries')"
    )
    assert "sync_timestamp" not in indexes


async def test_a_change_that_commits_late_is_not_skipped(
    replica: Gateway, fake: FakeCentral, book: Book, fresh_database: str
) -> None:
    """LED-2, DESIGN decision 5."""
    late = await book.register("late")
    await replica.sync.run_once()
    slow = await asyncpg.connect(fresh_database)
    try:
        transaction = slow.transaction()
        await transaction.start()
        await slow.execute(EXPIRE, late.key.logical)
        await book.commit("quick")
        await replica.sync.run_once()
        assert fake.states() == {"late": "WAITING_CONFIRM"}
        assert replica.lags[-1].behind > 0
        await transaction.commit()
    finally:
        await slow.close()
    await replica.sync.run_once()
    assert fake.states() == {"late": "TTL_EXPIRED", "quick": "COMMITTED"}


async def test_a_batch_whose_acknowledgement_was_lost_is_stored_once(
    replica: Gateway, fake: FakeCentral, book: Book
) -> None:
    """LED-2: pushed again, since nobody can know; the same version is stored once. OBL-4: an obligation each."""
    await book.commit("first")
    fake.lose_answers = 1
    assert (await replica.sync.run_once()).entries == 0
    assert (await local(replica.ledger)).popitem()[1]["sync_timestamp"] is None
    replica.clock[0] += 100
    assert (await replica.sync.run_once()).entries == 1
    assert len(fake.batches) == 2
    assert fake.stored == 1
    assert [(rows, done) for _, rows, done in replica.published] == [(1, False), (1, True)]
    await assert_equal(fake, replica)


async def test_an_outage_of_any_length_loses_nothing(replica: Gateway, fake: FakeCentral, book: Book) -> None:
    """LED-2: entries wait, tries become rarer, the lag is told, and everything arrives once the central is back."""
    await book.commit("before")
    await replica.sync.run_once()
    await fake.stop()
    await book.commit("during-1")
    await replica.sync.run_once()
    assert replica.lags[-1].behind > 0
    before = replica.lags[-1].seconds
    tries = [0.0]
    for _ in range(40):
        replica.clock[0] += 5
        await replica.sync.run_once()
        if len(replica.published) > len(tries):
            tries.append(replica.clock[0])
    pauses = [later - earlier for earlier, later in itertools.pairwise(tries)]
    assert pauses[-1] > pauses[0]
    assert max(pauses) <= 60 * 1.2 + 5
    assert replica.lags[-1].seconds > before > 0
    await book.commit("during-2")
    await fake.start()
    replica.clock[0] += 100
    await replica.sync.run_once()
    assert set(fake.states()) == {"before", "during-1", "during-2"}
    await assert_equal(fake, replica)


async def test_batches_follow_each_other_until_nothing_is_left_over_one_connection(
    replica: Gateway, fake: FakeCentral, book: Book
) -> None:
    """LED-2: full batches are caught up with at once; the central that takes less gets less."""
    fake.rows_max = 20
    await asyncio.gather(*(book.register(f"order-{number}") for number in range(50)))
    for _ in range(10):
        await replica.sync.run_once()
    assert len(fake.rows) == 50
    assert max(len(batch) for batch in fake.batches) <= 20
    assert len(fake.batches) >= 3
    assert len(fake.connections) == 1
    await assert_equal(fake, replica)


async def test_a_central_ledger_that_forgot_the_service_is_told_again_who_it_is(
    replica: Gateway, fake: FakeCentral, book: Book
) -> None:
    """LED-4: a 404 is answered with a registration."""
    await book.commit("first")
    await replica.sync.run_once()
    fake.services.clear()
    await book.commit("second")
    await replica.sync.run_once()
    await replica.sync.run_once()
    assert len(fake.services) == 1
    await assert_equal(fake, replica)


@pytest.mark.parametrize("status", [400, 401, 403, 409, 410])
async def test_who_is_refused_stops_and_asks_rarely(
    replica: Gateway, fake: FakeCentral, book: Book, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """LED-4, SEC-5: revoked, not allowed or not known; said once, tried again after minutes, and nothing is lost."""
    await book.commit("first")
    await replica.sync.run_once()
    fake.answer = status
    await book.commit("second")
    for _ in range(5):
        replica.clock[0] += 30
        await replica.sync.run_once()
    assert len(replica.published) == 2
    assert [record.levelname for record in caplog.records].count("ERROR") == 1
    assert "canary" not in caplog.text
    fake.answer = None
    replica.clock[0] += 400
    await replica.sync.run_once()
    assert set(fake.states()) == {"first", "second"}


async def test_a_redirect_is_not_followed(replica: Gateway, fake: FakeCentral, book: Book) -> None:
    """SEC-5: the token goes to the configured address and to no other."""
    await book.commit("first")
    fake.answer = 307
    await replica.sync.run_once()
    assert (fake.followed, fake.services, fake.batches) == (0, {}, [])


async def test_of_two_replicas_one_pushes_at_a_time(make_replica: MakeReplica, fake: FakeCentral, book: Book) -> None:
    """LED-2: a replica that dies while it pushes is waited for, one that ends gives its turn back."""
    one, other = make_replica(), make_replica()
    await book.commit("first")
    await one.sync.run_once()
    await book.commit("second")
    assert await one.store.take(60_000) is not None
    assert (await other.sync.run_once()).entries == 0
    assert other.lags[-1].behind > 0
    await one.store.give_up()
    assert (await other.sync.run_once()).entries == 1
    assert fake.stored == 2


async def test_two_that_push_at_once_by_mistake_store_everything_once(
    make_replica: MakeReplica, fake: FakeCentral, book: Book
) -> None:
    """LED-2: a frozen replica that wakes up after its lease repeats a batch and moves nobody's place back."""
    one, other = make_replica(), make_replica()
    await book.commit("first")
    await one.store.begin()
    place = await one.store.take(0)
    assert place is not None
    await other.sync.run_once()
    page = await one.ledger.entries({}, after=None, limit=10)
    await one.central.push(UUID(page.rows[0]["service_ledger_id"]), page.rows)
    assert await one.store.advance(place.position, place.position._replace(id=1), 0) is None
    assert (len(fake.batches), fake.stored) == (2, 1)
    assert (await other.sync.run_once()).entries == 0


async def test_another_central_ledger_is_told_everything(
    make_replica: MakeReplica, fake: FakeCentral, book: Book
) -> None:
    """LED-2: the place belongs to one central ledger."""
    await book.commit("first")
    await make_replica().sync.run_once()
    moved = FakeCentral()
    await moved.start()
    try:
        await make_replica(moved.url).sync.run_once()
    finally:
        await moved.stop()
    assert moved.states() == fake.states() == {"first": "COMMITTED"}


async def test_nothing_is_forgotten_before_the_central_ledger_has_it(
    replica: Gateway, fake: FakeCentral, book: Book, calls: ClientRows, fresh_database: str
) -> None:
    """LED-2, RPL-4: retention waits for sync as long as a central ledger is configured, and no longer."""

    async def forgotten() -> int:
        await book.owner.execute(
            f"UPDATE intents SET keep_until = keep_until - {LONG_AGO}, settled_at = settled_at - {LONG_AGO}"
        )
        await book.owner.execute(
            f"UPDATE client_entries SET keep_until = keep_until - {LONG_AGO}, settled_at = settled_at - {LONG_AGO}"
        )
        return await Retention(owner, buckets=1).retain()

    owner = Line(fresh_database, role=None)
    try:
        await replica.store.begin()
        await book.commit("first")
        call = await open_call(calls, "out-1")
        await calls.move(ClientMove(call.key, Phase.COMMITTED))
        assert await forgotten() == 0
        await replica.sync.run_once()
        assert await forgotten() == 2
        assert set(fake.states()) == {"first", "out-1"}
        await book.commit("second")
        assert await forgotten() == 0
        await forget_sync(owner, SERVICE)
        assert await forgotten() == 1
    finally:
        await owner.close()


async def test_a_place_that_was_forgotten_begins_anew(replica: Gateway, fake: FakeCentral, book: Book) -> None:
    """LED-2: a replica without a central ledger in its configuration does not stop the others for good."""
    await book.commit("first")
    await replica.sync.run_once()
    await forget_sync(replica.store.line, SERVICE)
    await book.commit("second")
    for _ in range(3):
        await replica.sync.run_once()
    assert set(fake.states()) == {"first", "second"}


async def test_a_service_that_shares_a_store_pushes_its_own_rows_alone(
    replica: Gateway, fake: FakeCentral, book: Book, fresh_database: str
) -> None:
    """SEC-5: sync writes its own service's entries."""
    other = ClientRows(fresh_database, service="billing")
    try:
        await open_call(other, "not-ours")
    finally:
        await other.close()
    await book.commit("ours")
    await replica.sync.run_once()
    assert set(fake.states()) == {"ours"}


async def test_doubt_and_callbacks_are_changes_of_a_row_too(
    replica: Gateway, fake: FakeCentral, book: Book, service_ledger_id: UUID
) -> None:
    """LED-2: `in_doubt` and `callback` follow what they are derived from, each time as a higher version."""
    new = await book.register("order-1")
    claimed = await book.claim(new)
    key = (str(service_ledger_id), "server", str(new.server_correlation_id))
    await book.owner.execute(PROMISE, new.key.logical)
    await replica.sync.run_once()
    assert (fake.rows[key]["in_doubt"], fake.rows[key]["callback"]) == (None, "pending")
    doubt = Doubt(new.key, claimed.attempt_id, claimed.fence, True, None, "no answer")
    assert await book.store.doubt(doubt)
    await replica.sync.run_once()
    assert fake.rows[key]["in_doubt"] is not None
    await book.owner.execute(REDRIVE, new.key.logical)
    await replica.sync.run_once()
    assert fake.rows[key]["in_doubt"] is None
    await book.owner.execute(DELIVER, new.key.logical)
    await replica.sync.run_once()
    assert fake.rows[key]["callback"] == "delivered"
    await assert_equal(fake, replica)


async def test_of_two_changes_at_once_the_one_that_commits_last_is_not_taken_for_old(
    replica: Gateway, fake: FakeCentral, book: Book, fresh_database: str
) -> None:
    """LED-2: a callback's end has the lower event id, commits after the outcome, and still makes a higher version."""
    new = await book.register("order-1")
    claimed = await book.claim(new)
    await book.owner.execute(PROMISE, new.key.logical)
    slow = await asyncpg.connect(fresh_database)
    try:
        transaction = slow.transaction()
        await transaction.start()
        await slow.execute(DELIVER, new.key.logical)
        await book.settle(new, claimed)
        page = await replica.ledger.entries({"client_correlation_id": "order-1"}, after=None, limit=1)
        assert (page.rows[0]["phase"], page.rows[0]["callback"]) == ("COMMITTED", "pending")
        await transaction.commit()
    finally:
        await slow.close()
    after = await replica.ledger.entries({"client_correlation_id": "order-1"}, after=None, limit=1)
    assert after.rows[0]["callback"] == "delivered"
    assert after.rows[0]["version"] > page.rows[0]["version"]


async def test_stamps_stay_hot(replica: Gateway, book: Book) -> None:
    """LED-2, DESIGN decision 5: `sync_timestamp` touches no index, however many rows of a page are synced at once."""
    await asyncio.gather(*(book.register(f"order-{number}") for number in range(300)))
    await replica.sync.run_once()
    await replica.store.line.close()  # a session hands in its statistics at its end

    statistics = "FROM pg_stat_user_tables WHERE relname = 'intents'"

    async def handed_in() -> bool:
        return bool(await book.owner.fetchval(f"SELECT n_tup_upd >= 300 {statistics}"))

    await eventually(handed_in)
    assert await book.owner.fetchval(f"SELECT (n_tup_upd, n_tup_hot_upd) {statistics}") == (300, 300)
