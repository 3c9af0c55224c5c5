"""OBL-1 to OBL-4 on the operator listener."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest

from gateway.protocol.obligations import PAYLOAD_BYTES_MAX
from tests.operator.book import Book
from tests.operator.console import Console, Reply

CANARY = "the-canary-in-the-payload"


async def post(console: Console, path: str, document: Any = None, *, role: str = "operations") -> Reply:
    data = None if document is None else json.dumps(document).encode()
    return await console.ask(path, method="POST", role=role, data=data)


async def reserved(console: Console, key: str = "batch-1", flow: str = "publish") -> str:
    asked = {"flow": flow, "key": key, "payload": {"secret": CANARY}, "trace_id": "trace-1"}
    reply = await post(console, "/v1/obligations", asked)
    assert reply.status == 201
    return str(reply.json["id"])


async def settled(console: Console, obligation: str, step: str) -> Reply:
    return await post(console, f"/v1/obligations/{obligation}/{step}", {"trace_id": "trace-2"})


async def test_an_obligation_from_its_reservation_to_its_commit(console: Console) -> None:
    """OBL-1: every step can be seen, with who did it and under which trace."""
    made = await reserved(console)
    found = (await console.ask(f"/v1/obligations/{made}")).json
    assert (found["state"], found["flow"], found["key"]) == ("Reserved", "publish", "batch-1")
    assert (found["origin"], found["trace_id"], found["reserved_by"]) == ("tracker", "trace-1", "operations-desk")
    assert found["leaks_at"] > found["reserved_at"]
    reply = await settled(console, made, "commit")
    assert (reply.status, reply.json) == (200, {"id": made, "state": "Committed", "changed": True})
    found = (await console.ask(f"/v1/obligations/{made}")).json
    assert (found["state"], found["leaked"], found["leaks_at"]) == ("Committed", False, None)
    assert [(event["code"], event["trace_id"], event["by"]) for event in found["events"]] == [
        ("OBL-001", "trace-1", "operations-desk"),
        ("OBL-002", "trace-2", "operations-desk"),
    ]


async def test_a_payload_is_for_those_who_settle_it_and_only_while_it_is_reserved(console: Console) -> None:
    """SEC-4, SEC-5: auditors see its digest."""
    made = await reserved(console)
    path = f"/v1/obligations/{made}"
    assert (await console.ask(path)).json["payload"] == {"secret": CANARY}
    for role in ("audit", "compliance"):
        reply = await console.ask(path, role=role)
        assert reply.status == 200
        assert CANARY.encode() not in reply.body
        assert len(reply.json["payload_sha256"]) == 64
    assert CANARY.encode() not in (await console.ask("/v1/obligations")).body
    await settled(console, made, "rollback")
    assert "payload" not in (await console.ask(path)).json


async def test_every_refusal_has_its_status_and_code(console: Console) -> None:
    """OBL-2, OPS-3."""
    done, undone = await reserved(console, "done"), await reserved(console, "undone")
    await settled(console, done, "commit")
    await settled(console, undone, "rollback")
    unknown = str(uuid4())
    table = [
        (done, "commit", 409, "ERR_OBL_ALREADY_COMMITTED"),
        (done, "rollback", 409, "ERR_OBL_ALREADY_COMMITTED"),
        (undone, "commit", 409, "ERR_OBL_ALREADY_ROLLED_BACK"),
        (unknown, "commit", 404, "ERR_OBL_NOT_FOUND"),
        (unknown, "rollback", 404, "ERR_OBL_NOT_FOUND"),
        ("no-id", "commit", 404, "ERR_OBL_NOT_FOUND"),
    ]
    for obligation, step, status, code in table:
        reply = await settled(console, obligation, step)
        assert (reply.status, reply.json["code"]) == (status, code), (step, code)
        assert reply.problem.startswith("obligation-")
    reply = await post(console, "/v1/obligations", {"flow": "publish", "key": "done", "trace_id": "t"})
    assert (reply.status, reply.json["code"]) == (409, "ERR_OBL_DUPLICATE_RESERVE")
    assert reply.json["obligation"] == done
    assert (await console.ask(f"/v1/obligations/{unknown}")).json["code"] == "ERR_OBL_NOT_FOUND"


async def test_a_second_rollback_succeeds_changes_nothing_and_says_so(console: Console) -> None:
    """OBL-2, INV-OBL-ROLLBACK-SAFE."""
    made = await reserved(console)
    assert (await settled(console, made, "rollback")).json == {"id": made, "state": "RolledBack", "changed": True}
    reply = await settled(console, made, "rollback")
    assert reply.status == 200
    assert reply.json == {
        "id": made,
        "state": "RolledBack",
        "changed": False,
        "code": "ERR_OBL_ALREADY_ROLLED_BACK",
    }


async def test_a_leaked_obligation_is_gone_and_the_scan_is_told(console: Console, book: Book) -> None:
    """OBL-2, OBL-3: 410 with its code; OBL-005 with counts; every event in the audit list."""
    made = await reserved(console)
    await book.owner.execute("UPDATE obligations SET leaks_at = now()")
    assert await console.obligations.book.take_back() == 1
    reply = await settled(console, made, "commit")
    assert (reply.status, reply.json["code"]) == (410, "ERR_OBL_LEAK_TIMEOUT")
    listed = (await console.ask("/v1/obligations", state="RolledBack", flow="publish")).json
    assert [(item["id"], item["leaked"]) for item in listed["items"]] == [(made, True)]
    assert (listed["scan"]["code"], listed["scan"]["leaked"], listed["scan"]["scans_total"]) == ("OBL-005", 1, 1)
    assert listed["scan"]["completed_at"] is not None
    events = (await console.ask("/v1/obligation-events", role="audit")).json
    assert [event["code"] for event in events["items"]] == ["OBL-001", "OBL-004", "OBL-003", "OBL-005"]
    again = (await console.ask("/v1/obligation-events", after=events["next"])).json
    assert (again["items"], again["next"]) == ([], events["next"])


async def test_a_step_needs_no_body_and_then_has_the_trace_of_the_reservation(console: Console) -> None:
    """OBL-1."""
    made = await reserved(console)
    assert (await post(console, f"/v1/obligations/{made}/commit")).status == 200
    found = (await console.ask(f"/v1/obligations/{made}")).json
    assert [event["trace_id"] for event in found["events"]] == ["trace-1", "trace-1"]


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"key": "k", "trace_id": "t"}, "member-missing"),
        ({"flow": "f", "trace_id": "t"}, "member-missing"),
        ({"flow": "f", "key": "k"}, "member-missing"),
        ({"flow": "f", "key": "k", "trace_id": "t", "ttl": 1}, "member-unknown"),
        ({"flow": "a flow", "key": "k", "trace_id": "t"}, "member-invalid"),
        ({"flow": "f", "key": 7, "trace_id": "t"}, "member-invalid"),
        ({"flow": "f", "key": "k", "trace_id": "\n"}, "member-invalid"),
        ({"flow": "f", "key": "k", "trace_id": "t", "payload": "x" * PAYLOAD_BYTES_MAX}, "member-invalid"),
        ({"flow": "f", "key": "k", "trace_id": "t", "payload": "x" * 2 * PAYLOAD_BYTES_MAX}, "payload-too-large"),
        ([], "body-malformed"),
    ],
)
async def test_what_is_no_reservation_is_refused_and_nothing_is_written(
    console: Console, book: Book, document: Any, problem: str
) -> None:
    """OPS-3."""
    reply = await post(console, "/v1/obligations", document)
    assert reply.problem == problem
    assert await book.owner.fetchval("SELECT count(*) FROM obligations") == 0


async def test_lists_go_by_state_and_flow_and_in_pages(console: Console) -> None:
    """OBL-4: in the order of reservation, each exactly once."""
    made = [await reserved(console, f"batch-{number}", "publish" if number % 2 else "revoke") for number in range(7)]
    for each in made[:3]:
        await settled(console, each, "commit")

    async def walk(**query: str) -> list[str]:
        found: list[str] = []
        after = ""
        while True:
            page = (await console.ask("/v1/obligations", limit="2", after=after, **query)).json
            assert len(page["items"]) <= 2
            found += [item["id"] for item in page["items"] if item["origin"] == "tracker"]
            if page["next"] is None:
                return found
            after = page["next"]

    assert await walk() == made
    assert await walk(state="Committed") == made[:3]
    assert await walk(state="Reserved") == made[3:]
    assert await walk(flow="revoke") == made[0::2]
    assert await walk(flow="publish", state="Reserved") == [made[3], made[5]]
    assert await walk(flow="nobody") == []


@pytest.mark.parametrize("query", [{"state": "open"}, {"flow": "a flow"}, {"after": "nonsense"}, {"limit": "0"}])
async def test_a_question_that_cannot_be_answered_says_so(console: Console, query: dict[str, str]) -> None:
    """OPS-3."""
    reply = await console.ask("/v1/obligations", **query)
    assert (reply.status, reply.problem) == (400, "parameter-invalid")


async def test_without_a_store_the_answer_is_503(storeless: Console) -> None:
    asked = {"flow": "publish", "key": "k", "trace_id": "t"}
    assert (await post(storeless, "/v1/obligations", asked)).status == 503
    assert (await storeless.ask("/v1/obligations")).status == 503
