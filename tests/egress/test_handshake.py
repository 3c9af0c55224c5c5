"""COR-4: an unmodified application's mutation becomes a handshake, with the client's row ahead of every step."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gateway.protocol.faults import StoreAway, UpstreamFailure
from tests.e2e.harness import eventually
from tests.egress.conftest import (
    SERVER_ID,
    Application,
    Target,
    cut,
    plain,
    refusal,
    registered,
    running,
    settled,
)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_a_mutation_is_registered_and_confirmed(application: Application, target: Target, method: str) -> None:
    """COR-1, COR-4: two phases for the called service, one plain answer for the application."""
    target.scripts = [registered(), settled()]
    body = None if method == "DELETE" else b'{"a": 1}'
    answer = await application.call("/things?x=1", method=method, body=body, Content_Type="application/json")
    assert (answer.status, answer.body) == (201, b'{"id": 7}')
    first, second = target.seen
    assert (first.method, first.path, first.body) == (method, "/things?x=1", body or b"")
    assert (second.method, second.path, second.body) == ("POST", "/things/confirm", b"")
    for seen in (first, second):
        assert seen.headers["Authorization"] == "Bearer app"
        assert seen.headers["DTT-2PHP-Enabled"] == "true"
        assert seen.headers["Host"] == target.url.removeprefix("http://")
    client_id = first.headers["DTT-2PHP-Client-Correlation-ID"]
    assert second.headers["DTT-2PHP-Client-Correlation-ID"] == client_id
    assert second.headers["DTT-2PHP-Server-Correlation-ID"] == SERVER_ID
    row = await target.row()
    assert (row["client_correlation_id"], row["server_correlation_id"]) == (client_id, SERVER_ID)
    assert (row["state"], row["target"], row["source"], row["ttl_ms"]) == ("COMMITTED", "stock", "orders", 30_000)


async def test_the_row_is_durable_before_every_step(application: Application, target: Target) -> None:
    """COR-4: the called service itself looks into the caller's store."""
    target.scripts = [registered(), settled()]
    await application.call()
    assert [seen.row["state"] for seen in target.seen if seen.row] == ["WAITING_CONFIRM", "PROCESSING"]
    assert target.seen[1].row is not None
    assert target.seen[1].row["server_correlation_id"] == SERVER_ID


async def test_the_answer_shows_no_handshake_but_its_ids(application: Application, target: Target) -> None:
    """COR-4: the service's own headers, and the two IDs."""
    target.scripts = [registered(), settled()]
    answer = await application.call()
    ours = {name for name in answer.headers if name.startswith("dtt-2php-")}
    assert ours == {"dtt-2php-client-correlation-id", "dtt-2php-server-correlation-id"}
    assert answer.headers["x-own"] == "yes"
    assert "cache-control" not in answer.headers


@pytest.mark.parametrize(("status", "upstream_status", "told"), [(404, 404, 404), (500, 503, 503), (500, None, 500)])
async def test_a_known_failure_is_told_with_the_services_own_status(
    application: Application, target: Target, status: int, upstream_status: int | None, told: int
) -> None:
    """COR-4."""
    target.scripts = [registered(), settled("FAILED", status, upstream_status)]
    assert (await application.call()).status == told
    assert (await target.row())["state"] == "FAILED"


async def test_a_parent_comes_from_the_baggage(application: Application, target: Target) -> None:
    """COR-2: percent-decoded, whatever else the baggage holds; on it goes as the parent of the next tier."""
    target.scripts = [registered(), settled()]
    await application.call(baggage="user=1;p=2, 2php-parent=call%2F7%20x;q=1 ,k=v")
    assert (await target.row())["parent_reference_id"] != "call/7 x"  # a space is in no ID
    await target.owner.execute("DELETE FROM client_entries")
    target.scripts = [registered(), settled()]
    await application.call(baggage="user=1, 2php-parent=call%2F7;q=1 ,k=v", DTT_2PHP_Client_Correlation_ID="mine")
    row = await target.row()
    assert (row["parent_reference_id"], row["client_correlation_id"]) == ("call/7", "mine")
    assert target.seen[-1].headers["baggage"] == "user=1,k=v,2php-parent=mine"


