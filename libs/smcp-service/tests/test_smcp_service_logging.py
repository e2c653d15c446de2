"""Log lines: JSON for programs, text for people, the call's ids on each, nothing secret on any."""

import asyncio
import io
import json
import logging
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from smcp_service.logging import WRITTEN_BY, bind_call, configure_logging
from smcp_service.settings import LogFormat
from smcp_testing.fork_server import COMMANDS, born
from smcp_testing.service_process import service_process

SAMPLE = Path(__file__).with_name("sample_service.py")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers, root.level = handlers, level
    logging.captureWarnings(capture=False)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_log_line_has_time_service_and_event() -> None:
    stream = io.StringIO()
    configure_logging("gateway", stream=stream)

    logging.getLogger("some.module").info("it happened", extra={"count": 3})

    (line,) = lines(stream)
    assert list(line)[:3] == ["timestamp", "level", "event"]
    assert abs((datetime.now(UTC) - datetime.fromisoformat(line.pop("timestamp"))).total_seconds()) < 60
    assert line == {
        "level": "info", "event": "it happened", "count": 3, "logger": "some.module", "service": "gateway",
    }  # fmt: skip


def test_lines_in_a_call_have_its_ids() -> None:
    stream = io.StringIO()
    configure_logging("gateway", stream=stream)

    with bind_call(req_id="r", office="o", trace_id=int("ab" * 16, 16)):
        logging.getLogger("theirs").warning("%s", "x", extra={"peer": "p"})

    (line,) = lines(stream)
    assert (line["event"], line["peer"]) == ("x", "p")
    assert (line["req_id"], line["office"], line["trace_id"]) == ("r", "o", "ab" * 16)


def test_ids_belong_to_their_call_alone_and_to_the_tasks_it_starts() -> None:
    stream = io.StringIO()
    configure_logging("gateway", stream=stream)
    log = logging.getLogger("x")

    async def call(req_id: str) -> None:
        with bind_call(req_id=req_id, office="o", trace_id=int(req_id)):
            await asyncio.gather(*(asyncio.create_task(inner(req_id)) for _ in range(3)))
        log.info("outside")

    async def inner(req_id: str) -> None:
        log.info("inside", extra={"belongs_to": req_id})

    async def main() -> None:
        await asyncio.gather(*(call(str(number)) for number in range(1, 5)))

    asyncio.run(main())

    inside = [line for line in lines(stream) if line["event"] == "inside"]
    assert len(inside) == 12
    for line in inside:
        assert line["req_id"] == line["belongs_to"]
        assert line["trace_id"] == line["belongs_to"].zfill(32)
        assert line["office"] == "o"
    assert not any("req_id" in line for line in lines(stream) if line["event"] == "outside")


def test_nothing_below_the_level_is_logged() -> None:
    stream = io.StringIO()
    configure_logging("gateway", level="warning", stream=stream)

    logging.getLogger("x").info("no")
    logging.getLogger("x").warning("yes")

    assert [line["event"] for line in lines(stream)] == ["yes"]


def test_a_value_that_json_cannot_hold_does_not_lose_the_line() -> None:
    stream = io.StringIO()
    configure_logging("gateway", stream=stream)

    logging.getLogger("x").info("big", extra={"number": 1 << 70, "lone": "\ud800", "what": object, "a b": {1: 2}})

    assert lines(stream)[0]["number"] == 1 << 70


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError


HOLDS_ITSELF: list[Any] = []
HOLDS_ITSELF.append(HOLDS_ITSELF)


@pytest.mark.parametrize("value", [10**5000, HOLDS_ITSELF, Unprintable()], ids=["long", "endless", "unprintable"])
def test_a_value_that_cannot_be_written_at_all_does_not_lose_the_line(value: object) -> None:
    stream = io.StringIO()
    configure_logging("gateway", stream=stream)

    logging.getLogger("x").info("odd", extra={"value": value, "other": "kept"})

    assert (lines(stream)[0]["value"], lines(stream)[0]["other"]) == (None, "kept")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("I/O operation on closed file")])
