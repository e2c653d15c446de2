"""The MCP server in the README, as it stands there."""

import json
import re
import sys
from pathlib import Path

from smcp_testing.computer_office import world

README = Path(__file__).parents[1] / "README.md"


async def test_the_server_of_the_readme_is_on_the_desktop(nats_url: str, tmp_path: Path) -> None:
    text = README.read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    program = tmp_path / "clock.py"
    program.write_text(example)
    (config,) = re.findall(r'^    (\{"servers": \{"clock": .*)$', text, re.MULTILINE)
    servers = json.loads(config)["servers"]
    parameters = servers["clock"]["server_parameters"]
    assert parameters == {"command": "python", "args": ["clock.py"]}
    parameters |= {"command": sys.executable, "args": [str(program)]}
    async with world(nats_url, **servers) as here:
        (shown,) = (await here.ask("get_desktop"))["desktops"]
        assert re.fullmatch(r"window://com\.example\.clock/now\n\nIt is \d\d:\d\d\.", shown)
