"""ACM-2: a callback's first attempt is on the wire before its request is processed, and nobody waits for the reply."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from gateway.delivery import courier as courier_module
from gateway.delivery.courier import Courier, Departure
from gateway.delivery.guard import AddressGuard
from gateway.delivery.hosts import TRIP, Host
from gateway.protocol.identity import IntentKey
from gateway.protocol.problems import Problem
from gateway.protocol.records import Callback
from gateway.runtime.tasks import Tasks
from gateway.vault import Tampered
from tests.delivery.office import ALICE, OPEN_GUARD, SIGNING_KEY, Outbox
from tests.delivery.receiver import Received, Receiver, answer, black_hole
from tests.delivery.verifier import signatures_by

LEASE_MS = 10_000
PATIENT_S = 20.0  # only a failing test waits this long


@dataclass
class Worker:
    """The part of a worker that makes first attempts, and a store that holds what it promised."""

    outbox: Outbox
    timeout_s: float = 5.0
    tasks: Tasks = field(default_factory=Tasks)
    courier: Courier = field(init=False)

    def __post_init__(self) -> None:
        carrier = self.outbox.post(timeout_s=self.timeout_s).carrier
        self.courier = Courier(carrier, OPEN_GUARD, self.outbox.ring, self.tasks.spawn, lease_ms=LEASE_MS)

    async def promise(self, url: str) -> tuple[Callback, str, IntentKey, UUID, str, bytes]:
        """What `fire` is told, for a callback that is in the store."""
        key, server_id, client_id = await self.outbox.intent()
        promised = self.courier.promise(url, key)
        await self.outbox.owner.execute(
            "INSERT INTO deliveries (bucket, logical_key, id, kind, event, host, next_at, sealed_with, sealed)"
            " VALUES ($1, $2, $3, 'callback', 'PROCESSING', $4, now() + $5 * interval '1 millisecond', $6, $7)",
            *(key.bucket, key.logical, promised.delivery_id, promised.host, promised.lease_ms),
            *(promised.url.key_number, promised.url.blob),
        )
        return promised, url, key, server_id, client_id, ALICE

    async def fire(self, url: str) -> UUID:
        told = await self.promise(url)
        await self.courier.fire(*told)
        return told[0].delivery_id

    async def settled(self) -> None:
        assert await self.tasks.drain(PATIENT_S) == 0


@pytest.fixture
async def worker(fresh_database: str) -> AsyncIterator[Worker]:
    outbox = await Outbox.open(fresh_database)
    made = Worker(outbox)
    yield made
    await made.tasks.drain(0)
    await outbox.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for the bytes however slow the machine is."""
    for name in ("FIRST_BYTE_WAIT_S", "KNOWN_HOST_WAIT_S", "SLOW_HOST_WAIT_S"):
        monkeypatch.setattr(courier_module, name, PATIENT_S)


def url(receiver: Receiver) -> str:
    return f"http://127.0.0.1:{receiver.port}/hook?secret=canary"


async def test_the_first_attempt_is_sent_signed_and_recorded(worker: Worker, receiver: Receiver) -> None:
    told = await worker.promise(url(receiver))
    await worker.courier.fire(*told)
    await worker.settled()
    promised, _, _, server_id, client_id, _ = told
    (request,) = receiver.requests
    document = json.loads(request.body)
    assert (document["server_correlation_id"], document["client_correlation_id"]) == (str(server_id), client_id)
    assert sorted(document) == [
        *("callback_timestamp", "client_correlation_id", "phase_state", "ponr_crossed", "server_correlation_id")
    ]
    assert request.headers["webhook-id"] == str(promised.delivery_id)
    assert signatures_by(SIGNING_KEY, request.headers, request.body) == [0]
    row = await worker.outbox.row(promised.delivery_id)
    assert (row["state"], row["attempts"], row["last_status"]) == ("delivered", 1, 200)


