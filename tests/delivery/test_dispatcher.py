"""ACM-3: delivery is at least once, by any number of dispatchers, until acknowledged or dead."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateway.background import dispatcher as dispatcher_module
from gateway.background.dispatcher import Dispatched, Dispatcher
from gateway.delivery.guard import AddressGuard
from gateway.delivery.hosts import Hosts
from gateway.delivery.signing import caller_key
from gateway.protocol.deliveries import DueDelivery, Outcome
from gateway.protocol.faults import StoreAway
from gateway.store.deliveries import DeliveryStore
from gateway.vault import Key, KeyRing
from tests.delivery.office import ALICE, SIGNING_KEY, Outbox
from tests.delivery.receiver import OK, Names, Received, Receiver, answer
from tests.delivery.verifier import signatures_by


@pytest.fixture
async def outbox(fresh_database: str) -> AsyncIterator[Outbox]:
    opened = await Outbox.open(fresh_database)
    yield opened
    await opened.close()


def url(receiver: Receiver, path: str = "/hook") -> str:
    return f"http://127.0.0.1:{receiver.port}{path}"


async def test_another_services_deliveries_are_left_to_it(outbox: Outbox, receiver: Receiver) -> None:
    """ACM-3: services share a store, not their keys to sign with and the rules of whom they call."""
    delivery = await outbox.callback(url(receiver))
    assert await outbox.post(service="stock").dispatcher.run_once() == Dispatched()
    assert (receiver.requests, await outbox.state(delivery)) == ([], "pending")
    assert await outbox.post().dispatcher.run_once() == Dispatched(claimed=1, delivered=1)


async def test_what_is_due_is_sent_signed_and_recorded(outbox: Outbox, receiver: Receiver) -> None:
    """ACM-2, ACM-3: exactly the five fields, under the delivery's constant id."""
    key, server_id, client_id = await outbox.intent()
    delivery = await outbox.add(key, url(receiver))
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    assert await outbox.post().dispatcher.run_once() == Dispatched(claimed=1, delivered=1)
    (request,) = receiver.requests
    document = json.loads(request.body)
    stamp = document.pop("callback_timestamp")
    assert document == {
        "server_correlation_id": str(server_id),
        "client_correlation_id": client_id,
        "phase_state": "PROCESSING",
        "ponr_crossed": True,
    }
    assert before <= datetime.fromisoformat(stamp) <= datetime.now(UTC)
    assert stamp.endswith("Z")
    assert request.headers["webhook-id"] == str(delivery)
    assert signatures_by(SIGNING_KEY, request.headers, request.body) == [0]
    row = await outbox.row(delivery)
    assert (row["state"], row["attempts"], row["last_status"], row["last_error"]) == ("delivered", 1, 200, None)
    assert await outbox.post().dispatcher.run_once() == Dispatched()


async def test_each_caller_is_signed_for_with_its_own_key(outbox: Outbox, receiver: Receiver) -> None:
    await outbox.callback(url(receiver))
    await outbox.post(per_caller=True).dispatcher.run_once()
    (request,) = receiver.requests
    assert signatures_by(caller_key(SIGNING_KEY, ALICE), request.headers, request.body) == [0]
    assert signatures_by(SIGNING_KEY, request.headers, request.body) == []


async def test_a_hook_says_what_happened_to_which_intent(outbox: Outbox, receiver: Receiver) -> None:
    """LED-6: the operator's own URL, loopback or not, signed with the configured key."""
    key, server_id, client_id = await outbox.intent()
    await outbox.owner.execute("INSERT INTO in_doubt VALUES ($1, $2, now(), 'no answer')", key.bucket, key.logical)
    await outbox.add(key, url(receiver, "/undo"), kind="compensation", event="IN_DOUBT")
    await outbox.post(guard=AddressGuard(), per_caller=True).dispatcher.run_once()
    (request,) = receiver.requests
    document = json.loads(request.body)
    assert document["type"] == "intent.in_doubt"
    assert document["data"] == {
        "event": "IN_DOUBT",
        "server_correlation_id": str(server_id),
        "client_correlation_id": client_id,
        "caller": ALICE.hex(),
        "service": "orders",
        "method": "POST",
        "path": "/orders",
        "phase": "PROCESSING",
        "in_doubt": "no answer",
        "resource_id": None,
        "message": None,
    }
    assert signatures_by(SIGNING_KEY, request.headers, request.body) == [0]


