"""The fleet follows another configuration: what changed between the two, and what becomes of servers and calls."""

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_computer.config.file import ComputerConfig, load_config, parse_config
from smcp_computer.config.inputs import InputResolver
from smcp_computer.mcp.errors import CallBrokenOff
from smcp_computer.mcp.events import ServerEvent, ServerGone, ServerReady, ServerRemoved, State
from smcp_computer.mcp.fleet import Changes, Fleet, changed
from smcp_computer.mcp.transports import Limits
from smcp_computer.tools import Catalogue
from smcp_service.lifecycle import background
from smcp_testing.mcp_servers import configs
from smcp_testing.supervised import call, pid_of, text
from smcp_testing.waiting import eventually

Servers = Mapping[str, dict[str, Any]]


def parsed(servers: Servers, inputs: list[dict[str, Any]] | None = None) -> ComputerConfig:
    return parse_config(json.dumps({"servers": servers, "inputs": inputs or []}))


def program(*arguments: str, **config: Any) -> dict[str, Any]:
    return {"type": "stdio", "server_parameters": {"command": "true", "args": list(arguments)}, **config}


def prompt(name: str, default: str) -> dict[str, Any]:
    return {"type": "promptString", "id": name, "description": "a value", "default": default}


SERVERS = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.builds(
        program,
        st.sampled_from(["1", "${input:x}", "${input:y}"]),
        disabled=st.booleans(),
        forbidden_tools=st.lists(st.just("echo"), max_size=1),
    ),
)


@given(old=SERVERS, new=SERVERS)
def test_a_change_names_each_server_at_most_once_and_nothing_where_nothing_changed(old: Servers, new: Servers) -> None:
    before, now = parsed(old), parsed(new)
    found = changed(before, now)
    names = [*found.added, *found.removed, *found.restarted, *found.relabelled]
    assert len(names) == len(set(names))
    running = {name for name, server in before.servers.items() if not server.disabled}
    assert (running - found.removed) | found.added == {
        name for name, server in now.servers.items() if not server.disabled
    }
    assert not changed(now, parsed(new))


@pytest.mark.parametrize(
    "label",
    [
        {"forbidden_tools": ["echo"]},
        {"tool_meta": {"echo": {"alias": "say"}}},
        {"default_tool_meta": {"auto_apply": True}},
        {"vrl": "."},
    ],
)
def test_what_is_said_about_tools_changes_without_a_restart(label: dict[str, Any]) -> None:
    found = changed(parsed({"a": program(), "b": program()}), parsed({"a": program(**label), "b": program()}))
    assert found == Changes(relabelled=frozenset({"a"}))


def test_other_parameters_or_another_type_restart_a_server() -> None:
    assert changed(parsed({"a": program("1")}), parsed({"a": program("2")})).restarted == {"a"}
    remote = {"type": "sse", "server_parameters": {"url": "http://127.0.0.1:1/sse"}}
    assert changed(parsed({"a": program("1")}), parsed({"a": remote})).restarted == {"a"}


def test_settings_for_programs_do_not_restart_a_server_over_http() -> None:
    web = {"type": "sse", "server_parameters": {"url": "http://127.0.0.1:1/sse"}}
    settings: list[dict[str, Any]] = [{"sandbox": {}}, {"user": "a"}, {"limits": {"files": 64}}, {"environment": ["A"]}]
    for setting in settings:
        before, now = ({"servers": {"box": program(), "web": web}, "defaults": more} for more in ({}, setting))
        found = changed(parse_config(json.dumps(before)), parse_config(json.dumps(now)))
        assert found == Changes(restarted=frozenset({"box"}), relabelled=frozenset({"web"}))


