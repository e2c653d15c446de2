"""The MCP server in the README, as it stands there."""

import re
import sys
from pathlib import Path
from textwrap import dedent

from smcp_testing.computer_office import world

README = Path(__file__).parents[1] / "README.md"


async def test_the_server_of_the_readme_is_on_the_desktop(nats_url: str, tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    program = tmp_path / "clock.py"
    program.write_text(dedent(example))
    clock = {"type": "stdio", "server_parameters": {"command": sys.executable, "args": [str(program)]}}
    async with world(nats_url, clock=clock) as here:
        (shown,) = (await here.ask("get_desktop"))["desktops"]
        assert re.fullmatch(r"window://com\.example\.clock/now\n\nIt is \d\d:\d\d\.", shown)
