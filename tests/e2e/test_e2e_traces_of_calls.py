"""The traces of calls, in processes and in containers: the same trees in both, and what `smcp trace` shows of them."""

import asyncio
import json
from collections.abc import Iterator
from uuid import uuid4

import pytest

from smcp_agent import SmcpAgent
from smcp_testing.waiting import eventually
from tests.e2e.actors.bare import FlatError, member
from tests.e2e.actors.operator_commands import run_smcp
from tests.e2e.scenarios.calls import text
from tests.e2e.scenarios.metrics import scraped
from tests.e2e.traces.recorder import Recorder, calling, recording, runs, through
from tests.e2e.worlds.kinds import CONTAINERS, PROCESSES, kinds
from tests.e2e.worlds.layout import ALPHA, Place
from tests.e2e.worlds.world import LAB, Part

pytestmark = pytest.mark.timeout(300)

OUTSIDE = Place("outside", LAB, "outside", gateway="gateway-2")


@pytest.fixture(scope="module", params=kinds(PROCESSES, CONTAINERS))
def recorder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorder]:
    """One world; with one registry, so that it is known which one answers."""
    with asyncio.Runner() as runner:
        opened = recording(request.param, tmp_path_factory.mktemp("traces"), registries=1, places=(ALPHA, OUTSIDE))
        yield runner.run(opened.__aenter__())
        runner.run(opened.__aexit__(None, None, None))


@pytest.mark.rule("answers.traces.one")
async def test_a_call_is_one_trace_from_the_gateway_to_the_mcp_server(recorder: Recorder) -> None:
    await recorder.follows_a_call_to("alpha", "call")


async def test_the_trace_of_a_call_to_a_computer_behind_a_gateway(recorder: Recorder) -> None:
    await recorder.follows_a_call_to("outside", "computer_behind_a_gateway")


async def test_the_trace_of_a_call_to_an_unknown_computer(recorder: Recorder) -> None:
    req_id = uuid4().hex
    async with member(recorder.world.url(0), "agent", LAB, "caller") as agent:
        with pytest.raises(FlatError, match="404"):
            await agent.call("nobody", "echo", {"text": "x"}, req_id=req_id)
        await recorder.matches("no_such_computer", {req_id: "req_id"}, through(agent))


@pytest.mark.parametrize("tool", ["fail", "no_such_tool"])
async def test_the_trace_of_a_failing_tool(recorder: Recorder, tool: str) -> None:
    req_id = uuid4().hex
    async with member(recorder.world.url(0), "agent", LAB, "caller") as agent:
        assert (await agent.call("alpha", tool, req_id=req_id))["isError"]
        await recorder.matches(f"tool_{tool}", {req_id: "req_id"}, through(agent))


async def test_the_trace_of_a_cancelled_call(recorder: Recorder) -> None:
    req_id = uuid4().hex
    world = recorder.world
    async with SmcpAgent(world.url(0), office=LAB, name="caller") as agent:
        running = asyncio.create_task(agent.call_tool("alpha", "sleep", {"seconds": 60, "mark": req_id}, req_id=req_id))
        await eventually(lambda: runs(world.computer(LAB, "alpha"), req_id))
        running.cancel()
        await asyncio.wait([running])
        await recorder.matches("cancelled", {req_id: "req_id"}, calling(agent))


async def test_a_repeat_joins_the_running_call_and_a_later_one_gets_its_answer(recorder: Recorder) -> None:
    req_id, slow = uuid4().hex, {"seconds": 3}
    async with member(recorder.world.url(0), "agent", LAB, "caller") as agent:
        answers = await asyncio.gather(*(agent.call("alpha", "sleep", slow, req_id=req_id) for _ in range(2)))
        answers.append(await agent.call("alpha", "sleep", slow, req_id=req_id))
        assert len({text(answer) for answer in answers}) == 1
        await recorder.matches("repeats", {req_id: "req_id"}, through(agent))


async def test_smcp_trace_shows_the_whole_call_with_its_error_and_says_which_part_each_span_is_from(
    recorder: Recorder,
) -> None:
    req_id, store = uuid4().hex, {"SMCP_TRACES_URL": recorder.url}
    async with member(recorder.world.url(1), "agent", LAB, "caller") as agent:
        assert (await agent.call("alpha", "fail", req_id=req_id))["isError"]
        await recorder.settled(through(agent))
    code, shown, errors = await run_smcp("trace", req_id, **store)
    assert (code, errors) == (0, "")
    head, *lines, link = shown.splitlines()
    spans = [line for line in lines if " · " not in line]  # an event: the Computer is probed if it is slow
    assert head.startswith(f"trace {req_id} ")
    assert head.endswith("  spans: 4  processes: 2  errors: 3")
    assert [span.split("[")[1].split("]")[0] for span in spans] == [
        *["smcp-gateway gateway-2"] * 2,
        *["smcp-computer host-alpha"] * 2,
    ]
    assert "tools/call fail" in spans[-1]
    assert link == f"{recorder.url}/trace/{req_id}"

    code, shown, errors = await run_smcp("trace", req_id, "--json", **store)
    assert (code, errors) == (0, "")
    (trace,) = json.loads(shown)["traces"]
    assert {span["spanID"] for span in trace["spans"]} == {span["span_id"] for span in await recorder.spans(req_id)}

    code, shown, errors = await run_smcp("trace", uuid4().hex, **store)
    assert (code, shown) == (1, "")
    assert "no trace" in errors


@pytest.mark.keeps_processes
async def test_the_trace_of_a_call_whose_gateway_is_killed_goes_on_at_another_one(recorder: Recorder) -> None:
    """What the killed one had not exported is missing, and all else is there."""
    req_id, world = uuid4().hex, recorder.world
    alpha = world.computer(LAB, "alpha")
    release = alpha.ran.with_name(f"release {req_id}")
    slow = {"seconds": 60, "mark": req_id, "until": str(release)}
    async with SmcpAgent([each.url for each in world.gateways], office=LAB, name="caller") as agent:
        joined = await repeats_that_joined(alpha.part)
        running = asyncio.create_task(agent.call_tool("alpha", "sleep", slow, req_id=req_id))
        await eventually(lambda: runs(alpha, req_id))
        (holding,) = [each.part for each in world.gateways if await has_an_agent(each.part)]
        (other,) = [each.part for each in world.gateways if each.part is not holding]
        await holding.kill()

        async def repeated() -> bool:
            return await repeats_that_joined(alpha.part) > joined

        await eventually(repeated)
        release.touch()
        assert not (await running).is_error
        await recorder.matches("gateway_is_killed", {req_id: "req_id", other.name: "other"}, calling(agent))
    await holding.start()


async def has_an_agent(gateway: Part) -> bool:
    return (await scraped(gateway))["smcp_gateway_members", (("role", "agent"),)] > 0


async def repeats_that_joined(computer: Part) -> float:
    return (await scraped(computer)).get(("smcp_calls_repeated_total", (("found", "running"),)), 0)
