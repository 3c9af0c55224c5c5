"""Lines to a file descriptor, from a thread of its own: whoever logs never waits for whoever reads the log.

A reader that stalls costs lines, not requests: what waits is bounded, and more is refused. Whole lines are written, at
most PIPE_BUF bytes at once where lines are short enough, so that those of several processes on one pipe do not mix.
Must not know what a line says.
"""

from __future__ import annotations

import os
import queue
import select
import threading
import weakref

WAITING_BYTES_MAX = 4 * 1024 * 1024  # some ten thousand lines
WRITE_BYTES_MAX = select.PIPE_BUF

_NOTHING = b""
_Lines = queue.SimpleQueue[bytes | threading.Event | None]  # a line, somebody to tell, or the end


def _next_or(lines: _Lines, default: bytes) -> bytes | threading.Event | None:
    try:
        return lines.get_nowait()
    except queue.Empty:
        return default


class LineWriter:
    """`write` must be called by one thread at a time (a logging handler's lock sees to it)."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._reset()
        _writers.add(self)

    def _reset(self) -> None:
        # Two counters with one writing thread each, instead of a shared one and a lock.
        self._accepted_bytes = 0
        self._done_bytes = 0
        self._lines: _Lines = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def write(self, line: bytes) -> bool:
        """Accept a line; False if too much is waiting already. Never blocks."""
        if self._accepted_bytes - self._done_bytes + len(line) > WAITING_BYTES_MAX:
            return False
        if self._thread is None:
            self._start()
        self._accepted_bytes += len(line)
        self._lines.put(line)
        return True

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything accepted so far is written; False if that took too long."""
        if self._thread is None:
            return True
        written = threading.Event()
        self._lines.put(written)
        return written.wait(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Flush, and end the thread once it has written what it has. A later line would start another one."""
        if self._thread is not None:
            self._lines.put(None)
            self._thread.join(timeout_s)
            self._thread = None

    def _start(self) -> None:
        # A daemon: a reader that never reads must not keep the process from ending.
        self._lines = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(self._lines,), name="log writer", daemon=True)
        self._thread.start()

    def _run(self, lines: _Lines) -> None:
        item = lines.get()
        while item is not None:
            if isinstance(item, threading.Event):
                item.set()
                item = lines.get()
            else:
                item = self._write_batch(item, lines)

    def _write_batch(self, line: bytes, lines: _Lines) -> bytes | threading.Event | None:
        """Write a line, with those that wait behind it and fit. Returns the first item that did not go along."""
        batch = line
        following = _next_or(lines, _NOTHING)
        while isinstance(following, bytes) and following and len(batch) + len(following) <= WRITE_BYTES_MAX:
            batch += following
            following = _next_or(lines, _NOTHING)
        self._write_out(batch)
        self._done_bytes += len(batch)
        return lines.get() if following == _NOTHING else following

    def _write_out(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # somebody who shares the descriptor made it non-blocking
                poll = select.poll()
                poll.register(self._descriptor, select.POLLOUT)
                poll.poll()
            except OSError:  # closed, or its reader is gone: there is nobody left to tell
                return


_writers: weakref.WeakSet[LineWriter] = weakref.WeakSet()


def _start_afresh() -> None:
    for writer in _writers:
        writer._reset()


# A forked child has no thread, and the lines that wait are its parent's to write.
os.register_at_fork(after_in_child=_start_afresh)
