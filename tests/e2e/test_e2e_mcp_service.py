"""Offices as MCP clients see them over HTTP: two replicas of `smcp-mcp`, `smcp up`, and real MCP servers."""

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import aiohttp
import pytest
from mcp.shared.exceptions import MCPError

from smcp_agent import SmcpAgent
from smcp_testing.bridged import ERAS
from smcp_testing.mcp_service import OfficeClient, office_client
from smcp_testing.ports import Ports
from smcp_testing.waiting import eventually
from tests.e2e.scenarios.metrics import in_table, shown_in
from tests.e2e.worlds.layout import ALPHA, BETA, command
from tests.e2e.worlds.process import ForkedProcess
from tests.e2e.worlds.standalone import open_standalone
from tests.e2e.worlds.world import LAB, World, child_environment

START_S: Final = 240.0
CALLS_PER_S: Final = 20.0
ERA: Final = "2026-07-28"
ROUNDS: Final = 5
"""How often the replica that holds the seat is killed."""
CUT: Final = "broken connection"
WAITING: Final = "no answer yet"

pytestmark = [pytest.mark.keeps_processes, pytest.mark.timeout(3 * START_S)]


@dataclass(frozen=True)
class Replica:
    process: ForkedProcess
    url: str
    """Of the office, for clients."""
    metrics_url: str

    async def holds_the_seat(self) -> bool:
        async with aiohttp.ClientSession() as http, http.get(self.metrics_url) as answer:
            return "\nsmcp_mcp_offices 1" in await answer.text()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    opened = open_standalone(tmp_path_factory.mktemp("mcp"))
    with asyncio.Runner() as runner:
        yield runner.run(opened.__aenter__())
        runner.run(opened.__aexit__(None, None, None))


@asynccontextmanager
async def two_replicas(world: World, directory: Path) -> AsyncIterator[tuple[Replica, Replica]]:
    """The first of them holds the seat of the office `LAB`."""
    ports = Ports()
    addresses = [f"http://127.0.0.1:{ports.take()}" for _ in range(2)]
    replicas: list[Replica] = []
    for address in addresses:
        health = ports.take()
        environment = child_environment(
            world.mark,
            SMCP_URL=world.url(0),
            SMCP_MCP_PORT=address.rpartition(":")[2],
            SMCP_MCP_PEERS=",".join(addresses),
            SMCP_HEALTH_PORT=str(health),
        )
        ready = f"http://127.0.0.1:{health}/readyz"
        process = ForkedProcess(f"mcp-{len(replicas)}", [command("smcp-mcp")], environment, directory, ready)
        replicas.append(Replica(process, f"{address}/mcp/{LAB}", f"http://127.0.0.1:{health}/metrics"))
    first, second = replicas
    with world.telling():
        try:
            await asyncio.gather(*(replica.process.start() for replica in replicas))
            async with office_client(first.url) as client:
                await eventually(lambda: _has(client, "alpha__echo", "beta__echo"), timeout=START_S)
            yield first, second
            for replica in replicas:
                assert await replica.process.stop() == 0
        except BaseException as error:
            for replica in replicas:
                error.add_note(f"--- {replica.process.name}\n{replica.process.tail()}")
                if replica.process.running:
                    await replica.process.kill()
            raise


def ran(world: World) -> str:
    """What the tools of `alpha` wrote."""
    log = world.computer(LAB, ALPHA.name).ran
    return log.read_text() if log.exists() else ""


async def called(http: aiohttp.ClientSession, replica: Replica, tool: str, **arguments: Any) -> dict[str, Any]:
    """The JSON-RPC response to one call of the era of 2026."""
    about = {"protocolVersion": ERA, "clientInfo": {"name": "test", "version": "1"}, "clientCapabilities": {}}
    meta = {f"io.modelcontextprotocol/{key}": value for key, value in about.items()}
    request = {"name": tool, "arguments": arguments, "_meta": meta}
    async with http.post(
        replica.url,
        json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": request},
        headers={
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": ERA,
            "Mcp-Method": "tools/call",
            "Mcp-Name": tool,
        },
    ) as response:
        said = (await response.text()).strip().splitlines()[-1]
        found: dict[str, Any] = json.loads(said.removeprefix("data: "))
        return found


