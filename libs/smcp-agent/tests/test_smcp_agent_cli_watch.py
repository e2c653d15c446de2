"""`smcp-agent watch`, as a process beside a gateway."""

import json
import signal

import pytest

from smcp_testing.agent_command import ended, line, run, start
from smcp_testing.fake_gateway import fake_gateway, tool
from smcp_testing.showing_computer import computer_at

WATCHING = "Watching the office 'office' (red); ctrl-C ends it.\n"


async def test_watch_reports_that_it_waits_for_an_absent_computer() -> None:
    async with fake_gateway() as gateway:
        computer_at(gateway)
        code, out, err = await run(gateway, "watch", "--computer", "blue", "--for", "0.1")
        assert (code, out) == (0, b"")
        assert err.splitlines()[1:] == [
            "There is no Computer 'blue' in the office yet: its changes are shown when it joins."
        ]


@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM])
async def test_watch_prints_changes_until_ctrl_c_and_ends_with_0(
    told: signal.Signals,
) -> None:
    async with fake_gateway() as gateway:
        red = computer_at(gateway)
        process = await start(gateway, "watch", "--computer", "red", "--uri", "file:///t")
        assert await line(process.stderr) == WATCHING
        assert red.subscribed == {"file:///t"}
        for event, data, said in (
            ("update_desktop", {"computer": "red"}, "red: desktop changed"),
            ("update_finder", {"computer": "red"}, "red: documents changed"),
            ("resources/list_changed", red.says("resources/list_changed"), "red: resources changed (MCP server files)"),
            ("resources/updated", red.says("resources/updated", uri="file:///t\x1b[2J"), "red: file:///t changed"),
        ):
            await gateway.notify("notify:update_desktop", computer="another")
            await gateway.notify(f"notify:{event}", **data)
            assert (await line(process.stdout)).partition("  ")[2] == f"{said}\n"
        await gateway.leave("red")
        assert (await line(process.stdout)).endswith("red left the office\n")
        await gateway.enter("red", [tool("echo")])
        assert {(await line(process.stdout)).partition("  ")[2] for _ in range(3)} == {
            "red entered the office\n",
            "red: 1 tool: echo\n",
            "red: file:///t changed\n",
        }
        process.send_signal(told)
        code, _, err = await ended(process)
        assert (code, err) == (0, "")
        assert len(gateway.seen("server:leave_office")) == 1


async def test_watch_prints_a_line_of_json_for_each_change_and_ends_after_so_many() -> None:
    async with fake_gateway() as gateway:
        computer_at(gateway)
        process = await start(gateway, "watch", "--json", "--count", "2", "--for", "50")
        assert await line(process.stderr) == WATCHING
        for computer in ("red", "red\u202e"):
            await gateway.notify("notify:update_desktop", computer=computer)
        code, out, err = await ended(process)
        assert (code, err) == (0, "")
        lines = [json.loads(each) for each in out.splitlines()]
        assert [set(each) for each in lines] == [{"at", "event", "computer"}] * 2
        assert [(each["event"], each["computer"]) for each in lines] == [
            ("DesktopChanged", "red"),
            ("DesktopChanged", "red\u202e"),
        ]
        assert b"\\u202e" in out


async def test_watch_ends_with_1_if_the_time_is_over_before_the_count() -> None:
    async with fake_gateway() as gateway:
        computer_at(gateway)
        code, out, err = await run(gateway, "watch", "--json", "--for", "0.1")
        assert (code, out, err) == (0, b"", WATCHING)
        code, out, err = await run(gateway, "watch", "--json", "--for", "0.1", "--count", "1")
        assert (code, out, err) == (1, b"", WATCHING)
