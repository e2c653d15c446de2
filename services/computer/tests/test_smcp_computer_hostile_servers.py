"""A hostile MCP server costs its own tools only: another server beside it answers."""

import asyncio
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from smcp_computer.mcp.errors import AnswerTooLarge, message_of
from smcp_computer.mcp.events import State
from smcp_computer.mcp.sdk_adapter import MAX_REQUESTS
from smcp_computer.mcp.supervisor import RELIST_S, Supervisor
from smcp_computer.mcp.transports import Limits
from smcp_computer.redaction import SHOWN
from smcp_computer.tools import Catalogue
from smcp_testing.computer_office import world
from smcp_testing.mcp_servers import configs
from smcp_testing.supervised import call, pid_of, running, text
from smcp_testing.waiting import eventually

GOOD = {"name": "good", "inputSchema": {"type": "object"}}
INVALID = [
    ({"name": "bare"}, "its tool 'bare' is not valid, and left out: inputSchema: is missing"),
    (GOOD | {"name": 5}, "a tool without a name is not valid, and left out: name: must be a string"),
    ("text", "a tool without a name is not valid, and left out: must be an object"),
    ({"name": "a\x1b[31mb\u202e"}, r"its tool 'a\x1b[31mb\u202e' is not valid, and left out: inputSchema: is missing"),
    ({"name": "x" * 300}, f"its tool '{'x' * 300}"[:SHOWN]),
]


def tools_answer(tools: Any) -> str:
    """An answer to `tools/list` for a scripted server."""
    return json.dumps({"jsonrpc": "2.0", "id": "$ID", "result": {"tools": tools}}).replace('"$ID"', "$ID")


def names(server: Supervisor) -> list[str]:
    return [tool.name for tool in server.tools]


async def answers(server: Supervisor) -> None:
    assert await pid_of(server) == server.status().pid


async def test_lines_that_are_no_messages_are_passed_over() -> None:
    async with running(wild=configs.hostile("--garbage"), calm=configs.hostile()) as servers:
        await answers(servers["wild"])
        await answers(servers["calm"])


async def test_a_huge_answer_fails_its_call_alone() -> None:
    async with running(wild=configs.hostile("--huge", "tools/call"), calm=configs.hostile()) as servers:
        pid = servers["wild"].status().pid
        with pytest.raises(AnswerTooLarge):
            await call(servers["wild"], "pid")
        assert (servers["wild"].state, servers["wild"].status().pid) == (State.READY, pid)
        await answers(servers["calm"])


@pytest.mark.parametrize("cancels", [[], ["--cancels"]])
async def test_a_server_that_asks_without_end_and_reads_no_answer_has_few_tasks(cancels: list[str]) -> None:
    async with running(wild=configs.hostile("--asks", "50000", *cancels), calm=configs.hostile()) as servers:
        before, most = len(asyncio.all_tasks()), 0
        asking = asyncio.create_task(call(servers["wild"], "pid"))
        await eventually(lambda: len(asyncio.all_tasks()) > before + MAX_REQUESTS / 2)
        ends = time.monotonic() + 2
        while time.monotonic() < ends:
            await answers(servers["calm"])
            most = max(most, len(asyncio.all_tasks()) - before)
        asking.cancel()
        await asyncio.wait([asking])
        assert most < 2 * MAX_REQUESTS, "50,000, and 4 kB each"


async def test_a_server_that_hangs_at_its_second_call_times_out_alone() -> None:
    wild = configs.hostile("--hangs", "tools/call", "--after", "1")
    async with running(wild=wild, calm=configs.hostile()) as servers:
        await answers(servers["wild"])
        with pytest.raises(TimeoutError):
            await call(servers["wild"], "pid", timeout=0.1)
        await answers(servers["calm"])


