"""COR-4: client rows go forward or stay as they are, whoever writes them and however often."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.protocol.client_rows import ClientMove, ClientRow, NewClientRow
from gateway.protocol.identity import client_key, logical_key
from gateway.protocol.phases import Phase
from gateway.store.client_rows import ClientRows
from tests.store.rows import Superuser

SERVICE = "orders"


@pytest.fixture
async def rows(fresh_database: str) -> AsyncIterator[ClientRows]:
    rows = ClientRows(fresh_database, service=SERVICE)
    yield rows
    await rows.close()


def call(client_id: str = "out-1", path: bytes = b"/reserve") -> NewClientRow:
    key = client_key(SERVICE.encode(), client_id.encode(), buckets=1)
    return NewClientRow(key, client_id, "stock", "POST", path, client_id, None)


@pytest.mark.parametrize("settled", [Phase.COMMITTED, Phase.FAILED, Phase.TTL_EXPIRED])
async def test_what_is_over_never_changes(rows: ClientRows, superuser: Superuser, settled: Phase) -> None:
    """COR-4: not by a late answer, a doubt, or another try."""
    new = call()
    assert await rows.open(new) is None
    assert await rows.move(ClientMove(new.key, Phase.PROCESSING, "s-1", 1000))
    assert await rows.move(ClientMove(new.key, settled))
    before = await superuser.connection.fetchrow("SELECT * FROM client_entries")
    events = await superuser.events(new.key)
    for phase in (None, Phase.PROCESSING, Phase.COMMITTED, Phase.FAILED, Phase.ABANDONED):
        assert not await rows.move(ClientMove(new.key, phase, "s-2", 2000, in_doubt=phase is None))
    assert await rows.open(new) == ClientRow("stock", "POST", b"/reserve", settled)
    assert await superuser.connection.fetchrow("SELECT * FROM client_entries") == before
    assert await superuser.events(new.key) == events


async def test_each_step_is_one_event_in_the_order_of_change(rows: ClientRows, superuser: Superuser) -> None:
    """LED-2: the same codes as intents have."""
    new = call()
    await rows.open(new)
    for move in (
        ClientMove(new.key, None, in_doubt=True),
        ClientMove(new.key, None, in_doubt=True),
        ClientMove(new.key, Phase.PROCESSING, "s-1", 1000),
        ClientMove(new.key, Phase.PROCESSING, "s-1", 1000),
        ClientMove(new.key, Phase.COMMITTED),
    ):
        await rows.move(move)
    assert await superuser.events(new.key) == [
        ("OBL-001", "WAITING_CONFIRM"),
        ("IN_DOUBT", None),
        ("PONR", "PROCESSING"),
        ("OBL-002", "COMMITTED"),
    ]
    assert await superuser.value("SELECT in_doubt_since FROM client_entries") is None


async def test_an_abandoned_call_may_be_tried_again_but_not_as_another(rows: ClientRows, superuser: Superuser) -> None:
    """COR-4: it had no effect; the ID stays with its call."""
    new = call()
    await rows.open(new)
    await rows.move(ClientMove(new.key, Phase.ABANDONED))
    assert await rows.open(call(path=b"/other")) == ClientRow("stock", "POST", b"/reserve", Phase.ABANDONED)
    assert await rows.open(new) is None
    assert await superuser.value("SELECT phase::text FROM client_entries") == "WAITING_CONFIRM"


async def test_of_tries_at_once_one_opens_the_row(rows: ClientRows, superuser: Superuser) -> None:
    """COR-1: exactly one row for each call."""
    found = await asyncio.gather(*(rows.open(call(f"out-{number % 5}")) for number in range(50)))
    assert found.count(None) == 5
    assert await superuser.count("client_entries") == 5
    assert await superuser.count("events") == 5


def test_a_call_and_an_intent_never_share_a_key() -> None:
    """LED-2: both leave events under their keys."""
    for client_id in (b"a", b"b" * 255):
        assert client_key(b"orders", client_id, buckets=1) != logical_key(b"orders", b"", client_id, buckets=1)
