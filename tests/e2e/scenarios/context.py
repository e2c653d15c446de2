"""What a Computer has beside tools: its desktop, its documents, its resources."""

from functools import partial
from typing import Final
from uuid import uuid4

import pytest

from smcp_agent import DesktopChanged, Event, McpError, ResourceUpdated, SmcpAgent, windows
from smcp_testing.context_computer import PAGE_HOST, page_documents
from smcp_testing.mcp_servers.configs import context
from smcp_testing.waiting import eventually
from tests.e2e.worlds.layout import Place
from tests.e2e.worlds.world import World

NOTE: Final = "window://desk/note"
STUDY: Final = Place(
    "host-study",
    "书房",
    "study",
    {
        "desk": context("2026", host="desk", content=[{"uri": NOTE}]),
        "docs": context("2025", host=PAGE_HOST, content=[{"document": each} for each in page_documents()]),
    },
)
"""A Computer with windows and documents, in an office of its own."""


@pytest.mark.rule("finder.navigation.steps")
async def an_agent_goes_from_the_desktop_to_an_element_of_a_document_and_hears_of_changes(world: World) -> None:
    async with SmcpAgent(world.url(1), office=STUDY.office, name="reader") as agent:
        events: list[Event] = []
        agent.on_event(events.append)
        assert [window.uri for window in windows(await agent.desktop(STUDY.name))] == [NOTE]
        (report,) = (await agent.get_finder(STUDY.name, file_type="xlsx"))["documents"]
        index = await agent.read_resource(STUDY.name, f"{report['uri']}?depth=pages&limit=1")
        page = await agent.read_resource(STUDY.name, f"{index['pages'][0]['uri']}?categories=table")
        (table,) = page["elements"]
        element = await agent.read_resource(STUDY.name, f"{report['uri']}/elements/{table['element_id']}")
        assert element["metadata"] == {"source_range": "A1:C5", "has_formulas": True}
        assert {each["uri"] async for each in agent.iter_resources()} >= {NOTE, report["uri"]}
        with pytest.raises(McpError) as gone:
            await agent.read_resource(STUDY.name, "window://desk/gone", server="desk")
        assert gone.value.smcp_code == "SMCP_RESOURCE_NOT_FOUND"
        await agent.subscribe_resource(STUDY.name, NOTE)
        text = uuid4().hex
        updated = await agent.call_tool(STUDY.name, "desk__update", {"uri": NOTE, "text": text})
        assert not updated.is_error, updated.text
        await eventually(lambda: DesktopChanged(STUDY.name) in events)
        await eventually(partial(_told_of_the_note, events))
        assert text in await agent.desktop_prompt(STUDY.name)
        assert await agent.read_resource(STUDY.name, NOTE) == text


def _told_of_the_note(events: list[Event]) -> bool:
    return any(isinstance(event, ResourceUpdated) and event.uri == NOTE for event in events)
