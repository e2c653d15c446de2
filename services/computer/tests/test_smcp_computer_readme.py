"""The MCP server in the README, as it stands there."""

import json
import re
import sys
from pathlib import Path

import pytest

from smcp_testing.computer_office import world
from smcp_testing.waiting import eventually

README = Path(__file__).parents[1] / "README.md"
MINUTE = "60 - datetime.now().second"


@pytest.mark.parametrize("change", ["by a tool", "by itself"])
async def test_the_server_of_the_readme_is_on_the_desktop_and_announces_its_changes(
    nats_url: str, tmp_path: Path, change: str
) -> None:
    text = README.read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert MINUTE in example
    program = tmp_path / "clock.py"
    program.write_text(example.replace(MINUTE, "0.3" if change == "by itself" else "600"))
    (config,) = re.findall(r'^    (\{"servers": \{"clock": .*)$', text, re.MULTILINE)
    servers = json.loads(config)["servers"]
    parameters = servers["clock"]["server_parameters"]
    assert parameters == {"command": "python", "args": ["clock.py"]}
    parameters |= {"command": sys.executable, "args": [str(program)]}
    async with world(nats_url, **servers) as here:
        (shown,) = (await here.ask("get_desktop"))["desktops"]
        assert re.fullmatch(r"window://com\.example\.clock/now\n\nIt is \d\d:\d\d\. ", shown)
        before = len(here.told("update_desktop"))
        if change == "by a tool":
            await here.call("remember", text="water the plants")
        await eventually(lambda: len(here.told("update_desktop")) > before, timeout=30)
        if change == "by a tool":
            (shown,) = (await here.ask("get_desktop"))["desktops"]
            assert shown.endswith("water the plants")