async def test_what_is_not_due_waits(outbox: Outbox, receiver: Receiver) -> None:
    """ACM-2: until its lease ends, a first attempt belongs to the worker that makes it."""
    await outbox.callback(url(receiver), due_in_ms=60_000)
    assert await outbox.post().dispatcher.run_once() == Dispatched()
    assert receiver.connections == 0


# --- the schedule


async def test_failures_follow_the_schedule_and_end_as_a_dead_letter_under_one_id(
    outbox: Outbox, receiver: Receiver
) -> None:
    """ACM-3."""
    receiver.behave = receiver.say(answer(500))
    delivery = await outbox.callback(url(receiver))
    post = outbox.post(schedule_ms=(60_000, 120_000))
    for attempts, pause_s in ((1, 60), (2, 120)):
        assert await post.dispatcher.run_once() == Dispatched(claimed=1, pending=1)
        row = await outbox.row(delivery)
        assert (row["state"], row["attempts"], row["last_status"]) == ("pending", attempts, 500)
        assert pause_s * 0.79 < row["wait"].total_seconds() < pause_s * 1.21
        assert await post.dispatcher.run_once() == Dispatched()
        await outbox.make_due(delivery)
    assert await post.dispatcher.run_once() == Dispatched(claimed=1, dead=1)
    row = await outbox.row(delivery)
    assert (row["state"], row["attempts"], row["next_at"], row["last_error"]) == ("dead", 3, None, "status 500")
    assert row["settled_at"] is not None
    assert receiver.ids == [str(delivery)] * 3
    assert len({request.body for request in receiver.requests}) == 3  # each says when it was sent …
    for request in receiver.requests:  # … and is signed for that
        assert signatures_by(SIGNING_KEY, request.headers, request.body) == [0]
    assert await post.dispatcher.run_once() == Dispatched()


async def test_a_receiver_that_recovers_gets_it(outbox: Outbox, receiver: Receiver) -> None:
    receiver.behave = receiver.say(answer(503), OK)
    delivery = await outbox.callback(url(receiver))
    post = outbox.post()
    await post.dispatcher.run_once()
    await outbox.make_due(delivery)
    assert await post.dispatcher.run_once() == Dispatched(claimed=1, delivered=1)
    assert receiver.ids == [str(delivery)] * 2


async def test_410_is_dead_at_once(outbox: Outbox, receiver: Receiver) -> None:
    receiver.behave = receiver.say(answer(410))
    delivery = await outbox.callback(url(receiver))
    assert await outbox.post().dispatcher.run_once() == Dispatched(claimed=1, dead=1)
    assert await outbox.state(delivery) == "dead"


async def test_an_address_refused_at_dial_time_is_dead_at_once_with_its_reason(
    outbox: Outbox, receiver: Receiver
) -> None:
    """ACM-4: a public name that turns out to be internal."""
    delivery = await outbox.callback(f"https://hooks.example.com:{receiver.port}/")
    names = Names(hooks_example_com=[["93.184.216.34", "169.254.169.254"]])
    post = outbox.post(guard=AddressGuard(ports=[receiver.port]), names=names)
    assert await post.dispatcher.run_once() == Dispatched(claimed=1, dead=1)
    row = await outbox.row(delivery)
    assert (row["state"], row["attempts"], row["last_error"]) == ("dead", 1, "refused: metadata")
    assert receiver.connections == 0


