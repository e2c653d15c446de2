"""One installed command as a child of the test run, that can be hurt and comes back."""

import asyncio
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import aiohttp

from smcp_testing.fork_server import GIVE_BACK, Forked
from tests.e2e.worlds.world import instance

_START_S = 180.0
"""At a load of 20 for two processors a host wrote its first line after 45 s; its MCP server starts after that."""
_STOP_S = 30.0
_POLL_S = 0.02


class Child(Protocol):
    """What was started: that of `subprocess.Popen` which is used here."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    def poll(self) -> int | None: ...

    def send_signal(self, sig: int, /) -> None: ...

    def kill(self) -> None: ...


class Launched(ABC):
    """Something that runs, its log in a file, and the URL that says when it is ready."""

    def __init__(self, name: str, directory: Path, ready_url: str, health_url: str | None = None) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self.ready_url = ready_url
        self._health_url = health_url or ready_url.removesuffix("/readyz")
        self.wanted = False
        self._child: Child | None = None

    @abstractmethod
    def _spawn(self) -> Child:
        """Start it; what it prints goes to the end of its log."""

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def stats_url(self) -> str:
        """Where it says what it holds, with `SMCP_STATS`."""
        return f"{self._health_url}/statz"

    def launch(self) -> None:
        """Start it, without waiting."""
        if self.running:
            raise RuntimeError(f"{self.name} runs already")
        self.wanted = True
        self._child = self._spawn()

    async def ready(self, timeout: float = _START_S) -> None:
        """Wait until it says that it is ready.

        Raises:
            AssertionError: it ended, or did not become ready in time; says the end of its log.
        """
        deadline = time.monotonic() + timeout
        seconds = aiohttp.ClientTimeout(total=2)
        last = "nothing"
        async with aiohttp.ClientSession(timeout=seconds) as session:
            while time.monotonic() < deadline:
                if not self.running:
                    code = None if self._child is None else self._child.returncode
                    raise AssertionError(f"{self.name} ended with {code}:\n{self.tail()}")
                try:
                    async with session.get(self.ready_url) as answer:
                        last = f"{answer.status} {(await answer.text())[:500]}"
                        if answer.status == 200:
                            return
                except (aiohttp.ClientError, TimeoutError) as error:
                    last = repr(error)
                await asyncio.sleep(_POLL_S)
        raise AssertionError(f"{self.name} is not ready after {timeout:g} s ({last}):\n{self.tail()}")

    async def start(self) -> None:
        """Start it and wait until it is ready."""
        self.launch()
        await self.ready()

    async def stop(self, within: float = _STOP_S) -> int:
        """Ask it to end (SIGTERM) and wait; gives its exit code. One that does not end is killed, and that is reported.

        Args:
            within: seconds.

        Raises:
            AssertionError: it had to be killed.
        """
        self.wanted = False
        child = self._child
        if child is None:
            return 0
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
            child.send_signal(signal.SIGCONT)
        try:
            return await self._ended(child, within)
        except TimeoutError:
            child.kill()
            await self._ended(child, _STOP_S)
            raise AssertionError(f"{self.name} did not end within {within:g} s:\n{self.tail()}") from None

    async def kill(self) -> None:
        """kill -9, and wait."""
        child = self._running()
        child.kill()
        await self._ended(child, _STOP_S)

    def pause(self) -> None:
        """Stop it where it stands (SIGSTOP): its connections stay open, nothing is answered."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    def tail(self, lines: int = 40) -> str:
        """The end of its log, without what MCP servers print and nats-server's small talk."""
        if not self.log.exists():
            return ""
        text = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        small_talk = ('"smcp_computer.mcp.stderr"', "[INF]", "Healthcheck failed")
        told = [line for line in text if not any(words in line for words in small_talk)]
        return "\n".join(told[-lines:])

    def _running(self) -> Child:
        if self._child is None or self._child.poll() is not None:
            raise RuntimeError(f"{self.name} does not run")
        return self._child

    async def _ended(self, child: Child, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while (code := child.poll()) is None:
            if time.monotonic() > deadline:
                raise TimeoutError
            await asyncio.sleep(_POLL_S)
        return code


class Process(Launched):
    """A command."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        directory: Path,
        ready_url: str,
        health_url: str | None = None,
    ) -> None:
        super().__init__(name, directory, ready_url, health_url)
        self.command = tuple(command)
        self.env = {**instance(name), **env}

    def _spawn(self) -> Child:
        with self.log.open("ab") as log:
            # In a session of its own, so that a ctrl-C at the terminal ends the test and not its world first.
            return subprocess.Popen(
                self.command,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


class ForkedProcess(Process):
    """An installed command of ours, forked from a process that has imported everything: a fresh one computes for one or
    two seconds until it has. Linux shows no mark in its environment; that it has ended is known from its exit code."""

    def _spawn(self) -> Child:
        with self.log.open("ab") as log:
            return Forked(self.command, self.env, log)

    def give_back_memory(self) -> None:
        """Have it collect its garbage and give back what it has freed, soon: a gateway keeps up to 64 MiB of that."""
        self._running().send_signal(GIVE_BACK)
