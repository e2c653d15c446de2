import asyncio
import re
import sys
from pathlib import Path

from smcp_testing.fake_gateway import fake_gateway, tool

README = Path(__file__).parents[1] / "README.md"


async def test_the_example_of_the_readme_runs_as_it_stands() -> None:
    found = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None
    async with fake_gateway() as gateway:
        gateway.computers["computer"] = [tool("get_current_time")]
        example = found[1].replace("http://127.0.0.1:8000", gateway.url)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", example, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(30):
            out, err = await process.communicate()
    assert (out.decode(), err.decode()) == ("computer ['get_current_time']\nget_current_time\n", "")
