"""The published clients as child processes."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal

import orjson

from bench import published_env
from smcp_testing.fork_server import born
from smcp_testing.profiles import scaled

Kind = Literal["async", "sync"]
KINDS: Final[tuple[Kind, ...]] = ("async", "sync")
"""Of the published Agent: the package has one on asyncio, and one that blocks threads."""
SELDOM: Final = KINDS[: scaled(ci=1, soak=len(KINDS))]
"""Of tests that are long, and in which the second Agent says little new."""
AGENTS: Final[Mapping[Kind, str]] = {"async": "published_agent.py", "sync": "published_sync_agent.py"}
HERE: Final = Path(__file__).parent
KNOWN: Final = (
    "a2c_smcp.agent.client",
    "a2c_smcp.agent.sync_client",
    "a2c_smcp.computer.computer",
    "a2c_smcp.computer.socketio.client",
    "anyio._backends._asyncio",
    "mcp.server.fastmcp",
)
"""What the scripts beside this file import of that environment."""
QUIET: Final = (("A2C_SMCP_LOG_SILENT", "1"),)
READY_S: Final = 60.0
END_S: Final = 20.0
MARK: Final = b"@ "
LINE_LIMIT: Final = 64 * 1024 * 1024
TOOLS: Final = ("echo", "fail", "one_more", "picture", "slow")
"""Of `tools_server`, without the one that is forbidden."""


class PublishedComputer:
    """One that runs. Its tools are those of `tools_server`; it lists them under its server's name."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ready(self) -> None:
        """It has joined."""
        await self._until("ready")

    async def do(self, line: str) -> list[str]:
        """Have it do something; what it said on the way."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        return await self._until("done")

    async def kill(self) -> None:
        self._process.kill()
        await self._process.wait()

    async def _until(self, wanted: str) -> list[str]:
        assert self._process.stdout is not None
        said: list[str] = []
        async with asyncio.timeout(READY_S):
            while line := (await self._process.stdout.readline()).decode():
                if line.strip() == wanted:
                    return said
                said.append(line.strip())
        raise AssertionError(f"the published Computer ended without saying {wanted!r}; see its log")


class PublishedAgent:
    """A running one; `told` has the notifications to it and its application."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._last = 0
        self.told: list[tuple[str, Any]] = []
        self.began: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        """What became of its connecting and joining: "ready", what was raised, or the refusal."""
        self._answers[0] = self.began
        self.reader = asyncio.create_task(self._read())

    async def ready(self) -> None:
        """It has connected and joined: it hears of all who come from now on."""
        async with asyncio.timeout(READY_S):
            began = await self.began
            assert began == "ready", began

    def ask(self, do: str, **question: Any) -> "asyncio.Future[Any]":
        """Its answer, once it is there: to an event with a `payload`, or to what `published_agent.do` knows."""
        assert self._process.stdin is not None
        self._last += 1
        answer = self._answers[self._last] = asyncio.get_running_loop().create_future()
        self._process.stdin.write(orjson.dumps({"do": do, "id": self._last, **question}) + b"\n")
        return answer

    async def run(self, method: str, *args: Any) -> Any:
        """What a method of the published client gave or raised."""
        async with asyncio.timeout(READY_S):
            return await self.ask("method", name=method, args=args)

    async def call(self, computer: str, tool: str, *, timeout: int = 20, **params: Any) -> Any:
        """Call a tool."""
        return await self.run("emit_tool_call", computer, tool, params, timeout)

    def heard(self, what: str) -> list[Any]:
        return [payload for event, payload in self.told if event == what]

    async def kill(self) -> None:
        self._process.kill()
        await self._process.wait()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            if not line.startswith(MARK):
                continue  # the package logs there
            said = orjson.loads(line.removeprefix(MARK))
            if "told" in said:
                self.told.append((said["told"], said["payload"]))
            else:
                self._answers.pop(said["id"]).set_result(said["answer"])
        for answer in self._answers.values():
            answer.set_exception(AssertionError("the published Agent has ended; see its log"))


@asynccontextmanager
async def _process(
    home: Path, script: str, name: str, *arguments: str, token: str = ""
) -> AsyncIterator[asyncio.subprocess.Process]:
    command = await asyncio.to_thread(_command, script, *arguments)
    log = (home / f"{script}.{name}.log").open("ab")
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**_environ(home), "TOKEN": token}, cwd=home,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log,
        limit=LINE_LIMIT,
    )  # fmt: skip
    log.close()
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(END_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def _command(script: str, *arguments: str | Path) -> list[str]:
    return born(HERE / script, *arguments, knows=KNOWN, python=str(published_env.python()), imported_with=QUIET)


def _environ(home: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(published_env.ROOT), **dict(QUIET)}


@asynccontextmanager
async def published_computer(
    home: Path, url: str, office: str, name: str, *, tcp: Mapping[str, Any] | None = None, token: str = ""
) -> AsyncIterator[PublishedComputer]:
    """It begins to connect. What its tools did stands in `home / "journal"`, what it is sent lands in `home / "blobs"`.

    Args:
        tcp: options of its TCP connections; with them it connects again by itself.
        token: what it says in `auth`, by the package's own means.
    """
    settings = home / "settings.json"
    settings.write_text(json.dumps({"landingRoot": str(home / "blobs")}))
    server = await asyncio.to_thread(_command, "tools_server.py", home / "journal")
    arguments = [url, office, name, json.dumps(server), str(settings), _options(tcp)]
    async with _process(home, "published_computer.py", name, *arguments, token=token) as process:
        yield PublishedComputer(process)


@asynccontextmanager
async def published_agent(
    home: Path,
    url: str,
    office: str,
    name: str,
    *,
    kind: Kind = "async",
    tcp: Mapping[str, Any] | None = None,
    version: str = "",
    token: str = "",
) -> AsyncIterator[PublishedAgent]:
    """It begins to connect.

    Args:
        tcp: as of `published_computer`; of a synchronous one only that they are given counts.
        version: of the protocol, in place of the package's own.
        token: as of `published_computer`.
    """
    arguments = [url, office, name, _options(tcp), version]
    async with _process(home, AGENTS[kind], name, *arguments, token=token) as process:
        agent = PublishedAgent(process)
        try:
            yield agent
        finally:
            agent.reader.cancel()
            await asyncio.gather(agent.reader, return_exceptions=True)
            agent.began.cancel()


def _options(tcp: Mapping[str, Any] | None) -> str:
    return "" if tcp is None else json.dumps(tcp)
