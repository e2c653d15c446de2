"""A running Computer gets another configuration: what Agents are told and see, and what becomes of a broken file."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any, NoReturn

import pytest

from smcp_computer.config.file import parse_config
from smcp_computer.confirmation import Answer
from smcp_computer.mcp.server_log import log_file
from smcp_computer.outbox import FINDER
from smcp_computer.settings import LOGS, Confirm
from smcp_computer.tools import Target
from smcp_proto.schemas.tools import ToolCallReq
from smcp_testing.computer_office import World, world
from smcp_testing.mcp_servers import configs
from smcp_testing.waiting import eventually

ALL = ("update_config", "update_tool_list", "update_capabilities", "update_desktop")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take long to start a server; what is told must not be told in two parts for that."""
    monkeypatch.setattr("smcp_computer.computer.HEAD_START_S", 60.0)


async def apply(here: World, *told: str, **servers: dict[str, Any]) -> None:
    """Apply this configuration, and wait until the office heard exactly these updates of it, each once."""
    outbox = here.computer.outbox
    await eventually(lambda: not outbox.waiting, timeout=60)
    outbox.changed(FINDER)  # all that was sent before is heard before
    await eventually(lambda: here.told(FINDER), timeout=60)
    here.heard.clear()
    here.computer.apply(parse_config(json.dumps({"servers": servers})))
    await eventually(lambda: outbox.held() == {"pending": 0}, timeout=60)

    def heard_once() -> bool:
        assert sorted(verb for verb, _ in here.heard if verb.startswith("update_")) == sorted(told)
        return True

    await eventually(heard_once)


async def tools(here: World) -> set[str]:
    return {tool["name"] for tool in (await here.ask("get_tools"))["tools"]}


async def desktop(here: World) -> list[str]:
    found: list[str] = (await here.ask("get_desktop"))["desktops"]
    return found


async def test_a_server_with_windows_is_added_and_removed_and_each_kind_of_change_is_told_once(nats_url: str) -> None:
    box = configs.stdio()
    async with world(nats_url, box=box) as here:
        before = await tools(here)
        await apply(here, *ALL, box=box, notes=configs.context("2025", windows=1))
        (told,) = here.told("update_capabilities")
        assert list(told["capabilities"]["resources"]["byServer"]) == ["box", "notes"]
        assert await tools(here) > before
        assert len(await desktop(here)) == 1
        assert set((await here.ask("get_config"))["servers"]) == {"box", "notes"}

        await apply(here, *ALL, box=box)
        assert await tools(here) == before
        assert await desktop(here) == []
        assert here.computer.fleet.supervisors["box"].starts == 1


@pytest.mark.rule("events.flow.config.0", "events.update_config.when", "computer.reload.apply")
async def test_a_tool_is_forbidden_without_a_restart(nats_url: str) -> None:
    box = configs.stdio()
    async with world(nats_url, box=box) as here:
        await apply(here, "update_config", "update_tool_list", box={**box, "forbidden_tools": ["echo"]})
        assert "echo" not in await tools(here)
        assert (await here.call("echo", text="hi"))["meta"]["a2c_forbidden"] is True
        assert here.computer.fleet.supervisors["box"].starts == 1
        assert (await here.ask("get_config"))["servers"]["box"]["forbidden_tools"] == ["echo"]


async def test_a_restarted_server_is_told_of_once(nats_url: str) -> None:
    async with world(nats_url, box=configs.stdio()) as here:
        await apply(here, "update_config", "update_tool_list", box=configs.stdio(env={"MARK": "new"}))
        assert (await here.call("given", variable="MARK"))["content"][0]["text"] == "new"


