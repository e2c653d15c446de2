"""The fixtures of all tests, loaded by the root `conftest.py`."""

import asyncio
import fcntl
import gc
import inspect
import os
import signal
import termios
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import hypothesis
import pytest
import pytest_asyncio
from hypothesis import strategies

from smcp_testing import fork_server
from smcp_testing.guarded_nats import GuardedNats
from smcp_testing.leaks import assert_no_child_processes_beside, assert_no_tasks_beside, child_processes
from smcp_testing.nats_accounts import AccountServer
from smcp_testing.nats_process import NatsServer

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


def pytest_configure(config: pytest.Config) -> None:
    """Computers of tests keep their state in a directory of this run, and know no keyring: not the user's. Programs of
    tests can be interrupted and hung up on, also where a shell started the tests in the background, which ignores
    SIGINT in all that it starts, or where nohup did, which ignores SIGHUP."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)
    _leave_terminal()
    os.environ["PYTHON_KEYRING_BACKEND"] = "keyring.backends.fail.Keyring"
    state = TemporaryDirectory(prefix="smcp-state-", ignore_cleanup_errors=True)
    before = os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = state.name

    def restore() -> None:
        if before is None:
            del os.environ["XDG_STATE_HOME"]
        else:
            os.environ["XDG_STATE_HOME"] = before
        state.cleanup()

    config.add_cleanup(restore)
    if config.getoption("numprocesses", None):
        fork_server.share()  # not in a worker: that has no such option


def _leave_terminal() -> None:
    """Computers of tests ask nobody at the terminal of who runs the tests."""
    if os.getsid(0) == os.getpid():  # would hang up on the whole session
        return
    with suppress(OSError):
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
        fcntl.ioctl(terminal, termios.TIOCNOTTY)
        os.close(terminal)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m alone`, files that do not know that mark are not even imported."""
    if config.getoption("markexpr") != "alone" or collection_path.suffix != ".py":
        return None
    return True if "pytest.mark.alone" not in collection_path.read_text(encoding="utf-8") else None


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect garbage neither while tests are collected (a sixth of that time, for objects that stay) nor among them
    afterwards. The first worker of a run collects before the others: it compiles the tests, and they read what it
    wrote. Then it lets Hypothesis read our sources and Unicode's tables, which it keeps in files, too. In a clean clone
    each worker would do all that: 12 seconds of a processor."""
    gc.disable()
    try:
        with (session.config.rootpath / "conftest.py").open() as lock:
            is_first = "PYTEST_XDIST_WORKER" in os.environ
            if is_first:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    fcntl.flock(lock, fcntl.LOCK_SH)
                    is_first = False
            collected = yield
        if is_first:
            hypothesis.find(strategies.text(), lambda _: True, settings=hypothesis.settings(database=None))
        return collected
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _objects_of_earlier_tests() -> None:
    """Keep them out of later collections: after some thousand tests, one held the loop for 0.3 s, in a test too that
    measures how long our code holds it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def _nats_accounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AccountServer]:
    server = AccountServer(tmp_path_factory.mktemp("nats") / "server")
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


@pytest_asyncio.fixture
async def _nats_account(_nats_accounts: AccountServer) -> AsyncIterator[str]:
    async with _nats_accounts.account() as url:
        yield url


@pytest.fixture
def nats_url(request: pytest.FixtureRequest, _nats_accounts: AccountServer) -> str:
    """A real nats-server with JetStream: `nats_server` where the test has it, else an account of this test's own.

    Other tests use the server of the accounts, too: none may stop, suspend or reconfigure it.
    Who logs in has the permissions of its credential (see `guarded_nats`), the test itself has all.
    """
    if "nats_server" in request.fixturenames:
        url: str = request.getfixturevalue("nats_server").url
    else:
        url = request.getfixturevalue("_nats_account")
    return url


@pytest_asyncio.fixture
async def nats_server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    """The same as a server of this test's own, on a free port of 127.0.0.1."""
    server = GuardedNats(tmp_path / "nats")
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> "Iterator[InMemorySpanExporter]":
    """A process that is traced: what its tracer provider exports."""
    from smcp_testing.exported_spans import exported_spans  # noqa: PLC0415 -- only tests of traces pay for the SDK

    with exported_spans(monkeypatch) as exporter:
        yield exporter


@pytest_asyncio.fixture
async def _no_task_left() -> AsyncIterator[None]:
    before = {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
    yield
    await assert_no_tasks_beside(before)


@pytest.fixture(autouse=True)
def _nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test: no child process stays, unless it is marked, and after an async one no task of its loop."""
    before = child_processes()
    if inspect.iscoroutinefunction(getattr(request.node, "obj", None)):
        request.getfixturevalue("_no_task_left")
    yield
    if request.node.get_closest_marker("keeps_processes") is None:
        assert_no_child_processes_beside(before)
