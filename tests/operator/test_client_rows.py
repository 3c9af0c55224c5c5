"""COR-4, SEC-5: clients that register their calls themselves, checked against the schema and the rules of COR-2."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.operator.book import SERVICE, Book
from tests.operator.console import ConfiguredToken, Console, Reply, configured

SERVER_ID = "0b9e3a3c-9d0f-4f7e-8a56-3d3b1d3f0a11"
WAITING = {
    "client_correlation_id": "out-1",
    "target": "stock",
    "service_endpoint": "stock:/reserve",
    "phase": "WAITING_CONFIRM",
    "phase_1_timestamp": "2026-03-01T10:00:00.000Z",
}
PROCESSING = {
    **WAITING,
    "server_correlation_id": SERVER_ID,
    "phase": "PROCESSING",
    "phase_2_timestamp": "2026-03-01T10:00:01.000Z",
    "ttl_ms": 30_000,
}
COMMITTED = {**PROCESSING, "phase": "COMMITTED", "outcome": "COMMITTED"}


async def report(console: Console, document: Any, role: str = "sync") -> Reply:
    return await console.ask("/v1/ledger/entries", role=role, method="POST", data=orjson.dumps(document))


async def entries(console: Console, **query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await console.ask("/v1/ledger/entries", **query)).json["entries"]
    return found


async def test_a_reported_row_is_an_entry_like_any_other(console: Console, book: Book) -> None:
    """COR-4, LED-1: in one order of change with the server rows, with all fields, found by either ID."""
    assert (await report(console, PROCESSING)).status == 201
    await book.register("in-1")
    first, second = await entries(console)
    assert (first["actor"], second["actor"]) == ("client", "server")
    assert first["entry_id"] == first["client_correlation_id"] == first["parent_reference_id"] == "out-1"
    assert (first["source"], first["target"], first["service_endpoint"]) == (SERVICE, "stock", "stock:/reserve")
    assert first["service_ledger_id"] == second["service_ledger_id"]
    assert (first["phase"], first["outcome"], first["ttl_ms"]) == ("PROCESSING", None, 30_000)
    assert first["phase_2_timestamp"] == "2026-03-01T10:00:01.000Z"
    assert first["payload_ref"] == f"intent:{SERVER_ID}"
    assert await entries(console, actor="client") == [first]
    assert await entries(console, server_correlation_id=SERVER_ID) == [first]
    assert await entries(console, client_correlation_id="out-1") == [first]


async def test_the_same_report_again_changes_nothing(console: Console, book: Book) -> None:
    """COR-4: idempotent."""
    assert (await report(console, PROCESSING)).status == 201
    (before,) = await entries(console)
    assert (await report(console, PROCESSING)).status == 200
    assert await entries(console) == [before]


async def test_a_row_goes_on_and_never_back(console: Console, book: Book) -> None:
    """COR-4: each step a higher version; what is over stays as it is."""
    versions = []
    for step in (WAITING, PROCESSING, COMMITTED):
        assert (await report(console, step)).status == 201
        (row,) = await entries(console)
        versions.append(row["version"])
    assert versions == sorted(set(versions))
    for wrong in (WAITING, PROCESSING, {**COMMITTED, "phase": "FAILED", "outcome": "FAILED"}):
        refused = await report(console, wrong)
        assert (refused.status, refused.problem) == (409, "entry-conflict")
    (row,) = await entries(console)
    assert (row["phase"], row["version"]) == ("COMMITTED", versions[-1])


@pytest.mark.parametrize(
    "change",
    [
        {"target": "other", "service_endpoint": "other:/reserve"},
        {"service_endpoint": "stock:/else"},
        {"phase_1_timestamp": "2026-03-01T09:00:00Z"},
        {"server_correlation_id": SERVER_ID.replace("0b9e", "1b9e")},
        {"transaction_reference": "t"},
        {"ttl_ms": 1},
    ],
)
async def test_what_was_said_is_not_taken_back(console: Console, book: Book, change: dict[str, Any]) -> None:
    """COR-4: an ID is one call."""
    await report(console, PROCESSING)
    refused = await report(console, {**COMMITTED, **change})
    assert (refused.status, refused.problem) == (409, "entry-conflict")
    assert [row["phase"] for row in await entries(console)] == ["PROCESSING"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("client_correlation_id", "a b"),
        ("client_correlation_id", 7),
        ("client_correlation_id", "x" * 256),
        ("target", "no such name!"),
        ("service_endpoint", "other:/reserve"),
        ("service_endpoint", "stock"),
        ("service_endpoint", "stock:reserve"),
        ("service_endpoint", 1),
        ("actor", "server"),
        ("source", "billing"),
        ("service_ledger_id", SERVER_ID),
        ("payload_ref", "intent:1"),
        ("sync_timestamp", "2026-03-01T10:00:00Z"),
        ("phase", "DONE"),
        ("phase", None),
        ("outcome", "COMMITTED"),
        ("phase_1_timestamp", "yesterday"),
        ("phase_1_timestamp", "2026-03-01T10:00:00"),
        ("phase_1_timestamp", 1),
        ("phase_2_timestamp", None),
        ("phase_2_timestamp", "2026-03-01T09:59:59Z"),
        ("server_correlation_id", None),
        ("server_correlation_id", "not-a-uuid"),
        ("parent_reference_id", ""),
        ("parent_reference_id", "a\u00e9"),
        ("ttl_ms", 0),
        ("ttl_ms", True),
        ("ttl_ms", 10**18),
        ("transaction_reference", "a b"),
        ("nonsense", 1),
    ],
)
async def test_a_row_that_does_not_fit_the_schema_is_refused(
    console: Console, book: Book, field: str, value: Any
) -> None:
    """LED-1, COR-4: 400 names the field, and nothing is stored."""
    refused = await report(console, {**PROCESSING, field: value})
    assert refused.status == 400
    assert refused.problem in ("member-invalid", "member-missing", "member-unknown")
    assert "a b" not in refused.json["detail"]
    assert await entries(console) == []


async def test_a_parent_is_a_call_that_came_in(console: Console, book: Book) -> None:
    """COR-2: the client correlation ID this service was called with, or none at all."""
    refused = await report(console, {**PROCESSING, "parent_reference_id": "in-1"})
    assert (refused.status, refused.problem) == (422, "parent-unknown")
    await book.register("in-1")
    assert (await report(console, {**PROCESSING, "parent_reference_id": "in-1"})).status == 201
    (row,) = await entries(console, actor="client")
    assert row["parent_reference_id"] == "in-1"
    (server,) = await entries(console, actor="server")
    assert server["parent_reference_id"] == "in-1"
    assert server["target"] is None


@pytest.mark.parametrize("role", ["audit", "compliance", "operations"])
async def test_only_sync_writes(console: Console, book: Book, role: str) -> None:
    """SEC-5."""
    assert (await report(console, PROCESSING, role=role)).status == 403
    assert (await console.ask("/v1/ledger/entries", role="sync")).status == 403


async def test_a_token_writes_for_its_own_service_alone(console: Console, book: Book) -> None:
    """SEC-5: its `service`, by default its name."""
    digest = configured("sync").sha256
    for token, status in (
        (ConfiguredToken("orders", "sync", digest), 201),
        (ConfiguredToken("billing", "sync", digest), 403),
        (ConfiguredToken("orders", "sync", digest, service="billing"), 403),
    ):
        console.access.replace_tokens([token])
        assert (await report(console, PROCESSING)).status == status