async def test_a_server_that_restarts_only_once_its_calls_have_ended_is_told_of_once(
    nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smcp_computer.computer.HEAD_START_S", 0.1)
    log, end = tmp_path / "log", tmp_path / "end"
    async with world(nats_url, box=configs.stdio(log=log)) as here:
        here.computer.fleet.drain_s = 60
        calling = asyncio.create_task(here.call("sleep", seconds=60, until=str(end)))
        await eventually(log.exists)
        asyncio.get_running_loop().call_later(0.5, end.touch)  # longer than the head start
        await apply(here, "update_config", "update_tool_list", box=configs.stdio(log=log, env={"MARK": "new"}))
        assert (await calling)["isError"] is False


async def test_a_broken_file_changes_nothing_and_the_next_valid_one_counts(
    nats_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, box = tmp_path / "computer.json", configs.stdio()
    async with world(nats_url, {"config": file}, box=box) as here:
        before, config = await tools(here), await here.ask("get_config")
        for text, problem in (
            ("{oops", "not JSON"),
            (json.dumps({"servers": {"box": {"type": "pipe"}}}), "servers.box.type"),
            (None, "cannot be read"),
        ):
            file.unlink() if text is None else file.write_text(text)
            await here.computer.reload()
            ready, checks = here.computer.readiness.report()
            assert ready
            assert problem in checks["configuration"]
            assert problem in (await here.ask("get_status"))["config_problem"]
            assert await tools(here) == before
            assert await here.ask("get_config") == config
        assert len([line for line in caplog.messages if "keeping the previous one" in line]) == 3
        assert not here.told("update_config")
        file.write_text(json.dumps({"servers": {"box": {**box, "forbidden_tools": ["echo"]}}}))
        await here.computer.reload()
        assert "config_problem" not in await here.ask("get_status")
        assert here.computer.readiness.report()[1]["configuration"] == "ok"
        assert await tools(here) == before - {"echo"}


async def test_a_server_whose_env_file_is_missing_is_not_started_until_it_is_there_and_the_others_run(
    nats_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, box = tmp_path / "computer.json", configs.stdio()
    async with world(nats_url, {"config": file}, box=box) as here:

        async def reloaded() -> dict[str, str]:
            await here.computer.reload()
            await here.computer.fleet.wait_settled()
            return {each.name: each.reason for each in here.computer.fleet.statuses()}

        file.write_text(json.dumps({"servers": {"box": box, "other": {**box, "env_file": ".env"}}}))
        missing = await reloaded()
        assert (missing["box"], here.computer.config_problem) == ("", None)
        assert "env_file: '.env': cannot be read: No such file" in missing["other"]
        assert len([line for line in caplog.messages if "No such file" in line]) == 1
        (tmp_path / ".env").write_text("")
        assert await reloaded() == {"box": "", "other": ""}
        (tmp_path / ".env").unlink()
        assert "cannot be read" in (await reloaded())["other"]


async def test_a_pipe_in_place_of_the_file_is_not_waited_for_and_the_next_file_counts(
    nats_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    file, box = tmp_path / "computer.json", configs.stdio()
    async with world(nats_url, {"config": file}, box=box) as here:
        before = await tools(here)
        os.mkfifo(file)
        await asyncio.wait_for(here.computer.reload(), 30)
        assert f"{file} is a pipe: the configuration is read from it at the start alone" in caplog.messages
        assert await tools(here) == before
        file.unlink()
        file.write_text(json.dumps({"servers": {"box": {**box, "forbidden_tools": ["echo"]}}}))
        await here.computer.reload()
        assert await tools(here) == before - {"echo"}


async def test_an_env_file_that_hangs_is_given_up_and_the_next_file_counts(
    nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smcp_computer.computer.READ_S", 0.2)
    file, pipe, box = tmp_path / "computer.json", tmp_path / "box.env", configs.stdio()
    async with world(nats_url, {"config": file}, box=box) as here:
        os.mkfifo(pipe)
        file.write_text(json.dumps({"servers": {"box": {**box, "env_file": pipe.name}}}))
        await asyncio.wait_for(here.computer.reload(), 30)
        assert "cannot be read within" in here.computer.readiness.report()[1]["configuration"]
        file.write_text(json.dumps({"servers": {"box": {**box, "forbidden_tools": ["echo"]}}}))
        monkeypatch.undo()
        await asyncio.wait_for(here.computer.reload(), 30)
        assert "echo" not in await tools(here)
        os.close(os.open(pipe, os.O_WRONLY))  # the thread ends


async def test_servers_whose_logs_are_on_a_full_disk_end_and_the_computer_goes_on(
    nats_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, box = tmp_path / "computer.json", configs.stdio()
    logs = [log_file(tmp_path / LOGS, name) for name in ("box", "full")]
    logs[0].parent.mkdir()
    for log in logs:
        log.symlink_to("/dev/full")
    async with world(nats_url, {"config": file, "state_dir": tmp_path}, box=box, full=box) as here:
        for log in logs:
            assert f"{log}: cannot be written: [Errno 28] No space left on device" in caplog.messages
        for servers in ({"box": box}, {"box": box, "full": box}):  # it starts again once its former life has ended
            here.computer.apply(parse_config(json.dumps({"servers": servers})))
        await asyncio.wait_for(here.computer.fleet.wait_settled(), 60)
        states = {server["name"]: server["state"] for server in (await here.ask("get_status"))["servers"]}
        assert states == {"box": "ready", "full": "ready"}


async def test_a_file_that_cannot_be_read_for_a_fault_of_ours_changes_nothing(
    nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(path: Path) -> NoReturn:
        raise LookupError("inner words")

    async with world(nats_url, {"config": tmp_path / "computer.json"}, box=configs.stdio()) as here:
        before = await tools(here)
        monkeypatch.setattr("smcp_computer.computer.read_config", fails)
        await here.computer.reload()
        problem = (await here.ask("get_status"))["config_problem"]
        assert "internal error" in problem
        assert "inner words" not in problem
        assert "inner words" in caplog.text
        assert await tools(here) == before


async def test_a_file_without_servers_removes_them_and_the_log_says_so_and_an_empty_file_changes_nothing(
    nats_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    file = tmp_path / "computer.json"
    async with world(nats_url, {"config": file}, box=configs.stdio()) as here:
        file.write_text("")
        await here.computer.reload()
        assert "is empty" in (await here.ask("get_status"))["config_problem"]
        assert await tools(here)
        file.write_text("{}")
        await here.computer.reload()
        assert await tools(here) == set()
        assert "configuration: names no MCP servers, so none runs" in caplog.messages
        assert "the configuration changed (removed: box)" in caplog.messages


async def test_the_same_file_again_is_no_change(nats_url: str, tmp_path: Path) -> None:
    file, box = tmp_path / "computer.json", configs.stdio()
    file.write_text(json.dumps({"servers": {"box": box}}, indent=8))
    async with world(nats_url, {"config": file}, box=box) as here:
        await eventually(lambda: not here.computer.outbox.waiting)
        await asyncio.gather(*(here.computer.reload() for _ in range(3)))
        assert not here.computer.outbox.waiting
        assert here.computer.fleet.supervisors["box"].starts == 1


class Slow:
    """A user who says yes in the end."""

    def __init__(self) -> None:
        self.asked, self.answers = asyncio.Event(), asyncio.Event()

    async def __call__(self, target: Target, request: ToolCallReq, user: str | None) -> Answer:
        self.asked.set()
        await self.answers.wait()
        return Answer.YES


@pytest.mark.parametrize("change", [{"forbidden_tools": ["append"]}, {"confirm": {"deny": ["append"]}}])
async def test_a_call_that_was_confirmed_for_another_configuration_is_not_run(
    nats_url: str, tmp_path: Path, change: dict[str, Any]
) -> None:
    log, user = tmp_path / "log", Slow()
    box = configs.stdio(log=log)
    async with world(nats_url, {"asker": user, "confirm": Confirm.ASK}, box=box) as here:
        calling = asyncio.create_task(here.call("append", mark="ran"))
        await asyncio.wait_for(user.asked.wait(), 30)
        await apply(here, "update_config", "update_tool_list", box={**box, **change})
        user.answers.set()
        result = await calling
        assert result["isError"] is True
        assert "the Computer's configuration changed" in result["content"][0]["text"]
        assert not log.exists()
