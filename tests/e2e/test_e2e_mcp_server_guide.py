"""The MCP server of docs/guides/write-an-mcp-server.md that asks the user, as it stands there."""

import sys
from pathlib import Path

from smcp_agent import InputAnswer, InputRequest, SmcpAgent
from smcp_testing.computer_world import native_computer
from smcp_testing.gateway_world import gateway_world
from tests.pages.markdown import ROOT, blocks


async def test_the_servers_question_reaches_the_user_and_the_answer_the_tool(nats_url: str, tmp_path: Path) -> None:
    page = blocks(ROOT / "docs/guides/write-an-mcp-server.md")
    [program] = [block.text for block in page if block.language == "python" and "Elicit(" in block.text]
    file = tmp_path / "restaurant.py"
    file.write_text(program, encoding="utf-8")
    parameters = {"command": sys.executable, "args": [str(file)], "env": None}
    servers = {"restaurant": {"type": "stdio", "server_parameters": parameters}}
    questions: list[str] = []

    async def accept(request: InputRequest) -> InputAnswer:
        questions.append(request.message)
        return request.accept({"day": "friday"})

    async def decline(request: InputRequest) -> InputAnswer:
        return request.decline()

    async with (
        gateway_world(nats_url) as world,
        native_computer(world, "office", "box", servers),
        SmcpAgent(world.url, office="office", name="anna") as agent,
    ):
        booked = await agent.call_tool("box", "book", {"guests": 2}, on_input=accept)
        assert (booked.text, questions) == ("Booked for 2 on friday.", ["Which day, for 2?"])
        assert (await agent.call_tool("box", "book", {"guests": 2}, on_input=decline)).text == "Nothing was booked."
