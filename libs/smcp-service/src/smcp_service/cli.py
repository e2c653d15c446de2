"""The shared part of all service commands: `--version`, `--check-config`, starting and stopping."""

import asyncio
import ctypes
import gc
import logging
import os
import re
import resource
import signal
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NoReturn

import typer

from smcp_service.console_script import version_line
from smcp_service.lifecycle import FAILED, Failure, Main, leaf_errors, run, serve_until_stopped
from smcp_service.logging import LEVEL, configure_logging
from smcp_service.settings import ServiceSettings, SettingsError, misspelt_variables, shown
from smcp_service.telemetry import open_telemetry

YOUNGEST: Final = 5000
"""New objects after which the garbage collector looks at them (its own: 700)."""
OLDER: Final = (2, 50)
"""After how many of these looks it searches what they left, and after how many such searches all (its own: 10 and 10).
A search of up to 55,000 objects held smcp-mcp for 20 to 40 ms, its longest steps."""
SHORT_HELP: Final = {"help_option_names": ["-h", "--help"]}
"""The `context_settings` of each command: `-h` is help, too."""
LEAVING_GRACE_S: Final = 10.0
"""The time that a stopping service gets on top of its drain time, before it is killed."""


def version_option(distribution: str, command: str | None = None) -> Any:
    """The option `--version`; `command` is printed before the version, by default the distribution's name."""

    def show(asked: bool) -> None:
        if asked:
            typer.echo(version_line(distribution, command))
            raise typer.Exit

    return typer.Option("--version", callback=show, is_eager=True, help="Show the version and exit.")


def check_config_option() -> Any:
    return typer.Option("--check-config", help="Check the configuration, print it, and exit.")


def run_app(app: typer.Typer) -> NoReturn:
    app.pretty_exceptions_enable = False  # a rich traceback shows local variables: arguments and secrets among them
    try:
        app()
    except Failure as error:
        for problem in error.problems if isinstance(error, SettingsError) else (error,):
            typer.echo(f"error: {problem}", err=True)
        for warning in error.warnings if isinstance(error, SettingsError) else ():
            typer.echo(f"warning: {warning}", err=True)
        raise SystemExit(error.exit_code) from None
    except OSError as error:
        if error.filename is not None:
            raise
        typer.echo(f"error: standard output: {error.strerror}", err=True)  # a full disk; typer ends for a closed pipe
        raise SystemExit(FAILED) from None
    raise SystemExit(0)


def print_command(main: Main) -> NoReturn:
    """Run `main`, which prints for people, and exit (typer.Exit). Raises the OSError of an output, for `run_app`."""
    broken: list[BaseException] = []

    async def plain(stop: asyncio.Event) -> None:
        try:
            await main(stop)
        except* OSError as errors:
            broken.extend(leaf_errors(errors))

    code = run(plain)
    if broken:
        raise broken[0]
    raise typer.Exit(code)


_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_SPAN: Final = re.compile(r"(\d{1,9})([smhd])")


def parse_time(option: str, text: str, direction: int) -> datetime:
    """A date (midnight UTC), a time with its zone, or a span before (`direction` -1) or after now."""
    try:
        if (span := _SPAN.fullmatch(text)) is not None:
            return datetime.now(UTC) + direction * timedelta(**{_UNITS[span[2]]: int(span[1])})
        time = datetime.fromisoformat(text)
        if time.tzinfo is None:
            if len(text) > len("2027-01-31"):
                raise SettingsError(f"{option}: {text!r} says no time zone: write it like 2027-01-31T12:00Z")
            time = time.replace(tzinfo=UTC)
        return time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise SettingsError(
            f"{option}: {text!r} is not a valid time; use 90m, 12h, 7d, or like 2027-01-31T12:00Z"
        ) from None


def serve_command(
    service: str,
    settings: ServiceSettings,
    open_service: Callable[[], AbstractAsyncContextManager[object]],
    *,
    check_config: bool = False,
    parts: Collection[ServiceSettings] = (),
    unread: Collection[str] = (),
    at_once: Callable[[], None] | None = None,
) -> NoReturn:
    """Log, trace and serve until a signal comes, then exit with the process's code; or only check the settings.

    `parts`: the settings of what runs beside the service; `unread`: their variables that are not read here.
    """
    configure_logging(service, level=settings.log_level, log_format=settings.log_format)
    for variable, setting in misspelt_variables(map(type, (settings, *parts)), os.environ).items():
        logging.getLogger(__name__).warning("%s is not a setting and is ignored; did you mean %s?", variable, setting)
    if check_config:
        print_settings(*parts, settings, without=unread)
        raise typer.Exit(0)
    tune_garbage_collector()

    async def serve(stop: asyncio.Event) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, LEVEL.toggle)
        async with open_telemetry(service, per_s=settings.traces_per_s, slow_s=settings.trace_slow_s):
            await serve_until_stopped(open_service(), stop, leave_within_s=settings.drain_s + LEAVING_GRACE_S)
        logging.getLogger(__name__).info("stopped")

    raise typer.Exit(run(serve, at_once=at_once))


def tune_garbage_collector() -> None:
    """Have the garbage collector look at new objects alone: what is loaded by now took an eighth of a gateway's CPU."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNGEST, *OLDER)


def print_settings(*settings: ServiceSettings, without: Collection[str] = ()) -> None:
    values = {variable: value for part in settings for variable, value in shown(part).items()}
    for variable, value in values.items():
        if variable not in without:
            typer.echo(f"{variable}={value}")
    typer.echo("the configuration is valid")


_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
"""A constant of glibc's `malloc.h`."""

KEPT_BYTES: Final = 64 * 1024 * 1024
"""Bytes that may be free at the top of the heap. With 64 calls of 64 KiB at a time some 30 MiB come and go many times a
second: to give back half of it and take it again was 6 % of a gateway's CPU."""
MAPPED_BYTES: Final = 1024 * 1024
"""Blocks of this size are mapped, and unmapped when freed: they do not fragment the heap."""


def keep_freed_memory() -> bool:
    """Keep some freed memory for the next body. False: the C library is not glibc, and nothing was changed."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wanted = {_M_TRIM_THRESHOLD: KEPT_BYTES, _M_MMAP_THRESHOLD: MAPPED_BYTES}
    return bool(min(mallopt(name, value) for name, value in wanted.items()) == 1)


def allow_many_files() -> None:
    """Raise the soft limit of open files, often 1,024, to the hard one. For processes that start no others."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError):  # macOS calls its limit infinite, and takes no more than its kernel has
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


_MADV_COLLAPSE: Final = 25
"""A constant of Linux (6.1)."""
_AREA: Final = re.compile(
    r"^(?P<begin>[0-9a-f]+)-(?P<end>[0-9a-f]+) rw-p \S+ \S+ 0 .*\n(?:[A-Z]\w+:.*\n)*?Rss: +(?P<rss>\d+) kB$",
    re.MULTILINE,
)
"""One of `/proc/self/smaps` that can be written and belongs to no file (its inode is 0)."""


def use_huge_pages() -> None:
    """Move what is in memory by now into pages of 2 MiB, where Linux can: with one call at a time, misses of the TLB
    took an eighth of a gateway's CPU. It fills pages that were never touched, so areas mostly in memory are moved."""
    madvise, maps = getattr(ctypes.CDLL(None), "madvise", None), Path("/proc/self/smaps")
    if madvise is None or not maps.exists():
        return
    for area in _AREA.finditer(maps.read_text()):
        begin, end = int(area["begin"], 16), int(area["end"], 16)
        if int(area["rss"]) * 1024 >= (end - begin) / 2:
            madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_COLLAPSE)
