"""Several services share a store, each with an upstream, routes and hooks of its own: none does the other's work."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from gateway.protocol.phases import Phase
from gateway.protocol.records import Sealed
from gateway.store.hooks import Hook, HookStore
from gateway.store.intents import IntentStore
from gateway.store.queue import QueueStore
from gateway.store.verdicts import Verdicts
from tests.store.doubts import COMMITTED, in_doubt, server_id
from tests.store.rows import SERVICE, Superuser, claimed_intent, eventually, new_intent

STRANGER = "stock"
REGISTERED = [Hook("/orders", "WAITING_CONFIRM", 0, Sealed(b"sealed URL", 1))]


@pytest.fixture
async def hooks(fresh_database: str) -> AsyncIterator[HookStore]:
    made = HookStore(fresh_database, service=SERVICE)
    yield made
    await made.line.close()


@pytest.fixture
async def stranger_hooks(fresh_database: str) -> AsyncIterator[HookStore]:
    made = HookStore(fresh_database, service=STRANGER)
    yield made
    await made.line.close()


async def fed(hooks: HookStore, superuser: Superuser) -> int:
    """Feed until every event of the store was seen; how many deliveries that made."""
    made = 0

    async def at_the_end() -> bool:
        nonlocal made
        seen, hooked, begun = await hooks.feed(REGISTERED)
        assert begun
        made += hooked
        return seen == 0 and bool(await superuser.value(OLD_EVENTS_ONLY))

    await eventually(at_the_end)
    return made


OLD_EVENTS_ONLY = "SELECT coalesce(max(xid) < pg_snapshot_xmin(pg_current_snapshot()), true) FROM events"


async def test_the_queue_gives_out_a_services_own_work_alone(fresh_database: str, store: IntentStore) -> None:
    """ASY-1: or a request would go to another service's upstream."""
    stranger = QueueStore(fresh_database, service=STRANGER, buckets=1)
    own = QueueStore(fresh_database, service=SERVICE, buckets=1)
    claimed = await claimed_intent(store, "c-1", execution="async")
    assert await stranger.take(uuid4(), 10) == []
    (taken,) = await own.take(uuid4(), 10)
    assert taken.claimed.key == claimed.key
    await stranger.line.close()
    await own.line.close()


async def test_another_services_hooks_take_no_event_from_ours(
    store: IntentStore, superuser: Superuser, hooks: HookStore, stranger_hooks: HookStore
) -> None:
    """LED-6: nor do they hear of ours, even on a route of the same name."""
    await hooks.begin()
    await stranger_hooks.begin()
    await store.register(new_intent("c-1"))
    assert await fed(stranger_hooks, superuser) == 0
    assert await fed(hooks, superuser) == 1


async def test_a_service_without_hooks_does_not_forget_anothers(
    store: IntentStore, superuser: Superuser, hooks: HookStore, stranger_hooks: HookStore
) -> None:
    """LED-6."""
    await hooks.begin()
    await store.register(new_intent("c-1"))
    await stranger_hooks.forget()
    assert await fed(hooks, superuser) == 1


async def test_hooks_go_on_where_the_previous_release_was(
    store: IntentStore, superuser: Superuser, hooks: HookStore
) -> None:
    """LED-6: what happened while the gateway was replaced is told, once; what happened without hooks never is."""
    await superuser.connection.execute(
        "INSERT INTO cursors (name, xid, id) VALUES ('hooks', pg_snapshot_xmin(pg_current_snapshot()), -1)"
    )
    await store.register(new_intent("c-1"))
    await hooks.begin()
    assert await fed(hooks, superuser) == 1
    await hooks.begin()
    assert await fed(hooks, superuser) == 0
    await hooks.forget()
    await store.register(new_intent("c-2"))
    await eventually(lambda: old_events_only(superuser))
    await hooks.begin()
    assert await fed(hooks, superuser) == 0


async def old_events_only(superuser: Superuser) -> bool:
    return bool(await superuser.value(OLD_EVENTS_ONLY))


async def test_a_verdict_is_for_a_services_own_intents(
    fresh_database: str, store: IntentStore, superuser: Superuser
) -> None:
    """REC-2, SEC-5: its operators know nothing of another's."""
    claimed = await in_doubt(store)
    stranger = Verdicts(fresh_database, service=STRANGER, buckets=1)
    assert await stranger.resolve(await server_id(superuser, claimed), COMMITTED) is None
    await stranger.close()
    assert await superuser.phase(claimed.key) is Phase.PROCESSING
    assert (await superuser.events(claimed.key))[-1] == ("IN_DOUBT", None)