async def test_a_call_behind_one_that_hangs_ends_when_the_hang_is_found(nats_url: str) -> None:
    """It does not wait for its own time."""
    wild = configs.hostile("--hangs", "tools/call", "--tools", "1")
    async with world(nats_url, {"silence_s": 6.0}, wild=wild) as here:

        async def called(tool: str, req_id: str, timeout: int) -> str:
            return text(await here.call(tool, req_id, timeout))

        assert await called("pid", "r1", 1) == "the tool 'pid' did not end within 1 s"
        behind = [asyncio.create_task(called("tool-1", f"for {timeout} s", timeout)) for timeout in (1, 600)]
        first, second = "the tool 'tool-1' did not end within 1 s", "MCP server 'wild' has stopped answering"
        assert await asyncio.gather(*behind) == [first, second]


async def test_a_server_that_goes_on_with_a_cancelled_call_answers_the_next_one() -> None:
    """It does one thing at a time: the call that was cancelled does not show that it hangs."""
    busy = configs.hostile("--hangs", "tools/call", "--for", "8")
    async with running(limits=Limits(silence_s=6.0), busy=busy) as servers:
        first = asyncio.create_task(call(servers["busy"], "pid"))
        await eventually(lambda: servers["busy"].running_calls == 1)
        first.cancel("cancelled")
        await asyncio.wait([first])
        await answers(servers["busy"])


async def test_a_server_that_hangs_at_its_start_is_tried_again() -> None:
    wild = configs.hostile("--hangs", "tools/list")
    async with running(limits=Limits(start_s=1.0), ready=["calm"], wild=wild, calm=configs.hostile()) as servers:
        await eventually(lambda: servers["wild"].reason == "did not answer as an MCP server in time")
        await answers(servers["calm"])


HANGS_AFTER_A_CHANGE = """
import json, sys, time
answers = {
    "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {"listChanged": True}},
                   "serverInfo": {"name": "s", "version": "1"}},
    "tools/list": {"tools": [{"name": "change", "inputSchema": {"type": "object"}}]},
    "tools/call": {"content": []},
}
for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") in answers:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": answers[message["method"]]}), flush=True)
    if message["method"] == "tools/call":
        print('{"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}', flush=True)
        time.sleep(600)
"""


async def test_a_server_that_hangs_when_it_is_asked_for_its_changed_tools_is_found_as_any_other() -> None:
    program = {"command": sys.executable, "args": ["-I", "-S", "-c", HANGS_AFTER_A_CHANGE]}
    async with running(limits=Limits(silence_s=3.0), box={"type": "stdio", "server_parameters": program}) as servers:
        assert await call(servers["box"], "change") == {"content": []}
        await eventually(lambda: servers["box"].starts == 2 and servers["box"].ready, timeout=20)


async def test_an_invalid_tool_is_left_out_with_a_warning_and_running_calls_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(odd=configs.stdio("scripted")) as servers:
        odd = servers["odd"]
        text = tools_answer([INVALID[0][0], GOOD])
        runs = asyncio.create_task(call(odd, "script", method="tools/list", text=text, hold=True))
        await eventually(lambda: odd.status().warnings or runs.done())
        assert odd.status().warnings == (INVALID[0][1],)
        assert names(odd) == ["good"]
        await call(odd, "script", method="tools/list", text=tools_answer([GOOD, GOOD | {"name": "bare"}]))
        assert await runs == {"content": []}
        await eventually(lambda: names(odd) == ["good", "bare"])
        assert (odd.status().restarts, odd.status().warnings) == (0, ())
    assert caplog.messages.count(f"MCP server 'odd': {INVALID[0][1]}") == 1


async def test_a_server_with_invalid_tools_becomes_ready_with_the_others(tmp_path: Path) -> None:
    file = tmp_path / "answers"
    file.write_text(json.dumps({"tools/list": tools_answer([*(tool for tool, _ in INVALID), GOOD])}))
    async with running(odd=configs.stdio("scripted", "--answers", str(file))) as servers:
        assert names(servers["odd"]) == ["good"]
        assert servers["odd"].status().warnings == tuple(warning for _, warning in INVALID)


@pytest.mark.parametrize("tools", [None, 5, {}])
async def test_a_list_of_tools_that_is_none_ends_no_server(tools: Any) -> None:
    async with running(odd=configs.stdio("scripted")) as servers:
        odd = servers["odd"]
        await call(odd, "script", method="tools/list", text=tools_answer(tools))
        await eventually(lambda: odd.status().warnings)
        assert odd.status().warnings == ("sent a list of tools that is not valid; it is left out",)
        await call(odd, "script", method="tools/list", text=tools_answer([GOOD]))
        await eventually(lambda: names(odd) == ["good"])
        assert (odd.status().restarts, odd.status().warnings) == (0, ())