@pytest.mark.usefixtures("patient")
async def test_when_fire_returns_the_whole_request_is_on_the_wire(worker: Worker) -> None:
    """ACM-2: on a new connection and on one that is up. The receiver is asked by the kernel, not by our loop."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        target = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        await worker.fire(target)
        connection, _ = listener.accept()
        with connection:
            connection.setblocking(False)
            assert b"ponr_crossed" in connection.recv(65536)
            connection.sendall(answer(200))
            await worker.settled()
            await worker.fire(target)
            assert b"ponr_crossed" in connection.recv(65536)
            connection.sendall(answer(200))
            await worker.settled()


@pytest.mark.usefixtures("patient")
async def test_fire_does_not_wait_for_the_reply(worker: Worker, receiver: Receiver) -> None:
    receiver.behave = receiver.hang
    delivery = await worker.fire(url(receiver))
    assert worker.tasks.count == 1
    assert await worker.outbox.state(delivery) == "pending"


@pytest.mark.parametrize("status", [500, 302, 503])
async def test_what_fails_is_left_to_the_schedule(worker: Worker, receiver: Receiver, status: int) -> None:
    receiver.behave = receiver.say(answer(status))
    delivery = await worker.fire(url(receiver))
    await worker.settled()
    row = await worker.outbox.row(delivery)
    assert (row["state"], row["attempts"], row["last_status"]) == ("pending", 1, status)
    assert 47 < row["wait"].total_seconds() < 73


async def test_a_worker_that_dies_leaves_the_callback_to_the_dispatcher_under_the_same_id(
    worker: Worker, receiver: Receiver
) -> None:
    """ACM-3: sent or not, nothing was recorded; the lease ends, and it is sent again."""
    receiver.behave = receiver.hang
    delivery = await worker.fire(url(receiver))
    await receiver.until(1)
    assert await worker.tasks.drain(0) == 1
    wait_s = (await worker.outbox.row(delivery))["wait"].total_seconds()
    assert 0 < wait_s <= LEASE_MS / 1000
    receiver.behave = receiver.say(answer(200))
    await worker.outbox.make_due(delivery)
    assert (await worker.outbox.post().dispatcher.run_once()).delivered == 1
    assert receiver.ids == [str(delivery)] * 2


# --- hosts that are slow or dead


async def test_a_host_that_takes_no_connection_is_given_up_and_not_waited_for_again(worker: Worker) -> None:
    """ACM-2: the callers of one moment wait the little that a new host is given, later ones hardly at all."""
    with black_hole() as hole, contextlib.ExitStack() as stack:
        for _ in range(2):  # fill its queue: from now on nothing is even connected
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(hole.getsockname())
        for _ in range(3):
            await worker.fire(f"http://127.0.0.1:{hole.getsockname()[1]}/")
            (host,) = worker.courier._hosts._hosts.values()
            assert host.slow
        assert worker.tasks.count == 3  # they go on trying, behind nobody's back


async def test_how_long_a_caller_waits_is_what_the_host_has_earned() -> None:
    """ACM-2: numbers that a caller does not notice."""
    hosts = [Host(known=known, slow=slow) for known in (True, False) for slow in (True, False)]
    assert [Departure(host)._patience_s() for host in hosts] == [0.001, 0.05, 0.001, 0.005]


async def test_callers_of_one_burst_wait_for_a_host_that_has_taken_one_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ACM-2: a busy loop is no reason to overtake one's own callback."""
    monkeypatch.setattr(courier_module, "FIRST_BYTE_WAIT_S", 0.01)
    monkeypatch.setattr(courier_module, "KNOWN_HOST_WAIT_S", PATIENT_S)
    host = Host()
    first, second = Departure(host), Departure(host)
    waiting = [asyncio.ensure_future(departure.wait()) for departure in (first, second)]
    first.left()
    await waiting[0]
    await asyncio.wait([waiting[1]], timeout=0.1)
    assert not waiting[1].done()
    second.left()
    await waiting[1]
    assert host.known
    assert not host.slow


async def test_callers_of_one_burst_give_a_host_up_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courier_module, "KNOWN_HOST_WAIT_S", 0.1)
    host = Host(known=True)
    first, second = Departure(host), Departure(host)
    waiting = [asyncio.ensure_future(departure.wait()) for departure in (first, second)]
    async with asyncio.timeout(PATIENT_S):
        await asyncio.gather(*waiting)
    assert host.slow


