"""Configurations that cannot be used: the commands say so in a sentence and end with 2; what runs is not disturbed."""

import asyncio
import json
from pathlib import Path
from typing import Any, Final

from smcp_agent import SmcpAgent
from smcp_testing.fork_server import COMMANDS, born
from smcp_testing.waiting import eventually
from tests.e2e.actors.bare import member
from tests.e2e.actors.bystanders import undisturbed
from tests.e2e.scenarios.names import MISSING_COMMAND, ODD
from tests.e2e.worlds.layout import ALPHA, command
from tests.e2e.worlds.world import LAB, World, child_environment

END_S: Final = 60.0
GOOD: Final = {"type": "stdio", "server_parameters": {"command": "true", "args": []}}


def _servers(**servers: Any) -> str:
    return json.dumps({"servers": {"fine": GOOD, **servers}})


BAD_FILES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "not JSON": ('{"servers": {"a": ', ("not JSON", "line 1")),
    "no object": ("[]", ("no JSON object",)),
    "an unknown type": (_servers(crm={"type": "carrier-pigeon", "server_parameters": {}}), ("servers.crm", "type")),
    "no type": (_servers(crm={"server_parameters": {"command": "true"}}), ("servers.crm", "type")),
    "no command": (_servers(crm={"type": "stdio", "server_parameters": {}}), ("servers.crm", "command")),
    "no URL": (_servers(crm={"type": "sse", "server_parameters": {}}), ("servers.crm", "url")),
    "another name inside": (_servers(crm={**GOOD, "name": "erp"}), ("servers.crm", "name", "'erp'")),
    "a duration that is none": (
        _servers(crm={"type": "streamable", "server_parameters": {"url": "http://127.0.0.1:1/", "timeout": "soon"}}),
        ("servers.crm", "timeout"),
    ),
}
"""Content, and what the message has to name beside the file."""


async def an_unusable_file_ends_the_command_with_2(world: World, directory: Path) -> None:
    """By `run`, with a credential and a name that would get in, by `validate` and by `smcp up`."""
    files = {directory / f"{number}.json": bad for number, bad in enumerate(BAD_FILES.values())}
    for path, (content, _) in files.items():
        path.write_text(content, encoding="utf-8")
    missing = directory / "missing.json"
    runs: list[tuple[list[str], tuple[str, ...]]] = [
        (_run(missing), (str(missing),)),
        (["smcp", "up", "--config", str(missing)], (str(missing),)),
    ]
    for path, (_, words) in files.items():
        runs.append((_run(path), (str(path), *words)))
    for name in ("not JSON", "an unknown type"):
        path = next(path for path, bad in files.items() if bad is BAD_FILES[name])
        words = (str(path), *BAD_FILES[name][1])
        runs += [
            (["smcp-computer", "validate", str(path)], words),
            (["smcp", "up", "--port", "0", "--data", str(directory / "data"), "--config", str(path)], words),
        ]
    async with undisturbed(world), member(world.url(0), "agent", LAB, "watcher") as watcher:
        await _all_refused(world, runs)
        assert watcher.notices == []
        assert ("computer", ALPHA.name) in await watcher.room()


async def an_illegal_name_ends_the_command_with_2(world: World, directory: Path) -> None:
    path = directory / "fine.json"
    path.write_text(_servers(), encoding="utf-8")
    runs: list[tuple[list[str], tuple[str, ...]]] = []
    for name in ("", "x" * 10_000):
        runs += [
            (_run(path, office=name), ("--office",)),
            (_run(path, name=name), ("--name",)),
            (["smcp", "up", "--port", "0", "--data", str(directory / "data"), "--office", name], ("--office",)),
        ]
    async with undisturbed(world), member(world.url(1), "agent", LAB, "watcher") as watcher:
        await _all_refused(world, runs)
        assert watcher.notices == []


async def a_missing_command_stops_only_its_own_server(world: World) -> None:
    host = world.computer(ODD.office, ODD.name)
    async with SmcpAgent(world.url(0), office=ODD.office, name="caller") as agent:
        await host.part.ready()
        assert (await agent.call_tool(ODD.name, "echo", {"text": "fine"})).text == "fine"
        assert {tool.name for tool in await agent.get_tools(ODD.name)} >= {"echo", "add"}
        assert (await agent.get_config(ODD.name)).servers.keys() == {"toolbox", "ghost"}

    def told() -> bool:
        lines = host.part.log.read_text(encoding="utf-8").splitlines()
        return any("'ghost'" in line and MISSING_COMMAND in line and "does not exist" in line for line in lines)

    await eventually(told, message="the log does not name the server and its command")


async def _all_refused(world: World, runs: list[tuple[list[str], tuple[str, ...]]]) -> None:
    """Two at a time, as each is the start of a process."""
    together = asyncio.Semaphore(2)
    async with asyncio.TaskGroup() as group:
        for arguments, words in runs:
            group.create_task(_refused(world, together, arguments, words))


async def _refused(world: World, together: asyncio.Semaphore, arguments: list[str], words: tuple[str, ...]) -> None:
    name, *rest = arguments
    settings = {
        "SMCP_NATS_URL": world.nats_url,
        "SMCP_NATS_CREDS": str(world.credentials / f"{ALPHA.credential}.json"),
    }
    async with together:
        process = await asyncio.create_subprocess_exec(
            *born(command(name), *rest, knows=COMMANDS),
            env=child_environment(world.mark, **settings),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(END_S):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    said = output.decode("utf-8", "replace")
    shown = f"{' '.join(arguments)[:300]} ended with {process.returncode}: {said[:2000]}"
    assert process.returncode == 2, shown
    for word in words:
        assert word in said, f"no {word!r}: {shown}"
    assert "Traceback" not in said, shown
    assert len(said) < 4000, shown


def _run(config: Path, *, office: str = ALPHA.office, name: str = ALPHA.name) -> list[str]:
    return ["smcp-computer", "run", "--config", str(config), "--office", office, "--name", name]
