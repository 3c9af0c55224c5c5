"""JSON logs, one line per record (OPS-1). Whoever logs uses the standard `logging` with `extra={…}` for fields:

    log = logging.getLogger(__name__)
    log.warning("upstream failed", extra={"server_correlation_id": …, "kind": failure.kind})

Must not be asked to log per request on the hot path above debug level: metrics count, the ledger remembers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from gateway.telemetry.records import opening_words, render
from gateway.telemetry.repeats import Repeats
from gateway.telemetry.writer import LineWriter

LEVELS = ("debug", "info", "warning", "error")
FLUSH_TIMEOUT_S = 2.0  # at exit; a reader that has stalled for longer will not read the rest either
STDERR = 2

_loop_log = logging.getLogger("gateway.loop")


class JsonHandler(logging.Handler):
    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._writer = LineWriter(descriptor)
        self._repeats = Repeats()
        self._lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            now = time.monotonic()
            self._tell_left_out(now)
            left_out: int | None = 0
            if logging.WARNING <= record.levelno < logging.CRITICAL:
                left_out = self._repeats.admit((record.name, record.levelname, opening_words(record.msg)), now)
            if left_out is not None:
                self._write(render(record, left_out))
        except Exception:  # a log line never costs the request that it is about
            self.handleError(record)

    def flush(self) -> None:
        self._writer.flush(FLUSH_TIMEOUT_S)

    def close(self) -> None:
        """Called by `logging` at exit."""
        self.acquire()
        try:
            self._tell_left_out(float("inf"))
            self._writer.close(FLUSH_TIMEOUT_S)
        finally:
            self.release()
        super().close()

    def handleError(self, record: logging.LogRecord) -> None:
        """Say that a record could not be written, and nothing of what was in it (the inherited way prints it all)."""
        self._write(_line("gateway.telemetry", "ERROR", "a log record could not be written", source=record.name))

    def _tell_left_out(self, now: float) -> None:
        for (logger, level, template), count in self._repeats.settle(now):
            self._write(_line(logger, level, template, repeats=count))

    def _write(self, line: bytes) -> None:
        if self._lost:
            notice = "log lines lost, their reader is too slow"
            line = _line("gateway.telemetry", "WARNING", notice, lines=self._lost) + line
        self._lost = 0 if self._writer.write(line) else self._lost + 1


def _line(logger: str, level: str, message: str, *, repeats: int = 0, **fields: object) -> bytes:
    record = logging.LogRecord(logger, getattr(logging, level, logging.WARNING), "", 0, message, None, None)
    vars(record).update(fields)
    return render(record, repeats)


def configure(level: str = "info", *, descriptor: int = STDERR) -> JsonHandler:
    """Send every log record of this process to `descriptor` as JSON, in place of whatever was set up before."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        root.removeHandler(handler)
        handler.close()
    handler = JsonHandler(descriptor)
    root.addHandler(handler)
    set_level(level)
    return handler


def set_level(level: str) -> None:
    """One of LEVELS; also for a reload. Other libraries' loggers never go below warning: their chatter is not ours."""
    assert level in LEVELS, f"no log level {level!r}"
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger("gateway").setLevel(number)
    logging.getLogger().setLevel(max(number, logging.WARNING))


def log_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """For `loop.set_exception_handler`: asyncio's own handler prints tasks and arguments, contents included."""
    error = context.get("exception")
    _loop_log.error(
        "unhandled in the event loop: %s",
        opening_words(context.get("message", "")),
        exc_info=(type(error), error, error.__traceback__) if isinstance(error, BaseException) else None,
    )
