"""Calls that go on while something is hurt, and what became of each."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from smcp_testing.waiting import Stopwatch
from tests.e2e.actors.agents import Agent
from tests.e2e.actors.bare import FlatError
from tests.e2e.worlds.world import ComputerHost

_PAUSE_S = 0.05
TIMEOUT_S = 20


@dataclass
class Call:
    """One call of `append`."""

    mark: str
    took: float = 0.0
    """In seconds, undisturbed."""
    answer: dict[str, Any] | None = None
    error: FlatError | None = None

    @property
    def failed(self) -> bool:
        """It was not run as far as its asker was told: of a Computer that is back before its MCP server there is a
        result that says so."""
        return self.error is not None or bool(self.answer and self.answer.get("isError"))


@dataclass
class Traffic:
    """Calls one after another to one Computer, each with a mark of its own."""

    agent: Agent
    host: ComputerHost
    timeout: int
    """Seconds that each may take."""
    calls: list[Call] = field(default_factory=list)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        while not self.stopping.is_set():
            call, watch = Call(uuid4().hex), Stopwatch()
            self.calls.append(call)
            try:
                call.answer = await self.agent.call(self.host.name, "append", {"mark": call.mark}, timeout=self.timeout)
            except FlatError as error:
                call.error = error
            call.took = watch.undisturbed
            try:
                await asyncio.wait_for(self.stopping.wait(), _PAUSE_S)
            except TimeoutError:
                continue

    @property
    def failed(self) -> list[Call]:
        return [call for call in self.calls if call.failed]

    def check(self) -> None:
        """Nothing ran twice, what was answered ran, and what is said not to have run did not.

        Raises:
            AssertionError: otherwise.
        """
        ran = Counter(self.host.ran.read_text(encoding="utf-8").split() if self.host.ran.exists() else [])
        for call in self.calls:
            times = ran[call.mark]
            assert times <= 1, f"{call} ran {times} times"
            if not call.failed:
                assert times == 1, f"{call} was answered, and did not run"
            elif call.error is not None and not call.error.details.get("may_have_run"):
                assert times == 0, f"{call} is said not to have run"


@asynccontextmanager
async def traffic(agent: Agent, *hosts: ComputerHost, timeout: int = TIMEOUT_S) -> AsyncIterator[list[Traffic]]:
    """Calls to each of `hosts` while the block runs; afterwards all of them have ended, and are checked."""
    streams = [Traffic(agent, host, timeout) for host in hosts]
    async with asyncio.TaskGroup() as group:
        for stream in streams:
            group.create_task(stream.run())
        try:
            yield streams
        finally:
            for stream in streams:
                stream.stopping.set()
    for stream in streams:
        assert stream.calls
        stream.check()