async def test_without_a_parent_a_call_is_its_own_root(application: Application, target: Target) -> None:
    """COR-2."""
    target.scripts = [registered(), settled()]
    await application.call(traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    row = await target.row()
    assert row["parent_reference_id"] == row["client_correlation_id"]
    assert row["transaction_reference"] == "4bf92f3577b34da6a3ce929d0e0e4736"


async def test_every_retry_with_one_idempotency_key_is_one_call(application: Application, target: Target) -> None:
    """COR-4: a crash in between leaves the row, and the retry goes on with the same ID."""
    target.scripts = [registered(), cut]
    first = asyncio.create_task(application.call(Idempotency_Key="pay-17"))
    await eventually(lambda: len(target.seen) == 2)
    first.cancel()
    target.scripts = [registered("PROCESSING"), settled()]
    again = await application.call(Idempotency_Key="pay-17")
    assert again.status == 201
    assert len({seen.headers["DTT-2PHP-Client-Correlation-ID"] for seen in target.seen}) == 1
    assert (await target.row())["state"] == "COMMITTED"


async def test_an_idempotency_key_belongs_to_its_call(application: Application, target: Target) -> None:
    """COR-4: the same key on another path, or with another method, is another call."""
    target.scripts = [plain()]
    await application.call("/a", Idempotency_Key="k")
    await application.call("/b", Idempotency_Key="k")
    await application.call("/b", method="PUT", Idempotency_Key="k")
    assert len({seen.headers["DTT-2PHP-Client-Correlation-ID"] for seen in target.seen}) == 3


async def test_an_id_that_was_another_call_is_refused_before_anything_is_sent(
    application: Application, target: Target
) -> None:
    """COR-1: one row, one call."""
    target.scripts = [registered(), settled()]
    await application.call("/things", DTT_2PHP_Client_Correlation_ID="mine")
    refused = await application.call("/others", DTT_2PHP_Client_Correlation_ID="mine")
    assert (refused.status, refused.problem) == (422, "client-correlation-id-reused")
    assert len(target.seen) == 2


@pytest.mark.parametrize(
    ("status", "state"), [(201, "COMMITTED"), (302, "COMMITTED"), (409, "FAILED"), (500, "FAILED")]
)
async def test_a_service_without_2php_has_executed_by_its_answer(
    application: Application, target: Target, status: int, state: str
) -> None:
    """COR-4: its answer is passed on, nothing is confirmed, and the row has no other side."""
    target.scripts = [plain(status)]
    answer = await application.call()
    assert (answer.status, answer.body, answer.headers["x-own"]) == (status, b"done", "yes")
    row = await target.row()
    assert (row["state"], row["server_correlation_id"], row["phase_2_timestamp"]) == (state, None, None)
    assert len(target.seen) == 1


@pytest.mark.parametrize("script", [plain(504), cut], ids=["504", "cut"])
async def test_phase_1_without_a_clear_answer_is_in_doubt_and_sent_once(
    application: Application, target: Target, script: object
) -> None:
    """COR-4: a service without 2PHP may have executed it."""
    target.scripts = [script]  # type: ignore[list-item]
    answer = await application.call()
    assert answer.status in (502, 504)
    row = await target.row()
    assert row["state"] == "WAITING_CONFIRM"
    assert row["in_doubt_since"] is not None
    assert len(target.seen) == 1


@pytest.mark.parametrize("status", [400, 401, 413, 429, 503])
async def test_a_refused_phase_1_is_passed_on_and_abandoned(
    application: Application, target: Target, status: int
) -> None:
    """COR-4: nothing was registered; the same key may be tried again and then counts."""
    target.scripts = [refusal(status)]
    assert (await application.call(Idempotency_Key="k")).status == status
    assert (await target.row())["state"] == "ABANDONED"
    target.scripts = [registered(), settled()]
    assert (await application.call(Idempotency_Key="k")).status == 201
    assert (await target.row())["state"] == "COMMITTED"


async def test_a_service_that_cannot_be_reached_had_no_effect(application: Application, target: Target) -> None:
    """COR-4: provably unsent."""
    application.handler.use(replace(application.handler._callee, upstream=_Unreachable()))
    answer = await application.call()
    assert (answer.status, answer.problem) == (502, "upstream-unreachable")
    assert (await target.row())["state"] == "ABANDONED"


async def test_a_lost_confirmation_is_repeated_until_the_outcome_is_known(
    application: Application, target: Target
) -> None:
    """COR-4: P2-8 makes that safe; Phase 1 is not repeated."""
    target.scripts = [registered(), cut, refusal(503), settled()]
    assert (await application.call()).status == 201
    assert [seen.path for seen in target.seen] == ["/things"] + ["/things/confirm"] * 3


async def test_what_still_runs_is_asked_for(application: Application, target: Target) -> None:
    """COR-4, ASY-2: a 202 is polled."""
    target.scripts = [registered(), running(), running(), settled()]
    assert (await application.call()).status == 201
    assert [seen.method for seen in target.seen] == ["POST", "POST", "GET", "GET"]
    assert target.seen[-1].path == f"/things/{SERVER_ID}"
    assert target.seen[-1].headers["Authorization"] == "Bearer app"


async def test_a_poll_never_leaves_the_called_service(application: Application, target: Target) -> None:
    """SEC: credentials go to no other host, whatever an answer says."""
    target.scripts = [registered(confirm="//evil.test/confirm"), running("http://evil.test/x"), settled()]
    assert (await application.call()).status == 201
    assert [seen.path for seen in target.seen] == ["/things", "/things/confirm", "/things/confirm"]


async def test_what_stays_in_doubt_is_told_as_such(application: Application, target: Target) -> None:
    """COR-4: a bounded wait, a 504 that says what to do, and a row that says since when."""
    target.scripts = [registered(), running()]
    answer = await application.call()
    assert (answer.status, answer.problem) == (504, "outcome-in-doubt")
    assert answer.headers["dtt-2php-server-correlation-id"] == SERVER_ID
    row = await target.row()
    assert row["state"] == "PROCESSING"
    assert row["in_doubt_since"] is not None


async def test_a_call_that_was_never_confirmed_in_time_had_no_effect(application: Application, target: Target) -> None:
    """COR-4, TTL-1: found by the retry of a call whose gateway died between the phases."""
    target.scripts = [registered("TTL_EXPIRED")]
    answer = await application.call(Idempotency_Key="k")
    assert (answer.status, answer.problem) == (408, "ttl-expired")
    assert (await target.row())["state"] == "TTL_EXPIRED"
    assert len(target.seen) == 1


@pytest.mark.parametrize(("phase", "state"), [("WAITING_CONFIRM", "ABANDONED"), ("PROCESSING", "PROCESSING")])
async def test_a_refused_confirmation_is_abandoned_only_if_none_came_before(
    application: Application, target: Target, phase: str, state: str
) -> None:
    """COR-4: of an earlier one nobody knows what it came to."""
    target.scripts = [registered(phase), refusal(401)]
    assert (await application.call()).status == 401
    assert (await target.row())["state"] == state


async def test_reads_are_passed_on_without_a_row(application: Application, target: Target) -> None:
    """COR-4: only mutations are handshakes."""
    target.scripts = [plain(200)]
    answer = await application.call("/things/7", method="GET", body=None)
    assert (answer.status, answer.body) == (200, b"done")
    assert "DTT-2PHP-Enabled" not in target.seen[0].headers
    assert await target.owner.fetchval("SELECT count(*) FROM client_entries") == 0


async def test_an_application_that_speaks_2php_is_not_helped(application: Application, target: Target) -> None:
    """COR-4: its own handshake is passed on as it is."""
    target.scripts = [registered()]
    answer = await application.call(DTT_2PHP_Enabled="true", DTT_2PHP_Client_Correlation_ID="mine")
    assert answer.headers["dtt-2php-phase-state"] == "WAITING_CONFIRM"
    assert len(target.seen) == 1
    assert await target.owner.fetchval("SELECT count(*) FROM client_entries") == 0


async def test_a_large_answer_is_passed_on_as_it_comes(application: Application, target: Target) -> None:
    """COR-4: held by nobody, its outcome recorded."""
    target.scripts = [registered(), settled(body=b"x" * (3 << 20))]
    answer = await application.call()
    assert (answer.status, len(answer.body)) == (201, 3 << 20)
    assert (await target.row())["state"] == "COMMITTED"


async def test_without_the_store_nothing_is_sent(application: Application, target: Target) -> None:
    """COR-4: no row, no call."""
    application.handler.use(replace(application.handler._callee, rows=_Away()))
    target.scripts = [plain()]
    answer = await application.call()
    assert (answer.status, answer.problem) == (503, "store-unavailable")
    assert target.seen == []


async def test_an_outcome_that_the_store_does_not_take_is_told_all_the_same(
    application: Application, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """COR-4: it is durable where it happened; the row follows."""
    monkeypatch.setattr("gateway.egress.handshake.RECORD_AGAIN_S", 0.01)
    callee = application.handler._callee
    assert callee.rows is not None
    application.handler.use(replace(callee, rows=_AwayForOutcomes(callee.rows)))
    target.scripts = [registered(), settled()]
    assert (await application.call()).status == 201

    async def recorded() -> bool:
        return bool((await target.row())["state"] == "COMMITTED")

    await eventually(recorded)


class _Unreachable:
    authority = b"nowhere.test"

    async def open(self, *args: object, **options: object) -> None:
        raise UpstreamFailure("refused", sent=False, detail="")


class _Away:
    async def open(self, new: object) -> None:
        raise StoreAway("away")

    async def move(self, move: object) -> bool:
        raise StoreAway("away")


class _AwayForOutcomes:
    def __init__(self, rows: object) -> None:
        self._rows = rows
        self._refusals = 3

    async def open(self, new: object) -> object:
        return await self._rows.open(new)  # type: ignore[attr-defined]

    async def move(self, move: object) -> object:
        if move.phase == "COMMITTED" and self._refusals:  # type: ignore[attr-defined]
            self._refusals -= 1
            raise StoreAway("away")
        return await self._rows.move(move)  # type: ignore[attr-defined]
