"""The trace of a request, as the installed commands export it to an OTLP receiver, among processes and in containers.

The trees are kept in `traces/golden`: names, parents, kinds, attributes, and which process each span is from.
"""

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from smcp_agent import SmcpAgent
from smcp_proto.catalog import trace_id, verb_of
from smcp_testing.event_payloads import GOOD
from smcp_testing.mcp_servers import configs
from smcp_testing.mcp_servers.shelf import HOST
from smcp_testing.service_process import service_process
from smcp_testing.waiting import OWNER_FIRST_S, eventually
from tests.e2e.actors.bare import FlatError, member
from tests.e2e.actors.socketio_computer import socketio_computer
from tests.e2e.scenarios.calls import text
from tests.e2e.traces import agent_app
from tests.e2e.traces.recorder import Recorder, calling, recording, runs, through
from tests.e2e.worlds.kinds import CONTAINERS, PROCESSES, STANDALONE, kinds
from tests.e2e.worlds.layout import Place
from tests.e2e.worlds.process import Launched
from tests.e2e.worlds.world import ELSEWHERE, LAB, Part, instance

NOT_SAMPLING, NOT_TRACED, FAILED_ONLY = 2, 3, 4
"""Gateways of their own kind."""
OF_THEIR_OWN = {
    "gateway-3": {"OTEL_TRACES_SAMPLER": "always_off"},
    "gateway-4": {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
    "gateway-5": {
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0",
        "SMCP_TRACE_SLOW_S": "120",
    },
}

RICH = Place(
    "host-rich", LAB, "rich", {"context": configs.context("2025", windows=1, prompts=["greet"])}, toolbox=False
)
WINDOW = {"uri": f"window://{HOST}/0"}
REQUESTS: dict[str, dict[str, Any]] = {
    "resources/list": {},
    "resources/templates/list": {},
    "resources/read": WINDOW,
    "resources/subscribe": WINDOW,
    "resources/unsubscribe": WINDOW,
    "prompts/list": {},
    "prompts/get": {"name": "greet", "arguments": {"who": "anna"}},
    "completion/complete": {
        "ref": {"type": "ref/prompt", "name": "greet"},
        "argument": {"name": "who", "value": "a"},
    },
}
"""Of MCP, which an Agent passes to a server: method and parameters."""
QUESTIONS = [*(event for event in GOOD if event.startswith("client:get_")), "client:of_tomorrow"]
"""What an Agent asks a Computer itself."""
SAID = [
    *(event for event in GOOD if event.startswith(("server:update_", "notify:resources/"))),
    *("server:update_tomorrow", "server:list_room", "server:leave_office"),
]
"""What a Computer on Socket.IO says or asks."""


@pytest.fixture(scope="module", params=kinds(PROCESSES, CONTAINERS))
def recorder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorder]:
    """One world for all tests that do not hurt it; with one registry, so that it is known which one answers."""
    with asyncio.Runner() as runner:
        directory = tmp_path_factory.mktemp("traces")
        opened = recording(request.param, directory, gateways=5, registries=1, of_their_own=OF_THEIR_OWN, more=[RICH])
        yield runner.run(opened.__aenter__())
        runner.run(opened.__aexit__(None, None, None))


async def run_app(recorder: Recorder, gateway: int, req_id: str, **variables: str) -> dict[str, str]:
    """The traced application, calling `trace` of `alpha`; gives the trace's ids as it printed them."""
    env = {**recorder.environment, "OTEL_SERVICE_NAME": "an-app", **instance("app"), **variables}
    command = (sys.executable, agent_app.__file__, recorder.world.url(gateway), LAB, "alpha", "trace", req_id)
    async with service_process(*command, env=env) as app:
        assert await app.exit_code(timeout=60) == 0, app.log
        printed: dict[str, str] = json.loads(app.output[-1])
        return printed


