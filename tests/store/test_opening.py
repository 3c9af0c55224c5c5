"""Opening the store: durability, keys, the pepper, and who we are in it (DESIGN decisions 9, 11 and 12)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import pytest

from gateway.protocol.faults import StoreAway
from gateway.store import opening
from gateway.store.migrate import MigrationError
from gateway.store.opening import Opened, StoreRefused, open_store
from gateway.vault import Key, KeysRefused
from tests.faults import FaultProxy, Moment
from tests.store.rows import SERVICE, Superuser, claimed_intent, opened, settlement_of

OLD, NEW = Key("old", b"o" * 32), Key("new", b"n" * 32)


async def open_with(url: str, *keys: Key, service: str = SERVICE, owner_url: str | None = None) -> Opened:
    return await open_store(url, owner_url or url, service=service, buckets=1, keys=keys)


async def test_names_and_pepper_are_made_once_and_stay(fresh_database: str) -> None:
    """LED-4, decision 12: over restarts, and by eight at once."""
    found = await asyncio.gather(*(open_with(fresh_database, OLD) for _ in range(8)))
    again = await open_with(fresh_database, OLD)
    assert {each.service_ledger_id for each in found} == {again.service_ledger_id}
    assert {each.pepper for each in found} == {again.pepper}
    assert len(again.pepper) >= 32
    other = await open_with(fresh_database, OLD, service="returns")
    assert other.service_ledger_id != again.service_ledger_id
    assert other.pepper == again.pepper


async def test_what_one_replica_seals_another_opens(fresh_database: str) -> None:
    """SEC-4: the store gives both the same number for a key."""
    one, two = await asyncio.gather(open_with(fresh_database, OLD), open_with(fresh_database, OLD))
    assert (
        two.ring.open(b"payload", b"row", one.ring.seal(b"payload", b"row", b"hello"), one.ring.sealed_with) == b"hello"
    )


async def test_a_wrong_key_is_refused(fresh_database: str) -> None:
    """Decision 12: found at start, not when an answer is asked for."""
    await open_with(fresh_database, OLD)
    with pytest.raises(KeysRefused, match="is not the key"):
        await open_with(fresh_database, Key("old", b"x" * 32))
    await open_with(fresh_database, OLD)


async def test_a_missing_key_that_is_in_use_is_refused(fresh_database: str) -> None:
    """Decision 12: the pepper is sealed with it."""
    await open_with(fresh_database, OLD)
    with pytest.raises(KeysRefused, match="is missing"):
        await open_with(fresh_database, NEW)


@pytest.mark.parametrize("table", ["payloads", "responses", "deliveries", "queue"])
async def test_a_key_is_in_use_while_any_row_is_sealed_with_it(
    fresh_database: str, superuser: Superuser, table: str
) -> None:
    """Decision 12: it may go when the last row of any kind has gone."""
    number = (await open_with(fresh_database, OLD)).ring.sealed_with
    await open_with(fresh_database, NEW, OLD)  # the pepper moves to the new key
    async with opened(fresh_database) as store:
        claimed = await claimed_intent(store, "c-1")
        if table == "responses":
            await store.settle(settlement_of(claimed))
    if table in ("deliveries", "queue"):
        columns = {
            "deliveries": "(bucket, logical_key, id, kind, event, next_at, sealed_with, sealed)"
            " VALUES (0, 'k', gen_random_uuid(), 'callback', 'PROCESSING', now(), $1, '')",
            "queue": "(bucket, logical_key, queued_at, sealed_with, sealed) VALUES (0, 'k', now(), $1, '')",
        }
        await superuser.connection.execute(f"INSERT INTO {table} {columns[table]}", number)
        await superuser.connection.execute("DELETE FROM payloads")
    else:
        await superuser.connection.execute(f"UPDATE {table} SET sealed_with = $1", number)
    with pytest.raises(KeysRefused, match="'old' is missing"):
        await open_with(fresh_database, NEW)
    await superuser.connection.execute(f"DELETE FROM {table}")
    await open_with(fresh_database, NEW)


async def test_rotation_moves_the_pepper_and_never_changes_it(fresh_database: str, superuser: Superuser) -> None:
    """Decision 12: second key first, the old one still opens; once nothing is sealed with it, it can go."""
    before = await open_with(fresh_database, OLD)
    blob = before.ring.seal(b"payload", b"row", b"hello")
    during = await open_with(fresh_database, NEW, OLD)
    assert during.ring.open(b"payload", b"row", blob, before.ring.sealed_with) == b"hello"
    assert during.ring.sealed_with != before.ring.sealed_with
    assert await superuser.value("SELECT sealed_with FROM secrets") == during.ring.sealed_with
    after = await open_with(fresh_database, NEW)
    assert before.pepper == during.pepper == after.pepper


async def test_a_rotation_by_eight_at_once_is_one_rotation(fresh_database: str, superuser: Superuser) -> None:
    """Decision 12: replicas are reloaded together."""
    before = await open_with(fresh_database, OLD)
    found = await asyncio.gather(*(open_with(fresh_database, NEW, OLD) for _ in range(8)))
    assert {each.pepper for each in found} == {before.pepper}
    assert await superuser.count("sealing_keys") == 2
    assert (await open_with(fresh_database, NEW)).pepper == before.pepper


async def test_two_who_bring_the_same_new_key_number_it_once(fresh_database: str, superuser: Superuser) -> None:
    """Decision 12: both look for it before either has written it."""
    await open_with(fresh_database, OLD)
    async with superuser.connection.transaction():
        await superuser.connection.execute("LOCK TABLE sealing_keys IN SHARE ROW EXCLUSIVE MODE")
        opening_twice = asyncio.gather(*(open_with(fresh_database, NEW, OLD) for _ in range(2)))
        await superuser.until_blocked(2)
    one, two = await opening_twice
    assert one.ring.sealed_with == two.ring.sealed_with


async def test_another_number_of_buckets_is_refused(fresh_database: str) -> None:
    """Decision 3."""
    with pytest.raises(MigrationError):
        await open_store(fresh_database, fresh_database, service=SERVICE, buckets=4, keys=[OLD])


class Server:
    """What a server says of its settings."""

    def __init__(self, fsync: str, synchronous_commit: str) -> None:
        self._settings = {"SHOW fsync": fsync, "SHOW synchronous_commit": synchronous_commit}

    async def fetchval(self, sql: str) -> Any:
        return self._settings[sql]


@pytest.mark.parametrize(("fsync", "commit"), [("off", "on"), ("on", "off"), ("off", "off")])
async def test_a_server_that_forgets_is_refused(fsync: str, commit: str) -> None:
    """Decision 9: an acknowledged intent must survive a power cut."""
    with pytest.raises(StoreRefused, match=f"fsync={fsync} and synchronous_commit={commit}"):
        await opening._require_durability(Server(fsync, commit))  # type: ignore[arg-type]


@pytest.mark.parametrize("commit", ["on", "local", "remote_write", "remote_apply"])
async def test_a_server_that_remembers_is_accepted(commit: str) -> None:
    """Decision 9: the commit is on a disk with each of these."""
    await opening._require_durability(Server("on", commit))  # type: ignore[arg-type]


async def test_a_database_that_forgets_is_refused(fresh_database: str, superuser: Superuser) -> None:
    """Decision 9: set for this database alone."""
    name = await superuser.value("SELECT current_database()")
    await superuser.connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    with pytest.raises(StoreRefused):
        await open_with(fresh_database, OLD)


@pytest.fixture
async def login(fresh_database: str, superuser: Superuser) -> AsyncIterator[tuple[str, str]]:
    """A login of the request path's own: (name, URL)."""
    name = f"login_{uuid4().hex[:12]}"
    await superuser.connection.execute(f"CREATE ROLE {name} LOGIN")
    parts = urlsplit(fresh_database)
    yield name, urlunsplit(parts._replace(netloc=f"{name}@{parts.netloc.rpartition('@')[2]}"))
    await superuser.connection.execute(f"DROP ROLE {name}")


