"""An MCP server that reports progress without end costs its own call only."""

import asyncio

from smcp_bus.tool_progress import ProgressThrottle, note_counts
from smcp_computer.mcp.sdk_adapter import CallSpan
from smcp_testing.mcp_servers import configs
from smcp_testing.supervised import running
from smcp_testing.waiting import eventually


async def test_of_100_000_notes_few_are_sent_and_another_server_answers_meanwhile() -> None:
    wild = configs.hostile("--progress", "100000")
    async with running(wild=wild, calm=configs.hostile()) as servers:
        notes: list[bytes] = []
        counts = note_counts()
        feed = ProgressThrottle(notes.append, counts)
        calling = asyncio.create_task(
            servers["wild"].calls.run("pid", {}, timeout=60, span=CallSpan({}), progress=feed)
        )
        await eventually(lambda: notes)
        calm = await servers["calm"].calls.run("pid", {}, timeout=30, span=CallSpan({}))
        assert int(calm["content"][0]["text"]) == servers["calm"].status().pid
        assert int((await calling)["content"][0]["text"]) == servers["wild"].status().pid
        feed.close()
        assert counts["sent"] + counts["replaced"] + counts["dropped"] == 100_001
        assert counts["sent"] == len(notes) < 1000
        assert counts["dropped"] >= 1, "one of them is malformed"