async def test_a_url_that_the_rules_of_now_refuse_is_dead_at_once(outbox: Outbox, receiver: Receiver) -> None:
    """ACM-4: the operator has taken back an exception since it was stored."""
    delivery = await outbox.callback(url(receiver))
    assert await outbox.post(guard=AddressGuard(allow_http=True)).dispatcher.run_once() == Dispatched(claimed=1, dead=1)
    assert (await outbox.row(delivery))["last_error"] == "refused: loopback"
    assert receiver.connections == 0


async def test_a_stored_address_that_does_not_open_is_tried_again(outbox: Outbox, receiver: Receiver) -> None:
    """SEC-4: its key may be put back."""
    delivery = await outbox.callback(url(receiver))
    right, outbox.ring = outbox.ring, KeyRing([Key("k2", b"2" * 32)])
    outbox.ring.bind({"k1": 1, "k2": 2})
    assert await outbox.post().dispatcher.run_once() == Dispatched(claimed=1, pending=1)
    assert (await outbox.row(delivery))["last_error"] == "sealed"
    outbox.ring = right
    await outbox.make_due(delivery)
    assert await outbox.post().dispatcher.run_once() == Dispatched(claimed=1, delivered=1)


async def test_settled_deliveries_leave_an_audit_event(outbox: Outbox, receiver: Receiver) -> None:
    """OBL-4: a delivery is an obligation: committed, or given up."""
    receiver.behave = receiver.say(answer(410), OK)
    dead = await outbox.callback(url(receiver))
    await outbox.post().dispatcher.run_once()
    delivered = await outbox.callback(url(receiver))
    await outbox.post().dispatcher.run_once()
    ((code, detail),) = await outbox.events(dead)
    assert (code, detail["flow"], detail["state"], detail["error"]) == ("OBL-003", "callback", "dead", "status 410")
    ((code, detail),) = await outbox.events(delivered)
    assert (code, detail["status"], detail["attempts"]) == ("OBL-002", 200, 1)
    assert str(receiver.port) not in json.dumps(detail)


# --- crashes and company


async def test_sent_but_not_marked_is_sent_again_with_the_same_id(outbox: Outbox, receiver: Receiver) -> None:
    """RELIABILITY, crash points: callback sent, not marked."""
    delivery = await outbox.callback(url(receiver))
    await outbox.post(forgetful=True).dispatcher.run_once()
    assert receiver.ids == [str(delivery)]
    assert await outbox.state(delivery) == "pending"
    await outbox.make_due(delivery)
    await outbox.post().dispatcher.run_once()
    assert receiver.ids == [str(delivery)] * 2
    assert await outbox.state(delivery) == "delivered"


async def test_a_claim_is_a_lease(outbox: Outbox, receiver: Receiver) -> None:
    """What a dispatcher claimed is nobody else's until the lease ends; then it is anybody's."""
    delivery = await outbox.callback(url(receiver))
    store = outbox.post(lease_ms=60_000).store
    claim = {"limit": 10, "host_limit": 8, "rooms": {}}
    (claimed,) = await store.claim(0, **claim)  # type: ignore[arg-type]
    assert claimed.id == delivery
    assert await outbox.post().dispatcher.run_once() == Dispatched()
    assert 50 < (await outbox.row(delivery))["wait"].total_seconds() <= 60
    await outbox.make_due(delivery)
    assert await outbox.post().dispatcher.run_once() == Dispatched(claimed=1, delivered=1)


async def test_two_dispatchers_at_once_send_each_delivery_once(outbox: Outbox, receiver: Receiver) -> None:
    """Several replicas share the work (SKIP LOCKED), and none doubles it within a lease."""
    made = await outbox.callbacks(url(receiver), 200)
    first, second = outbox.post(), outbox.post()
    counts = await asyncio.gather(first.dispatcher.run_once(), second.dispatcher.run_once())
    assert sum(count.delivered for count in counts) == len(made)
    assert Counter(receiver.ids) == Counter(str(delivery) for delivery in made)


