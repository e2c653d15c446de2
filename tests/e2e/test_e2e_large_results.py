"""Bodies of many megabytes: whole to who can take them, 413 to who cannot, and nobody else waits for them."""

import asyncio
import contextlib
import json
import socket
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import psutil
import pytest

from bench import published_env
from smcp_agent import Disconnected, Event, SmcpAgent
from smcp_testing.waiting import Stopwatch
from tests.e2e.actors.bystanders import undisturbed
from tests.e2e.worlds.container import Container
from tests.e2e.worlds.kinds import CONTAINERS, OPEN, PROCESSES, kinds
from tests.e2e.worlds.layout import Place
from tests.e2e.worlds.world import LAB, Gateway, World

pytestmark = pytest.mark.alone

NEIGHBOURS: Final = Place("host-neighbours", "next door", "gamma")
"""A Computer that the worlds here have beside the others."""

MB: Final = 1_000_000
MIB: Final = 1024 * 1024
LIMIT: Final = 32 * MIB
"""`SMCP_MAX_PAYLOAD` as it is set where nobody sets it."""
JUST_UNDER: Final = LIMIT - 1024
"""The text of a result that is just within the limit."""
CALL_S: Final = 120
BUDGET: Final = 4 * LIMIT
"""Of chunked bodies on their way into a process, together (`BusConfig.budget_bytes`)."""
GROWN: Final = {"gateway-1": 2 * BUDGET, "host-alpha": 4 * BUDGET}
"""What the processes may need for eight large results at once, above what they had (bytes): twice the budget, since a
body is copied once on its way; the Computer also reads and keeps them."""
IDLE_GROWN: Final = 64 * MIB
"""The same for those that none of the results goes through, and for nats-server, which holds chunks alone."""
PUBLISHED_AGENT: Final = Path(__file__).parent / "actors" / "published_agent.py"


