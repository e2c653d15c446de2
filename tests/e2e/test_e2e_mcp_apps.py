"""A tool with a page of MCP Apps, icons, titles, annotations and schemas: the same through an office and directly."""

from contextlib import AsyncExitStack
from typing import Any

from mcp.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.server.apps import APP_MIME_TYPE
from mcp_types import SERVER_INFO_META_KEY

from smcp_agent import SmcpAgent
from smcp_testing.bridged import ERAS, bridged
from smcp_testing.computer_world import native_computer
from smcp_testing.gateway_world import gateway_world
from smcp_testing.mcp_servers import configs
from smcp_testing.mcp_servers.apps import PAGE

SERVERS = {"apps": configs.stdio("apps")}
ZONE = {"zone": "Asia/Tokyo"}


async def seen(client: Client) -> dict[str, Any]:
    """All that a client is told of the tool and its page."""
    (tool,) = (await client.list_tools()).tools
    (page,) = (await client.list_resources()).resources
    called, read = await client.call_tool("show_time", ZONE), await client.read_resource(PAGE)
    answers = {"tool": tool, "page": page, "called": called, "content": read.contents[0]}
    said = {name: each.model_dump(by_alias=True, mode="json", exclude_none=True) for name, each in answers.items()}
    said["called"]["_meta"].pop(SERVER_INFO_META_KEY, None)  # a Computer speaks 2026-07-28, where each answer has it
    return said


@ERAS
async def test_an_mcp_client_sees_a_tool_and_its_page_as_their_server_gives_them(nats_url: str, era: str) -> None:
    command, *arguments = configs.command("apps")
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(gateway_world(nats_url))
        await stack.enter_async_context(native_computer(world, "office", "box", SERVERS))
        bridge = await stack.enter_async_context(bridged(world.url, era))
        server = StdioServerParameters(command=command, args=arguments)
        direct = await stack.enter_async_context(Client(server, mode=era))
        found = await seen(bridge.client)
        assert found == await seen(direct)
    tool, content = found["tool"], found["content"]
    assert tool.keys() >= {"title", "description", "inputSchema", "outputSchema", "annotations", "icons"}
    assert tool["_meta"]["ui"] == {"resourceUri": PAGE, "visibility": ["model", "app"]}
    assert (content["mimeType"], content["_meta"]["ui"]["prefersBorder"]) == (APP_MIME_TYPE, True)
    assert found["called"]["structuredContent"] == {**ZONE, "hour": 12}
    assert found["called"]["_meta"] == {"ui": {"theme": "dark"}}


async def test_an_agent_gets_the_page_and_the_structured_result_as_their_server_gives_them(nats_url: str) -> None:
    async with (
        gateway_world(nats_url) as world,
        native_computer(world, "office", "box", SERVERS),
        SmcpAgent(world.url, office="office", name="anna") as agent,
    ):
        (tool,) = await agent.get_tools("box")
        assert tool.meta is not None
        assert tool.meta["ui"] == '{"resourceUri": "ui://clock/face.html", "visibility": ["model", "app"]}'
        assert tool.return_schema is not None
        assert tool.return_schema["required"] == ["zone", "hour"]
        called = await agent.call_tool("box", "show_time", ZONE)
        assert (called.text, called.structured_content) == ("12:00 in Asia/Tokyo", {**ZONE, "hour": 12})
        assert called.meta["ui"] == {"theme": "dark"}
        (content,) = (await agent.read_contents("box", PAGE)).raw["contents"]
        assert content == {
            "uri": PAGE,
            "mimeType": APP_MIME_TYPE,
            "text": "<!doctype html><title>clock</title>",
            "_meta": {"ui": {"csp": {"connectDomains": ["https://time.example"]}, "prefersBorder": True}},
        }
