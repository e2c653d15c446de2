"""The whole Computer, over a real nats-server with a real registry, and real MCP servers."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from smcp_bus import subjects
from smcp_bus.bus import Incoming, Reply
from smcp_bus.headers import ERROR, NOT_RUN
from smcp_bus.nats_bus import BusConfig, NatsBus, open_bus
from smcp_computer.app import Computer, open_computer
from smcp_computer.config.file import parse_config
from smcp_computer.mcp.supervisor import State
from smcp_computer.settings import ComputerSettings
from smcp_registry.app import open_registry
from smcp_registry.buckets import open_store
from smcp_registry.records import record_key, tombstone
from smcp_registry.settings import RegistrySettings
from smcp_registry.store import read_member, write_member
from smcp_testing.mcp_servers import configs
from smcp_testing.nats_process import NatsServer
from smcp_testing.waiting import eventually

OFFICE, NAME = "lab", "pc"


class World:
    """An Agent's view of one Computer, and what the office hears."""

    def __init__(self, computer: Computer, agent: NatsBus) -> None:
        self.computer = computer
        self.agent = agent
        self.heard: list[tuple[str, dict[str, Any]]] = []

    async def hear(self, incoming: Incoming) -> None:
        self.heard.append((subjects.verb_of(incoming.subject), json.loads(incoming.body)))

    def told(self, verb: str) -> list[dict[str, Any]]:
        return [body for heard, body in self.heard if heard == verb]

    async def raw(self, verb: str, **body: Any) -> Reply:
        request = {"agent": "alice", "req_id": "r1", "computer": NAME, **body}
        subject = subjects.client(OFFICE, NAME, verb)
        return await self.agent.request(subject, json.dumps(request).encode(), timeout=20.0)

    async def ask(self, verb: str, **body: Any) -> dict[str, Any]:
        reply = await self.raw(verb, **body)
        answer: dict[str, Any] = json.loads(reply.body)
        assert reply.headers.get(ERROR) == (str(answer["code"]) if "code" in answer else None)
        return answer

    async def call(self, tool: str, req_id: str = "r1", timeout: int = 15, **params: Any) -> dict[str, Any]:
        return await self.ask("tool_call", req_id=req_id, tool_name=tool, params=params, timeout=timeout)

    async def cancel(self, req_id: str, agent: str = "alice") -> None:
        body = json.dumps({"agent": agent, "req_id": req_id}).encode()
        await self.agent.publish(subjects.notify(OFFICE, "tool_call_cancel"), body)


@asynccontextmanager
async def registry(url: str, **settings: Any) -> AsyncIterator[None]:
    async with (
        open_bus(BusConfig(url=url)) as bus,
        open_registry(RegistrySettings(nats_url=url, **settings), bus),
    ):
        yield


@asynccontextmanager
async def computer(
    url: str, servers: dict[str, Any] | None = None, *, joined: bool = True, lease_s: float = 10.0
) -> AsyncIterator[Computer]:
    settings = ComputerSettings(
        nats_url=url, config=Path("unused"), office=OFFICE, name=NAME, drain_s=5.0, lease_s=lease_s
    )
    config = parse_config(json.dumps({"servers": servers or {}}))
    async with (
        open_bus(BusConfig(url=url)) as bus,
        open_computer(settings, bus, config=config, environ={}) as opened,
    ):
        if joined:
            await asyncio.wait_for(opened.wait_ready(), 35)
        yield opened


@asynccontextmanager
async def world(url: str, **servers: dict[str, Any]) -> AsyncIterator[World]:
    async with registry(url), open_bus(BusConfig(url=url)) as agent:
        listening = None
        try:
            async with computer(url, servers) as opened:
                here = World(opened, agent)
                listening = await agent.listen(subjects.notify_all(OFFICE), here.hear)
                yield here
        finally:
            if listening is not None:
                await listening.drain()


async def test_an_agent_lists_and_calls_tools(nats_url: str) -> None:
    async with world(nats_url, box=configs.stdio()) as here:
        listed = await here.ask("get_tools")
        assert listed["req_id"] == "r1"
        assert {"echo", "add"} <= {tool["name"] for tool in listed["tools"]}
        result = await here.call("add", a=2, b=3)
        assert result["structuredContent"] == {"result": 5}
        assert "_meta" not in result