@pytest.mark.rule("answers.traces.ids", "answers.traces.content")
async def test_every_span_has_ids_and_no_arguments_or_results(recorder: Recorder) -> None:
    secret = f"secret {uuid4().hex}"
    async with member(recorder.world.url(0), "agent", LAB, "caller") as agent:
        await agent.call("alpha", "echo", {"text": secret})
        await agent.call("alpha", "fail", {"message": secret})
        with pytest.raises(FlatError, match="400"):
            await agent.call("alpha", "add", {"a": secret, "b": 1})
        await agent.call("alpha", "no_such_tool", {"text": secret})
        await recorder.settled(through(agent))
    spans = await recorder.spans()
    assert secret not in json.dumps(spans)
    assert [span["name"] for span in spans if not span["attributes"].get("smcp.req_id")] == []
    assert [span["name"] for span in spans if not span["attributes"].get("smcp.office")] == []


async def test_the_trace_of_a_malformed_call(recorder: Recorder) -> None:
    req_id = uuid4().hex
    async with member(recorder.world.url(0), "agent", LAB, "caller") as agent:
        with pytest.raises(FlatError, match="400"):
            await agent.call("alpha", "echo", {"text": "x"}, timeout=0, req_id=req_id)
        await recorder.matches("malformed", {req_id: "req_id"}, through(agent))


async def test_a_failed_call_that_was_not_sampled_has_the_same_trace_and_others_have_none(recorder: Recorder) -> None:
    well, badly = uuid4().hex, uuid4().hex
    async with member(recorder.world.url(FAILED_ONLY), "agent", LAB, "caller") as agent:
        assert not (await agent.call("alpha", "echo", {"text": "x"}, req_id=well)).get("isError")
        assert (await agent.call("alpha", "fail", req_id=badly))["isError"]
        await recorder.matches("not_sampled_and_failed", {badly: "req_id"}, None)
    assert await recorder.spans(well) == []


@pytest.mark.parametrize(("gateway", "golden"), [(0, "socketio_same_replica"), (1, "socketio_other_replica")])
async def test_the_trace_of_a_call_to_a_socketio_computer(recorder: Recorder, gateway: int, golden: str) -> None:
    """The tree is the same whether the Agent's gateway holds the Computer's socket or another one does."""
    req_id, world = uuid4().hex, recorder.world
    async with (
        member(world.url(0), "agent", LAB, "caller") as agent,
        socketio_computer(world.url(gateway), LAB, golden),
    ):
        assert text(await agent.call(golden, "echo", {"text": "x"}, req_id=req_id)) == "x"
        await recorder.matches(golden, {req_id: "req_id", golden: "computer"}, through(agent))


async def test_the_trace_of_a_tool_that_times_out(recorder: Recorder) -> None:
    req_id = uuid4().hex
    async with member(recorder.world.url(0), "agent", LAB, "caller") as agent:
        result = await agent.call("alpha", "sleep", {"seconds": 60}, timeout=OWNER_FIRST_S, req_id=req_id)
        assert result["meta"] == {"a2c_timeout": True}
        await recorder.matches("tool_too_long", {req_id: "req_id"}, through(agent))


async def test_the_trace_of_a_chunked_result(recorder: Recorder) -> None:
    req_id = uuid4().hex
    async with SmcpAgent(recorder.world.url(0), office=LAB, name="caller") as agent:
        result = await agent.call_tool("alpha", "big", {"size": 5_000_000}, req_id=req_id)
        assert len(text(result.raw)) == 5_000_000
        assert result.trace_id == req_id
        await recorder.matches("result_in_chunks", {req_id: "req_id"}, calling(agent))


async def test_the_trace_of_a_chunked_request(recorder: Recorder) -> None:
    req_id = uuid4().hex
    async with SmcpAgent(recorder.world.url(0), office=LAB, name="caller") as agent:
        result = await agent.call_tool("alpha", "keys", {"value": {"text": "x" * 3_000_000}}, req_id=req_id)
        assert len(text(result.raw)) >= 3_000_000
        await recorder.matches("request_in_chunks", {req_id: "req_id"}, calling(agent))


