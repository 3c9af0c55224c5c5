"""Malformed and ambiguous requests, through the whole gateway (RELIABILITY fact 3, OPS-3).

Each is refused with its status and problem type, whatever it is aimed at; nothing is stored, nothing goes upstream, and
nothing that was hidden behind it is ever served.
"""

from __future__ import annotations

import pytest

from tests.e2e.harness import eventually
from tests.e2e.malformed import CHUNKS, CLIENT_ID, ENABLED, EVERYWHERE, SERVER_ID, SMUGGLED, UUID, aimed, post
from tests.e2e.wire import Call, Message, Place, answering, module_place

pytestmark = pytest.mark.asyncio(loop_scope="module")
place = module_place(
    listen={"max_header": "8KiB", "max_headers": 64},
    routes=[{"path": "/orders", "methods": ["POST", "PUT"]}, {"path": "/deep/**"}],
)

CALLER = b"Authorization: Bearer me"
WAITING = b"c-waiting"
AIMS = ("phase 1", "phase 2", "pass-through")


async def aim(place: Place, at: str) -> tuple[bytes, tuple[bytes, ...]]:
    """Target and headers; those of Phase 2 would confirm an intent that really waits."""
    if at == "pass-through":
        return b"/plain", ()
    if at == "phase 1":
        return b"/orders", (ENABLED, CALLER, CLIENT_ID + b"c-new")
    answer = await place.through(aimed(post(), b"/orders", (ENABLED, CALLER, CLIENT_ID + WAITING)))
    assert answer.status == 200
    server_id = answer.header(b"dtt-2php-server-correlation-id") or b""
    return b"/orders/confirm", (ENABLED, CALLER, CLIENT_ID + WAITING, SERVER_ID + server_id)


