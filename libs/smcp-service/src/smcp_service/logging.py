"""Logs: one line of JSON per event, or something for people when a terminal is attached.

structlog renders the records of the standard library's `logging`, on standard error, with `timestamp` (ISO 8601),
`level`, `service`, `logger`, and inside a call its `req_id`, `trace_id` and `office`. Arguments and results of tools
are never logged: libraries that log payloads are kept quiet, and tracebacks show no variables.
"""

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, Token
from typing import Any, Final, TextIO

import orjson
import structlog
from opentelemetry import trace
from structlog.typing import EventDict, Processor, WrappedLogger

from smcp_service.settings import LogFormat, LogLevel

# These log whole packets, messages or URLs below these levels; they would put tool arguments and secrets into the logs.
# Of the MCP SDK's client a Computer tells each failure itself.
_PAYLOAD_LOGGERS: Final = {
    **dict.fromkeys(("engineio", "socketio", "mcp", "httpx", "httpx2"), logging.WARNING),
    **dict.fromkeys(("httpcore", "httpcore2", "urllib3", "aiohttp.access"), logging.WARNING),
    "mcp.client": logging.CRITICAL,
}

WRITTEN_BY: Final = "written_by"
"""The `extra` of a line that a child process wrote, with the child's name: a terminal shows `name │ line`."""

_CallFields = tuple[str | None, str | None, int | None]
_CALL: Final[ContextVar[_CallFields]] = ContextVar("smcp_service_call", default=(None, None, None))


class bind_call:  # noqa: N801 - used like a function: `with bind_call(req_id=...)`
    """While open, log lines of this task and of those it starts carry these ids. It costs less than a microsecond."""

    __slots__ = ("_fields", "_token")

    def __init__(self, *, req_id: str | None = None, office: str | None = None, trace_id: int | None = None) -> None:
        self._fields = (req_id, office, trace_id)
        self._token: Token[_CallFields]

    def __enter__(self) -> None:
        self._token = _CALL.set(self._fields)

    def __exit__(self, *error: object) -> None:
        _CALL.reset(self._token)


def configure_logging(
    service: str, *, level: LogLevel = "info", log_format: LogFormat = "auto", stream: TextIO | None = None
) -> None:
    """Call it once, first thing. `auto` is `console` where `stream` (by default standard error) is a terminal."""
    stream = sys.stderr if stream is None else stream
    as_json = log_format == "json" or (log_format == "auto" and not stream.isatty())

    def add_service(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        event.setdefault("service", service)
        return event

    shared: list[Processor] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        add_service,
        _add_call,
    ]
    render = [structlog.processors.format_exc_info, _render_json] if as_json else _console_renderers(stream)
    handler = _Lines(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    LEVEL.configure(level)
    logging.captureWarnings(capture=True)


class Level:
    def __init__(self) -> None:
        self._configured: LogLevel = "info"
        self.name: str = self._configured

    def configure(self, level: LogLevel) -> None:
        self._configured = level
        self._apply(level)

    def set(self, level: str) -> None:
        logging.getLogger(__name__).warning("the level of the log is now %s (it was %s)", level, self.name)
        self._apply(level)

    def toggle(self) -> None:
        """From the configured level to debug, and back: for a signal."""
        self.set("debug" if self.name != "debug" else self._configured if self._configured != "debug" else "info")

    def _apply(self, level: str) -> None:
        self.name = level
        number = logging.getLevelNamesMapping()[level.upper()]
        logging.getLogger().setLevel(number)
        for name, least in _PAYLOAD_LOGGERS.items():
            logging.getLogger(name).setLevel(max(number, least))


LEVEL: Final = Level()


class _Lines(logging.StreamHandler[TextIO]):
    """Writes log lines. A line that cannot be written (a full disk) is lost: it must not replace an answer."""

    terminator = ""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.rewrites: list[Callable[[str], str]] = []

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record) + "\n"
        for rewrite in self.rewrites:
            text = rewrite(text)
        return text

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 -- logging's name
        """Do nothing: the stream that would show the error has just failed."""


@contextmanager
def rewritten_logs(rewrite: Callable[[str], str]) -> Iterator[None]:
    """Change each text of this process's log as it is written: whole lines with their ends, as they are rendered."""
    handlers = [each for each in logging.getLogger().handlers if isinstance(each, _Lines)]
    for handler in handlers:
        handler.rewrites.append(rewrite)
    try:
        yield
    finally:
        for handler in handlers:
            handler.rewrites.remove(rewrite)


def _add_call(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    req_id, office, trace_id = _CALL.get()
    span = trace.get_current_span().get_span_context()
    if span.is_valid:
        event.setdefault("trace_id", f"{span.trace_id:032x}")
        event.setdefault("span_id", f"{span.span_id:016x}")
    elif trace_id is not None:
        event.setdefault("trace_id", f"{trace_id:032x}")
    if req_id is not None:
        event.setdefault("req_id", req_id)
    if office is not None:
        event.setdefault("office", office)
    return event


def _console_renderers(stream: TextIO) -> list[Processor]:
    colors = stream.isatty() and "NO_COLOR" not in os.environ
    console = structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)

    def render(logger: WrappedLogger, method: str, event: EventDict) -> str:
        for key, value in event.items():
            # texts of others must not do anything at the terminal: `smcp-computer` asks its user there
            event[key] = _OBEYED.sub("\ufffd", value) if isinstance(value, str) else value
        name: str | None = event.get(WRITTEN_BY)
        return str(console(logger, method, event)) if name is None else f"{name} │ {event['event']}"

    return [structlog.processors.format_exc_info, render]


_OBEYED: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Control characters but tab and newline, and what ends a line or turns the direction of writing."""


def _render_json(logger: WrappedLogger, method: str, event: EventDict) -> str:
    event.pop(WRITTEN_BY, None)
    line: dict[str, Any] = {
        "timestamp": event.pop("timestamp", None),
        "level": event.pop("level", method),
        "event": event.pop("event", ""),
        **event,
    }
    try:
        return orjson.dumps(line, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()
    except orjson.JSONEncodeError:
        # Integers above 64 bits and lone surrogates: rare, and no reason to lose the line.
        with suppress(Exception):
            return json.dumps(line, default=repr, skipkeys=True)
        # A list that holds itself, an integer of 5,000 digits, a `repr` that raises.
        return json.dumps({str(name): value if isinstance(value, str) else None for name, value in line.items()})