async def test_a_ready_server_that_cannot_list_its_tools_again_keeps_them_until_it_can(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failed = json.dumps({"jsonrpc": "2.0", "id": "$ID", "error": {"code": -32603, "message": "busy"}})
    async with running(limits=Limits(silence_s=2.0), odd=configs.stdio("scripted")) as servers:
        odd = servers["odd"]
        text = failed.replace('"$ID"', "$ID")
        runs = asyncio.create_task(call(odd, "script", method="tools/list", text=text, hold=True))
        await eventually(lambda: odd.warnings or runs.done())
        why = "its tools are shown as it listed them before: it refused the request (MCP error -32603)"
        assert (odd.state, names(odd), odd.warnings) == (State.READY, ["script"], (why,))
        await eventually(lambda: not odd.warnings)  # it is asked again by itself
        await call(odd, "script", method="prompts/list", text="")
        assert await runs == {"content": []}
        assert odd.status().restarts == 0
    assert caplog.messages.count(f"MCP server 'odd': {why}") == 1


async def test_a_setting_for_a_tool_that_is_left_out_is_no_unknown_name(tmp_path: Path) -> None:
    file = tmp_path / "answers"
    file.write_text(json.dumps({"tools/list": tools_answer([INVALID[0][0], GOOD])}))
    odd = configs.stdio("scripted", "--answers", str(file), forbidden_tools=["bare"])
    async with running(limits=Limits(strict=True), odd=odd) as servers:
        assert servers["odd"].warnings == (INVALID[0][1],)
        assert names(servers["odd"]) == ["good"]


async def test_thousands_of_tools_are_listed() -> None:
    async with running(wild=configs.hostile("--tools", "5000"), calm=configs.hostile()) as servers:
        assert len(servers["wild"].tools) == 5001
        await answers(servers["wild"])
        await answers(servers["calm"])


def test_a_long_line_that_is_no_message_costs_little_more_than_to_parse_it() -> None:
    """Above 1 s before: models of it were made for each kind of message, twice."""
    text = json.dumps({"tools": [{"name": f"t{number}", "a": [{}] * 20} for number in range(5000)]})
    began = time.thread_time()
    json.loads(text)
    parsed = time.thread_time()
    assert message_of(text) is None
    assert time.thread_time() - parsed < 4 * (parsed - began)


async def test_an_endless_list_of_large_tools_ends_after_16_mib() -> None:
    """After 200 pages before: 800 MB."""
    async with running(wild=configs.hostile("--endless"), calm=configs.hostile()) as servers:
        assert [tool.name for tool in servers["wild"].tools] == ["pid", *(f"page-{page}" for page in range(5))]
        await answers(servers["wild"])
        await answers(servers["calm"])


async def test_more_tools_than_a_server_may_have_are_left_out() -> None:
    async with running(wild=configs.hostile("--tools", "12000")) as servers:
        assert len(servers["wild"].tools) == 10_000
        await answers(servers["wild"])


async def test_a_list_that_changes_all_the_time_keeps_names_legal_and_unique_and_blocks_nobody() -> None:
    async with running(wild=configs.hostile("--flips"), calm=configs.hostile()) as servers:
        catalogue = Catalogue(servers)
        seen: dict[str, float] = {}

        def changed_often() -> bool:
            catalogue.refresh()
            names = [tool.name for tool in catalogue.listing]
            assert len(names) == len(set(names))
            assert all(re.fullmatch("[A-Za-z0-9_-]{1,64}", name) for name in names)
            for name in names:
                if name.startswith("new-"):
                    seen.setdefault(name, time.monotonic())
            return len(seen) >= 6

        await eventually(changed_often)
        times = list(seen.values())
        assert times[-1] - times[0] > 3 * RELIST_S  # it says so 100 times a second
        await answers(servers["wild"])
        await answers(servers["calm"])
