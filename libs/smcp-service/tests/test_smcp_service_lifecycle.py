"""Exit codes after signals and errors, of real processes."""

import asyncio
import gc
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path

import pytest

from smcp_service.lifecycle import Failure, background, serve_until_stopped
from smcp_testing.service_process import ServiceProcess, service_process

SAMPLE = Path(__file__).with_name("sample_service.py")


def sample(**variables: str) -> AbstractAsyncContextManager[ServiceProcess]:
    env = {f"SMCP_{name.upper()}": value for name, value in variables.items()}
    return service_process(sys.executable, SAMPLE, env=env)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_the_service_and_it_exits_with_0(number: signal.Signals) -> None:
    async with sample() as service:
        await service.logged("serving")
        service.signal(number)

        assert await service.exit_code() == 0
        assert [line["event"] for line in service.log[-4:]] == ["stopping", "draining", "drained", "stopped"]


async def test_a_signal_ends_a_service_that_has_not_opened_yet() -> None:
    async with sample(mode="never-open") as service:
        await service.logged("opening")
        service.signal(signal.SIGTERM)

        assert await service.exit_code() == 0
        assert [line["event"] for line in service.log[-2:]] == ["stopping", "stopped"]


async def test_a_second_signal_ends_it_at_once() -> None:
    async with sample(mode="never-leave") as service:
        await service.logged("serving")
        service.signal(signal.SIGTERM)
        await service.logged("draining")
        service.signal(signal.SIGTERM)

        assert await service.exit_code() == 1
        assert service.log[-1]["event"] == "stopping at once"


async def test_names_are_resolved_files_read_and_the_process_ends_while_earlier_ones_hang() -> None:
    async with sample(mode="name-server-hangs") as service:
        await service.logged("serving")
        service.signal(signal.SIGTERM)

        assert await service.exit_code() == 0


async def test_a_background_task_that_dies_takes_the_process_down_with_its_error() -> None:
    async with sample(mode="die") as service:
        assert await service.exit_code() == 1

    assert "drained" in [line["event"] for line in service.log]
    assert service.log[-2]["level"] == "error"
    assert "in _die" in service.log[-2]["exception"]
    assert service.log[-1]["event"] == "stopped by an error"
    assert service.log[-1]["error"] == "ValueError: line one line two"


async def test_a_failure_is_a_sentence_without_a_traceback() -> None:
    async with sample(mode="fail") as service:
        assert await service.exit_code() == 1

    assert service.log[-1] == {"event": "error: the port is taken"}
    assert not [line for line in service.log if "exception" in line]


async def test_a_shutdown_that_hangs_is_ended() -> None:
    @asynccontextmanager
    async def never_leaves() -> AsyncIterator[None]:
        yield
        await asyncio.Event().wait()

    stop = asyncio.Event()
    stop.set()
    with pytest.raises(Failure, match=r"within 0\.1 s"):
        await serve_until_stopped(never_leaves(), stop, leave_within_s=0.1)


async def test_a_shutdown_that_hangs_after_a_background_task_has_failed_is_ended() -> None:
    @asynccontextmanager
    async def never_leaves() -> AsyncIterator[None]:
        async with background() as tasks:
            tasks.start(_raise(ValueError("a mistake")), name="dies")
            try:
                yield
            finally:
                await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.timeout(5) as limit:
            await serve_until_stopped(never_leaves(), asyncio.Event(), leave_within_s=0.1)

    assert raised.group_contains(ValueError, match="a mistake")
    assert not limit.expired()


async def test_a_service_that_is_entered_although_it_was_stopped_is_left() -> None:
    stop, left = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def swallows() -> AsyncIterator[None]:
        stop.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        yield
        left.set()

    await serve_until_stopped(swallows(), stop, leave_within_s=1)

    assert left.is_set()


async def test_a_time_out_of_the_service_itself_is_not_mistaken_for_a_stop() -> None:
    @asynccontextmanager
    async def times_out() -> AsyncIterator[None]:
        await _raise(TimeoutError("of its own"))
        yield

    with pytest.raises(TimeoutError, match="of its own"):
        await serve_until_stopped(times_out(), asyncio.Event())


async def test_a_service_that_cannot_be_opened_says_why() -> None:
    @asynccontextmanager
    async def fails() -> AsyncIterator[None]:
        async with asyncio.TaskGroup():
            await _raise(Failure("no NATS"))
        yield

    with pytest.RaisesGroup(pytest.RaisesExc(Failure, match=r"^no NATS$")):
        await serve_until_stopped(fails(), asyncio.Event())


async def test_a_failure_beside_an_error_that_nobody_expected_hides_nothing() -> None:
    @asynccontextmanager
    async def fails() -> AsyncIterator[None]:
        await _raise(ExceptionGroup("both", [Failure("no NATS"), ValueError("a mistake")]))
        yield

    with pytest.raises(ExceptionGroup) as raised:
        await serve_until_stopped(fails(), asyncio.Event())

    assert raised.group_contains(ValueError, match="a mistake")


async def test_leaving_background_ends_its_tasks() -> None:
    async with background() as tasks:
        task = tasks.start(_forever(), name="forever")

    assert task.cancelled()
    assert task.get_name() == "forever"


async def test_the_errors_of_all_background_tasks_come_out() -> None:
    with pytest.raises(ExceptionGroup) as raised:
        async with background() as tasks:
            tasks.start(_raise(ValueError("a")), name="a")
            tasks.start(_raise(ValueError("b")), name="b")
            await asyncio.Event().wait()

    assert sorted(str(error) for error in raised.value.exceptions) == ["a", "b"]


async def test_work_that_comes_while_a_failed_task_ends_the_others_is_refused_without_a_warning() -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="shutting down"), OSError):
        async with background() as tasks:
            tasks.start(_raise(OSError("failed")), name="fails")
            try:
                await asyncio.Event().wait()
            finally:
                tasks.start(_forever(), name="late")
    gc.collect()  # a coroutine that nobody awaited warns, and fails the test


async def _raise(error: Exception) -> None:
    raise error


async def _forever() -> None:
    await asyncio.Event().wait()
