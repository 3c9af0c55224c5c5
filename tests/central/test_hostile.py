"""One service's rows, however odd, spoil nothing for the others (LED-1 .. LED-5, SEC-5, OPS-3)."""

from __future__ import annotations

import asyncio
import tracemalloc
from datetime import timedelta
from typing import Any, Literal
from uuid import uuid4

import pytest
import zstandard
from aiohttp import ClientPayloadError

from gateway.central import tree, wire
from gateway.central.queries import CentralQueries
from gateway.central.trail import Access
from gateway.protocol.problems import Problem
from tests.central.desk import PATIENCE_S, Desk, entry, now, value_of

SERVER_ID = "11111111-1111-4111-8111-111111111111"


async def crowd(desk: Desk, **members: Any) -> None:
    """More rows of one server ID than are looked at in one go."""
    for start in range(0, 1100, 550):
        rows = [
            desk.entry("billing", actor="client", target="x", client_id=f"z{n}", server_id=SERVER_ID, **members)
            for n in range(start, start + 550)
        ]
        await desk.give("billing", *rows)


async def test_a_ttl_past_every_calendar_is_refused_and_one_that_is_there_spoils_no_list(desk: Desk) -> None:
    """LED-5, OPS-3: stalled rows and the summary are answered whatever somebody's TTL was."""
    huge = desk.entry("orders", phase="WAITING_CONFIRM", ttl_ms=10**16)
    assert (await desk.sync("orders", [huge])).problem == "entry-invalid"
    await desk.give("orders", huge | {"ttl_ms": wire.TTL_MS_MAX}, desk.entry("orders", phase="TTL_EXPIRED"))
    await desk.owner.execute("UPDATE entries SET ttl_ms = $1", 10**16)
    for path in ("/v1/ledger/stalled", "/v1/ledger/summary"):
        assert (await desk.ask(path)).status == 200
    [item] = (await desk.ask("/v1/ledger/stalled")).json["items"]
    assert (item["reason"], item["age_s"]) == ("ttl-expired", 0)