async def the_published_agent_gets_413_and_stays_connected(world: World) -> None:
    python = await asyncio.to_thread(published_env.python)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("echo", {"text": "before"}),
        ("big", {"size": 20 * MB}),
        ("echo", {"text": "between"}),
        ("big", {"size": 40 * MB}),
        ("big", {"size": 3 * MB}),
        ("echo", {"text": "after"}),
    ]
    arguments = [part for tool, params in calls for part in (tool, json.dumps(params))]
    async with undisturbed(world):
        process = await asyncio.create_subprocess_exec(
            python,
            *(str(PUBLISHED_AGENT), world.url(0), LAB, "alpha", *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(2 * CALL_S):
                output, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0, errors.decode()[-3000:]
    before, big, between, bigger, fits, after = json.loads(output.splitlines()[-1])
    assert [each["text"] for each in (before, between, after)] == ["before", "between", "after"], before
    assert (big["error"], bigger["error"]) == (True, True)
    assert big["text"] == "the reply is larger than this client takes in one message"
    assert bigger["text"] == f"MCP server 'toolbox' sent an answer of more than {LIMIT} bytes"
    assert (fits["error"], fits["length"]) == (False, 3 * MB)
    assert len({(each["sid"], each["transport"]) for each in (before, big, between, bigger, fits, after)}) == 1


async def a_slow_line_carries_a_result_that_takes_longer_than_a_ping(world: World) -> None:
    """At 16 Mbit/s, 20 MB take ten seconds, and so do 7 MB at 5: neither end takes the other for dead meanwhile."""
    async with (
        undisturbed(world),
        slow_line(_straight(world.gateway(0)), down=2 * MB, up=MB) as one,
        slow_line(_straight(world.gateway(1)), down=MB, up=7 * MB // 10) as other,
        SmcpAgent(one, office=LAB, name="caller") as reader,
        SmcpAgent(other, office=NEIGHBOURS.office, name="caller") as writer,
    ):
        told: list[Event] = []
        reader.on_event(told.append)
        writer.on_event(told.append)
        received, sent = await asyncio.gather(
            reader.call_tool("alpha", "big", {"size": 20 * MB}, timeout=CALL_S),
            writer.call_tool(NEIGHBOURS.name, "given", {"variable": "x" * (7 * MB)}, timeout=CALL_S),
        )
        assert len(received.text) == 20 * MB
        assert not sent.is_error, sent.text
        assert min(received.duration_s, sent.duration_s) > 9
        assert not any(isinstance(event, Disconnected) for event in told), told


def _straight(gateway: Gateway) -> str:
    """A URL with nothing before it that would take for it what it has not read yet."""
    return gateway.part.inside_url if isinstance(gateway.part, Container) else gateway.url


@dataclass
class Pace:
    """Calls of 1 KB, one after another, and how long each took, undisturbed (seconds)."""

    took: list[float] = field(default_factory=list)

    async def keep(self, call: Callable[[], Awaitable[Any]], stop: asyncio.Event) -> None:
        while not stop.is_set():
            watch = Stopwatch()
            await call()
            self.took.append(watch.undisturbed)

    def check(self, *, median: float, longest: float) -> None:
        """Raises AssertionError: there were hardly any, or they waited too long."""
        assert len(self.took) > 8, self.took
        assert statistics.median(self.took) < median, self.took
        assert max(self.took) < longest, self.took


@dataclass
class Memory:
    """The most that each process had resident, above what it had at first (bytes)."""

    pids: dict[str, int]
    first: dict[str, int] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)

    async def watch(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            for name, pid in self.pids.items():
                resident = psutil.Process(pid).memory_info().rss
                self.first.setdefault(name, resident)
                self.most[name] = max(self.most.get(name, 0), resident - self.first[name])
            try:
                await asyncio.wait_for(stop.wait(), 0.02)
            except TimeoutError:
                continue


async def eight_results_of_32_mib_do_not_stop_small_calls(world: World) -> None:
    """On one gateway: eight results just within the limit to one Agent, 1 KB calls of its own and of a neighbour."""
    small = {"text": "x" * 1024}
    memory = Memory({part.name: part.pid for part in world.parts})
    own, neighbours = Pace(), Pace()
    stop = asyncio.Event()
    async with (
        undisturbed(world),
        SmcpAgent(world.url(0), office=LAB, name="caller") as agent,
        SmcpAgent(world.url(0), office=NEIGHBOURS.office, name="neighbour") as neighbour,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(memory.watch(stop))
        group.create_task(own.keep(lambda: agent.call_tool("beta", "echo", small), stop))
        group.create_task(neighbours.keep(lambda: neighbour.call_tool(NEIGHBOURS.name, "echo", small), stop))
        try:
            call = partial(agent.call_tool, "alpha", "big", {"size": JUST_UNDER}, timeout=CALL_S)
            results = await asyncio.gather(*(call() for _ in range(8)))
        finally:
            stop.set()
    assert [len(result.text) for result in results] == [JUST_UNDER] * 8
    neighbours.check(median=0.5, longest=3.0)
    own.check(median=1.0, longest=10.0)  # they share a socket with what is large
    for name, grown in memory.most.items():
        assert grown < GROWN.get(name, IDLE_GROWN), f"{name} grew by {grown / MIB:.0f} MiB"


SCENARIOS: list[Callable[[World], Awaitable[None]]] = [
    eight_results_of_32_mib_do_not_stop_small_calls,
    the_published_agent_gets_413_and_stays_connected,
    a_slow_line_carries_a_result_that_takes_longer_than_a_ping,
]


@pytest.fixture(scope="module", params=kinds(PROCESSES, CONTAINERS))
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    # The lease of production: pings go by it, and who reads 32 MiB on a busy machine does not answer one meanwhile.
    opened = OPEN[request.param](tmp_path_factory.mktemp("large"), more=[NEIGHBOURS])
    with asyncio.Runner() as runner:
        yield runner.run(opened.__aenter__())
        runner.run(opened.__aexit__(None, None, None))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_large_results(world: World, scenario: Callable[[World], Awaitable[None]]) -> None:
    with world.telling():
        await scenario(world)


_PIECE = 32 * 1024
_BUFFER = 64 * 1024
"""What the system keeps of the line on its way, so that who writes notices how slow it is."""


@asynccontextmanager
async def slow_line(url: str, *, down: float, up: float) -> AsyncIterator[str]:
    """The URL under which the gateway at `url` is reached over the line; its bytes a second from and to the gateway."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    address = (parts.hostname, parts.port or 80)

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        outgoing = _narrow(socket.socket())
        outgoing.setblocking(False)
        await asyncio.get_running_loop().sock_connect(outgoing, address)
        behind, ahead = await asyncio.open_connection(sock=outgoing, limit=_PIECE)
        async with asyncio.TaskGroup() as group:
            group.create_task(_pump(behind, writer, down))
            group.create_task(_pump(reader, ahead, up))

    listener = _narrow(socket.create_server(("127.0.0.1", 0)))
    server = await asyncio.start_server(carry, sock=listener, limit=_PIECE)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.close()


def _narrow(end: socket.socket) -> socket.socket:
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        end.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
    return end


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rate: float) -> None:
    loop = asyncio.get_running_loop()
    free = loop.time()
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(_PIECE):
            writer.write(data)
            await writer.drain()
            free = max(free, loop.time() - 0.1) + len(data) / rate
            await asyncio.sleep(max(free - loop.time(), 0))
    writer.close()