async def refusal(place: Place, request: bytes) -> Message:
    """The answer, with proof that nothing else came of the request: one answer, no row, no byte upstream."""
    origin = place.origin
    origin.behave = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nupstream")
    origin.seen.clear()
    before = await place.stored()
    peer = await place.peer()
    await peer.send(request)
    answer = await peer.answer()
    if answer.header(b"connection") == b"close":
        assert await peer.ended() == b""
    else:  # still in step: the next request is the next request
        await peer.send(b"GET /plain HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await peer.answer()).body == b"upstream"
        assert origin.seen.pop().line == b"GET /plain HTTP/1.1"
    peer.close()
    assert origin.seen == []
    assert await place.stored() == before
    return answer


@pytest.mark.parametrize("at", AIMS)
@pytest.mark.parametrize("name", EVERYWHERE)
async def test_a_malformed_or_ambiguous_request_is_refused_without_a_trace(place: Place, name: str, at: str) -> None:
    """RELIABILITY fact 3, OPS-3, P1-1."""
    row = EVERYWHERE[name]
    target, headers = await aim(place, at)
    own = tuple(line for line in headers if line.partition(b" ")[0] not in row.request)  # a row's own IDs stand alone
    answer = await refusal(place, aimed(row.request, target, own))
    assert (answer.status, answer.problem) == (row.status, row.problem)


@pytest.mark.parametrize("name", sorted(EVERYWHERE.keys() - {"ours: empty lines without end"}))
async def test_a_refused_request_in_a_pipeline_ends_it(place: Place, name: str) -> None:
    """RELIABILITY fact 3: what is behind it is never looked at; what came before it in one segment is answered by the
    upstream, or by the refusal itself (the parser lets go of it), and then it was not forwarded either."""
    row = EVERYWHERE[name]
    origin = place.origin
    origin.behave = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nupstream")
    origin.seen.clear()
    peer = await place.peer()
    await peer.send(b"GET /first HTTP/1.1\r\nHost: a\r\n\r\n" + aimed(row.request, b"/plain", ()) + SMUGGLED)
    answers = [await peer.answer()]
    if answers[0].status == 200:
        answers.append(await peer.answer())
    assert answers[-1].problem in (row.problem, "malformed-request")  # with more behind it, some look worse
    if answers[-1].header(b"connection") == b"close":
        assert await peer.ended() == b""
        assert [seen.target for seen in origin.seen] == [b"/first"] * (len(answers) - 1)
    peer.close()


async def read_only(call: Call) -> None:
    await call.body()


@pytest.mark.parametrize("name", CHUNKS)
async def test_a_chunked_body_that_breaks_on_the_way_never_looks_whole_upstream(place: Place, name: str) -> None:
    """RELIABILITY fact 3: the head may be on its way already; its body is cut, and nothing is made of the rest."""
    row = CHUNKS[name]
    origin = place.origin
    origin.behave = read_only
    origin.seen.clear()
    peer = await place.peer()
    await peer.send(aimed(row.request, b"/plain", ()) + SMUGGLED, piece_bytes=37)
    answer = await peer.answer()
    assert (answer.status, answer.problem) in [
        (400, "malformed-request"),
        (400, "malformed-body"),
        (400, "chunk-overhead"),
    ]
    assert await peer.ended() == b""
    peer.close()
    assert [seen.target for seen in origin.seen] in ([], [b"/plain"])

    async def cut() -> bool:
        return not any(seen.whole for seen in origin.seen)

    await eventually(cut)


@pytest.mark.parametrize("name", EVERYWHERE)
async def test_a_refusal_tells_nothing_of_the_request(place: Place, name: str) -> None:
    """OPS-3, SEC-4: neither what was sent nor how the parser puts it."""
    canary = b"canary-4711"
    request = aimed(EVERYWHERE[name].request, b"/plain/" + canary, (b"Authorization: Bearer " + canary,))
    answer = await place.through(request)
    assert answer.status >= 400
    told = b" ".join([answer.line, answer.body, *(name + value for name, value in answer.headers)])
    for word in (canary, b"Traceback", b"aiohttp", b"llhttp", b"Exception"):
        assert word not in told
    assert canary.decode() not in place.gateway.logs()


# --- paths


def to(target: bytes, *lines: bytes) -> bytes:
    return aimed(post(*lines), target, (ENABLED, CALLER, CLIENT_ID + b"c-path"))


AMBIGUOUS_PATHS = [
    b"/orders%2fconfirm", b"/orders%2Fconfirm", b"/orders%252fconfirm", b"/orders%25252fconfirm", b"/orders/./confirm",
    b"/orders/%2e/confirm", b"/orders/x/../confirm", b"/orders/x/%2e%2E/confirm", b"/orders//confirm", b"//orders",
    b"//orders/confirm", b"/%6frders", b"/%256frders", b"/orders/%63onfirm", b"/orders/confir%6d", b"/orders%5cconfirm",
    b"/orders;a=b/confirm", b"/orders/confirm;a", b"/orders;/confirm", b"/x/../orders", b"/x/%2e%2e/orders",
    b"/x/..%2forders", b"/x%2f..%2forders", b"/./orders", b"/orders/.", b"/orders/confirm/.", b"/deep/../orders",
    b"/deep%2f..%2forders", b"/deep/x/..%2f../orders/confirm", b"/dee%70", b"/x/..;/deep/a",
]  # fmt: skip


@pytest.mark.parametrize("headers", [(), (SERVER_ID + UUID,)], ids=["phase 1", "phase 2"])
@pytest.mark.parametrize("path", AMBIGUOUS_PATHS)
async def test_a_path_that_some_reader_takes_for_another_route_is_refused(
    place: Place, path: bytes, headers: tuple[bytes, ...]
) -> None:
    """DESIGN decision 14: whether it speaks 2PHP or not, for a protected route must not be reached around it."""
    answer = await refusal(place, to(path, *headers))
    assert (answer.status, answer.problem) == (400, "ambiguous-path")
    plain = await refusal(place, b"PUT " + path + b"?a=b HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
    assert (plain.status, plain.problem) == (400, "ambiguous-path")


@pytest.mark.parametrize(
    "path", [b"/plain%2fconfirm", b"/plain/./confirm", b"//plain", b"/ordersx%2fconfirm", b"/x/..%2fy"]
)
async def test_a_path_that_is_nobodys_route_in_any_reading_is_passed_on(place: Place, path: bytes) -> None:
    """Decision 14, OPT-2: only what would mean another route is refused."""
    place.origin.behave = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    assert (await place.through(to(path))).status == 200
    assert place.origin.seen[-1].target == path


# --- what a 2PHP request must say

PHASE_1 = (b"/orders", ENABLED, CALLER)
PHASE_2 = (b"/orders/confirm", ENABLED, CALLER)
ID = CLIENT_ID + b"c-handshake"
TTL = b"DTT-2PHP-Requested-TTL: "
MALFORMED_ID = (400, "client-correlation-id-malformed")
MALFORMED_TTL = (400, "requested-ttl-malformed")
HANDSHAKES: dict[str, tuple[tuple[bytes, ...], tuple[int, str]]] = {
    "no client id": (PHASE_1, (400, "client-correlation-id-missing")),
    "empty client id": ((*PHASE_1, CLIENT_ID), MALFORMED_ID),
    "client id with a space": ((*PHASE_1, CLIENT_ID + b"a b"), MALFORMED_ID),
    "client id with a tab": ((*PHASE_1, CLIENT_ID + b"a\tb"), MALFORMED_ID),
    "client id not ascii": ((*PHASE_1, CLIENT_ID + b"\xe9"), MALFORMED_ID),
    "client id too long": ((*PHASE_1, CLIENT_ID + b"x" * 256), MALFORMED_ID),
    "enabled twice": ((*PHASE_1, ENABLED, ID), (400, "repeated-header")),
    "enabled and not": ((*PHASE_1, b"dtt-2php-enabled: no", ID), (400, "repeated-header")),
    "ttl twice": ((*PHASE_1, ID, TTL + b"1", TTL + b"1"), (400, "repeated-header")),
    "ttl zero": ((*PHASE_1, ID, TTL + b"0"), MALFORMED_TTL),
    "ttl negative": ((*PHASE_1, ID, TTL + b"-5"), MALFORMED_TTL),
    "ttl with a unit": ((*PHASE_1, ID, TTL + b"5s"), MALFORMED_TTL),
    "ttl not ascii": ((*PHASE_1, ID, TTL + "３".encode()), MALFORMED_TTL),
    "no credentials": ((b"/orders", ENABLED, ID), (401, "credentials-missing")),
    "server id malformed": ((*PHASE_2, ID, SERVER_ID + b"7"), (400, "server-correlation-id-malformed")),
    "server id in braces": ((*PHASE_2, ID, SERVER_ID + b"{%b}" % UUID), (400, "server-correlation-id-malformed")),
    "phase 2 without client id": ((*PHASE_2, SERVER_ID + UUID), (400, "client-correlation-id-missing")),
    "phase 2 of nobody": ((b"/orders/confirm", ENABLED, ID, SERVER_ID + UUID), (401, "credentials-missing")),
    "phase 2 of nothing": ((*PHASE_2, ID, SERVER_ID + UUID), (404, "intent-unknown")),
    "phase 2 on the phase 1 path": ((*PHASE_1, ID, SERVER_ID + UUID), (404, "intent-unknown")),
}


@pytest.mark.parametrize("name", HANDSHAKES)
async def test_a_handshake_that_says_the_wrong_thing_is_refused(place: Place, name: str) -> None:
    """P1-1, P1-2, P2-1, P2-7, SEC-2: nothing is stored; the body is consumed and the connection stays."""
    (target, *headers), expected = HANDSHAKES[name]
    answer = await refusal(place, aimed(post(b"Content-Length: 4", body=b"body"), target, tuple(headers)))
    assert (answer.status, answer.problem) == expected
    assert answer.header(b"connection") is None
