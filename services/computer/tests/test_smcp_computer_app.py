"""The whole Computer, over a real nats-server with a real registry, and real MCP servers."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from smcp_bus.headers import ERROR, NOT_RUN
from smcp_computer.computer import Computer
from smcp_computer.config.file import parse_config
from smcp_computer.mcp.events import State
from smcp_testing.computer_office import NAME, World, computer, registry, world
from smcp_testing.mcp_servers import configs
from smcp_testing.waiting import OWNER_FIRST_S, Stopwatch, eventually


def held(server: dict[str, Any], hold: Path) -> dict[str, Any]:
    """A server that starts once the file is not there."""
    program = server["server_parameters"]
    shell = ["-c", 'while [ -e "$0" ]; do sleep 0.05; done; exec "$@"', str(hold), program["command"], *program["args"]]
    return {**server, "server_parameters": {**program, "command": "/bin/sh", "args": shell}}


@pytest.mark.rule(
    "events.{classes.client.computer,tool_call.flow,tool_call.reply,get_tools.reply.of-this-request}",
    "events.{flow.call.3,flow.discovery.5,flow.config.5,must.computer.all}",
    "computer.{architecture.2,architecture.2.3,architecture.6,architecture.8,manager.type.stdio,call.3}",
    "computer.{call.4,call.7}",
    "answers.calls.result.unchanged",
)
async def test_an_agent_lists_and_calls_tools(nats_url: str) -> None:
    async with world(nats_url, box=configs.stdio()) as here:
        listed = await here.ask("get_tools")
        assert listed["req_id"] == "r1"
        assert {"echo", "add"} <= {tool["name"] for tool in listed["tools"]}
        result = await here.call("add", a=2, b=3)
        assert result["structuredContent"] == {"result": 5}
        assert "_meta" not in result


@pytest.mark.rule("answers.calls.result.unchanged")
async def test_whole_numbers_of_any_size_reach_a_tool_and_come_back_as_they_are(nats_url: str) -> None:
    async with world(nats_url, box=configs.stdio()) as here:
        value: dict[str, Any] = {"n": 12345678901234567890123, "more": [-(2**63) - 1, 2**64 - 1, 1.5]}
        result = await here.call("keys", value=value)
        assert result["structuredContent"] == value
        assert await here.call("keys", value=value) == result
        assert (await here.call("keys", value={**value, "n": value["n"] + 1}))["details"] == {"field": "req_id"}


@pytest.mark.rule("computer.call.6", "answers.calls.result.meta", "answers.calls.result.a2c-keys")
async def test_the_meta_of_a_result_lacks_the_servers_a2c_keys(nats_url: str) -> None:
    async with world(nats_url, box=configs.stdio()) as here:
        meta = (await here.call("with_meta"))["meta"]
        assert meta["mine"] == 1
        assert "a2c_timeout" not in meta


@pytest.mark.rule("events.{classes.client.computer,get_config.whole,must.computer.all}", "answers.config.shown.env")
async def test_the_configuration_is_shown_without_secrets(nats_url: str) -> None:
    async with world(nats_url, box=configs.stdio(env={"TOKEN": "s3cret"})) as here:
        shown = await here.ask("get_config")
        assert shown["servers"]["box"]["server_parameters"]["env"] == {"TOKEN": "<redacted>"}


@pytest.mark.rule("answers.config.status", "events.classes.client.computer")
async def test_an_agent_sees_the_states_of_mcp_servers_and_nothing_of_the_host(nats_url: str) -> None:
    lost = {"type": "stdio", "server_parameters": {"command": "no-such-program"}}
    off = {**configs.stdio(), "disabled": True}
    async with world(nats_url, box={**configs.stdio(), "forbidden_tools": ["add"]}, lost=lost, off=off) as here:

        async def between_two_starts() -> Any:
            status = await here.ask("get_status")
            assert status.keys() == {"servers", "req_id"}
            found = {each.pop("name"): each for each in status["servers"]}
            return found if found["lost"]["state"] != "starting" else None

        found = await eventually(between_two_starts)
        assert [each.keys() for each in found.values()] == [{"state", "reason", "since", "restarts", "tools"}] * 3
        assert (found["box"]["state"], found["box"]["reason"]) == ("ready", "")
        assert found["box"]["tools"] == len((await here.ask("get_tools"))["tools"]) > 0
        assert found["lost"]["state"] in ("backoff", "failed")
        assert "no-such-program" in found["lost"]["reason"]
        assert (found["off"]["state"], found["off"]["tools"]) == ("disabled", 0)


@pytest.mark.rule("answers.calls.timeout.computer", "answers.calls.timeout.meta", "answers.calls.timeout.all-cancel")
async def test_a_tool_that_takes_too_long_is_cancelled_before_its_caller_gives_up(
    nats_url: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with world(nats_url, box=configs.stdio(log=log)) as here:
        watch = Stopwatch()
        result = await here.call("sleep", timeout=OWNER_FIRST_S, seconds=60, mark="m")
        assert watch.took > OWNER_FIRST_S - 0.7
        assert watch.undisturbed < OWNER_FIRST_S + 4
        assert result["isError"] is True
        assert result["meta"] == {"a2c_timeout": True}
        await eventually(lambda: "cancelled m" in log.read_text())


@pytest.mark.rule(
    "events.tool_call.request.req_id.dedup",
    "data-structures.AgentCallData.req_id.dedup",
    "answers.calls.dedup.{once,other}",
)
async def test_a_repeated_req_id_runs_once(nats_url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with world(nats_url, box=configs.stdio(log=log)) as here:
        results = await asyncio.gather(*(here.call("append", mark="once") for _ in range(5)))
        results.append(await here.call("append", mark="once"))
        assert all(result == results[0] for result in results)
        assert log.read_text() == "once\n"
        refused = await here.call("append", mark="twice")
        assert (refused["code"], refused["details"]) == (400, {"field": "req_id"})
        assert log.read_text() == "once\n"


async def test_a_repeat_of_an_unknown_call_is_not_run(nats_url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with world(nats_url, box=configs.stdio(log=log)) as here:
        request = {"tool_name": "append", "params": {"mark": "x"}, "timeout": 15}
        reply = await here.raw("tool_call", **request, a2c_repeat=True)
        assert reply.headers[ERROR] == "503"
        assert NOT_RUN not in reply.headers, "a relay must not send it again"
        assert json.loads(reply.body)["details"] == {"may_have_run": True, "unknown_repeat": True}
        assert not log.exists()
        for bad in (-1, 1.5, "400"):
            refused = await here.ask("tool_call", **request, a2c_repeat=bad)
            assert (refused["code"], refused["details"]["field"]) == (400, "a2c_repeat")
        first = await here.ask("tool_call", **request)
        assert await here.ask("tool_call", **request, a2c_repeat=True) == first
        assert log.read_text() == "x\n"


@pytest.mark.rule("events.tool_call.request.req_id.cancel", "answers.calls.cancel.{mcp,meta,early,unknown}")
async def test_a_cancel_ends_the_call_and_reaches_the_server(nats_url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with world(nats_url, box=configs.stdio(log=log)) as here:
        pending = asyncio.create_task(here.call("sleep", seconds=60, mark="m"))
        await eventually(lambda: log.exists() and "sleep m" in log.read_text())
        await here.cancel("r1", agent="somebody else")
        await here.cancel("unknown")
        await here.cancel("r1")
        assert (await asyncio.wait_for(pending, 30))["meta"] == {"a2c_cancelled": True}
        await eventually(lambda: "cancelled m" in log.read_text())
        late = await here.call("append", req_id="unknown", mark="never")
        assert late["meta"] == {"a2c_cancelled": True}
        assert "never" not in log.read_text()


async def test_a_call_that_is_cancelled_before_its_first_step_is_not_run(nats_url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with world(nats_url, box=configs.stdio(log=log)) as here:
        pending = asyncio.create_task(here.call("append", mark="never"))
        async with asyncio.timeout(30):
            while not here.computer.owner.running:  # noqa: ASYNC110 -- in each round: the tool's task has the next one
                await asyncio.sleep(0)
        assert here.computer.owner.cancel((here.computer.seat,), here.computer.seat.office, "alice", "r1")
        assert (await pending)["meta"] == {"a2c_cancelled": True}
        assert (await here.call("echo", req_id="r2", text="x"))["structuredContent"] == {"result": "x"}
    assert not log.exists()
    gc.collect()  # a coroutine that nobody awaited warns, and fails the test


async def test_lost_calls_are_distinguished_from_pending_ones(nats_url: str, tmp_path: Path) -> None:
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


@pytest.mark.rule(
    "data-structures.BaseMCPServerConfig.forbidden_tools.meaning",
    "computer.manager.call.forbidden",
    "answers.errors.tool",
)
@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ("no_such_tool", "no tool 'no_such_tool'"),
        ("echo", "'echo' is forbidden"),
        ("plus", "'plus' is forbidden"),
        ("die", "MCP server 'box' went away"),
    ],
)
async def test_calling_a_tool_that_cannot_be_run_gives_a_failed_result(nats_url: str, tool: str, words: str) -> None:
    box = configs.stdio(forbidden_tools=["echo", "add"], tool_meta={"add": {"alias": "plus"}})
    async with world(nats_url, box=box) as here:
        result = await here.call(tool)
        assert result["isError"] is True
        assert words in result["content"][0]["text"]
        assert result.get("meta", {}).get("a2c_forbidden", False) is ("forbidden" in words)


async def test_a_server_with_missing_values_is_not_started_and_logged_once(
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
    assert said == [f"MCP server 'lost': {WHY_LOST} (it is not started, nor tried again)"]


WHY_LOST = (
    "server_parameters.args.0: ${input:tok}: is not the id of an input; "
    "server_parameters.env.A: ${env:NOT_SET}: the environment variable is not set"
)


@pytest.mark.rule("answers.tools.arguments")
async def test_arguments_that_the_schema_refuses_do_not_reach_the_server(nats_url: str) -> None:
    async with world(nats_url, box=configs.stdio()) as here:
        refused = await here.call("add", a="no number", b=1)
        assert (refused["code"], refused["details"]["field"]) == (400, "params.a")


@pytest.mark.parametrize("unchecked", ["add", "*"])
async def test_arguments_of_an_unchecked_tool_are_answered_by_the_tool_itself(nats_url: str, unchecked: str) -> None:
    async with world(nats_url, box=configs.stdio(unchecked_tools=[unchecked])) as here:
        assert (await here.call("add", a="no number"))["isError"] is True


@pytest.mark.rule("answers.tools.names.kept", "answers.tools.names.callable", "answers.tools.names.hint")
async def test_a_tool_keeps_its_name_when_another_server_brings_the_same_one(nats_url: str) -> None:
    a, b, c = configs.stdio("hello"), configs.stdio(), configs.stdio("hello", forbidden_tools=["browser_navigate"])
    async with world(nats_url, a=a, b=b, c=c) as here:

        async def names() -> set[str]:
            return {tool["name"] for tool in (await here.ask("get_tools"))["tools"]}

        assert {"browser_navigate", "a__hello", "c__hello"} <= await names()
        await here.call("add_tool", req_id="1", name="browser_navigate")
        await eventually(lambda: here.told("update_tool_list"))
        assert {"browser_navigate", "b__browser_navigate"} <= await names()
        called = {
            name: (await here.call(name, req_id=name, url="x"))["content"][0]["text"]
            for name in ("browser_navigate", "a__browser_navigate", "b__browser_navigate", "c__browser_navigate")
        }
        assert called["browser_navigate"] == called["a__browser_navigate"]
        assert called["b__browser_navigate"] == "extra"
        assert "is forbidden" in called["c__browser_navigate"]


@pytest.mark.rule("answers.tools.names.hint")
async def test_a_name_that_one_server_forbids_and_two_others_offer_gives_a_hint(nats_url: str) -> None:
    open_, closed = configs.stdio("hello"), configs.stdio("hello", forbidden_tools=["hello"])
    async with world(nats_url, a=closed, b=open_, c=open_) as here:
        hint = await here.call("hello")
        assert hint["content"][0]["text"] == (
            "this Computer has no tool 'hello'; it is listed as 'b__hello' and 'c__hello'"
        )
        assert "a2c_forbidden" not in hint.get("meta", {})


async def test_the_error_about_an_unknown_tool_names_the_servers_that_may_have_it(nats_url: str) -> None:
    broken = {"type": "stdio", "server_parameters": {"command": "true"}}
    async with world(nats_url, {"wait_s": 0.1}, a=configs.stdio("hello"), b=broken) as here:
        text = (await here.call("nothing"))["content"][0]["text"]
        assert text == "this Computer has no tool 'nothing'; not ready: 'b' (backoff)"


@pytest.mark.rule("answers.tools.names.restart")
async def test_the_next_process_gives_tools_the_names_that_were_seen(nats_url: str, tmp_path: Path) -> None:
    settings, hello = {"state_dir": tmp_path, "wait_s": 0.1}, configs.stdio("hello")
    broken = {"type": "stdio", "server_parameters": {"command": "${env:NOT_SET}"}}  # tried once: its state stays

    async def names(here: World) -> set[str]:
        return {tool["name"] for tool in (await here.ask("get_tools"))["tools"]} & {"hello", "a__hello", "b__hello"}

    async with world(nats_url, settings, b=hello) as here:
        assert await names(here) == {"hello"}
    async with world(nats_url, settings, b=broken, a=hello) as here:
        assert await names(here) == {"a__hello"}
        text = (await here.call("hello"))["content"][0]["text"]
        assert text == "this Computer has no tool 'hello'; it is listed as 'a__hello'; not ready: 'b' (failed)"
    async with world(nats_url, settings, b=hello, a=hello) as here:
        assert await names(here) == {"hello", "a__hello"}
        assert here.computer.catalogue.find("hello") == here.computer.catalogue.find("b__hello")


async def test_names_that_a_call_learns_while_the_computer_stops_are_kept(nats_url: str, tmp_path: Path) -> None:
    settings = {"state_dir": tmp_path, "wait_s": 60, "drain_s": 60}
    hello, hold = configs.stdio("hello"), tmp_path / "hold"
    hold.touch()

    async def start_the_server_once_it_stops(here: World) -> None:
        await eventually(lambda: here.computer.readiness.draining)
        hold.unlink()

    async with world(nats_url, settings) as here:
        here.computer.fleet.apply(parse_config(json.dumps({"servers": {"b": held(hello, hold)}})))
        calling = asyncio.create_task(here.call("hello", timeout=60, name="you"))
        await eventually(lambda: here.computer.owner.running)
        starting = asyncio.create_task(start_the_server_once_it_stops(here))
    assert (await calling)["isError"] is False
    await starting
    async with world(nats_url, settings, a=hello, b=hello) as here:
        target = here.computer.catalogue.find("hello")
        assert target is not None
        assert target.ref.server == "b"


async def test_computers_that_share_a_state_directory_keep_the_names_of_their_own_tools(
    nats_url: str, tmp_path: Path
) -> None:
    hello = configs.stdio("hello")

    @asynccontextmanager
    async def both(**servers: Any) -> AsyncIterator[list[Computer]]:
        async with (
            registry(nats_url),
            computer(nats_url, servers, name="first", state_dir=tmp_path) as first,
            computer(nats_url, servers, name="second", state_dir=tmp_path) as second,
        ):
            yield [first, second]

    async with both(b=hello) as computers:
        assert all("hello" in {tool.name for tool in each.catalogue.listing} for each in computers)
    async with both(a=hello, b=hello) as computers:
        targets = [each.catalogue.find("hello") for each in computers]
        assert [target and target.ref.server for target in targets] == ["b", "b"]


@pytest.mark.rule("data-structures.SMCPTool.alias", "computer.architecture.5", "computer.manager.call.server")
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


async def test_a_tool_that_is_forbidden_while_its_call_waits_for_the_server_is_not_run(
    nats_url: str, tmp_path: Path
) -> None:
    log, hold = tmp_path / "log", tmp_path / "hold"
    box = held(configs.stdio(log=log), hold)
    async with world(nats_url, {"wait_s": 60}, box=box) as here:
        hold.touch()
        await here.call("die")
        waiting = asyncio.create_task(here.call("append", req_id="2", timeout=60, mark="never"))
        await eventually(lambda: here.computer.calls.recent()["box"][0]["tool"] == "append")
        here.computer.fleet.apply(
            parse_config(json.dumps({"servers": {"box": {**box, "forbidden_tools": ["append"]}}}))
        )
        hold.unlink()
        assert "configuration changed while the call waited" in (await waiting)["content"][0]["text"]
        assert not log.exists()


@pytest.mark.rule("answers.errors.413", "answers.large.result")
async def test_a_result_above_the_limit_is_413_and_one_below_arrives(nats_url: str) -> None:
    async with world(nats_url, box=configs.stdio()) as here:
        large = await here.call("big", req_id="1", size=20_000_000)
        assert len(large["content"][0]["text"]) == 20_000_000
        refused = await here.call("big", req_id="2", size=40_000_000)
        assert refused["code"] == 413
        assert refused["details"]["limit"] == 32 * 1024 * 1024
        assert (await here.call("echo", req_id="3", text="fine"))["isError"] is False


@pytest.mark.rule("computer.challenge.tools", "computer.manager.call.meta", "answers.tools.confirm.refused")
async def test_a_tool_that_always_asks_is_refused_where_nobody_can_be_asked(nats_url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    box = configs.stdio(log=log, tool_meta={"append": {"auto_apply": False}})
    async with world(nats_url, box=box) as here:
        result = await here.call("append", mark="never")
        assert result["isError"] is True
        assert "SMCP_CONFIRM" in result["content"][0]["text"]
        assert not log.exists()


@pytest.mark.rule("events.classes.client.computer", "answers.unhandled.503")
async def test_an_event_without_a_handler_is_503(nats_url: str) -> None:
    async with world(nats_url) as here:
        assert (await here.ask("get_skills"))["code"] == 503


@pytest.mark.rule("events.update_tool_list.when")
async def test_a_changed_tool_list_is_announced_once(nats_url: str) -> None:
    async with world(nats_url, box=configs.stdio()) as here:
        await asyncio.gather(*(here.call("add_tool", req_id=name, name=name) for name in ("x1", "x2", "x3")))
        await eventually(lambda: here.told("update_tool_list"))
        await eventually(lambda: {"x1", "x2", "x3"} <= {tool.name for tool in here.computer.catalogue.listing})
        await eventually(lambda: not {each.key.verb for each in here.computer.outbox.waiting})
        assert here.told("update_tool_list")[0] == {"computer": NAME}
        assert len(here.told("update_tool_list")) <= 2


@pytest.mark.rule("events.update_tool_list.when", "computer.safety.crash")
async def test_a_server_that_dies_and_returns_is_announced_twice(nats_url: str) -> None:
    async with world(nats_url, box=configs.stdio()) as here:
        await here.call("die")
        await eventually(lambda: len(here.told("update_tool_list")) == 1)
        await eventually(lambda: len(here.told("update_tool_list")) == 2)
        assert (await here.call("echo", req_id="2", text="back"))["isError"] is False