async def test_a_host_that_was_slow_is_trusted_again_once_its_connection_is_up(
    worker: Worker, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(courier_module, "FIRST_BYTE_WAIT_S", 0.0)
    monkeypatch.setattr(courier_module, "GRACE_TURNS", 0)
    monkeypatch.setattr(courier_module, "SLOW_HOST_WAIT_S", PATIENT_S)
    await worker.fire(url(receiver))
    await worker.settled()
    (host,) = worker.courier._hosts._hosts.values()
    assert host.slow
    await worker.fire(url(receiver))
    await worker.settled()
    assert not host.slow


@pytest.mark.usefixtures("patient")
async def test_a_host_that_rests_is_not_called_and_not_waited_for(worker: Worker, receiver: Receiver) -> None:
    receiver.behave = receiver.drop
    for _ in range(TRIP):
        await worker.fire(url(receiver))
        await worker.settled()
    assert len(receiver.requests) == TRIP
    delivery = await worker.fire(url(receiver))
    assert worker.tasks.count == 0
    assert len(receiver.requests) == TRIP
    row = await worker.outbox.row(delivery)
    assert (row["state"], row["attempts"]) == ("pending", 0)  # the dispatcher has it


@pytest.mark.usefixtures("patient")
async def test_first_attempts_are_bounded_and_the_rest_is_left_to_the_dispatcher(
    worker: Worker, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(courier_module, "UNDER_WAY_MAX", 2)

    async def hold(request: Received, writer: asyncio.StreamWriter) -> None:
        await receiver.released.wait()
        writer.write(answer(200))

    receiver.behave = hold
    made = [await worker.fire(url(receiver)) for _ in range(3)]
    assert receiver.ids == [str(delivery) for delivery in made[:2]]
    receiver.released.set()
    await worker.settled()
    assert [await worker.outbox.state(delivery) for delivery in made] == ["delivered", "delivered", "pending"]
    await worker.fire(url(receiver))
    await worker.settled()
    assert len(receiver.requests) == 3


async def test_a_store_that_is_away_when_the_answer_comes_costs_a_second_delivery_and_nothing_else(
    worker: Worker, receiver: Receiver
) -> None:
    told = await worker.promise(url(receiver))
    await worker.outbox.posts[0].store.close()
    await worker.courier.fire(*told)
    await worker.settled()
    assert await worker.outbox.state(told[0].delivery_id) == "pending"


# --- promises


@pytest.mark.parametrize("refused", ["http://10.0.0.1/", "https://localhost/", "https://hooks.example.com:22/", "x"])
async def test_a_url_that_may_not_be_called_is_refused_before_anything_is_promised(
    worker: Worker, refused: str
) -> None:
    """ACM-4: 400, nothing stored, nothing executed."""
    with pytest.raises(Problem) as caught:
        worker.courier.promise(refused, IntentKey(0, b"k" * 16))
    assert (caught.value.slug, caught.value.status) == ("callback-refused", 400)


async def test_a_promise_is_sealed_to_its_intent(worker: Worker) -> None:
    """SEC-4: a URL may carry a secret; the store shows none, and a blob moved to another row does not open."""
    key, other = IntentKey(0, b"k" * 16), IntentKey(0, b"o" * 16)
    promised = worker.courier.promise("https://127.0.0.1:9000/?token=canary", key)
    assert b"canary" not in promised.url.blob
    assert promised.lease_ms == LEASE_MS
    ring, blob, number = worker.outbox.ring, promised.url.blob, promised.url.key_number
    assert ring.open(b"callback", key.logical, blob, number) == b"https://127.0.0.1:9000/?token=canary"
    with pytest.raises(Tampered):
        ring.open(b"callback", other.logical, blob, number)


async def test_a_strict_guard_is_asked_at_the_dial_too(worker: Worker, receiver: Receiver) -> None:
    """ACM-4: a first attempt that is refused there is dead at once, and its request goes on."""
    told = await worker.promise(url(receiver))
    strict = worker.outbox.post(guard=AddressGuard(allow_http=True))
    courier = Courier(strict.carrier, OPEN_GUARD, worker.outbox.ring, worker.tasks.spawn, lease_ms=LEASE_MS)
    await courier.fire(*told)
    await worker.settled()
    row = await worker.outbox.row(told[0].delivery_id)
    assert (row["state"], row["last_error"]) == ("dead", "refused: loopback")
    assert receiver.connections == 0
