"""`call_tool(on_progress=…)`: the application hears how far its own call is."""

import asyncio
from functools import partial
from typing import Any

import pytest

from smcp_agent import Event, ToolProgress
from smcp_agent.errors import Malformed
from smcp_testing.agent_command import PATIENCE_S, start
from smcp_testing.fake_gateway import FakeGateway, agent_at, fake_gateway, tool
from smcp_testing.terminal_user import terminal_user
from smcp_testing.waiting import eventually

NOTE = "notify:tool_progress"
RESULT = {"content": [{"type": "text", "text": "done"}], "isError": False}


def reports(gateway: FakeGateway, *notes: dict[str, Any]) -> asyncio.Event:
    """A call is answered after these notes, once the event is set."""
    ends = asyncio.Event()

    async def answer(data: dict[str, Any]) -> Any:
        for note in notes:
            ids = {"agent": data["agent"], "computer": data["computer"], "req_id": data["req_id"]}
            await gateway.notify(NOTE, **(ids | note))
        await ends.wait()
        return RESULT

    gateway.answers["client:tool_call"] = answer
    return ends


async def test_a_call_hears_its_progress_in_order() -> None:
    heard: list[ToolProgress] = []
    events: list[Event] = []
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        agent.on_event(events.append)
        ends = reports(gateway, {"progress": 1, "total": 2, "message": "half"}, {"progress": 1.5, "x": 1})
        calling = asyncio.create_task(agent.call_tool("red", "dig", on_progress=heard.append))
        await eventually(lambda: len(heard) == 2)
        ends.set()
        assert (await calling).text == "done"
        assert [(note.progress, note.total, note.message) for note in heard] == [(1, 2, "half"), (1.5, None, None)]
        assert gateway.seen("client:tool_call")[0]["a2c_progress"] is True
        assert events == []


async def test_progress_that_is_malformed_or_of_another_call_is_not_heard() -> None:
    heard: list[ToolProgress] = []
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        wrong = ({"progress": "1"}, {"progress": 1, "message": 5}, {"progress": 1, "req_id": "other"}, {"progress": 9})
        ends = reports(gateway, *wrong)
        calling = asyncio.create_task(agent.call_tool("red", "dig", on_progress=heard.append, req_id="r"))
        await eventually(lambda: heard)
        ends.set()
        await calling
        await gateway.notify(NOTE, agent="bot", computer="red", req_id="r", progress=10)
        await agent.list_room()
        assert [note.progress for note in heard] == [9]


async def test_a_call_without_on_progress_asks_for_none() -> None:
    events: list[Event] = []
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        agent.on_event(events.append)
        reports(gateway, {"progress": 1}).set()
        await agent.call_tool("red", "dig")
        assert "a2c_progress" not in gateway.seen("client:tool_call")[0]
        assert events == []


async def hears(*_: object) -> None:
    """What nobody would await."""


@pytest.mark.parametrize("on_progress", [5, hears, partial(hears, 1)])
async def test_what_cannot_be_called_as_a_plain_function_is_refused_and_nothing_is_sent(on_progress: Any) -> None:
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        with pytest.raises(Malformed, match=r"^on_progress: must be a non-async function of one argument$"):
            await agent.call_tool("red", "dig", on_progress=on_progress)
        assert gateway.seen("client:tool_call") == []


async def test_a_tool_that_is_run_by_a_models_name_tells_its_progress_too() -> None:
    heard: list[ToolProgress] = []
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        await gateway.enter("red", [tool("dig")])
        await eventually(lambda: agent.computers() == ["red"])
        ends = reports(gateway, {"progress": 1})
        running = asyncio.create_task(agent.run_tool("dig", on_progress=heard.append))
        await eventually(lambda: heard)
        ends.set()
        assert (await running).text == "done"


async def test_a_callback_that_raises_disturbs_neither_the_call_nor_others() -> None:
    raised: list[str] = []
    heard: list[float] = []

    def on_progress(note: ToolProgress) -> None:
        heard.append(note.progress)
        raise RuntimeError("mine")

    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(str(context["exception"])))
    async with fake_gateway() as gateway, agent_at(gateway) as agent:
        ends = reports(gateway, {"progress": 1}, {"progress": 2})
        calling = asyncio.create_task(agent.call_tool("red", "dig", on_progress=on_progress))
        await eventually(lambda: len(raised) == 2)
        ends.set()
        assert (await calling).text == "done"
        assert (heard, raised) == ([1, 2], ["mine", "mine"])


async def test_at_a_terminal_a_call_shows_a_bar_with_what_the_tool_says() -> None:
    async with fake_gateway() as gateway, terminal_user() as user:
        ends = reports(gateway, {"progress": 1, "total": 4, "message": "loading [b]"})
        process = await start(gateway, "call", "red", "dig", stderr=user.device, forked=True)
        await user.sees("loading [b]")
        await user.sees("25%")
        ends.set()
        async with asyncio.timeout(PATIENCE_S):
            out, _ = await process.communicate()
        assert (process.returncode, out) == (0, b"done\n")
        assert gateway.seen("client:tool_call")[0]["a2c_progress"] is True


async def test_in_a_pipe_a_call_asks_for_no_progress() -> None:
    async with fake_gateway() as gateway:
        reports(gateway).set()
        process = await start(gateway, "call", "red", "dig", forked=True)
        async with asyncio.timeout(PATIENCE_S):
            out, err = await process.communicate()
        assert out == b"done\n"
        assert b"dig" not in err
        assert "a2c_progress" not in gateway.seen("client:tool_call")[0]
