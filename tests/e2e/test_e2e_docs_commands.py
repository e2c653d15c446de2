"""Runs our commands on the documentation pages as written, beside one `smcp up` with README's MCP server. A command on
several pages runs once, with the first.

README's are run by `tests/pages`. The pages of containers and of Kubernetes need these: `make compose-demo` and
`test_e2e_containers` run the former's.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from smcp_testing.fork_server import COMMANDS, born
from smcp_testing.leaks import assert_no_child_processes_beside, child_processes
from smcp_testing.nats_accounts import AccountServer
from smcp_testing.ports import Ports
from smcp_testing.waiting import eventually
from tests.pages.markdown import ROOT, blocks, commands, pages

BIN: Final = Path(sys.executable).parent
OURS: Final = ("smcp", "smcp-agent", "smcp-computer", "smcp-gateway", "smcp-mcp", "smcp-registry")
NOT_HERE: Final = {"README.md", "deploy/k8s/README.md", "docker/README.md"}
STANDS_FOR: Final = {
    "COMPUTER": "computer",
    "SERVER": "clock",
    "TOOL": "show_zone",
    "KEY=VALUE": "name=Asia/Tokyo",
    "JSON": '{"name": "Asia/Tokyo"}',
    '{"x": 1}': '{"name": "Asia/Tokyo"}',
    "URI": "window://com.example.clock/now",
    "TEMPLATE": "zone://{name}",
    "ARGUMENT": "name",
    "PROMPT": "greet",
    "OFFICE": "home",
    "NAME": "another",
    "lab-1": "home",
    "60": "1",
}
OFFERED: Final = """

from mcp.types import Completion


@server.resource("zone://{name}")
def one_zone(name: str) -> str:
    return name


@server.prompt()
def greet(who: str) -> str:
    return f"Greet {who}."


@server.completion()
async def complete(reference: object, argument: object, context: object) -> Completion:
    return Completion(values=["Asia/Tokyo"])


@server.tool()
def add(a: int, b: int) -> int:
    return a + b


