"""A newcomer's first ten minutes: README's files and commands, as they stand there."""

import asyncio
import os
import re
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
import pytest

from smcp_testing.ports import Ports
from smcp_testing.waiting import eventually
from tests.pages.markdown import ROOT, Block, blocks

BIN: Final = Path(sys.executable).parent
BLOCKS: Final = list(blocks(ROOT / "README.md"))
URL: Final = "http://127.0.0.1:8000"
START_S: Final = 120.0
"""At a load of 20 for two processors a command wrote its first line after 45 s."""

pytestmark = pytest.mark.timeout(360)


def the(language: str, containing: str) -> Block:
    [found] = [block for block in BLOCKS if block.language == language and containing in block.text]
    return found


def environment(port: int) -> dict[str, str]:
    """A shell in which `.venv/bin/activate` was sourced; the gateway's port is one that is free here."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SMCP_", "OTEL_"))}
    path = f"{BIN}{os.pathsep}{kept['PATH']}"
    return {**kept, "PATH": path, "SMCP_GATEWAY_PORT": str(port), "SMCP_URL": f"http://127.0.0.1:{port}"}


@asynccontextmanager
async def running(line: str, directory: Path, port: int) -> AsyncIterator[None]:
    """A command of a terminal that is left open; ctrl-C ends it."""
    variables, command = re.fullmatch(
        r"((?:[A-Z_]+=\S+ )*)(.*)", line.replace(URL, f"http://127.0.0.1:{port}")
    ).groups()  # type: ignore[union-attr]
    env = environment(port) | dict(pair.split("=", 1) for pair in variables.split())
    with (directory / "log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *shlex.split(command), cwd=directory, env=env, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield
    except BaseException as error:
        error.add_note((directory / "log").read_text(encoding="utf-8")[-4000:])
        raise
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def printed(*command: str, directory: Path, port: int, code: int = 0) -> str:
    """What a command prints that ends with this code."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=directory,
        env=environment(port),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == code, err.decode()
    return out.decode()


async def test_the_steps_of_the_readme_work(tmp_path: Path) -> None:
    port = Ports().take()
    (tmp_path / "clock.py").write_text(the("python", "MCPServer").text)
    (tmp_path / "computer.json").write_text(the("json", '"clock"').text)
    [up] = [line.strip() for block in BLOCKS for line in block.lines if "smcp up" in line]
    commands = [line.strip() for line in the("", "smcp-agent list").lines]
    async with running(up, tmp_path, port):
        await eventually(lambda: ready(port), timeout=START_S, message="smcp up is not ready")
        said = [await printed(*shlex.split(line), directory=tmp_path, port=port) for line in commands]
        assert "computer" in said[0]
        assert re.search(r"It is \d\d:\d\d in Asia/Tokyo\.", said[1])
        assert re.search(r"window://com.example.clock/now\s+It is \d\d:\d\d in Asia/Tokyo\.", said[2])
        wrong = commands[1].replace("Asia/Tokyo", "Mars")
        assert "there is no zone 'Mars'" in await printed(*shlex.split(wrong), directory=tmp_path, port=port, code=1)
        application = the("python", "SmcpAgent").text.replace(URL, f"http://127.0.0.1:{port}")
        lines = (await printed(sys.executable, "-c", application, directory=tmp_path, port=port)).splitlines()
        assert re.fullmatch(r"It is \d\d:\d\d in Asia/Tokyo\.", lines[0])
        assert lines[1:] == ["['show_zone']"]
        [second] = [line.strip() for block in BLOCKS for line in block.lines if "--gateway" in line]
        async with running(second, tmp_path, port):

            async def in_the_office() -> bool:
                return "laptop" in await printed("smcp-agent", "list", directory=tmp_path, port=port)

            await eventually(in_the_office, timeout=START_S, message="the second Computer is not in the office")


async def ready(port: int) -> bool:
    try:
        async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/readyz") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


def test_the_readme_has_at_most_150_lines() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
