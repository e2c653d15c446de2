"""An operator who runs the installed `smcp` beside a world."""

import asyncio
import json
import os
from typing import Any

from tests.e2e.worlds.layout import command
from tests.e2e.worlds.world import World

Record = dict[str, Any]


async def run_smcp(*arguments: str, **environment: str) -> tuple[int, str, str]:
    """The exit code, output and errors of a command that has these settings alone."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SMCP_")}
    process = await asyncio.create_subprocess_exec(
        command("smcp"),
        *arguments,
        env={**kept, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


def operator(world: World) -> dict[str, str]:
    """The settings of an operator's command."""
    return {"SMCP_NATS_URL": world.nats_url, "SMCP_NATS_CREDS": str(world.credentials / "operator.json")}


async def smcp(world: World, *arguments: str) -> tuple[int, str, str]:
    """An operator's command: its exit code, output and errors."""
    return await run_smcp(*arguments, **operator(world))


async def records(world: World, *arguments: str) -> list[Record]:
    """What `smcp audit list` shows."""
    code, output, errors = await smcp(world, "audit", "list", "--json", *arguments)
    assert code == 0, errors
    return [json.loads(line) for line in output.splitlines()]