async def test_concurrent_calls_on_two_gateways_have_separate_traces(recorder: Recorder) -> None:
    here, there = uuid4().hex, uuid4().hex
    world = recorder.world
    async with (
        member(world.url(0), "agent", LAB, "one") as one,
        member(world.url(1), "agent", ELSEWHERE, "other") as other,
    ):
        await asyncio.gather(
            one.call("alpha", "sleep", {"seconds": 0.5}, req_id=here),
            other.call("alpha", "sleep", {"seconds": 0.5}, req_id=there),
        )
        await recorder.matches("replica_1", {here: "req_id"}, through(one))
        await recorder.matches("replica_2", {there: "req_id"}, through(other))


@pytest.mark.rule("answers.traces.id.hash")
async def test_another_req_id_is_hashed_with_office_and_agent_into_the_trace_id(recorder: Recorder) -> None:
    req_id = f"order 7/α {uuid4().hex}"
    hashed = f"{trace_id(ELSEWHERE, 'caller', req_id):032x}"
    async with member(recorder.world.url(0), "agent", ELSEWHERE, "caller") as agent:
        await agent.call("alpha", "echo", {"text": "x"}, req_id=req_id)
        await recorder.matches("hashed", {hashed: "hash", req_id: "req_id"}, through(agent))


@pytest.mark.rule("answers.traces.no-req_id")
async def test_an_event_without_a_req_id_gets_one_from_the_gateway(recorder: Recorder) -> None:
    async with member(recorder.world.url(1), "computer", "lobby", "newcomer"):

        async def joining() -> str | None:
            spans = [span for span in await recorder.spans() if span["name"] == "server:join_office"]
            return next((span["trace_id"] for span in spans if span["attributes"]["smcp.office"] == "lobby"), None)

        req_id = await eventually(joining)
        assert req_id is not None
        await recorder.matches("join", {req_id: "req_id"}, None)


@pytest.mark.parametrize("method", REQUESTS)
async def test_the_trace_of_a_request_to_an_mcp_server(recorder: Recorder, method: str) -> None:
    req_id = uuid4().hex
    payload = {"jsonrpc": "2.0", "id": 1, "method": method, "params": REQUESTS[method]}
    request = {"roomId": LAB, "computerId": "rich", "serverId": "context", "payload": payload, "req_id": req_id}
    async with member(recorder.world.url(0), "agent", LAB, "caller") as agent:
        answer = await agent.ask(f"client:{method}", request)
        assert "result" in answer["payload"], answer
        await recorder.matches(verb_of(f"client:{method}"), {req_id: "req_id"}, through(agent))


@pytest.mark.parametrize("event", QUESTIONS)
async def test_the_trace_of_a_question_to_a_computer(recorder: Recorder, event: str) -> None:
    req_id = uuid4().hex
    async with member(recorder.world.url(0), "agent", LAB, "caller") as agent:
        request = {"agent": agent.name, "computer": "rich", "req_id": req_id}
        with suppress(FlatError):
            await agent.ask(event, request)
        await recorder.matches(verb_of(event), {req_id: "req_id"}, through(agent))


@pytest.mark.parametrize("event", SAID)
async def test_the_trace_of_what_a_computer_says(recorder: Recorder, event: str) -> None:
    req_id = uuid4().hex
    async with (
        member(recorder.world.url(0), "agent", LAB, "caller") as agent,
        member(recorder.world.url(1), "computer", LAB, "visitor") as computer,
    ):
        own = {"office_id": LAB, "roomId": LAB, **dict.fromkeys(("agent", "computer", "computerId"), "visitor")}
        request = {field: own.get(field, value) for field, value in GOOD.get(event, {"computer": ""}).items()}
        await computer.ask(event, {**request, "req_id": req_id})
        await recorder.matches(verb_of(event), {req_id: "req_id"}, through(agent))


@pytest.mark.rule("answers.traces.traceparent")
async def test_the_trace_of_a_traced_application_is_continued(recorder: Recorder) -> None:
    req_id = uuid4().hex
    printed = await run_app(recorder, 1, req_id)
    assert printed["agent"] == printed["app"] != req_id
    async with member(recorder.world.url(1), "agent", LAB, "caller") as agent:
        await recorder.matches("application", {printed["app"]: "application", req_id: "req_id"}, through(agent))


