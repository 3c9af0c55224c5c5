"""What a transparent route may change (TRN-2, OPT-2), written down once: everything else is compared byte for byte.

On the answer: how this hop frames the body and keeps the connection, a Date that the upstream left out, and one header
of ours. On the request: the same framing, a settled `Expect`, and the headers that say who forwards it and under which
identifiers.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest

from gateway.protocol.modes import MUTATIONS
from tests.e2e.corpus.tap import Exchange, lines_of
from tests.e2e.wire import Message

REVEALED = b"dtt-2php-server-correlation-id"
OF_THIS_HOP = {b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer"}
FORWARDING = [b"X-Forwarded-For", b"X-Forwarded-Proto", b"X-Forwarded-Host", b"Via"]
IDENTIFIERS = [
    b"DTT-2PHP-Client-Correlation-ID",
    b"DTT-2PHP-Server-Correlation-ID",
    b"DTT-2PHP-Attempt-ID",
    b"Idempotency-Key",
    b"baggage",
]
MOMENTS = re.compile(
    rb"""
      (?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),[ ]\d\d[ ]\w{3}[ ]\d{4}[ ]\d\d:\d\d:\d\d[ ]GMT
    | \d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:Z|\.\d+)
    | \b\d+-\d{10}-\d+\b  # a WebDAV server's entity tag: inode, time and size
    | Second-\d+         # what is left of a lock's time
    """,
    re.VERBOSE,
)

Content = Callable[[Message], bytes]  # what a body says, where two runs say the same in other bytes


class Renaming:
    """Values that no two runs share, each replaced by its number in order of appearance.

    What was equal stays equal, so a token that comes back in another place than before is still noticed. Moments are
    all one: in which request of a run a second passes is chance.
    """

    def __init__(self, patterns: Iterable[bytes]) -> None:
        self._pattern = re.compile(b"|".join(patterns) or b"(?!)")
        self._numbers: dict[bytes, bytes] = {}

    def __call__(self, data: bytes) -> bytes:
        data = MOMENTS.sub(b"<moment>", data)
        return self._pattern.sub(lambda m: self._numbers.setdefault(m[0], b"<%d>" % len(self._numbers)), data)


def body_of(message: Message) -> bytes:
    return message.body


def pairs(first: list[Exchange], second: list[Exchange]) -> list[tuple[Exchange, Exchange]]:
    """The exchanges of two records that belong together: the same requests, as often, in the same order.

    Clients with several connections race with themselves, so only the order of equal request lines is compared.
    """
    by_line: dict[bytes, list[Exchange]] = defaultdict(list)
    for exchange in second:
        by_line[exchange.line].append(exchange)
    assert sorted(e.line for e in first) == sorted(e.line for e in second)
    return [(exchange, by_line[exchange.line].pop(0)) for exchange in first]


def assert_same_answer(expected: Exchange, got: Exchange, *, revealed: bool) -> None:
    """Exactly what the upstream said, in this very exchange."""
    ours = [line for line in _answer_lines(got) if _name(line) == REVEALED]
    assert len(ours) == revealed, (got.line, ours)
    _assert_equal(_without_ours(got, expected), _answer_lines(expected), got.line)
    _assert_same_bytes(got.whole.body, expected.whole.body, got.line)


def assert_same_request(sent: Exchange, seen: Exchange) -> None:
    """The upstream saw what the client sent, followed by headers of ours."""
    ours = FORWARDING + (IDENTIFIERS if is_mutation(sent) else [])
    told, wanted = _request_lines(seen, sent), _request_lines(sent, sent)
    added = told[len(told) - len(ours) :]
    assert [line.partition(b":")[0] for line in added] == ours, (sent.line, added)
    _assert_equal(told[: -len(ours)], wanted, sent.line)
    _assert_same_bytes(seen.request.body, sent.request.body, sent.line)
    assert (seen.request.whole, sent.request.whole) == (True, True), sent.line


def assert_same_course(
    direct: list[Exchange],
    through: list[Exchange],
    varying: Sequence[bytes] = (),
    *,
    content: Content = body_of,
    whole_uploads: bool = True,
) -> None:
    """Two runs of a client were the same: what it sent, and what it was told."""
    name, rename = Renaming(varying), Renaming(varying)
    for first, second in pairs(direct, through):
        _assert_equal(lines_of(rename(second.request_head)), lines_of(name(first.request_head)), first.line)
        if whole_uploads:
            _assert_same_bytes(rename(second.request.body), name(first.request.body), first.line)
            assert second.interim == first.interim, first.line
        told, wanted = _without_ours(second, first), _answer_lines(first)
        _assert_equal(_measured(map(rename, told)), _measured(map(name, wanted)), first.line)
        _assert_same_bytes(rename(content(second.whole)), name(content(first.whole)), first.line)


def is_mutation(exchange: Exchange) -> bool:
    return exchange.request.method in MUTATIONS


def _answer_lines(exchange: Exchange) -> list[bytes]:
    status, *fields = lines_of(exchange.answer_head)
    dropped = OF_THIS_HOP | ({b"content-length"} if exchange.whole.status == 204 else set())  # RFC 9110 8.6: none there
    lines = [status.replace(b"HTTP/1.0 ", b"HTTP/1.1 ", 1)]
    return lines + [line for line in fields if _name(line) not in dropped]


def _without_ours(got: Exchange, expected: Exchange) -> list[bytes]:
    """The lines of an answer without those that may have been added to the expected one."""
    added = {REVEALED}
    if expected.header(b"date") is None:
        added.add(b"date")
    if expected.whole.framing in ("chunked", "close"):
        added.add(b"content-length")
    return [line for line in _answer_lines(got) if _name(line) not in added]


def _measured(lines: Iterable[bytes]) -> list[bytes]:
    """Without the number of a length: the body that it measures is compared, and may name values of other lengths."""
    return [line.partition(b":")[0] if _name(line) == b"content-length" else line for line in lines]


def _request_lines(exchange: Exchange, sent: Exchange) -> list[bytes]:
    """Without the framing, if the client sent its body chunked: one that is kept has a length."""
    dropped = OF_THIS_HOP | ({b"expect"} if is_mutation(sent) else set())
    if sent.request.framing == "chunked":
        dropped = dropped | {b"content-length"}
    _, *fields = lines_of(exchange.request_head)  # versions are of a hop, and methods and targets are pairs already
    return [line for line in fields if _name(line) not in dropped]


def _name(line: bytes) -> bytes:
    return line.partition(b":")[0].lower()


def _assert_equal(got: list[bytes], expected: list[bytes], what: bytes) -> None:
    differences = [(a, b) for a, b in zip_longest(got, expected) if a != b]
    assert not differences, (what, differences)


def _assert_same_bytes(got: bytes, expected: bytes, what: bytes) -> None:
    """Large bodies are told apart by where they begin to differ."""
    if got != expected:
        at = next((at for at, (a, b) in enumerate(zip_longest(got, expected)) if a != b))
        near = slice(max(at - 40, 0), at + 80)
        raise AssertionError((what, at, len(got), len(expected), got[near], expected[near]))
