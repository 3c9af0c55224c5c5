"""One intent as an operator sees it, by either correlation ID."""

from __future__ import annotations

import re
from uuid import uuid4

from gateway.protocol.entries import FIELDS
from gateway.protocol.phases import Phase
from tests.operator.book import ALICE, BOB, GRACE_MS, SERVICE, TRACE, TTL_MS, Book
from tests.operator.console import Console

ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


async def test_a_committed_intent_is_told_whole(console: Console, book: Book) -> None:
    """LED-1, FSM-2, REC-3: the sixteen fields, then what the Contract adds to them, and nothing else."""
    new = await book.register("order-1")
    claimed = await book.claim(new)
    await book.settle(new, claimed)
    intent = (await console.ask(f"/v1/intents/{new.server_correlation_id}")).json
    service_ledger_id = await book.owner.fetchval("SELECT service_ledger_id FROM services")
    assert tuple(intent)[:16] == FIELDS
    for moment in ("phase_1_timestamp", "phase_2_timestamp", "settled_at"):
        assert ISO.fullmatch(intent.pop(moment))
    events, (attempt,) = intent.pop("events"), intent.pop("attempts")
    assert intent == {
        "client_correlation_id": "order-1",
        "server_correlation_id": str(new.server_correlation_id),
        "service_ledger_id": str(service_ledger_id),
        "service_endpoint": f"{SERVICE}:/orders",
        "actor": "server",
        "source": SERVICE,
        "target": None,
        "parent_reference_id": "order-1",
        "phase": "COMMITTED",
        "ttl_ms": TTL_MS,
        "outcome": "COMMITTED",
        "payload_ref": f"intent:{new.server_correlation_id}",
        "sync_timestamp": None,
        "transaction_reference": TRACE,
        "caller": ALICE.hex(),
        "payload_sha256": "01" * 32,
        "in_doubt": None,
        "settled_by": "upstream",
        "verify_failed": False,
        "response": {"status": 201, "bytes": 5, "sha256": "02" * 32, "kept": True},
        "deliveries": [],
    }
    assert ISO.fullmatch(attempt.pop("started_at"))
    assert ISO.fullmatch(attempt.pop("ended_at"))
    assert attempt == {
        "attempt_id": str(claimed.attempt_id),
        "number": 1,
        "fence": 1,
        "sent": True,
        "status": 201,
        "error": None,
    }
    assert all(ISO.fullmatch(event.pop("at")) for event in events)
    assert events == [
        {"code": "OBL-001", "phase": "WAITING_CONFIRM", "detail": None},
        {"code": "PONR", "phase": "PROCESSING", "detail": None},
        {"code": "OBL-002", "phase": "COMMITTED", "detail": None},
    ]


async def test_a_waiting_intent_has_no_outcome_attempt_or_response(console: Console, book: Book) -> None:
    """LED-1: what has not happened is null or empty."""
    new = await book.register("order-1")
    intent = (await console.ask(f"/v1/intents/{new.server_correlation_id}")).json
    assert intent["phase"] == "WAITING_CONFIRM"
    for field in ("phase_2_timestamp", "outcome", "sync_timestamp", "in_doubt", "response"):
        assert intent[field] is None, field
    assert intent["attempts"] == []


async def test_an_attempt_in_progress_has_no_end(console: Console, book: Book) -> None:
    """REC-3: every attempt has its row from its start."""
    new = await book.register("order-1")
    claimed = await book.claim(new)
    (attempt,) = (await console.ask(f"/v1/intents/{new.server_correlation_id}")).json["attempts"]
    assert attempt["attempt_id"] == str(claimed.attempt_id)
    assert [attempt[field] for field in ("sent", "ended_at", "status", "error")] == [None] * 4


async def test_an_intent_in_doubt_stays_processing_and_says_why(console: Console, book: Book) -> None:
    """REC-2, FSM-2: in doubt is not a phase; its event is evidence, with a detail and without a phase."""
    new = await book.doubt("order-1", "connection to upstream lost")
    intent = (await console.ask(f"/v1/intents/{new.server_correlation_id}")).json
    assert (intent["phase"], intent["outcome"]) == ("PROCESSING", None)
    assert ISO.fullmatch(intent["in_doubt"].pop("since"))
    assert ISO.fullmatch(intent["in_doubt"].pop("next_at"))
    assert intent["in_doubt"] == {"reason": "connection to upstream lost", "held": None, "asked": 0}
    event = intent["events"][-1]
    assert (event["code"], event["phase"], event["detail"]) == (
        "IN_DOUBT",
        None,
        {"reason": "connection to upstream lost"},
    )