async def _has(client: OfficeClient, *names: str) -> bool:
    return set(names) <= set(await client.names())


async def test_each_replica_serves_the_documented_metrics(world: World, tmp_path: Path) -> None:
    async with two_replicas(world, tmp_path) as replicas, office_client(replicas[1].url) as client:
        assert await client.names()
        for replica in replicas:
            async with aiohttp.ClientSession() as http, http.get(replica.metrics_url) as answer:
                shown = shown_in(await answer.text())
            of_all = {"smcp_telemetry_spans_total"}
            assert shown == {name for name in in_table("MCP service") if name.startswith("smcp_mcp_")} | of_all


@ERAS
async def test_each_replica_answers_clients_of_an_office_whose_seat_one_of_them_holds(
    world: World, tmp_path: Path, era: str
) -> None:
    async with two_replicas(world, tmp_path) as (first, second):
        async with office_client(first.url, era) as here, office_client(second.url, era) as passed_on:
            assert await here.text("alpha__echo", text="one") == "one"
            assert await passed_on.text("alpha__echo", text="two") == "two"
            assert await passed_on.text("beta__fail", message="so") == "!Error executing tool fail"
            reported: list[float] = []

            async def hear(progress: float, total: float | None, message: str | None) -> None:
                reported.append(progress)

            await passed_on.client.call_tool("alpha__progress", {"steps": 3}, progress_callback=hear)
            assert reported
            mark = uuid4().hex
            call = asyncio.create_task(passed_on.text("alpha__sleep", seconds=START_S, mark=mark))
            await eventually(lambda: f"sleep {mark}" in ran(world), timeout=START_S)
            call.cancel()
            await eventually(lambda: f"cancelled {mark}" in ran(world), timeout=START_S)
        assert (await first.holds_the_seat(), await second.holds_the_seat()) == (True, False)


async def test_a_call_of_a_client_that_vanishes_is_cancelled(world: World, tmp_path: Path) -> None:
    async with two_replicas(world, tmp_path) as (_, second):
        mark = uuid4().hex
        async with aiohttp.ClientSession() as http:
            calling = asyncio.create_task(called(http, second, "alpha__sleep", seconds=START_S, mark=mark))
            await eventually(lambda: f"sleep {mark}" in ran(world), timeout=START_S)
            calling.cancel()
            await asyncio.wait([calling])
        await eventually(lambda: f"cancelled {mark}" in ran(world), timeout=START_S)


async def test_a_computer_that_dies_costs_its_own_tools_and_clients_hear_of_it(world: World, tmp_path: Path) -> None:
    async with two_replicas(world, tmp_path) as (first, second):
        async with office_client(first.url) as here, office_client(second.url) as passed_on:
            for client in (here, passed_on):
                assert await _has(client, "alpha__echo", "beta__echo")
                client.heard.clear()
            host = world.computer(LAB, BETA.name).part
            await host.kill()
            for client in (here, passed_on):
                await eventually(lambda: "notifications/tools/list_changed" in client.heard, timeout=START_S)  # noqa: B023
                assert "beta__echo" not in await client.names()
                assert await client.text("alpha__echo", text="hi") == "hi"
            await host.start()
            await eventually(lambda: _has(passed_on, "beta__echo"), timeout=START_S)


async def test_the_seat_of_another_agent_is_an_error_and_a_free_one_is_taken(world: World, tmp_path: Path) -> None:
    async with two_replicas(world, tmp_path) as (first, second):
        office = first.url.replace(LAB, "kitchen")
        async with SmcpAgent(world.url(0), office="kitchen", name="cook"):
            async with office_client(office, "2026-07-28") as client:
                with pytest.raises(MCPError, match="already has an Agent: 'cook', since 20"):
                    await client.names()

        async def taken() -> bool:
            async with office_client(second.url.replace(LAB, "kitchen")) as client:
                return await client.names() == []

        await eventually(taken)