async def test_a_late_failure_does_not_overwrite_what_came_after_it(outbox: Outbox, receiver: Receiver) -> None:
    """A dispatcher that was frozen past its lease records its failure: it is old news."""
    arrived = asyncio.Event()

    async def second_answers_first(request: Received, writer: asyncio.StreamWriter) -> None:
        if len(receiver.requests) == 1:
            arrived.set()
            await receiver.released.wait()
            writer.write(answer(500))
        else:
            writer.write(OK)

    receiver.behave = second_answers_first
    delivery = await outbox.callback(url(receiver))
    frozen = asyncio.create_task(outbox.post().dispatcher.run_once())
    await arrived.wait()
    await outbox.make_due(delivery)
    await outbox.post().dispatcher.run_once()
    receiver.released.set()
    await frozen
    row = await outbox.row(delivery)
    assert (row["state"], row["attempts"], row["last_status"]) == ("delivered", 1, 200)


async def test_the_same_failure_recorded_twice_counts_once(outbox: Outbox, receiver: Receiver) -> None:
    """Two who hold one delivery, one of them past its lease: an attempt of the schedule is used up once."""
    receiver.behave = receiver.say(answer(500))
    delivery = await outbox.callback(url(receiver))
    claim = {"limit": 10, "host_limit": 8, "rooms": {}}
    post = outbox.post()
    (first,) = await post.store.claim(0, **claim)  # type: ignore[arg-type]
    await outbox.make_due(delivery)
    (second,) = await post.store.claim(0, **claim)  # type: ignore[arg-type]
    for due in (first, second):
        await post.carrier.deliver(due)
    assert len(receiver.requests) == 2
    assert (await outbox.row(delivery))["attempts"] == 1


async def test_a_late_acknowledgement_counts_even_after_a_dead_letter(outbox: Outbox, receiver: Receiver) -> None:
    arrived = asyncio.Event()

    async def second_is_gone(request: Received, writer: asyncio.StreamWriter) -> None:
        if len(receiver.requests) == 1:
            arrived.set()
            await receiver.released.wait()
            writer.write(OK)
        else:
            writer.write(answer(410))

    receiver.behave = second_is_gone
    delivery = await outbox.callback(url(receiver))
    slow = asyncio.create_task(outbox.post().dispatcher.run_once())
    await arrived.wait()
    await outbox.make_due(delivery)
    await outbox.post().dispatcher.run_once()
    assert await outbox.state(delivery) == "dead"
    receiver.released.set()
    await slow
    assert await outbox.state(delivery) == "delivered"


async def test_a_dispatcher_that_is_stopped_leaves_everything_to_the_next(outbox: Outbox, receiver: Receiver) -> None:
    receiver.behave = receiver.hang
    made = await outbox.callbacks(url(receiver), 3)
    stopped = asyncio.create_task(outbox.post().dispatcher.run_once())
    await receiver.until(3)
    stopped.cancel()
    await asyncio.wait([stopped])
    receiver.behave = receiver.say(OK)
    await outbox.make_due(*made)
    assert await outbox.post().dispatcher.run_once() == Dispatched(claimed=3, delivered=3)


async def test_while_the_store_is_away_the_loop_hears_of_it(outbox: Outbox, receiver: Receiver) -> None:
    post = outbox.post()
    await post.store.close()
    with pytest.raises(StoreAway):
        await post.dispatcher.run_once()


async def test_every_bucket_is_looked_through(fresh_database: str, receiver: Receiver) -> None:
    """DESIGN decision 3: a claim names one bucket."""
    outbox = await Outbox.open(fresh_database, buckets=4)
    made = await outbox.callbacks(url(receiver), 40)
    assert len({row["bucket"] for row in await outbox.owner.fetch("SELECT bucket FROM deliveries")}) == 4
    assert (await outbox.post().dispatcher.run_once()).delivered == len(made)
    await outbox.close()


