import asyncio
import re
import sys
from pathlib import Path

from smcp_testing.context_computer import ContextComputer
from smcp_testing.fake_gateway import FakeGateway, fake_gateway, tool
from smcp_testing.mcp_servers.shelf import HOST, document

README = Path(__file__).parents[1] / "README.md"
EXAMPLES = [
    example
    for example in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    if "asyncio.run(" in example
]


async def printed(example: str, gateway: FakeGateway) -> str:
    """What an example prints; nothing on standard error."""
    example = example.replace("http://127.0.0.1:8000", gateway.url)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", example, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert err == b""
    return out.decode()


async def test_the_example_of_the_readme_runs_as_it_stands() -> None:
    async with fake_gateway() as gateway:
        gateway.computers["computer"] = [tool("get_current_time")]
        assert await printed(EXAMPLES[0], gateway) == "computer ['get_current_time']\nget_current_time\n"


async def test_the_example_about_desktops_documents_and_resources_runs_as_it_stands() -> None:
    computer = ContextComputer("computer", "home", desktops=["window://a\n\ntext", "window://b"])
    computer.shelf.put_document(document("a", title="A report"))
    async with fake_gateway() as gateway:
        computer.enter(gateway)
        uri = f"dpe://{HOST}/a"
        assert await printed(EXAMPLES[1], gateway) == f"window://a 4\nwindow://b 0\nA report 2 Overview\n{uri}\n"
    assert computer.subscribed == {uri}


async def test_the_examples_about_the_steps_to_an_element_and_about_completion_run_as_they_stand() -> None:
    computer = ContextComputer("computer", "home")
    computer.shelf.put_document(document("a", title="A report"))
    async with fake_gateway() as gateway:
        computer.enter(gateway)
        assert (await printed(EXAMPLES[2], gateway)).splitlines() == [
            "A report Overview heading h-001",
            "A report Overview text txt-001",
            "A report Revenue table tbl-001",
        ]
        assert await printed(EXAMPLES[3], gateway) == "a ['tbl-001']\n"
    assert len(EXAMPLES) == 4