def test_the_variables_of_another_env_file_restart_a_server_and_not_its_name(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("A=1")
    (tmp_path / "same").write_text("A=1")
    (tmp_path / "other").write_text("A=2")

    def loaded(env_file: str) -> ComputerConfig:
        file = tmp_path / "computer.json"
        file.write_text(json.dumps({"servers": {"a": program(env_file=env_file)}}))
        return load_config(file)

    assert not changed(loaded("old"), loaded("same")).restarted
    assert changed(loaded("old"), loaded("other")).restarted == {"a"}


def test_another_input_restarts_the_servers_that_use_it() -> None:
    servers = {"a": program("${input:x}"), "b": program("${input:y}"), "c": program("${env:x}")}
    before = parsed(servers, [prompt("x", "1"), prompt("y", "1")])
    now = parsed(servers, [prompt("x", "2"), prompt("y", "1"), prompt("z", "1")])
    assert changed(before, now) == Changes(restarted=frozenset({"a"}))
    now = parsed(servers, [prompt("x", "1") | {"description": "in other words"}, prompt("y", "1")])
    assert not changed(before, now)


def test_a_disabled_server_is_one_that_is_not_there() -> None:
    on, off = parsed({"a": program("1")}), parsed({"a": program("2", disabled=True)})
    assert changed(on, off) == Changes(removed=frozenset({"a"}))
    assert changed(off, on) == Changes(added=frozenset({"a"}))
    assert not changed(off, parsed({}))


@asynccontextmanager
async def running(
    servers: Servers,
    *,
    drain_s: float = 30.0,
    strict: bool = False,
    start_slots: int = 8,
    slot_s: float = 3.0,
    ready: Collection[str] | None = None,
) -> AsyncIterator[tuple[Fleet, list[ServerEvent]]]:
    """The fleet once all its servers are ready, or those of `ready`; and what it tells from here on."""
    fleet = Fleet(
        parsed(servers),
        InputResolver({}, {}),
        limits=Limits(strict=strict),
        on_change=lambda: None,
        drain_s=drain_s,
        start_slots=start_slots,
        slot_s=slot_s,
    )
    heard: list[ServerEvent] = []
    async with background() as tasks:
        task = tasks.start(fleet.run(), name="fleet")
        await asyncio.wait_for(fleet.wait_settled(ready), 30)
        fleet.events.listen(heard.append)
        try:
            yield fleet, heard
        finally:
            fleet.stop()
            await asyncio.wait_for(task, 30)


async def settled(fleet: Fleet) -> None:
    await asyncio.wait_for(fleet.wait_settled(), 30)


async def test_only_the_changed_server_is_started_anew_and_calls_elsewhere_go_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    kept, old = configs.stdio(log=log), configs.stdio(env={"MARK": "old"})
    async with running({"kept": kept, "box": old}) as (fleet, heard):
        supervisors, box = fleet.supervisors, fleet.supervisors["box"]
        pid = await pid_of(supervisors["kept"])
        calling = asyncio.create_task(call(supervisors["kept"], "sleep", seconds=0.5, mark="kept"))
        await eventually(lambda: log.exists() and "kept" in log.read_text())
        found = fleet.apply(parsed({"kept": kept, "box": configs.stdio(env={"MARK": "new"})}))
        assert found == Changes(restarted=frozenset({"box"}))
        assert supervisors["box"] is not box
        assert [tool.name for tool in supervisors["box"].tools] == [tool.name for tool in box.tools]
        await settled(fleet)
        assert text(await call(supervisors["box"], "given", variable="MARK")) == "new"
        assert box.state is State.STOPPED
        assert not (await calling).get("isError")
        assert await pid_of(supervisors["kept"]) == pid
        assert heard == [ServerGone("box"), ServerRemoved("box"), ServerReady("box")]


async def test_a_call_at_a_changed_server_ends_before_the_server_does(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with running({"box": configs.stdio(log=log)}) as (fleet, _):
        calling = asyncio.create_task(call(fleet.supervisors["box"], "sleep", seconds=0.3, mark="mine"))
        await eventually(lambda: log.exists() and "mine" in log.read_text())
        fleet.apply(parsed({}))
        assert not fleet.supervisors
        assert not (await calling).get("isError")


async def test_a_call_at_a_removed_server_is_broken_off_in_the_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with running({"box": configs.stdio(log=log)}, drain_s=0.1) as (fleet, _):
        box = fleet.supervisors["box"]
        calling = asyncio.create_task(call(box, "sleep", seconds=60, mark="mine"))
        await eventually(lambda: log.exists() and "mine" in log.read_text())
        fleet.apply(parsed({}))
        with pytest.raises(CallBrokenOff, match="was restarted or removed on the Computer before the call ended"):
            await calling
        await eventually(lambda: box.state is State.STOPPED)


async def test_a_server_that_changes_twice_at_once_runs_as_it_was_said_last() -> None:
    async with running({}) as (fleet, heard):
        for mark in ("one", "two", "three"):
            fleet.apply(parsed({"box": configs.stdio(env={"MARK": mark})}))
        await settled(fleet)
        assert text(await call(fleet.supervisors["box"], "given", variable="MARK")) == "three"
        assert heard.count(ServerReady("box")) == 1


async def test_a_restart_by_hand_starts_a_new_process_and_leaves_the_others_alone() -> None:
    off = {**configs.stdio(), "disabled": True}
    async with running({"a": configs.stdio(), "b": configs.stdio(), "off": off}) as (fleet, _):
        before = {each.name: each.pid for each in fleet.statuses()}
        assert before["off"] is None
        fleet.restart("a")
        await settled(fleet)
        now = {each.name: each.pid for each in fleet.statuses()}
        assert now["a"] not in (None, before["a"])
        assert now["b"] == before["b"]
        assert {each.name: each.restarts for each in fleet.statuses()} == {"a": 1, "b": 0, "off": 0}
        with pytest.raises(KeyError):
            fleet.restart("off")


async def test_a_restart_by_hand_does_not_hold_up_the_end_of_all_servers() -> None:
    config = parsed({"a": configs.hostile()})
    fleet = Fleet(config, InputResolver({}, {}), limits=Limits(), on_change=lambda: None)
    async with background() as tasks:
        running = tasks.start(fleet.run(), name="fleet")
        await settled(fleet)
        fleet.stop()
        fleet.restart("a")
        await asyncio.wait_for(running, 30)


async def test_a_disabled_server_is_so_since_it_was_disabled_whatever_else_changes() -> None:
    off = program("1", disabled=True)
    async with running({"off": off}) as (fleet, _):
        (before,) = fleet.statuses()
        fleet.apply(parsed({"off": off, "later": program("2", disabled=True)}))
        later, now = fleet.statuses()
        assert (now.since, later.since > before.since) == (before.since, True)


async def test_only_the_first_starts_with_the_process_are_unreadiness() -> None:
    fleet = Fleet(parsed({"a": configs.stdio()}), InputResolver({}, {}), limits=Limits(), on_change=lambda: None)
    assert fleet.unready(), "it has not started"
    async with running({"a": configs.stdio(), "b": configs.stdio()}) as (fleet, _):
        assert not fleet.unready()
        fleet.restart("a")
        assert (fleet.starting, fleet.unready()) == (["a"], False)
        fleet.restart("b")
        assert not fleet.unready()
        await settled(fleet)


async def test_a_server_waits_for_its_start_while_as_many_as_may_start_do() -> None:
    hangs, box = configs.hostile("--hangs", "start"), configs.hostile()
    async with running({"hangs": hangs, "box": box}, start_slots=1, slot_s=60.0, ready=()) as (fleet, _):
        await eventually(lambda: fleet.supervisors["hangs"].status().pid is not None)
        assert fleet.supervisors["box"].status().pid is None
        fleet.apply(parsed({"box": box}))
        await settled(fleet)
        assert fleet.supervisors["box"].ready


async def test_a_server_that_hangs_when_it_starts_does_not_keep_others_waiting_for_ever() -> None:
    servers = {"hangs": configs.hostile("--hangs", "start"), "box": configs.hostile()}
    async with running(servers, start_slots=1, slot_s=0.1, ready=["box"]) as (fleet, _):
        assert fleet.starting == ["hangs"]
        assert int(text(await call(fleet.supervisors["box"], "pid")))


async def test_a_name_of_no_tool_is_a_warning_once_the_tools_are_known(caplog: pytest.LogCaptureFixture) -> None:
    typo = configs.stdio(
        forbidden_tools=["ech", "say"], tool_meta={"ad": {}, "add": {"alias": "say"}}, unchecked_tools=["*", "faill"]
    )
    async with running({"box": typo}) as (fleet, _):
        box = fleet.supervisors["box"]
        assert box.status().warnings == (
            "forbidden_tools: 'ech': did you mean 'echo'? It is not a tool of this server",
            "tool_meta: 'ad': did you mean 'add'? It is not a tool of this server",
            "unchecked_tools: 'faill': did you mean 'fail'? It is not a tool of this server",
        )
        assert box.state is State.READY
        assert [message for message in caplog.messages if "not a tool of this server" in message] == [
            f"MCP server 'box': {warning}" for warning in box.warnings
        ]
        fleet.apply(parsed({"box": configs.stdio(forbidden_tools=["echo"])}))
        assert fleet.supervisors["box"].status().warnings == ()


async def test_a_strict_computer_offers_no_tool_of_a_server_until_all_names_are_right() -> None:
    typo = configs.stdio(forbidden_tools=["ech"])
    async with running({"box": typo, "other": configs.stdio()}, strict=True) as (fleet, _):
        catalogue = Catalogue(fleet.supervisors)
        catalogue.refresh()
        assert {ref.ref.server for name in ("echo", "add") if (ref := catalogue.find(name))} == {"other"}
        status = fleet.supervisors["box"].status()
        assert (status.state, catalogue.counts["box"]) == (State.DEGRADED, 0)
        assert status.reason.startswith("its tools are not offered: forbidden_tools: 'ech': did you mean 'echo'?")
        fleet.apply(parsed({"box": configs.stdio(forbidden_tools=["echo"]), "other": configs.stdio(disabled=True)}))
        assert catalogue.refresh()
        assert fleet.supervisors["box"].state is State.READY
        listed = {tool.name for tool in catalogue.listing}
        assert "add" in listed
        assert "echo" not in listed
        fleet.apply(parsed({"box": typo}))
        assert catalogue.refresh()
        assert catalogue.listing == ()
