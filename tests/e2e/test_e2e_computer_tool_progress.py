"""An MCP server that reports progress without end costs its own call only."""

import asyncio
from pathlib import Path
from typing import Final

import psutil
import pytest

from smcp_agent import SmcpAgent, ToolProgress
from smcp_bus.tool_progress import ProgressThrottle, note_counts
from smcp_testing.mcp_servers import configs
from smcp_testing.supervised import running
from smcp_testing.waiting import eventually
from tests.e2e.worlds.layout import Place
from tests.e2e.worlds.processes import open_processes

NOTES: Final = 100_000
CALL_S: Final = 240
MORE_MIB: Final = 4.0
"""How much more memory a process may have in such a call than before it: 0.1 was seen. The notes have about 11."""


async def test_of_100_000_notes_few_are_sent_and_another_server_answers_meanwhile() -> None:
    wild = configs.hostile("--progress", "100000")
    async with running(wild=wild, calm=configs.hostile()) as servers:
        notes: list[bytes] = []
        counts = note_counts()
        feed = ProgressThrottle(notes.append, counts)
        calling = asyncio.create_task(servers["wild"].call("pid", {}, timeout=60, progress=feed))
        await eventually(lambda: notes)
        calm = await servers["calm"].call("pid", {}, timeout=30)
        assert int(calm["content"][0]["text"]) == servers["calm"].status().pid
        assert int((await calling)["content"][0]["text"]) == servers["wild"].status().pid
        feed.close()
        assert counts["sent"] + counts["replaced"] + counts["dropped"] == 100_001
        assert counts["sent"] == len(notes) < 1000
        assert counts["dropped"] >= 1, "one of them is malformed"


@pytest.mark.timeout(3 * CALL_S)
async def test_the_memory_of_gateway_and_computer_stays_flat_while_100_000_notes_come(tmp_path: Path) -> None:
    servers = {"wild": configs.hostile("--progress", str(NOTES))}
    place = Place("host-wild", "flood", "wild", servers, toolbox=False)
    async with open_processes(tmp_path, gateways=1, registries=1, places=[place]) as world:
        parts = [world.gateways[0].part, world.computer(place.office, place.name).part]
        async with SmcpAgent(world.url(0), office=place.office, name="caller") as agent:
            notes: list[ToolProgress] = []

            async def call() -> None:
                await agent.call_tool(place.name, "pid", timeout=CALL_S, on_progress=notes.append)

            await call()  # what the first one loads stays
            before = {part.name: memory(part.pid) for part in parts}
            most = dict(before)
            calling = asyncio.create_task(call())
            while not calling.done():
                await asyncio.wait([calling], timeout=0.1)
                most = {part.name: max(most[part.name], memory(part.pid)) for part in parts}
            await calling
        more = {name: (most[name] - before[name]) / 2**20 for name in before}
        assert max(more.values()) < MORE_MIB, more
        assert 0 < len(notes) < NOTES / 100


def memory(pid: int) -> int:
    """Bytes of a process in memory."""
    rss: int = psutil.Process(pid).memory_info().rss
    return rss
