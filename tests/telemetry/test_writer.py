"""OPS-1: log lines leave by a thread of their own; a slow, stuck or gone reader never holds up whoever logs."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.telemetry import writer
from gateway.telemetry.writer import LineWriter

PATIENCE_S = 30.0


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, descriptor = os.pipe()
    yield reader, descriptor
    for end in (reader, descriptor):
        try:
            os.close(end)
        except OSError:  # closed by the test
            pass


def read_to_end(reader: int) -> bytes:
    with open(reader, "rb") as file:
        return file.read()


def fill(lines: LineWriter, line: bytes) -> int:
    """Write until a line is refused; returns how many were accepted."""
    accepted = 0
    while lines.write(line):
        accepted += 1
        assert accepted < 1_000_000, "never refused"
    return accepted


def test_a_line_appears_without_being_flushed(pipe: tuple[int, int]) -> None:
    reader, descriptor = pipe
    LineWriter(descriptor).write(b"hello\n")
    assert select.select([reader], [], [], PATIENCE_S)[0]
    assert os.read(reader, 100) == b"hello\n"


def test_lines_keep_their_order(pipe: tuple[int, int]) -> None:
    reader, descriptor = pipe
    lines = LineWriter(descriptor)
    expected = b"".join(b"line %d\n" % number for number in range(5000))
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_to_end, reader)
        for number in range(5000):
            assert lines.write(b"line %d\n" % number)
        lines.close(PATIENCE_S)
        os.close(descriptor)
        assert reading.result() == expected


def test_a_stuck_reader_makes_the_writer_refuse_and_not_wait(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "WAITING_BYTES_MAX", 100_000)
    reader, descriptor = pipe
    lines = LineWriter(descriptor)
    accepted = fill(lines, b"x" * 999 + b"\n")
    assert not lines.flush(timeout_s=0.01)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_to_end, reader)
        assert lines.flush(PATIENCE_S)
        assert lines.write(b"again\n")
        lines.close(PATIENCE_S)
        os.close(descriptor)
        assert reading.result() == (b"x" * 999 + b"\n") * accepted + b"again\n"


def test_what_is_written_at_once_is_whole_lines_that_a_pipe_takes_in_one_piece(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the lines of several workers on one pipe would mix."""
    _, descriptor = pipe
    pieces: list[bytes] = []
    lines = LineWriter(descriptor)
    monkeypatch.setattr(lines, "_write_out", pieces.append)
    for number in range(2000):
        lines.write(b"%d %s\n" % (number, b"x" * (number % 700)))
    lines.write(b"y" * 10_000 + b"\n")
    lines.write(b"z\n")
    lines.close(PATIENCE_S)
    assert all(piece.endswith(b"\n") for piece in pieces)
    assert [len(piece) for piece in pieces if len(piece) > select.PIPE_BUF] == [10_001]
    assert b"".join(pieces).count(b"\n") == 2002


def test_a_descriptor_that_somebody_made_non_blocking_loses_nothing(pipe: tuple[int, int]) -> None:
    reader, descriptor = pipe
    os.set_blocking(descriptor, False)
    lines = LineWriter(descriptor)
    line = b"x" * 999 + b"\n"
    for _ in range(500):  # more than a pipe holds
        assert lines.write(line)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_to_end, reader)
        lines.close(PATIENCE_S)
        os.close(descriptor)
        assert reading.result() == line * 500


def test_a_reader_that_is_gone_is_survived(pipe: tuple[int, int]) -> None:
    reader, descriptor = pipe
    os.close(reader)
    lines = LineWriter(descriptor)
    for _ in range(10):
        assert lines.write(b"to nobody\n")
        assert lines.flush(PATIENCE_S)


def test_a_closed_writer_can_write_again(pipe: tuple[int, int]) -> None:
    reader, descriptor = pipe
    lines = LineWriter(descriptor)
    for line in (b"one\n", b"two\n"):
        lines.write(line)
        lines.close(PATIENCE_S)
    os.close(descriptor)
    assert read_to_end(reader) == b"one\ntwo\n"


def test_a_forked_child_writes_its_own_lines_and_not_its_parents(pipe: tuple[int, int]) -> None:
    reader, descriptor = pipe
    lines = LineWriter(descriptor)
    line = b"parent\n"
    accepted = 30_000  # more than a pipe holds: most of them wait when the fork happens
    for _ in range(accepted):
        assert lines.write(line)
    child = os.fork()
    if child == 0:
        try:
            lines.write(b"child\n")
            lines.close(PATIENCE_S)
        finally:
            os._exit(0)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_to_end, reader)
        os.waitpid(child, 0)
        lines.close(PATIENCE_S)
        os.close(descriptor)
        text = reading.result()
    assert text.count(line) == accepted
    assert text.count(b"child\n") == 1


STUCK_AT_EXIT = """
import logging
from gateway.telemetry import logs
logs.FLUSH_TIMEOUT_S = 0.05
logs.configure("info")
for number in range(2000):
    logging.getLogger("gateway.x").info("x" * 200)
"""


def test_a_stuck_reader_does_not_keep_the_process_from_ending(pipe: tuple[int, int]) -> None:
    _, descriptor = pipe
    ended = subprocess.run([sys.executable, "-c", STUCK_AT_EXIT], stderr=descriptor, timeout=PATIENCE_S, check=False)
    assert ended.returncode == 0