async def test_a_failed_intent_has_failed_as_its_outcome(console: Console, book: Book) -> None:
    """LED-1: FAILED joins the draft's outcomes."""
    new = await book.register("order-1")
    await book.settle(new, await book.claim(new), Phase.FAILED)
    intent = (await console.ask(f"/v1/intents/{new.server_correlation_id}")).json
    assert (intent["phase"], intent["outcome"]) == ("FAILED", "FAILED")


async def test_a_phase_is_right_before_any_sweep_has_written_it(console: Console, book: Book) -> None:
    """TTL-2: expired at the deadline, abandoned at the deadline + δ, whatever is stored; the outcome follows."""
    new = await book.register("order-1")
    path = f"/v1/intents/{new.server_correlation_id}"

    async def told() -> tuple[str, str]:
        intent = (await console.ask(path)).json
        return intent["phase"], intent["outcome"]

    async def stored() -> str:
        return str(await book.owner.fetchval("SELECT phase FROM intents"))

    await book.age(new, TTL_MS)
    assert await told() == ("TTL_EXPIRED", "TTL_EXPIRED")
    await book.age(new, GRACE_MS)
    assert await told() == ("ABANDONED", "ABANDONED")
    assert await stored() == "WAITING_CONFIRM"
    assert await book.sweeps.expire() == 1
    assert await stored() == "TTL_EXPIRED"
    assert await told() == ("ABANDONED", "ABANDONED")
    assert await book.sweeps.abandon() == 1
    assert await told() == ("ABANDONED", "ABANDONED")


async def test_an_executed_intent_does_not_expire(console: Console, book: Book) -> None:
    """TTL-2, RPL-2."""
    new = await book.commit("order-1")
    await book.age(new, 10 * (TTL_MS + GRACE_MS))
    assert (await console.ask(f"/v1/intents/{new.server_correlation_id}")).json["phase"] == "COMMITTED"


async def test_the_private_grace_is_never_told(console: Console, book: Book) -> None:
    """TTL-3."""
    new = await book.register("order-1")
    body = (await console.ask(f"/v1/intents/{new.server_correlation_id}")).body
    assert b"grace" not in body
    assert str(GRACE_MS).encode() not in re.sub(rb'"[^"]*"', b"", body)


async def test_an_unknown_server_id_is_a_404_problem(console: Console, book: Book) -> None:
    """OPS-3."""
    reply = await console.ask(f"/v1/intents/{uuid4()}")
    assert (reply.status, reply.problem) == (404, "intent-unknown")


async def test_an_odd_path_survives_as_text(console: Console, book: Book) -> None:
    """LED-1: raw bytes of a path are told one by one, none is lost."""
    new = await book.register("order-1", path=b"/orders/%2F\xff")
    intent = (await console.ask(f"/v1/intents/{new.server_correlation_id}")).json
    assert intent["service_endpoint"] == f"{SERVICE}:/orders/%2F\u00ff"


async def test_a_client_id_finds_every_caller_that_used_it(console: Console, book: Book) -> None:
    """REP-1: the same ID of two callers is two intents, told in order of registration."""
    first = await book.commit("order-1", caller=BOB)
    second = await book.register("order-1", caller=ALICE)
    await book.register("order-2")
    reply = await console.ask("/v1/intents", client_correlation_id="order-1")
    assert reply.json["next"] is None
    assert [item["server_correlation_id"] for item in reply.json["items"]] == [
        str(first.server_correlation_id),
        str(second.server_correlation_id),
    ]
    assert [item["caller"] for item in reply.json["items"]] == [BOB.hex(), ALICE.hex()]
    assert [len(item["events"]) for item in reply.json["items"]] == [3, 1]


async def test_an_unused_client_id_is_an_empty_list(console: Console, book: Book) -> None:
    """Not an error: nobody has used it."""
    assert (await console.ask("/v1/intents", client_correlation_id="x")).json == {"items": [], "next": None}


async def test_callers_of_one_client_id_come_in_pages(console: Console, book: Book) -> None:
    """Each once, in order; a last page that is exactly full ends the list."""
    made = [await book.register("order-1", caller=bytes([number]) * 32) for number in range(6)]
    found: list[str] = []
    query = {"client_correlation_id": "order-1", "limit": "2"}
    for last in (False, False, True):
        page = (await console.ask("/v1/intents", **query)).json
        found += [item["server_correlation_id"] for item in page["items"]]
        assert (page["next"] is None) == last
        query["after"] = page["next"]
    assert found == [str(new.server_correlation_id) for new in made]