async def test_a_replica_that_stops_hands_its_seat_over_at_once(world: World, tmp_path: Path) -> None:
    async with two_replicas(world, tmp_path) as (first, second):
        async with office_client(second.url, "2026-07-28") as client:
            assert await client.text("alpha__echo", text="one") == "one"
            stopping = asyncio.create_task(first.process.stop())
            for number in itertools.count():
                assert await client.text("alpha__echo", text=str(number)) == str(number)
                if stopping.done():
                    break
            assert await stopping == 0
            assert await client.text("alpha__echo", text="two") == "two"
        assert await second.holds_the_seat()
        await first.process.start()


async def test_no_call_fails_or_runs_twice_while_the_replica_with_the_seat_is_killed(
    world: World, tmp_path: Path
) -> None:
    async with two_replicas(world, tmp_path) as replicas:
        outcomes: dict[str, str] = {}
        interrupted: set[str] = set()
        over = asyncio.Event()

        async def holders() -> list[Replica]:
            return [replica for replica in replicas if await replica.holds_the_seat()]

        async def more_answers() -> None:
            before = Counter(outcomes.values())["ok"]
            await eventually(lambda: Counter(outcomes.values())["ok"] > before + CALLS_PER_S, timeout=START_S)

        async with asyncio.TaskGroup() as calls:
            calls.create_task(_keep_calling(replicas, outcomes, over, calls))
            for _ in range(ROUNDS):
                await more_answers()
                (holder,) = await eventually(holders, timeout=START_S)
                answered = {mark for mark, outcome in outcomes.items() if outcome != WAITING}
                await holder.process.kill()
                interrupted |= outcomes.keys() - answered
                holder.process.launch()
                await more_answers()
                await holder.process.ready()
            over.set()
        times = Counter(ran(world).split())
        assert [mark for mark in outcomes if times[mark] > 1] == []
        assert [mark for mark, outcome in outcomes.items() if outcome == "ok" and times[mark] != 1] == []
        told = Counter(outcomes.values())
        assert set(told) <= {"ok", "may have run", CUT}, told
        assert {mark for mark, outcome in outcomes.items() if outcome != "ok"} <= interrupted, told


async def _keep_calling(
    replicas: Sequence[Replica], outcomes: dict[str, str], over: asyncio.Event, calls: asyncio.TaskGroup
) -> None:
    """Call a tool that counts, of either replica in turn."""
    async with aiohttp.ClientSession() as http:
        running: set[asyncio.Task[None]] = set()
        for number in itertools.count():
            if over.is_set():
                break
            first = number % 2
            call = calls.create_task(_call(http, [replicas[first], replicas[1 - first]], outcomes))
            running.add(call)
            call.add_done_callback(running.discard)
            await asyncio.sleep(1 / CALLS_PER_S)
        await asyncio.gather(*running)


async def _call(http: aiohttp.ClientSession, replicas: Sequence[Replica], outcomes: dict[str, str]) -> None:
    """Call it at the first replica that accepts a connection, as behind a load balancer."""
    mark = uuid4().hex
    outcomes[mark] = WAITING
    for replica in [*replicas, *replicas]:
        try:
            response = await called(http, replica, "alpha__append", mark=mark)
        except aiohttp.ClientConnectorError:
            continue
        except aiohttp.ClientError:
            outcomes[mark] = CUT  # of the replica that was killed, by the kernel
            return
        outcomes[mark] = _outcome(response)
        return
    outcomes[mark] = "no replica accepts a connection"


def _outcome(response: dict[str, Any]) -> str:
    if "error" in response:
        told = response["error"].get("data", {}).get("may_have_run")
        return "may have run" if told else str(response["error"]["message"])
    result = response["result"]
    return str(result["content"][0]["text"]) if result.get("isError") else "ok"