async def test_a_login_that_forgets_is_refused(
    fresh_database: str, superuser: Superuser, login: tuple[str, str]
) -> None:
    """Decision 9: the request path's own sessions count, not the owner's."""
    name, url = login
    await superuser.connection.execute(f"ALTER ROLE {name} SET synchronous_commit = off")
    with pytest.raises(StoreRefused):
        await open_with(url, OLD, owner_url=fresh_database)
    await superuser.connection.execute(f"ALTER ROLE {name} RESET synchronous_commit")
    await open_with(url, OLD, owner_url=fresh_database)


async def test_a_store_that_is_gone_may_be_tried_again(fresh_database: str, proxy: FaultProxy) -> None:
    """P1-3: StoreAway, and not an error that ends the gateway."""
    await proxy.refuse()
    with pytest.raises(StoreAway):
        await open_with(proxy.url, OLD)
    await proxy.listen()
    await open_with(proxy.url, OLD)


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_rotation_lost_at_any_statement_may_be_made_again(
    fresh_database: str, proxy: FaultProxy, superuser: Superuser, moment: Moment
) -> None:
    """Decision 12, REC-7: nothing done twice hurts, wherever the connection was cut."""
    expected = await open_with(fresh_database, OLD)
    secret = await superuser.connection.fetchrow("SELECT sealed, sealed_with FROM secrets")
    assert secret is not None
    for place in itertools.count():
        statements = itertools.count()
        fault = proxy.cut(moment, lambda _, place=place, statements=statements: next(statements) == place)  # type: ignore[misc]
        try:
            await open_with(proxy.url, NEW, OLD)
        except StoreAway:
            assert fault.happened.is_set()
        else:
            break
        assert (await open_with(fresh_database, NEW, OLD)).pepper == expected.pepper
        await superuser.connection.execute("UPDATE secrets SET sealed = $1, sealed_with = $2", *secret)
        await superuser.connection.execute("DELETE FROM sealing_keys WHERE id = 'new'")
    assert place > 12  # the last one found no statement left to cut


