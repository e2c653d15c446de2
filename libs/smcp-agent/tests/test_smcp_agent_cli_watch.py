"""`smcp-agent watch`, as a process beside a gateway."""

import json
import signal

import pytest

from smcp_testing.agent_command import ended, line, run, start
from smcp_testing.fake_gateway import fake_gateway
from smcp_testing.showing_computer import computer_at

WATCHING = "Watching the office 'office' (red); ctrl-C ends it.\n"


@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_watch_prints_changes_until_ctrl_c_and_ends_with_0(told: signal.Signals) -> None:
    async with fake_gateway() as gateway:
        red = computer_at(gateway)
        process = await start(gateway, "watch")
        assert await line(process.stderr) == WATCHING
        for event, data, said in (
            ("update_desktop", {"computer": "red"}, "DesktopChanged computer=red"),
            (
                "resources/updated",
                red.says("resources/updated", uri="file:///t\x1b[2J"),
                "ResourceUpdated computer=red uri=file:///t server=files",
            ),
            ("mark", {"a": 1}, 'Notified notification=notify:mark data={"a": 1}'),
        ):
            await gateway.notify(f"notify:{event}", **data)
            assert (await line(process.stdout)).partition("  ")[2] == f"{said}\n", "nothing else changed"
        await gateway.leave("red")
        assert (await line(process.stdout)).endswith("ComputerLeft computer=red\n")
        process.send_signal(told)
        code, _, err = await ended(process)
        assert (code, err) == (0, "")
        assert len(gateway.seen("server:leave_office")) == 1


async def test_watch_prints_a_lost_connection_and_goes_on() -> None:
    async with fake_gateway() as gateway:
        computer_at(gateway)
        process = await start(gateway, "watch")
        assert await line(process.stderr) == WATCHING
        gateway.cut()
        assert "Disconnected" in await line(process.stdout)
        process.send_signal(signal.SIGINT)
        assert (await ended(process))[0] == 0


async def test_watch_prints_a_line_of_json_for_each_change_and_ends_after_its_time() -> None:
    async with fake_gateway() as gateway:
        computer_at(gateway)
        process = await start(gateway, "watch", "--json", "--for", "2")
        assert await line(process.stderr) == WATCHING
        for computer in ("red", "red\u202e"):
            await gateway.notify("notify:update_desktop", computer=computer)
        code, out, err = await ended(process)
        assert (code, err) == (0, "")
        lines = [each for each in map(json.loads, out.splitlines()) if each["event"] == "DesktopChanged"]
        assert [set(each) for each in lines] == [{"at", "event", "computer"}] * 2
        assert [each["computer"] for each in lines] == ["red", "red\u202e"]
        assert b"\\u202e" in out
        assert (await run(gateway, "watch", "--for", "0.1"))[0] == 0