async def raw(desk: Desk, target: bytes) -> bytes:
    """The status line of an answer to a path that no client library would send."""
    reader, writer = await asyncio.open_connection("127.0.0.1", desk.port)
    authorization = f"Authorization: Bearer {value_of('audit')}\r\n".encode()
    writer.write(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n" + authorization + b"Connection: close\r\n\r\n")
    async with asyncio.timeout(PATIENCE_S):
        answer = await reader.read()
    writer.close()
    return answer.partition(b"\r\n")[0]


async def test_a_nul_in_a_path_is_recorded_like_any_other(desk: Desk) -> None:
    """SEC-5: refused for what it is, with its trace, and without harm to those who ask at the same moment."""
    others = [desk.ask("/v1/services", as_="audit") for _ in range(8)]
    status, *replies = await asyncio.gather(raw(desk, b"/v1/ledger/tree/%00"), *others)
    assert b" 400 " in status
    assert {reply.status for reply in replies} == {200}
    assert await desk.owner.fetchval("SELECT target FROM access_log WHERE status = 400") == "\ufffd"


async def test_an_access_that_the_store_refuses_is_not_held_against_its_neighbours(desk: Desk) -> None:
    """SEC-5: in one batch, only the bad one fails."""
    trail = desk.sources.trail
    good, bad = (Access("audit", "audit", "GET", path, None, None, 200) for path in ("/good", "/b\0d"))
    futures = [asyncio.get_running_loop().create_future() for _ in range(3)]
    trail._waiting = list(zip((good, bad, good), futures, strict=True))
    await trail._write()
    assert [future.exception() is None for future in futures] == [True, False, True]
    assert await desk.owner.fetchval("SELECT count(*) FROM access_log WHERE path = '/good'") == 2


async def test_a_record_that_fails_in_any_way_is_no_answer(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-5: not only when the store is away."""

    async def broken(*args: object) -> None:
        raise ValueError

    monkeypatch.setattr(desk.listener, "_audit", broken)
    reply = await desk.ask("/v1/services", as_="audit")
    assert (reply.status, reply.problem) == (503, "access-not-recorded")


@pytest.mark.parametrize("ago_s", [0, 40 * 86_400], ids=["newer", "older"])
async def test_rows_of_a_crowded_id_are_found_by_whoever_may_see_them(desk: Desk, ago_s: int) -> None:
    """LED-5, SEC-5: by service, by pair, by transaction; and page by page, none left out."""
    ids = {"client_id": "mine", "server_id": SERVER_ID}
    own = desk.entry("orders", **ids, at=now(60))
    await desk.give("orders", own)
    await desk.give("inventory", desk.entry("inventory", actor="client", target="orders", **ids, at=now(60)))
    await crowd(desk, at=now(ago_s))
    assert (await desk.ask(f"/v1/transactions/{SERVER_ID}", as_="orders-audit")).status == 200
    for by in ({"server_correlation_id": SERVER_ID}, {"q": SERVER_ID}):
        found = (await desk.ask("/v1/ledger/entries", as_="orders-audit", **by)).json["entries"]
        assert [row["client_correlation_id"] for row in found] == ["mine"]
        pair = {"client_correlation_id": "mine", "server_correlation_id": SERVER_ID}
    assert (await desk.ask("/v1/ledger/pair", **pair)).json["confirmed"] is True
    exported = await desk.ask("/v1/ledger/export", as_="compliance", format="ndjson", server_correlation_id=SERVER_ID)
    assert exported.body.count(b"\n") == 1102
    first = (await desk.ask("/v1/ledger/entries", server_correlation_id=SERVER_ID, actor="server")).json
    found, after = first["entries"], first["next"]
    while after is not None:
        page = (await desk.ask("/v1/ledger/entries", server_correlation_id=SERVER_ID, actor="server", after=after)).json
        found, after = found + page["entries"], page["next"]
    assert [row["entry_id"] for row in found] == [own["entry_id"]]


def nodes(roots: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found, stack = [], list(roots)
    while stack:
        found.append(stack.pop())
        stack += found[-1]["children"]
    return found


def test_a_chain_whose_calls_are_dated_before_their_parents_is_told_once() -> None:
    """LED-5: as large as its rows, and no parent that is there is called missing."""
    start = now(10_000)
    rows = [
        entry("x", "i", actor="client", target="y", client_id=f"c{n}", server_id=None,
              parent=f"c{n - 1}" if n else None, at=start - timedelta(seconds=n))
        for n in range(1000)
    ]  # fmt: skip
    found = nodes(tree.build("c0", rows))
    cut = sum(tree.TOO_DEEP in node["notes"] for node in found)
    assert len(found) == 1000 + cut
    assert not any(tree.MISSING_PARENT in node["notes"] for node in found)


async def test_a_server_that_was_not_called_confirms_nothing(desk: Desk) -> None:
    """LED-5, SEC-5: anybody can write a server row of an ID that it has heard of."""
    ids = {"client_id": "k", "server_id": "s"}
    await desk.give("inventory", desk.entry("inventory", actor="client", target="orders", **ids))
    await desk.give("billing", desk.entry("billing", **ids))
    pair = (await desk.ask("/v1/ledger/pair", client_correlation_id="k", server_correlation_id="s")).json
    assert pair["confirmed"] is False
    [root] = (await desk.ask("/v1/ledger/tree/k")).json["roots"]
    assert tree.TARGET_DIFFERS in root["notes"]
    assert "another server than its client called" in (await desk.ask("/v1/transactions/s")).json["why"]


async def test_registering_by_name_keeps_the_address_and_the_newest_ledger(desk: Desk) -> None:
    """LED-3, LED-4: what is not said stays; but a token goes to no address that it did not come with."""
    new = await desk.register(
        "orders", service_ledger_id=str(uuid4()), operator_url="http://127.0.0.1:9", pull_token="abc"
    )
    assert await desk.register("orders") == new
    service = await desk.sources.services.one(new)
    assert (service.operator_url, service.pull_token) == ("http://127.0.0.1:9", "abc")
    await desk.register("orders", operator_url="http://127.0.0.1:8")
    service = await desk.sources.services.one(new)
    assert (service.operator_url, service.pull_token) == ("http://127.0.0.1:8", None)


async def test_a_name_has_a_bounded_number_of_ledgers(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """LED-4, OPS-3: and those it has may register again."""
    monkeypatch.setattr("gateway.central.services.LEDGERS_MAX", 2)
    second = await desk.register("orders", service_ledger_id=str(uuid4()))
    third = {"name": "orders", "service_ledger_id": str(uuid4())}
    reply = await desk.post("/v1/services", third, as_="orders-sync")
    assert (reply.status, reply.problem) == (409, "too-many-ledgers")
    assert await desk.register("orders", service_ledger_id=str(second)) == second


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (zstandard.compress(b"\n" * (wire.LINES_MAX + 1)), "too-many-lines"),
        (zstandard.compress(b"\0" * (wire.PLAIN_BYTES_MAX + 1)), "payload-too-large"),
        (zstandard.compress(b"") * 2, "body-malformed"),
        (zstandard.compress(b"x" * 100)[:-3], "body-malformed"),
        (zstandard.compress(b"x") + b"y", "body-malformed"),
    ],
    ids=["lines", "bomb", "two frames", "cut short", "more behind it"],
)
def test_a_body_is_one_whole_frame_of_bounded_size(body: bytes, problem: str) -> None:
    """LED-2, OPS-3."""
    with pytest.raises(Problem, match=problem):
        wire.lines_of(body, "zstd")


def test_lines_are_counted_before_there_is_a_list_of_them() -> None:
    """OPS-3: a list of so many empty lines is many times as large as the text."""
    tracemalloc.start()
    try:
        with pytest.raises(Problem, match="too-many-lines"):
            wire.lines_of(b"\n" * wire.BODY_BYTES_MAX, "")
        assert tracemalloc.get_traced_memory()[1] < 2 * wire.BODY_BYTES_MAX
    finally:
        tracemalloc.stop()


async def test_few_batches_are_unpacked_at_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """OPS-3: the others wait as they came, compressed."""
    unpacked = asyncio.Event()

    def seen(*args: Any) -> list[bytes]:
        unpacked.set()
        return wire.lines_of(*args)

    monkeypatch.setattr("gateway.central.writing_endpoints.lines_of", seen)
    in_line = asyncio.Event()

    class Turns(asyncio.Semaphore):
        async def acquire(self) -> Literal[True]:
            in_line.set()
            return await super().acquire()

    turns = desk.sources.ingest.turns = Turns(1)
    async with turns:
        in_line.clear()
        syncing = asyncio.ensure_future(desk.sync("orders", [desk.entry("orders")]))
        async with asyncio.timeout(PATIENCE_S):
            await in_line.wait()
        assert not unpacked.is_set()
    assert (await syncing).status == 200


async def test_streams_that_are_asked_for_at_once_are_bounded_too(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """OPS-3: a place is taken when it is asked for, and free again afterwards."""
    monkeypatch.setattr("gateway.operator.listener.FOLLOWERS_MAX", 2)
    url, headers = f"http://127.0.0.1:{desk.port}/v1/events", {"Authorization": f"Bearer {value_of('audit')}"}
    async with asyncio.timeout(PATIENCE_S):
        streams = await asyncio.gather(*(desk.session.get(url, headers=headers) for _ in range(8)))
        assert sorted(stream.status for stream in streams) == [200] * 2 + [503] * 6
        for stream in streams:
            stream.close()
        while (again := await desk.session.get(url, headers=headers)).status != 200:
            await again.read()
        again.close()


async def test_an_export_ends_unfinished_with_its_token(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-5: what was taken so far does not look whole."""
    monkeypatch.setattr("gateway.central.export.PAGE_ROWS", 1)
    await desk.give("orders", *(desk.entry("orders") for _ in range(3)))
    entries = CentralQueries.entries

    async def removed(*args: Any, **named: Any) -> Any:
        desk.access.replace_tokens([])
        return await entries(*args, **named)

    monkeypatch.setattr(CentralQueries, "entries", removed)
    with pytest.raises(ClientPayloadError):
        await desk.ask("/v1/ledger/export", as_="compliance", format="ndjson")


async def test_one_row_at_two_times_in_one_post_is_refused(desk: Desk) -> None:
    """COR-4: the time of Phase 1 is part of what identifies a row."""
    row = desk.entry("orders", actor="client", target="x", at=now(10))
    other = desk.entry("orders")["phase_1_timestamp"]
    moved = row | {"phase_1_timestamp": other, "version": row["version"] + 1}
    assert (await desk.post("/v1/ledger/entries", [row, moved], as_="orders-sync")).problem == "entry-moved"


async def test_a_place_in_the_trail_that_cannot_be_is_refused(desk: Desk) -> None:
    """SEC-5, OPS-3."""
    for after in ("9" * 30, "-1"):
        assert (await desk.ask("/v1/access", as_="audit", after=after)).status == 400
