"""The life of a process, and its exit codes: 0 done, 1 failed, 2 wrong usage or configuration."""

import asyncio
import concurrent.futures
import errno
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from io import FileIO
from typing import Any, Final, NoReturn, TypeVar

import uvloop

from smcp_service.console_script import INTERRUPTED

Result = TypeVar("Result")

_log: Final = logging.getLogger("smcp_service.lifecycle")

FAILED: Final = 1

Main = Callable[[asyncio.Event], Coroutine[Any, Any, int | None]]
"""The main function of a process: gets the stop event, returns the exit code (None: 0)."""

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Failure(Exception):
    """Ends the process with a sentence instead of a traceback: a port is taken, a server cannot be reached."""

    exit_code: int = FAILED


class _DaemonThreads(concurrent.futures.ThreadPoolExecutor):
    """Runs each function in a thread of its own that nothing waits for: a lookup, or a network disk, may hang."""

    def submit(self, work: Callable[..., Result], /, *args: Any, **options: Any) -> concurrent.futures.Future[Result]:
        done: concurrent.futures.Future[Result] = concurrent.futures.Future()
        done.set_running_or_notify_cancel()

        def run() -> None:
            try:
                done.set_result(work(*args, **options))
            except Exception as error:  # noqa: BLE001 -- raised where it is awaited
                done.set_exception(error)

        threading.Thread(target=run, name="blocking", daemon=True).start()
        return done


class _Loop(uvloop.Loop):
    def __init__(self) -> None:
        super().__init__()
        self.set_default_executor(_DaemonThreads())

    async def getaddrinfo(self, host: Any, port: Any, **options: int) -> list[Any]:
        return await self.run_in_executor(None, partial(socket.getaddrinfo, host, port, **options))


def pipe_end(descriptor: int, mode: str) -> FileIO:
    """One end of a pipe, for `connect_read_pipe` or `connect_write_pipe` of the running loop. uvloop closes the
    descriptor itself; the file must not do so, too: by then the number may be that of another one."""
    return FileIO(descriptor, mode, closefd=not isinstance(asyncio.get_running_loop(), uvloop.Loop))


def run(main: Main, *, at_once: Callable[[], None] | None = None) -> int:
    """Run `main` on a new loop of uvloop (see `_Loop`) and give the exit code of the process.

    The first SIGTERM or SIGINT sets the stop event, the second calls `at_once` (which must not wait) and exits with 1.
    SIGHUP, unless it is ignored or handled, only sets the event. A `Failure` is printed to standard error, as for wrong
    usage; any other error is logged with its traceback, and a last line sums up all of them.
    """
    try:
        try:
            with asyncio.Runner(loop_factory=_Loop) as runner:
                code = runner.run(_with_signals(main, at_once))
        finally:
            # The loop's handlers are gone, and Python's own would break off the clean-up of the caller.
            for number in _SIGNALS:
                signal.signal(number, lambda *_: _end(at_once))
    except KeyboardInterrupt:
        return INTERRUPTED  # before our handler stood, or in the moment after it was gone
    except BaseException as error:  # the outermost edge of the process: nothing is hidden
        if isinstance(error, SystemExit | GeneratorExit):
            raise
        errors = list(leaf_errors(error))
        unexpected = [each for each in errors if not isinstance(each, Failure)]
        for each in unexpected:
            _log.error("unhandled error", exc_info=each)
        if unexpected:
            _log.critical("stopped by an error", extra={"error": "; ".join(map(_sentence, errors))})
        else:
            print(f"error: {'; '.join(map(str, errors))}", file=sys.stderr)  # noqa: T201 -- for people
        return max(each.exit_code if isinstance(each, Failure) else FAILED for each in errors)
    return 0 if code is None else code


async def serve_until_stopped(
    service: AbstractAsyncContextManager[object], stop: asyncio.Event, *, leave_within_s: float | None = None
) -> None:
    """Enter `service`, wait for `stop`, and leave it, which drains it. `stop` also ends an entering that has not
    finished. Raises Failure when `leave_within_s` was not enough."""
    loop, limit, state = asyncio.get_running_loop(), asyncio.timeout(None), "entering"
    stopped = asyncio.create_task(stop.wait())

    def end_entering(_: object) -> None:
        if state == "entering":
            limit.reschedule(loop.time())

    try:
        async with limit, AsyncExitStack() as stack:
            stack.callback(stopped.cancel)
            stopped.add_done_callback(end_entering)
            await stack.enter_async_context(service)
            state = "serving"
            try:
                await stop.wait()
            finally:  # also where a background task has failed
                state = "leaving"
                if leave_within_s is not None and not limit.expired():  # else it was entered in spite of its end
                    limit.reschedule(loop.time() + leave_within_s)
    except TimeoutError:
        if not limit.expired():
            raise
        if state == "leaving":
            raise Failure(f"did not finish stopping within {leave_within_s:g} s") from None
    finally:
        state = "left"


class Background:
    """The background tasks of a service: one that fails takes the process down."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self.tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Result], *, name: str) -> asyncio.Task[Result]:
        try:
            task = self._group.create_task(work, name=name)
        except RuntimeError:  # a task has failed, and the others end
            work.close()  # as Python does from 3.13 on
            raise
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task


@asynccontextmanager
async def background() -> AsyncIterator[Background]:
    async with asyncio.TaskGroup() as group:
        tasks = Background(group)
        try:
            yield tasks
        finally:
            for task in tasks.tasks:
                task.cancel()


async def _with_signals(main: Main, at_once: Callable[[], None] | None) -> int | None:
    stop = asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        if stop.is_set():
            try:
                _log.warning("stopping at once", extra={"signal": number.name})
                sys.stderr.flush()
                sys.stdout.flush()
            finally:
                _end(at_once)
        stop.set()
        _log.info("stopping", extra={"signal": number.name})

    # They stay until the loop is closed: what is left after `main` (threads of the executor) can hang, too.
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # neither nohup, nor a Computer that reads its file again
        # A terminal that is closed may say so twice; that does not mean: stop at once.
        loop.add_signal_handler(signal.SIGHUP, stop.set)
    return await main(stop)


def _end(at_once: Callable[[], None] | None) -> NoReturn:
    try:
        if at_once is not None:
            at_once()
    finally:
        os._exit(FAILED)


def leaf_errors(error: BaseException) -> Iterator[BaseException]:
    """The errors in a group and the groups in it; an error alone is its own leaf."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaf_errors(inner)
    else:
        yield error


def _sentence(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, Failure):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def cannot_listen(error: OSError, host: str, port: int, *, choose: str) -> Failure:
    """The sentence that ends the process; `choose` is the option and the variable that say the port."""
    if error.errno == errno.EADDRINUSE:
        return Failure(f"port {port} of {host} is taken; choose another with {choose}")
    return Failure(f"cannot listen on {host}:{port} ({choose}): {error.strerror or error}")


async def set_within(seconds: float, event: asyncio.Event) -> bool:
    """Wait for `event`, for so long at most. Returns whether it is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


def counted(number: int, noun: str) -> str:
    """`1 call`, `2 calls`: for nouns whose plural ends with an s."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def waiting_for_calls(number: int, within_s: float) -> str:
    return f"waiting for {counted(number, 'call')} (up to {within_s:g} s); ctrl-C again stops at once"