def test_a_line_that_cannot_be_written_harms_nobody(error: Exception) -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise error

        def flush(self) -> None:
            raise error

    configure_logging("gateway", stream=Broken())
    logging.getLogger("ours").info("lost")


@pytest.mark.parametrize("level", ["debug", "info"])
def test_libraries_that_log_payloads_are_kept_quiet(level: Any) -> None:
    stream = io.StringIO()
    configure_logging("gateway", level=level, stream=stream)

    for name in ("engineio.server", "socketio.server", "socketio.client", "mcp.client.stdio", "httpx"):
        logging.getLogger(name).info("payload %s", "the tool's arguments")
        logging.getLogger(name).debug("payload %s", "the tool's arguments")
    logging.getLogger("mcp.client.streamable_http").error("cannot parse %s", "an answer with the tool's arguments")

    assert not stream.getvalue()


def test_people_at_a_terminal_get_text_with_colours() -> None:
    stream = Terminal()
    configure_logging("gateway", stream=stream)

    logging.getLogger("x").info("it happened")

    assert "it happened" in stream.getvalue()
    assert "\x1b[" in stream.getvalue()


def test_escape_sequences_in_a_log_line_do_not_reach_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    configure_logging("gateway", stream=stream)
    foreign = "\x1b[2J\x1b]52;c;eA==\x07\x9b31m\r\u202e\u2028"

    logging.getLogger("x").warning("said: %s", foreign, extra={"agent": f"anna{foreign}"})
    logging.getLogger("x").warning("said: %s", foreign, extra={WRITTEN_BY: f"git{foreign}"})
    error = ValueError(foreign)
    logging.getLogger("x").error("failed", exc_info=error)

    assert stream.getvalue().count("ValueError") == 1
    assert not set(foreign[:1] + "\x07\x9b\r\u202e\u2028") & set(stream.getvalue())


def test_lines_of_child_processes_stand_beside_their_names_at_a_terminal_and_are_json_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    for stream in (Terminal(), io.StringIO()):
        configure_logging("computer", stream=stream)
        for name in ("filesystem", "git"):
            logging.getLogger("child").info("hello", extra={WRITTEN_BY: name, "mcp_server": name})
        if stream.isatty():
            assert stream.getvalue() == "filesystem │ hello\ngit │ hello\n"
        else:
            assert [(line["event"], line["mcp_server"]) for line in lines(stream)] == [
                ("hello", "filesystem"),
                ("hello", "git"),
            ]
            assert WRITTEN_BY not in stream.getvalue()


def test_a_traceback_shows_no_local_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    cases: list[tuple[io.StringIO, LogFormat]] = [
        (Terminal(), "console"), (io.StringIO(), "console"), (io.StringIO(), "json"),
    ]  # fmt: skip
    for stream, log_format in cases:
        configure_logging("gateway", log_format=log_format, stream=stream)
        parts = ["hunter", "2"]
        secret = "".join(parts)
        try:
            int(len(secret) / 0)
        except ZeroDivisionError:
            logging.getLogger("x").exception("failed")

        assert "ZeroDivisionError" in stream.getvalue()
        assert secret not in stream.getvalue()


async def test_a_process_logs_json_where_no_terminal_is_attached() -> None:
    async with service_process(*born(SAMPLE, knows=COMMANDS), env={"SMCP_MODE": "log"}) as service:
        await service.logged("serving")
        service.signal(signal.SIGTERM)
        assert await service.exit_code() == 0

    assert all({"timestamp", "level", "event", "service", "logger"} <= set(line) for line in service.log)
    ours = await service.logged("ours")
    library = await service.logged("from the library")
    assert ours["trace_id"] == library["trace_id"] == "11112222333344445555666677778888"
    assert ours["office"] == library["office"] == "办公室"
    assert "arguments" not in repr(service.log)
    assert "the local variable" not in repr(service.log).replace('secret = "the local variable"', "")