server.run()
"""
UNTIL_STOPPED: Final = ("up", "run", "watch", "follow", "-f", "smcp-gateway", "smcp-mcp", "smcp-registry")
"""What runs until ctrl-C, unless it has one of `ENDS`."""
ENDS: Final = ("--check-config", "--for", "keys")
START_S: Final = 120.0
"""At a load of 20 for two processors a command wrote its first line after 45 s."""

NONE: Final[Mapping[str, str]] = {}

pytestmark = [pytest.mark.keeps_processes, pytest.mark.timeout(400)]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def runnable(page: Path) -> list[list[str]]:
    """The commands of a page, without those that show a syntax."""
    found = [words for words in commands(page) if words[0] in OURS and "…" not in words]
    return [[word.strip("[]") for word in words] for words in found if not any(word[:3] == "[--" for word in words)]


def first_pages() -> Iterator[tuple[Path, list[list[str]]]]:
    """Each page with those of its commands that no page before it has."""
    before = set[tuple[str, ...]]()
    for page in pages():
        if name(page) not in NOT_HERE and (new := [each for each in runnable(page) if tuple(each) not in before]):
            before.update(map(tuple, new))
            yield page, new


PAGES: Final = dict(first_pages())


class Shell:
    """A directory with the files of README's first steps, and an environment like that of a terminal."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._logs = count()
        self.port = Ports().take()
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("SMCP_", "OTEL_"))}
        self.environment = {
            **kept,
            "PATH": f"{BIN}{os.pathsep}{kept['PATH']}",
            "SMCP_URL": self.url,
            "SMCP_GATEWAY_PORT": str(self.port),
            "SMCP_MCP_PORT": "0",
            "SMCP_HEALTH_PORT": "0",
            "SMCP_CONFIRM": "allow",
        }
        first = list(blocks(ROOT / "README.md"))
        [clock] = [block.text for block in first if "MCPServer" in block.text]
        [config] = [block.text for block in first if block.language == "json" and '"clock"' in block.text]
        (directory / "clock.py").write_text(clock.replace("\n\nserver.run()\n", OFFERED), encoding="utf-8")
        (directory / "computer.json").write_text(config, encoding="utf-8")
        other = {"mcpServers": {"other": {"command": "python", "args": ["clock.py"]}}}
        (directory / "mcp.json").write_text(json.dumps(other), encoding="utf-8")
        [offices] = [block.text for block in blocks(ROOT / "docs/guides/deploy.md") if "# offices.yaml" in block.text]
        rack = "  - {credential: rack-1, office: kitchen, names: [rack-1]}\n"
        (directory / "offices.yaml").write_text(offices + rack, encoding="utf-8")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def words(self, words: list[str]) -> list[str]:
        """The command with something for each placeholder, and with the address of the world here."""
        said = [STANDS_FOR.get(word, word) for word in words]
        return [re.sub(r"https?://(127\.0\.0\.1:8000|gateway[.\w]*(:8000)?|HOST)$", self.url, word) for word in said]

    @asynccontextmanager
    async def started(
        self, words: list[str], variables: Mapping[str, str]
    ) -> AsyncIterator[tuple[asyncio.subprocess.Process, Path]]:
        log = self.directory / f"log-{next(self._logs)}"
        said = self.directory / "said"
        said.write_text("y\n", encoding="utf-8")  # to a confirmation, or as the value of a secret
        with log.open("wb") as file, said.open("rb") as answers:
            process = await asyncio.create_subprocess_exec(
                *words,
                cwd=self.directory,
                env={**self.environment, **variables},
                stdin=answers,
                stdout=file,
                stderr=file,
            )
        try:
            yield process, log
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGINT)
            async with asyncio.timeout(START_S):
                await process.wait()

    async def run(self, words: list[str], variables: Mapping[str, str] = NONE) -> str:
        """What the command wrote; one that runs until ctrl-C is stopped when it has written something, others are
        forked."""
        stays = not any(word in ENDS for word in words) and any(word in UNTIL_STOPPED for word in words)
        command = words if stays else born(BIN / words[0], *words[1:], knows=COMMANDS)
        async with self.started(command, variables) as (process, log):
            if stays:
                await eventually(lambda: log.stat().st_size > 0, timeout=START_S, message=f"{words} wrote nothing")
            else:
                async with asyncio.timeout(START_S):
                    await process.wait()
        said = log.read_text(encoding="utf-8")
        # the servers that pages add do not run here, since there is no such address, or no value for an input
        adds_what_cannot_run = words[1:3] == ["servers", "add"] and "does not run" in said
        expected = (0, 130) if stays else (1,) if adds_what_cannot_run else (0,)
        assert process.returncode in expected, f"{words}: {process.returncode}\n{said}"
        assert "Traceback" not in said, said
        return said

    async def is_ready(self) -> bool:
        async with self.started(born(BIN / "smcp-agent", "list", knows=COMMANDS), NONE) as (process, log):
            await process.wait()
        return "computer" in log.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory, _nats_accounts: AccountServer) -> Iterator[Shell]:
    """It has `smcp up` beside it, for all pages: it takes seconds of a processor to start."""
    before = child_processes()
    with tempfile.TemporaryDirectory() as state, pytest.MonkeyPatch.context() as patch:  # the path of a socket is short
        patch.setenv("XDG_STATE_HOME", state)
        shell = Shell(tmp_path_factory.mktemp("shell"))
        with (shell.directory / "up.log").open("wb") as log:
            up = subprocess.Popen(
                [BIN / "smcp", "up", "--config", "computer.json"],
                cwd=shell.directory,
                env=shell.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            asyncio.run(eventually(shell.is_ready, timeout=START_S, message="smcp up is not ready"))
            yield shell
        finally:
            up.send_signal(signal.SIGINT)
            up.wait(START_S)
    assert_no_child_processes_beside(before)


@pytest.mark.parametrize("page", PAGES, ids=name)
async def test_the_commands_of_a_page_run(page: Path, shell: Shell, nats_url: str, tmp_path: Path) -> None:
    for words in PAGES[page]:
        own = dict[str, str]()
        if words[:2] == ["smcp", "up"]:
            own = {"SMCP_GATEWAY_PORT": "0", "XDG_STATE_HOME": str(tmp_path)}
        elif words[0] in ("smcp-gateway", "smcp-registry") or (
            words[:2] == ["smcp-computer", "run"] and "--gateway" not in words
        ):
            own = {"SMCP_NATS_URL": nats_url, "SMCP_GATEWAY_PORT": "0"}
        said = await shell.run(shell.words(words), own)
        if words[:3] == ["smcp-computer", "servers", "disable"]:
            await shell.run(["smcp-computer", "servers", "enable", "clock"])
        assert said or words[:2] == ["smcp-computer", "logs"], words