@pytest.mark.rule("answers.traces.sampling")
async def test_an_unsampled_traceparent_does_not_stop_the_gateway_from_sampling(recorder: Recorder) -> None:
    req_id = uuid4().hex
    printed = await run_app(recorder, 1, req_id, OTEL_TRACES_SAMPLER="always_off")
    async with member(recorder.world.url(1), "agent", LAB, "caller") as agent:
        known = {printed["app"]: "application", req_id: "req_id"}
        await recorder.matches("application_not_sampled", known, through(agent))


@pytest.mark.rule("answers.traces.sampling")
async def test_a_sampled_traceparent_does_not_make_the_gateway_sample(recorder: Recorder) -> None:
    """The Computer would record; it does as the gateway says."""
    req_id = uuid4().hex
    printed = await run_app(recorder, NOT_SAMPLING, req_id)
    async with member(recorder.world.url(0), "agent", LAB, "caller") as agent:
        known = {printed["app"]: "application", req_id: "req_id"}
        await recorder.matches("gateway_does_not_sample", known, through(agent))


async def test_other_services_share_the_trace_when_the_gateway_exports_nothing(
    recorder: Recorder,
) -> None:
    req_id, in_app = uuid4().hex, uuid4().hex
    printed = await run_app(recorder, NOT_TRACED, in_app)
    async with member(recorder.world.url(NOT_TRACED), "agent", LAB, "caller") as agent:
        await agent.call("alpha", "trace", req_id=req_id)

        async def call(barrier: str) -> int:
            await agent.call("alpha", "echo", {"text": ""}, req_id=barrier)
            return 2

        await recorder.matches("gateway_not_traced", {req_id: "req_id"}, call)
        known = {printed["app"]: "application", in_app: "req_id"}
        await recorder.matches("gateway_not_traced_application", known, call)


@pytest.mark.parametrize("kind", kinds(PROCESSES, CONTAINERS))
async def test_the_traces_of_a_dying_mcp_server_a_silent_one_and_a_killed_computer(kind: str, tmp_path: Path) -> None:
    dies, silent, killed = f"log me {uuid4().hex}", uuid4().hex, uuid4().hex
    async with recording(kind, tmp_path, gateways=1, registries=1) as recorder:
        world = recorder.world
        beta = world.computer(LAB, "beta")
        host = beta.part
        async with member(world.url(0), "agent", LAB, "caller") as agent:
            hashed = f"{trace_id(LAB, 'caller', dies):032x}"
            assert (await agent.call("beta", "die", req_id=dies))["isError"]
            await recorder.matches("server_dies", {hashed: "hash", dies: "req_id"}, through(agent))
            said = [line for line in logged(host) if line.get("req_id") == dies]
            assert said
            assert {(line["office"], line["trace_id"]) for line in said} == {(LAB, hashed)}

            host.pause()
            with pytest.raises(FlatError, match="408"):
                await agent.call("beta", "echo", {"text": "x"}, timeout=1, req_id=silent)
            await recorder.matches("computer_does_not_answer", {silent: "req_id"}, through(agent))
            await host.kill()
            await host.start()

            asked = asyncio.create_task(agent.call("beta", "sleep", {"seconds": 60, "mark": killed}, req_id=killed))
            await eventually(lambda: runs(beta, killed))
            await host.kill()
            with pytest.raises(FlatError, match="503"):
                await asked
            await recorder.matches("computer_is_killed", {killed: "req_id"}, through(agent))
            await host.start()


def logged(part: Part) -> list[dict[str, Any]]:
    assert isinstance(part, Launched)
    return [json.loads(line) for line in part.log.read_text(encoding="utf-8").splitlines() if line.startswith("{")]


async def test_one_process_produces_the_same_tree(tmp_path: Path) -> None:
    req_id = uuid4().hex
    async with recording(STANDALONE, tmp_path) as recorder:
        async with member(recorder.world.url(0), "agent", LAB, "caller") as agent:
            await agent.call("alpha", "echo", {"text": "x"}, req_id=req_id)
            await recorder.matches("standalone", {req_id: "req_id"}, through(agent))