@pytest.mark.parametrize(
    ("table", "key", "instead"),
    [
        ("intents", "logical_key", None),
        ("intents", "logical_key", "CREATE UNIQUE INDEX ON intents (logical_key, attempt_id, bucket)"),
        ("intents", "logical_key", "CREATE UNIQUE INDEX ON intents (logical_key, bucket) WHERE phase = 'PROCESSING'"),
        ("intents", "logical_key", "CREATE INDEX ON intents (logical_key, bucket)"),
        ("nonces", "nonce", "CREATE UNIQUE INDEX ON nonces (nonce, logical_key, bucket)"),
    ],
)
async def test_rp_10_a_surface_that_does_not_keep_keys_single_use_is_refused(
    fresh_database: str, superuser: Superuser, table: str, key: str, instead: str | None
) -> None:
    """RP-10, REP-1: what is unique only together with an attempt is an attempt ledger, and no single-use store."""
    constraint = {"intents": "intents_pkey", "nonces": "nonces_single_use"}[table]
    await superuser.connection.execute(f"ALTER TABLE {table} DROP CONSTRAINT {constraint}")
    if instead is not None:
        await superuser.connection.execute(instead)
    with pytest.raises(StoreRefused, match=f"REPLAY_SURFACE_NOT_FIT: {table} .* {key}"):
        await open_with(fresh_database, OLD)


@pytest.mark.parametrize("grant", ["DELETE ON intents", "UPDATE (logical_key) ON intents", "DELETE ON nonces"])
async def test_rp_10_a_surface_whose_keys_can_be_freed_is_refused(
    fresh_database: str, superuser: Superuser, grant: str
) -> None:
    """RP-10, REP-6: append-only for the request path, or not at all."""
    await superuser.connection.execute(f"GRANT {grant} TO twophp_request")
    with pytest.raises(StoreRefused, match="REPLAY_SURFACE_NOT_FIT"):
        await open_with(fresh_database, OLD)


async def test_rp_10_attempts_can_never_stand_in_for_consumed_keys(fresh_database: str, superuser: Superuser) -> None:
    """RP-10: their own key has the attempt's number in it, so the check that intents pass, attempts fail."""
    fit = [
        await superuser.value(opening._UNIQUE, table, [key, "bucket"])
        for table, key in {"attempts": "logical_key", **opening.SINGLE_USE}.items()
    ]
    assert fit == [False, True, True]
    await open_with(fresh_database, OLD)
