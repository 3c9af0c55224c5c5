"""OPS-1, SEC-4: logs are lines of JSON with correlation ids, without secrets, and never in the way."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.telemetry import logs, records, repeats, writer
from gateway.telemetry.logs import JsonHandler

CANARY = "canary-4f1c"


class Log:
    """A handler that writes into a pipe, and what came out of it."""

    def __init__(self) -> None:
        self.reader, self.descriptor = os.pipe()
        self.handler = JsonHandler(self.descriptor)

    def logger(self, name: str = "gateway.test") -> logging.Logger:
        logger = logging.Logger(name, logging.DEBUG)
        logger.addHandler(self.handler)
        return logger

    def lines(self) -> list[dict[str, Any]]:
        """Everything written so far; ends the log."""
        return [json.loads(line) for line in self.text().splitlines()]

    def text(self) -> str:
        self.end()
        return self.read_to_end()

    def end(self) -> None:
        self.handler.close()
        os.close(self.descriptor)

    def read_to_end(self) -> str:
        with open(self.reader, encoding="ascii", newline="\n") as pipe:
            return pipe.read()


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(logs.time, "monotonic", lambda: now[0])
    return now


def rendered(**fields: Any) -> dict[str, Any]:
    record = logging.LogRecord("gateway.test", logging.INFO, "", 0, "message", None, None)
    vars(record).update(fields)
    line: dict[str, Any] = json.loads(records.render(record))
    return line


def test_a_record_is_one_line_with_its_fields(log: Log) -> None:
    server_id = uuid.uuid4()
    log.logger().info(
        "intent %s",
        "confirmed",
        extra={
            "server_correlation_id": server_id,
            "phase": "COMMITTED",
            "status": 200,
            "duration_ms": 1.5,
            "route": None,
        },
    )
    (line,) = log.lines()
    at = datetime.fromisoformat(line.pop("ts"))
    assert abs((datetime.now(UTC) - at).total_seconds()) < 60
    assert line == {
        "level": "info",
        "logger": "gateway.test",
        "message": "intent confirmed",
        "server_correlation_id": str(server_id),
        "phase": "COMMITTED",
        "status": 200,
        "duration_ms": 1.5,
        "route": None,
    }


def test_the_time_is_utc_in_milliseconds() -> None:
    assert rendered(created=0.25)["ts"] == "1970-01-01T00:00:00.250Z"


@given(st.text(), st.text())
def test_nothing_a_client_sends_can_forge_or_break_a_line(message: str, client_id: str) -> None:
    record = logging.LogRecord("gateway.test", logging.INFO, "", 0, "%s", (message,), None)
    record.client_correlation_id = client_id
    line = records.render(record)
    assert line.isascii()
    assert line.count(b"\n") == 1
    assert len(line.decode().splitlines()) == 1
    if len(client_id) <= records.VALUE_CHARS_MAX:
        assert json.loads(line)["client_correlation_id"] == client_id


@pytest.mark.parametrize("value", ["\ud800", "a\u2028b", "\x85", "\x9b31m", 'a"\n{"level":"error"}'])
def test_odd_text_is_kept_and_escaped(value: str) -> None:
    assert rendered(client_correlation_id=value)["client_correlation_id"] == value


def test_what_is_logged_is_bounded() -> None:
    line = rendered(client_correlation_id="x" * 10_000, msg="m" * 10_000, **{f"field_{n}": n for n in range(100)})
    assert len(line["client_correlation_id"]) == records.VALUE_CHARS_MAX
    assert len(line["message"]) == records.MESSAGE_CHARS_MAX
    assert len(line) <= records.FIELDS_MAX + 4


@pytest.mark.parametrize(
    "name",
    [
        "headers",
        "header_value",
        "body",
        "response_body",
        "payload",
        "Authorization",
        "cookie",
        "set_cookie",
        "api_key",
        "token",
    ],
)
def test_a_field_that_carries_contents_is_withheld(name: str) -> None:
    """SEC-4: plaintext is never logged."""
    assert rendered(**{name: CANARY})[name] == "[redacted]"
    assert CANARY not in str(rendered(**{name: CANARY.encode()}))
    assert CANARY not in str(rendered(**{name: [CANARY]}))
    assert rendered(**{name: 1024})[name] == 1024


def test_bytes_and_objects_are_never_shown() -> None:
    line = rendered(raw=CANARY.encode(), view=memoryview(b"1234"), many={"a": CANARY}, thing=ValueError(CANARY))
    assert (line["raw"], line["view"]) == (f"[{len(CANARY)} bytes]", "[4 bytes]")
    assert (line["many"], line["thing"]) == ("[dict]", "[ValueError]")


def test_numbers_that_json_lacks_are_kept_as_text() -> None:
    assert rendered(ratio=float("nan"), client_correlation_id="é")["ratio"] == "nan"
    assert rendered(large=2**70)["large"] == 2**70


def test_a_field_cannot_replace_one_of_the_lines_own() -> None:
    line = rendered(level="forged", ts="forged", logger="forged", exception="forged")
    assert "forged" not in line.values()


class OurError(Exception):
    __module__ = "gateway.test"


def fail_with(error: BaseException) -> BaseException:
    kept_in_a_local = CANARY
    try:
        raise error
    except BaseException as raised:
        assert kept_in_a_local
        return raised


def told(error: BaseException) -> dict[str, Any]:
    exception: dict[str, Any] = rendered(exc_info=(type(error), error, error.__traceback__))["exception"]
    return exception


def test_an_exception_is_its_type_and_its_places_without_values() -> None:
    exception = told(fail_with(ValueError(f"cannot read {CANARY}")))
    assert exception["type"] == "ValueError"
    assert exception["frames"][-1].startswith("telemetry/test_logs.py:")
    assert exception["frames"][-1].endswith(" fail_with")
    assert CANARY not in str(exception)


def test_our_own_and_the_systems_words_are_kept() -> None:
    assert told(fail_with(OurError("the store is away")))["message"] == "the store is away"
    refused = told(fail_with(ConnectionRefusedError(111, "Connection refused", CANARY)))
    assert refused["message"] == "Connection refused"
    assert CANARY not in str(refused)


def test_of_a_database_error_the_code_is_kept() -> None:
    class UniqueViolation(Exception):
        sqlstate = "23505"

    exception = told(fail_with(UniqueViolation(f"Key (body)=({CANARY}) exists")))
    assert exception["sqlstate"] == "23505"
    assert CANARY not in str(exception)


def test_causes_and_members_of_groups_are_told_within_bounds() -> None:
    error = fail_with(OurError("outer"))
    error.__cause__ = fail_with(ExceptionGroup("many", [fail_with(KeyError(CANARY)) for _ in range(100)]))
    exception = told(error)
    group = exception["cause"]
    assert group["type"] == "ExceptionGroup"
    assert {member["type"] for member in group["members"]} == {"KeyError"}
    assert len(group["members"]) == records.EXCEPTIONS_MAX - 2
    assert CANARY not in str(exception)


def test_a_deep_traceback_keeps_its_innermost_places() -> None:
    def descend(depth: int) -> None:
        if depth == 0:
            raise OurError("deep")
        descend(depth - 1)

    try:
        descend(100)
    except OurError as error:
        frames = told(error)["frames"]
    assert len(frames) == records.FRAMES_MAX
    assert all(place.endswith(" descend") for place in frames)


def test_a_suppressed_context_is_not_told() -> None:
    error = fail_with(OurError("clean"))
    error.__context__ = fail_with(KeyError(CANARY))
    assert told(error)["cause"]["type"] == "KeyError"
    error.__suppress_context__ = True
    assert "cause" not in told(error)


def test_of_other_libraries_only_the_opening_words_are_kept(log: Log) -> None:
    """They may quote what they handled."""
    log.logger("asyncio").error("Executing %s took long", CANARY)
    log.logger("asyncio").error(f"Task exception was never retrieved\nfuture: <Task {CANARY}>")
    log.logger("asyncio").error(f"Exception in callback f({CANARY!r})")
    log.logger("other").error(f"cannot read '{CANARY}'")
    text = log.text()
    assert CANARY not in text
    assert "Executing %s took long" in text
    assert "Task exception was never retrieved" in text


def test_arguments_that_do_not_fit_lose_no_line(log: Log) -> None:
    log.logger().info("%d of %d", "x")
    assert log.lines()[0]["message"] == "%d of %d"


def test_a_record_that_cannot_be_written_is_told_without_its_content(
    log: Log, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = logs.render

    def broken(record: logging.LogRecord, repeats: int = 0) -> bytes:
        if record.name == "gateway.broken":
            raise RuntimeError(CANARY)
        return whole(record, repeats)

    monkeypatch.setattr(logs, "render", broken)
    log.logger("gateway.broken").info("message %s", CANARY)
    (line,) = log.lines()
    assert (line["message"], line["source"]) == ("a log record could not be written", "gateway.broken")
    assert capfd.readouterr() == ("", "")


async def test_what_nobody_handled_in_the_loop_is_logged_without_values(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_loop_log", log.logger("gateway.loop"))
    loop = asyncio.get_running_loop()
    called = asyncio.Event()

    def failing(secret: str) -> None:
        loop.call_soon(called.set)
        raise ValueError(secret)

    loop.set_exception_handler(logs.log_loop_error)
    try:
        loop.call_soon(failing, CANARY)
        await called.wait()
    finally:
        loop.set_exception_handler(None)
    text = log.text()
    assert CANARY not in text
    (line,) = map(json.loads, text.splitlines())
    assert line["level"] == "error"
    assert line["exception"]["type"] == "ValueError"
    assert line["exception"]["frames"][-1].endswith(" failing")


def test_a_repeated_warning_is_said_a_few_times_and_then_counted(log: Log, clock: list[float]) -> None:
    logger = log.logger()
    for number in range(100):
        logger.warning("the store is away", extra={"number": number})
    clock[0] += repeats.WINDOW_S
    logger.warning("the store is away", extra={"number": 100})
    lines = log.lines()
    assert [line.get("number") for line in lines] == [0, 1, 2, 3, 4, None, 100]
    assert lines[5]["repeats_left_out"] == 95
    assert lines[5]["message"] == "the store is away"


def test_the_count_is_told_by_whatever_is_logged_next(log: Log, clock: list[float]) -> None:
    logger = log.logger()
    for _ in range(10):
        logger.error("the store is away")
    clock[0] += repeats.WINDOW_S
    logger.info("the store is back")
    assert [(line["message"], line.get("repeats_left_out")) for line in log.lines()[5:]] == [
        ("the store is away", 5),
        ("the store is back", None),
    ]


def test_the_count_is_told_at_the_end(log: Log) -> None:
    for _ in range(8):
        log.logger().warning("the store is away")
    assert log.lines()[-1]["repeats_left_out"] == 3


def test_other_warnings_and_all_information_pass_beside_a_repeated_one(log: Log) -> None:
    logger = log.logger()
    for number in range(20):
        logger.warning("the store is away")
        logger.info("request %d", number)
    logger.warning("something else")
    logger.critical("the end")
    messages = [line["message"] for line in log.lines()]
    assert sum(message.startswith("request") for message in messages) == 20
    assert messages.count("something else") == 1
    assert messages.count("the end") == 1


def test_kinds_of_warnings_remembered_are_bounded() -> None:
    memory = repeats.Repeats()
    for number in range(10 * repeats.KINDS_MAX):
        assert memory.admit(("gateway", "WARNING", str(number)), now=0.0) == 0
    assert len(memory._windows) == repeats.KINDS_MAX


def test_lines_lost_to_a_stalled_reader_are_told_once_it_reads_again(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "WAITING_BYTES_MAX", 200_000)
    logger = log.logger()
    for number in range(3000):  # nobody reads: the pipe fills, then the writer, and logging still does not wait
        logger.info("line %d %s", number, "x" * 200)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(log.read_to_end)
        log.handler.flush()
        logger.info("after")
        log.end()
        lines = [json.loads(line) for line in reading.result().splitlines()]
    assert lines[-1]["message"] == "after"
    lost = [line["lines"] for line in lines if line["message"].startswith("log lines lost")]
    assert lost
    assert sum(lost) + len(lines) - len(lost) == 3001


CONFIGURED = """
import logging, sys
from gateway.telemetry import logs
logs.configure(sys.argv[1])
for name in ("gateway.x", "elsewhere"):
    for level in ("debug", "info", "warning", "error"):
        logging.getLogger(name).log(logging.getLevelName(level.upper()), level)
logs.set_level("error")
logging.getLogger("gateway.x").warning("after the reload")
"""


@pytest.mark.parametrize(
    ("level", "ours", "others"),
    [
        ("debug", ["debug", "info", "warning", "error"], ["warning", "error"]),
        ("info", ["info", "warning", "error"], ["warning", "error"]),
        ("error", ["error"], ["error"]),
    ],
)
def test_a_process_logs_from_its_level_on_and_all_of_it_before_it_ends(
    level: str, ours: list[str], others: list[str]
) -> None:
    ended = subprocess.run([sys.executable, "-c", CONFIGURED, level], capture_output=True, timeout=30, check=True)
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert [line["message"] for line in lines if line["logger"] == "gateway.x"] == ours
    assert [line["message"] for line in lines if line["logger"] == "elsewhere"] == others
    assert ended.stdout == b""


def test_an_unknown_level_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="loud"):
        logs.set_level("loud")
