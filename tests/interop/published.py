"""The published clients as child processes."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson

from bench import published_env

HERE = Path(__file__).parent
READY_S = 60.0
MARK = b"@ "
LINE_LIMIT = 64 * 1024 * 1024


class PublishedComputer:
    """One that runs and has joined."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def do(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        await expect(self._process, "done")

    async def kill(self) -> None:
        self._process.kill()
        await self._process.wait()


class PublishedAgent:
    """One that runs and has joined; what it was told stands in `told`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._last = 0
        self.told: list[tuple[str, Any]] = []
        self.joined: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers[0] = self.joined
        self.reader = asyncio.create_task(self._read())

    def ask(self, do: str, **question: Any) -> "asyncio.Future[Any]":
        """Its answer, once it is there."""
        assert self._process.stdin is not None
        self._last += 1
        answer = self._answers[self._last] = asyncio.get_running_loop().create_future()
        self._process.stdin.write(orjson.dumps({"do": do, "id": self._last, **question}) + b"\n")
        return answer

    async def call(self, computer: str, tool: str, *, timeout: int = 20, **params: Any) -> Any:
        """Call a tool of `tools_server`; the published Computer lists it under its server's name."""
        tool = f"tools__{tool}"
        async with asyncio.timeout(timeout + 10):
            return await self.ask("call", computer=computer, tool=tool, params=params, timeout=timeout)

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
async def _process(home: Path, script: str, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    python = await asyncio.to_thread(published_env.python)
    log = (home / f"{script}.log").open("ab")
    process = await asyncio.create_subprocess_exec(
        python, HERE / script, *arguments,
        env={"PATH": os.environ["PATH"], "HOME": str(home), "A2C_SMCP_LOG_SILENT": "1"}, cwd=home,
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
            async with asyncio.timeout(20):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def expect(process: asyncio.subprocess.Process, wanted: str) -> None:
    """Read lines until `wanted`."""
    assert process.stdout is not None
    async with asyncio.timeout(READY_S):
        while line := await process.stdout.readline():
            if line.decode().strip() == wanted:
                return
    raise AssertionError(f"it ended without saying {wanted!r}")


@asynccontextmanager
async def published_computer(home: Path, url: str, office: str, name: str) -> AsyncIterator[PublishedComputer]:
    """A Computer with the tools of `tools_server`; cancelled calls stand in `home / "journal"`."""
    server = str(HERE / "tools_server.py")
    async with _process(home, "published_computer.py", url, office, name, server, str(home / "journal")) as process:
        await expect(process, "ready")
        yield PublishedComputer(process)


@asynccontextmanager
async def published_agent(home: Path, url: str, office: str, name: str) -> AsyncIterator[PublishedAgent]:
    async with _process(home, "published_agent.py", url, office, name) as process:
        agent = PublishedAgent(process)
        try:
            async with asyncio.timeout(READY_S):
                await agent.joined
            yield agent
        finally:
            agent.reader.cancel()
            await asyncio.gather(agent.reader, return_exceptions=True)