async def test_the_meta_of_a_result_is_the_servers_without_what_is_ours(nats_url: str) -> None:
    async with world(nats_url, box=configs.stdio()) as here:
        meta = (await here.call("with_meta"))["meta"]
        assert meta["mine"] == 1
        assert "a2c_timeout" not in meta


async def test_the_configuration_is_shown_without_secrets(nats_url: str) -> None:
    async with world(nats_url, box=configs.stdio(env={"TOKEN": "s3cret"})) as here:
        shown = await here.ask("get_config")
        assert shown["servers"]["box"]["server_parameters"]["env"] == {"TOKEN": "<redacted>"}


async def test_a_tool_that_takes_too_long_is_cancelled_before_its_caller_gives_up(
    nats_url: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with world(nats_url, box=configs.stdio(log=log)) as here:
        loop = asyncio.get_running_loop()
        began = loop.time()
        result = await here.call("sleep", timeout=1, seconds=60, mark="m")
        assert 0.8 < loop.time() - began < 5
        assert result["isError"] is True
        assert result["meta"] == {"a2c_timeout": True}
        await eventually(lambda: "cancelled m" in log.read_text())


async def test_the_same_request_twice_runs_once(nats_url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with world(nats_url, box=configs.stdio(log=log)) as here:
        results = await asyncio.gather(*(here.call("append", mark="once") for _ in range(5)))
        results.append(await here.call("append", mark="once"))
        assert all(result == results[0] for result in results)
        assert log.read_text() == "once\n"
        refused = await here.call("append", mark="twice")
        assert (refused["code"], refused["details"]) == (400, {"field": "req_id"})
        assert log.read_text() == "once\n"


async def test_a_repeat_runs_nothing_on_a_computer_that_does_not_know_the_call(nats_url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with world(nats_url, box=configs.stdio(log=log)) as here:
        request = {"tool_name": "append", "params": {"mark": "x"}, "timeout": 15}
        reply = await here.raw("tool_call", **request, a2c_repeat=True)
        assert reply.headers[ERROR] == "503"
        assert NOT_RUN not in reply.headers, "whoever relays it must not send it again"
        assert json.loads(reply.body)["details"] == {"may_have_run": True}
        assert not log.exists()
        first = await here.ask("tool_call", **request)
        assert await here.ask("tool_call", **request, a2c_repeat=True) == first
        assert log.read_text() == "x\n"


async def test_a_cancel_ends_the_call_and_reaches_the_server(nats_url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with world(nats_url, box=configs.stdio(log=log)) as here:
        pending = asyncio.create_task(here.call("sleep", seconds=60, mark="m"))
        await eventually(lambda: log.exists() and "sleep m" in log.read_text())
        await here.cancel("r1", agent="somebody else")
        await here.cancel("unknown")
        await here.cancel("r1")
        assert (await asyncio.wait_for(pending, 5))["meta"] == {"a2c_cancelled": True}
        await eventually(lambda: "cancelled m" in log.read_text())
        late = await here.call("append", req_id="unknown", mark="never")
        assert late["meta"] == {"a2c_cancelled": True}
        assert "never" not in log.read_text()


async def test_calls_that_got_lost_are_told_from_those_that_are_here(nats_url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with world(nats_url, box=configs.stdio(log=log)) as here:
        await here.call("echo", req_id="ended", text="x")
        running = asyncio.create_task(here.call("sleep", req_id="runs", seconds=60))
        await eventually(log.exists)
        question = [["alice", "ended"], ["alice", "runs"], ["alice", "lost"], ["bob", "runs"]]
        answer = await here.ask("pending", calls=question)
        assert answer["unknown"] == [["alice", "lost"], ["bob", "runs"]]

        async def only_one_has_ended() -> bool:
            return bool((await here.ask("pending", calls=question))["ended"] == [["alice", "ended"]])

        await eventually(only_one_has_ended)
        await here.cancel("runs")
        await running


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ("no_such_tool", "no tool 'no_such_tool'"),
        ("echo", "'echo' is forbidden"),
        ("plus", "'plus' is forbidden"),
        ("die", "MCP server 'box' went away"),
    ],
)
async def test_a_tool_that_cannot_be_run_is_a_failed_result_not_an_error(nats_url: str, tool: str, words: str) -> None:
    box = configs.stdio(forbidden_tools=["echo", "add"], tool_meta={"add": {"alias": "plus"}})
    async with world(nats_url, box=box) as here:
        result = await here.call(tool)
        assert result["isError"] is True
        assert words in result["content"][0]["text"]
        assert result.get("meta", {}).get("a2c_forbidden", False) is ("forbidden" in words)


async def test_a_server_that_can_never_run_here_is_given_up_and_that_is_said_once(
    nats_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    parameters = {"command": "x", "args": ["${input:tok}"], "env": {"A": "${env:NOT_SET}"}}
    async with world(nats_url, box=configs.stdio(), lost={"type": "stdio", "server_parameters": parameters}) as here:
        assert (await here.call("echo", req_id="1", text="x"))["isError"] is False
        await here.computer.wait_ready()
        supervisor = here.computer.fleet.supervisors["lost"]
        assert (supervisor.state, supervisor.reason) == (State.FAILED, WHY_LOST)
        assert supervisor._backoff._step == 0.0, "no other try is planned"
    said = [record.getMessage() for record in caplog.records if "'lost'" in record.getMessage()]
    assert said == [f"MCP {WHY_LOST} (it is not started, nor tried again)"]


WHY_LOST = (
    "server 'lost': server_parameters.args.0: ${input:tok}: no input has this id; "
    "server_parameters.env.A: ${env:NOT_SET}: the environment variable is not set"
)


async def test_arguments_that_the_tool_refuses_are_its_own_answer(nats_url: str) -> None:
    async with world(nats_url, box=configs.stdio()) as here:
        assert (await here.call("add", a="no number"))["isError"] is True


async def test_an_aliased_and_a_qualified_tool_are_called_by_their_listed_names(nats_url: str) -> None:
    aliased = configs.stdio(tool_meta={"echo": {"alias": "say it"}})
    async with world(nats_url, a=aliased, b=configs.stdio()) as here:
        names = {tool["name"] for tool in (await here.ask("get_tools"))["tools"]}
        assert {"say_it", "echo", "a__pid", "b__pid"} <= names
        assert (await here.call("say_it", req_id="1", text="x"))["isError"] is False
        first, second = await here.call("a__pid", req_id="2"), await here.call("b__pid", req_id="3")
        assert first["structuredContent"] != second["structuredContent"]
        hint = (await here.call("pid", req_id="4"))["content"][0]["text"]
        assert "'a__pid' and 'b__pid'" in hint


async def test_a_result_above_the_limit_is_413_and_one_below_arrives(nats_url: str) -> None:
    async with world(nats_url, box=configs.stdio()) as here:
        large = await here.call("big", req_id="1", size=20_000_000)
        assert len(large["content"][0]["text"]) == 20_000_000
        refused = await here.call("big", req_id="2", size=40_000_000)
        assert refused["code"] == 413
        assert refused["details"]["limit"] == 32 * 1024 * 1024
        assert (await here.call("echo", req_id="3", text="fine"))["isError"] is False


async def test_a_tool_that_always_asks_is_refused_where_nobody_can_be_asked(nats_url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    box = configs.stdio(log=log, tool_meta={"append": {"auto_apply": False}})
    async with world(nats_url, box=box) as here:
        result = await here.call("append", mark="never")
        assert result["isError"] is True
        assert "SMCP_CONFIRM" in result["content"][0]["text"]
        assert not log.exists()


async def test_a_row_that_is_not_handled_yet_is_503(nats_url: str) -> None:
    async with world(nats_url) as here:
        assert (await here.ask("get_desktop"))["code"] == 503


async def test_a_changed_list_of_tools_is_told_once(nats_url: str) -> None:
    async with world(nats_url, box=configs.stdio()) as here:
        await asyncio.gather(*(here.call("add_tool", req_id=name, name=name) for name in ("x1", "x2", "x3")))
        await eventually(lambda: here.told("update_tool_list"))
        await eventually(lambda: {"x1", "x2", "x3"} <= {tool.name for tool in here.computer.catalogue.listing})
        await eventually(lambda: not here.computer.announcer.untold)
        assert here.told("update_tool_list")[0] == {"computer": NAME}
        assert len(here.told("update_tool_list")) <= 2


async def test_a_server_that_dies_is_told_and_told_again_when_it_is_back(nats_url: str) -> None:
    async with world(nats_url, box=configs.stdio()) as here:
        await here.call("die")
        await eventually(lambda: len(here.told("update_tool_list")) == 1)
        await eventually(lambda: len(here.told("update_tool_list")) == 2, timeout=15)
        assert (await here.call("echo", req_id="2", text="back"))["isError"] is False


async def test_a_name_that_is_taken_is_refused_and_tried_until_it_is_free(nats_url: str) -> None:
    async with registry(nats_url):
        async with computer(nats_url) as first:
            async with computer(nats_url, joined=False) as second:
                await eventually(lambda: (second.membership.problem or "").startswith("refused: "))
                assert first.membership.problem is None
                assert "office" in second.readiness.problems()
        async with computer(nats_url) as third:
            assert third.membership.problem is None


async def test_who_is_refused_gets_the_name_when_it_becomes_free(nats_url: str) -> None:
    async with registry(nats_url), AsyncExitStack() as first:
        await first.enter_async_context(computer(nats_url))
        async with computer(nats_url, joined=False) as second:
            await eventually(lambda: (second.membership.problem or "").startswith("refused: "))
            await first.aclose()
            await asyncio.wait_for(second.membership.joined.wait(), 15)


async def test_a_gated_owner_runs_nothing_and_says_so(nats_url: str) -> None:
    async with registry(nats_url), computer(nats_url), computer(nats_url, joined=False) as refused:
        await eventually(lambda: (refused.membership.problem or "").startswith("refused: "))
        async with open_bus(BusConfig(url=nats_url)) as agent:
            body = json.dumps({"agent": "a", "req_id": "r", "computer": NAME}).encode()

            async def gated() -> bool:
                reply = await agent.request(subjects.client(OFFICE, NAME, "get_tools"), body, timeout=5)
                return reply.headers.get(NOT_RUN) == "1" and reply.headers.get(ERROR) == "503"

            await eventually(gated)


async def test_the_place_is_confirmed_after_nats_was_away(nats_server: NatsServer) -> None:
    url = nats_server.url
    async with registry(url), computer(url, {"box": configs.stdio()}, lease_s=2.0) as here:
        await nats_server.stop()
        await eventually(lambda: here.membership.problem is not None, timeout=10)
        here.announcer.changed("update_tool_list")
        await nats_server.start()
        await eventually(lambda: here.membership.problem is None, timeout=20)
        await eventually(lambda: not here.announcer.untold, timeout=10)
        assert here.fleet.supervisors["box"].starts == 1


async def test_a_place_that_a_registry_took_away_from_the_living_is_claimed_again(nats_url: str) -> None:
    async with world(nats_url, box=configs.stdio()) as here, open_bus(BusConfig(url=nats_url)) as bus:
        store = await open_store(bus, bus.jetstream(), lease_s=10.0, replicas=1)
        key = record_key(OFFICE, "computer", NAME)

        def presence() -> list[str]:
            return [verb for verb, _ in here.heard if verb in {"leave_office", "enter_office"}]

        for _ in range(2):
            here.heard.clear()
            member = await read_member(store.members, key)
            assert member is not None
            assert member.record is not None
            await write_member(store.members, key, tombstone(member.record), last=member.revision)
            # before the leave there may be the enter of the first join, still on its way
            await eventually(lambda: presence()[-2:] == ["leave_office", "enter_office"], timeout=10)
            await eventually(lambda: here.computer.membership.problem is None, timeout=10)
        assert (await here.call("echo", text="back"))["isError"] is False


async def test_it_joins_as_soon_as_there_is_a_registry(nats_url: str) -> None:
    async with computer(nats_url, joined=False) as here:
        assert here.membership.problem is not None
        async with registry(nats_url):
            await asyncio.wait_for(here.membership.joined.wait(), 30)


async def test_leaving_waits_for_the_calls_that_run(nats_url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with registry(nats_url), open_bus(BusConfig(url=nats_url)) as agent:
        async with computer(nats_url, {"box": configs.stdio(log=log)}) as opened:
            here = World(opened, agent)
            running = asyncio.create_task(here.call("sleep", seconds=1))
            await eventually(log.exists)
        assert (await running)["isError"] is False