async def test_an_attempt_that_ends_while_a_claim_is_made_is_not_overlooked(
    outbox: Outbox, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim passed its host over, for it was full; now nothing is under way; there is work all the same."""
    monkeypatch.setattr(dispatcher_module, "LOOK_AGAIN_S", 0.01)
    made = await outbox.callbacks(url(receiver), 2)
    post = outbox.post()
    looked_again, ended = asyncio.Event(), asyncio.Event()
    in_vain = 0

    class SlowClaims(DeliveryStore):
        async def claim(self, *arguments: Any, **named: Any) -> list[DueDelivery]:
            nonlocal in_vain
            due = await super().claim(*arguments, **named)
            in_vain += not due
            if in_vain == 2:  # the second look, while the first attempt is still under way
                looked_again.set()
                await ended.wait()
            return due

    async def deliver(due: DueDelivery) -> Outcome:
        await looked_again.wait()
        outcome = await post.carrier.deliver(due)
        asyncio.get_running_loop().call_soon(ended.set)
        return outcome

    store = SlowClaims(outbox.url, service="orders", lease_ms=10_000)
    counts = await Dispatcher(store, deliver, Hosts(limit=1), buckets=1).run_once()
    assert counts == Dispatched(claimed=2, delivered=2)
    assert sorted(receiver.ids) == sorted(str(delivery) for delivery in made)
    await store.close()


# --- one bad host starves nobody


async def test_a_host_is_sent_no_more_at_once_than_its_limit(outbox: Outbox, receiver: Receiver) -> None:
    at_once = most = 0

    async def count(request: Received, writer: asyncio.StreamWriter) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.002)
        at_once -= 1
        writer.write(OK)

    receiver.behave = count
    await outbox.callbacks(url(receiver), 60)
    assert (await outbox.post().dispatcher.run_once()).delivered == 60
    assert most == dispatcher_module.PER_HOST_MAX


async def test_a_host_that_hangs_holds_its_own_deliveries_up_and_no_others(outbox: Outbox, receiver: Receiver) -> None:
    """ACM-3: a thousand deliveries to it are due first, and everybody else's go out all the same."""
    hanging = await Receiver().start()
    hanging.behave = hanging.hang
    await outbox.callbacks(url(hanging), 1_000)
    good = await outbox.callbacks(url(receiver), 50)
    running = asyncio.create_task(outbox.post(timeout_s=60).dispatcher.run_once())
    await receiver.until(50)
    late = await outbox.callback(url(receiver))  # due while the others still hang
    await receiver.until(51)
    assert set(receiver.ids) == {str(delivery) for delivery in [*good, late]}
    assert len(hanging.requests) == dispatcher_module.PER_HOST_MAX
    assert not running.done()
    running.cancel()
    await asyncio.wait([running])
    await hanging.stop()


async def test_a_long_queue_of_one_good_host_hides_no_other(outbox: Outbox, receiver: Receiver) -> None:
    other = await Receiver().start()
    await outbox.callbacks(url(receiver), 600)
    last = await outbox.callback(url(other))
    running = asyncio.create_task(outbox.post().dispatcher.run_once())
    await other.until(1)
    assert len(receiver.requests) < 300
    assert other.ids == [str(last)]
    assert (await running).delivered == 601
    await other.stop()


async def test_a_dead_host_rests_and_its_deliveries_wait_without_using_up_their_schedule(
    outbox: Outbox, receiver: Receiver
) -> None:
    await receiver.stop()
    made = await outbox.callbacks(url(receiver), 100)
    post = outbox.post()
    counts = await post.dispatcher.run_once()
    assert 0 < counts.pending < 100
    rows = [await outbox.row(delivery) for delivery in made]
    assert sum(row["attempts"] for row in rows) == counts.pending
    assert all(row["state"] == "pending" for row in rows)
