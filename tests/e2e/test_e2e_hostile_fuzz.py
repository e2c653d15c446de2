"""Inputs made by chance, from unauthenticated clients, Agents, Computers, MCP servers and MCP clients: each is refused
or answered, and other offices notice nothing.

During each batch every call in the other offices is as quick as before, after each attack memory is back, and nobody
has left. What was found once has a test of its own in the other modules of this name.
"""

import asyncio
import logging
import statistics
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import psutil
import pytest

from smcp_agent import ComputerLeft, Disconnected, Event, SmcpAgent
from smcp_auth import api_keys
from smcp_auth.grants import UNLIMITED
from smcp_testing.mcp_service import OfficeClient, office_client
from smcp_testing.ports import Ports
from smcp_testing.profiles import scaled
from smcp_testing.waiting import Stopwatch, eventually
from tests.e2e.hostile.mcp_guests import (
    a_computer_behind_smcp_mcp,
    an_mcp_client,
    an_mcp_server_that_is_asked,
    an_mcp_server_that_is_called,
    an_mcp_server_that_starts,
)
from tests.e2e.hostile.members import (
    a_computer_at_nats,
    a_computer_at_nats_elsewhere,
    a_computer_at_nats_that_answers,
    a_computer_at_the_gateway,
    a_computer_that_answers,
    an_agent,
)
from tests.e2e.hostile.mutations import Mutator, Unchanged
from tests.e2e.hostile.target import GUEST, THIRD, VICTIM, Attack, Keys, Target
from tests.e2e.hostile.unauthenticated import (
    unauthenticated_at_health_ports,
    unauthenticated_at_smcp_mcp,
    unauthenticated_http,
    unauthenticated_socketio,
)
from tests.e2e.worlds.layout import OTHER_ALPHA, Place, command
from tests.e2e.worlds.process import ForkedProcess
from tests.e2e.worlds.processes import open_processes
from tests.e2e.worlds.world import ELSEWHERE, LAB, World, child_environment

INPUTS: Final = scaled(ci=20_000, soak=1_000_000)
BATCH: Final = 500
SLOWER_S: Final = 0.25
"""By so much a call in another office may be slower than without an attack."""
GROWTH: Final = 1.05
"""Allowed of memory in use: what fills once (caches of patterns, code run for the first time) was up to 4 %."""
ENDED_CALL: Final = 700
"""Bytes for each call that a process remembers, so that none runs twice, beside its result: measured."""
WARM: Final = 800
"""Good and bad inputs of each attack before memory is measured: the first of a kind take some for good."""
CALLS: Final = 40
PACE_S: Final = 0.02
"""Between two calls of the bystanders. A Computer remembers that each was run, which takes memory."""
BESIDE: Final = Place("host-third", THIRD, "gamma")
QUIET: Final = "quiet"
"""The office of the bystander at smcp-mcp."""

LONGEST_S: Final = scaled(ci=900, soak=12 * 3600)
"""A mark counts more than `--timeout` of `make soak`."""

pytestmark = [pytest.mark.timeout(LONGEST_S), pytest.mark.alone]

_log: Final = logging.getLogger(__name__)

ATTACKS: Final[dict[str, tuple[Attack, float]]] = {
    "HTTP at a gateway, unauthenticated": (unauthenticated_http, 0.1),
    "HTTP at health ports": (unauthenticated_at_health_ports, 0.05),
    "HTTP at smcp-mcp, unauthenticated": (unauthenticated_at_smcp_mcp, 0.09),
    "Socket.IO, unauthenticated": (unauthenticated_socketio, 0.1),
    "an Agent": (an_agent, 0.15),
    "a Computer at the gateway": (a_computer_at_the_gateway, 0.1),
    "a Computer that answers": (a_computer_that_answers, 0.1),
    "a Computer at NATS": (a_computer_at_nats, 0.05),
    "a Computer at NATS that answers": (a_computer_at_nats_that_answers, 0.05),
    "a Computer at NATS, elsewhere": (a_computer_at_nats_elsewhere, 0.03),
    "an MCP server that is called": (an_mcp_server_that_is_called, 0.03),
    "an MCP server that is asked": (an_mcp_server_that_is_asked, 0.06),
    "an MCP server that starts": (an_mcp_server_that_starts, 0.01),
    "an MCP client": (an_mcp_client, 0.05),
    "a Computer behind smcp-mcp": (a_computer_behind_smcp_mcp, 0.03),
}
"""Each with its share of the inputs."""


async def memory(target: Target) -> dict[str, int]:
    """Bytes in use, without the results of ended calls that `/statz` counts, and without pages of files, whose number
    depends on what else the machine reads. A gateway keeps up to 64 MiB of freed memory: each process gives that back
    before it answers."""
    parts = [part for part in (*target.world.parts, target.mcp) if isinstance(part, ForkedProcess)]
    for part in parts:
        part.give_back_memory()
    used = dict[str, int]()
    async with aiohttp.ClientSession() as http:
        for part in parts:
            async with http.get(part.stats_url) as answer:
                held = await answer.json() if answer.status == 200 else {}
            counts = sum((Counter(each) for each in held.values()), Counter[str]())
            kept = counts["kept_result_bytes"] + counts["ended_calls"] * ENDED_CALL
            held_here = psutil.Process(part.pid).memory_info()
            used[part.name] = held_here.rss - held_here.shared - kept
    return used


