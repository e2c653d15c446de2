"""The trees of what touches several replicas: members that move, an office switch, and a Computer that is
connected to a gateway. All of a request is one trace, whichever processes it passes.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import pytest

from smcp_agent import SmcpAgent
from smcp_testing.mcp_servers import configs
from smcp_testing.ports import Ports
from smcp_testing.waiting import eventually
from tests.e2e.actors.bare import BareMember, member
from tests.e2e.scenarios.calls import text
from tests.e2e.traces.recorder import Barrier, Recorder, calling, recording, runs, through
from tests.e2e.worlds.kinds import CONTAINERS, PROCESSES, kinds
from tests.e2e.worlds.layout import ALPHA, OTHER_ALPHA, Place, command
from tests.e2e.worlds.process import ForkedProcess
from tests.e2e.worlds.world import ELSEWHERE, LAB, ComputerHost, Part, child_environment, instance

pytestmark = pytest.mark.timeout(300)

FAILED_ONLY = 2
"""The gateway that samples nothing, and records failed calls afterwards."""
OF_ITS_OWN = {
    "gateway-3": {
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0",
        "SMCP_TRACE_SLOW_S": "120",
    }
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module", params=kinds(PROCESSES, CONTAINERS))
def recorder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorder]:
    """One world; with one registry, so that it is known which one answers."""
    with asyncio.Runner() as runner:
        opened = recording(
            request.param,
            tmp_path_factory.mktemp("traces"),
            gateways=3,
            registries=1,
            places=(ALPHA,),
            of_their_own=OF_ITS_OWN,
        )
        yield runner.run(opened.__aenter__())
        runner.run(opened.__aexit__(None, None, None))


@asynccontextmanager
async def behind_gateways(
    recorder: Recorder, directory: Path, name: str, *gateways: int, server: Mapping[str, Any] | None = None
) -> AsyncIterator[ComputerHost]:
    """An installed Computer that knows these gateways alone. `server`: its only MCP server, in place of the toolbox."""
    place, port = Place(name, LAB, name), Ports().take()
    file = place.config(directory)
    if server is not None:
        file.write_text(json.dumps({"servers": {"remote": server}}), encoding="utf-8")
    where = [argument for number in gateways for argument in ("--gateway", recorder.world.url(number))]
    arguments = ("run", "--config", str(file), "--office", LAB, "--name", name, *where)
    env = child_environment(recorder.world.mark, SMCP_HEALTH_PORT=str(port), **recorder.environment)
    ready = f"http://127.0.0.1:{port}/readyz"
    process = ForkedProcess(name, [command("smcp-computer"), *arguments], env, directory, ready)
    await process.start()
    try:
        yield ComputerHost(LAB, name, process, place.ran(directory))
    finally:
        await process.stop()


def asking(computer: BareMember) -> Barrier:
    """A question of a Computer's to the registry."""

    async def ask(req_id: str) -> int:
        await computer.ask("server:list_room", {"agent": computer.name, "req_id": req_id, "office_id": computer.office})
        return 3

    return ask


@asynccontextmanager
async def paused(part: Part) -> AsyncIterator[None]:
    part.pause()
    try:
        yield
    finally:
        part.resume()
    await part.ready()


@pytest.mark.parametrize("kind", ["streamable", "sse"])
async def test_the_spans_of_an_instrumented_server_over_http_are_below_that_of_the_call(
    recorder: Recorder, directory: Path, kind: Literal["streamable", "sse"]
) -> None:
    req_id = uuid4().hex
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": recorder.url, "OTEL_SERVICE_NAME": "an-mcp-server", **instance("server")}
    async with (
        configs.http_instrumented(kind, env) as server,
        member(recorder.world.url(0), "agent", LAB, "caller") as agent,
        behind_gateways(recorder, directory, f"http-{kind}", 1, server=configs.http(kind, server.url)),
    ):
        assert text(await agent.call(f"http-{kind}", "echo", {"text": "x"}, req_id=req_id)) == "x"
        await recorder.matches(f"server_over_{kind}", {req_id: "req_id"}, through(agent, f"http-{kind}", 6))


async def test_a_failed_call_that_was_not_sampled_is_recorded_behind_a_gateway_too(
    recorder: Recorder, directory: Path
) -> None:
    well, badly = uuid4().hex, uuid4().hex
    async with (
        member(recorder.world.url(FAILED_ONLY), "agent", LAB, "caller") as agent,
        behind_gateways(recorder, directory, "outer", FAILED_ONLY),
    ):
        assert not (await agent.call("outer", "echo", {"text": "x"}, req_id=well)).get("isError")
        assert (await agent.call("outer", "fail", req_id=badly))["isError"]

        async def all_there() -> bool:
            return len(await recorder.spans(badly)) >= 5

        await eventually(all_there)
        await recorder.matches("computer_behind_a_gateway_failed", {badly: "req_id"}, None)
    assert await recorder.spans(well) == []


async def test_the_trace_of_a_computer_that_changes_its_office(recorder: Recorder) -> None:
    async with member(recorder.world.url(1), "computer", "lobby", "newcomer") as computer:
        computer.office = "attic"
        await computer.join()

        async def switching() -> str | None:
            joins = [span for span in await recorder.spans() if span["name"].endswith(".join_office")]
            places = {span["attributes"]["messaging.destination.name"]: span["trace_id"] for span in joins}
            return places.get("smcp.v1.attic.server.computer.newcomer.join_office")

        req_id = await eventually(switching)
        assert req_id is not None
        await recorder.settled(asking(computer))
        await recorder.matches("switched_office", {req_id: "req_id"}, None)


@pytest.mark.parametrize("kind", kinds(PROCESSES, CONTAINERS))
async def test_the_traces_of_calls_whose_agent_or_computer_moves_to_another_replica(kind: str, tmp_path: Path) -> None:
    of_the_agent, of_the_computer = uuid4().hex, uuid4().hex
    places, drain = (ALPHA, OTHER_ALPHA), {"SMCP_DRAIN_S": "1"}
    async with (
        recording(kind, tmp_path, drain, registries=1, places=places) as recorder,
        AsyncExitStack() as opened,
    ):
        world = recorder.world
        async with paused(world.gateway(1).part):  # so that both are at the other one
            roamer = await opened.enter_async_context(behind_gateways(recorder, tmp_path, "roamer", 0, 1))
            sdk = SmcpAgent([world.url(0), world.url(1)], office=ELSEWHERE, name="caller")
            moving = await opened.enter_async_context(sdk)
        staying = await opened.enter_async_context(member(world.url(1), "agent", LAB, "caller"))
        await recorder.settled(through(staying, "roamer", 5))
        asked = moving.call_tool("alpha", "sleep", {"seconds": 8, "mark": of_the_agent}, req_id=of_the_agent)
        running = asyncio.create_task(asked)
        await eventually(lambda: runs(world.computer(ELSEWHERE, "alpha"), of_the_agent))
        roamer.part.pause()
        await world.gateway(0).part.stop()
        late = asyncio.create_task(staying.call("roamer", "echo", {"text": "x"}, req_id=of_the_computer))

        async def waits() -> bool:
            """The registry was asked where the Computer is."""
            return any(span["name"].startswith("process") for span in await recorder.spans(of_the_computer))

        await eventually(waits)
        roamer.part.resume()
        assert text(await late) == "x"
        assert not (await running).is_error
        await recorder.matches("moved_agent", {of_the_agent: "req_id"}, calling(moving))
        moved = {of_the_computer: "req_id"}
        await recorder.matches("moved_computer", moved, through(staying, "roamer", 5))