class Bystanders:
    """An Agent in one other office, and an MCP client of smcp-mcp in another one."""

    def __init__(self, agent: SmcpAgent, client: OfficeClient) -> None:
        self._agent = agent
        self._client = client
        self.heard: list[Event] = []
        agent.on_event(self.heard.append)
        self._requests: dict[str, Callable[[], Awaitable[object]]] = {"a call": self._call, "a list": client.names}
        self._usual_s: dict[str, float] = {}

    async def _call(self) -> None:
        result = await self._agent.call_tool(OTHER_ALPHA.name, "add", {"a": 1, "b": 2}, timeout=30)
        assert not result.is_error

    async def took_s(self) -> dict[str, float]:
        """How long each request takes, without the time in which the machine had no processor for somebody."""
        took = dict[str, float]()
        for name, request in self._requests.items():
            watch = Stopwatch()
            await request()
            took[name] = max(watch.undisturbed, 0.0)
        return took

    async def measure_usual(self) -> None:
        seen = [await self.took_s() for _ in range(CALLS)]
        self._usual_s = {name: statistics.median(took[name] for took in seen) for name in self._requests}

    async def requests(self, attack: str) -> None:
        for name, took_s in (await self.took_s()).items():
            slower_s = took_s - self._usual_s[name]
            assert slower_s < SLOWER_S, f"{attack}: {name} in another office took {slower_s:.3f} s more"


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[tuple[Target, Bystanders]]:
    file = directory / "keys.json"

    def key(holder: str, office: str, role: str = "agent", **more: Any) -> str:
        offices = [office if office == "*" else office.replace("*", "\\*")]
        token, entry = api_keys.new_key(subject=holder, offices=offices, roles=[role], names=["*"], **more)
        api_keys.add(file, entry)
        return token

    keys = Keys(key("mallory", LAB), key("evil", LAB, "computer"), key("mike", THIRD), key("evil", THIRD, "computer"))
    bob, carol = key("bob", ELSEWHERE), key("carol", QUIET)
    own = key("smcp-mcp", "*", delegates=True, quota=UNLIMITED)
    world_ = open_processes(
        directory,
        gateways=1,
        registries=1,
        places=(VICTIM, OTHER_ALPHA, BESIDE),
        known=[GUEST],
        offices=[QUIET],
        # kept results are memory that the bystander's own calls take
        environment={"SMCP_AUTH_KEYS": str(file), "SMCP_KEEP_RESULTS_S": "0"},
    )
    async with world_ as world, mcp_service(world, directory, own, file) as mcp:
        target = Target(world, mcp, directory, keys)
        async with (
            SmcpAgent(world.url(), office=ELSEWHERE, name="bob", token=bob) as agent,
            office_client(f"{target.mcp_url}/mcp/{QUIET}", Authorization=f"Bearer {carol}") as client,
        ):
            with world.telling():
                yield target, Bystanders(agent, client)


@asynccontextmanager
async def mcp_service(world: World, directory: Path, token: str, keys: Path) -> AsyncIterator[ForkedProcess]:
    ports = Ports()
    health = f"http://127.0.0.1:{(port := ports.take())}"
    environment = child_environment(
        world.mark,
        SMCP_URL=world.url(),
        SMCP_TOKEN=token,
        SMCP_AUTH_KEYS=str(keys),
        SMCP_MCP_PORT=str(ports.take()),
        SMCP_HEALTH_PORT=str(port),
    )
    process = ForkedProcess("smcp-mcp", [command("smcp-mcp")], environment, directory, f"{health}/readyz")
    await process.start()
    try:
        yield process
    except BaseException as error:
        error.add_note(f"--- {process.name}\n{process.tail()}")
        await process.stop()
        raise
    assert await process.stop() == 0


async def test_no_input_of_a_hostile_guest_costs_another_office_anything(tmp_path: Path) -> None:
    async with opened(tmp_path) as (target, bystanders):
        for make in (Unchanged(0), Mutator(0)):
            for attack, share in ATTACKS.values():
                await attack(target, make, round(WARM * min(share * 20, 1)))
        assert not target.failed, target.failed[:10]
        await bystanders.measure_usual()
        before = await memory(target)  # now that the bystander's Computer has run calls, too
        for number, (name, (attack, share)) in enumerate(ATTACKS.items(), start=1):
            make, left, seen = Mutator(number), round(INPUTS * share), Counter[str]()
            while left > 0:
                batch = min(BATCH, left)
                left -= batch
                running = asyncio.create_task(attack(target, make, batch))
                await bystanders.requests(name)
                while not running.done():
                    await bystanders.requests(name)
                    await asyncio.sleep(PACE_S)
                seen += await running
            assert not target.failed, f"{name}: {target.failed[:10]}"
            _log.info("%s: %s", name, dict(seen.most_common()))

            async def memory_is_back(name: str = name) -> bool:
                now = await memory(target)
                grown = {part: (was, now[part]) for part, was in before.items() if now[part] > was * GROWTH}
                assert not grown, (name, grown)
                return True

            await eventually(memory_is_back, message="memory did not come back")
            now = await memory(target)
            _log.info("%s: memory: %s", name, {part: f"{now[part] / was - 1:.1%}" for part, was in before.items()})
        assert not [event for event in bystanders.heard if isinstance(event, ComputerLeft | Disconnected)]
        await bystanders.requests("afterwards")
