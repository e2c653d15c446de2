"""The processes of the load, as the test sees them."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from bench import published_env
from tests.e2e.restarts.load import COMPUTER, Load, shared
from tests.e2e.restarts.orders import MARK
from tests.e2e.worlds.world import MARK as WORLD
from tests.e2e.worlds.world import World

READY_S: Final = 120.0
END_S: Final = 60.0
GUEST_S: Final = 2
"""Between two joins of a guest."""
ROOT: Final = Path(__file__).resolve().parents[3]


class Worker:
    """One process. Made by `worker`."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.cpu_s = 0.0
        """What it and its children took, once it has gone."""
        self._process = process
        self._log = log

    def tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())

    async def heard(self, word: str, within: float) -> str:
        """Wait until it says that; the rest of the line.

        Raises:
            AssertionError: it ended before, or did not say it in time; says the end of its log.
        """
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(within):
                while line := (await self._process.stdout.readline()).decode():
                    if line.startswith(MARK + word):
                        return line.removeprefix(MARK + word).strip()
        except TimeoutError:
            raise AssertionError(f"{self.name} did not say {word!r} within {within:g} s\n{self._tail()}") from None
        raise AssertionError(f"{self.name} ended without saying {word!r}\n{self._tail()}")

    async def gone(self) -> None:
        """Wait until it has left (order `go`) and ended."""
        self.cpu_s = float(await self.heard("cpu", END_S))
        async with asyncio.timeout(END_S):
            code = await self._process.wait()
        assert code == 0, f"{self.name} ended with {code}\n{self._tail()}"

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-40:])


@asynccontextmanager
async def worker(
    name: str, module: str, told: Mapping[str, Any], directory: Path, mark: str, python: str | Path = sys.executable
) -> AsyncIterator[Worker]:
    """A process that runs `module` with a file of settings; killed where it has not ended by itself."""
    path, log = directory / f"{name}.json", directory / f"{name}.log"
    path.write_text(json.dumps(told), encoding="utf-8")
    env = {"PATH": os.environ["PATH"], "HOME": str(directory), WORLD: mark, "A2C_SMCP_LOG_SILENT": "1"}
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            python, "-m", f"tests.e2e.restarts.{module}", path, env=env, cwd=ROOT,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors, start_new_session=True,
        )  # fmt: skip
    try:
        yield Worker(name, process, log)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def computers(load: Load, world: World, directory: Path) -> AsyncIterator[list[Worker]]:
    """They start; those that are `ready` are in their offices."""
    runs = str(directory / "runs")
    native = [
        {"office": place.office, "name": place.name, "credentials": str(world.credentials / f"{place.credential}.json")}
        for place in load.places()
    ]
    socketio = [
        {"office": office, "name": COMPUTER, "urls": _urls(world, number)}
        for number, office in enumerate(load.offices_of(socketio=True))
    ]
    of_nats = {"nats_url": world.nats_url, "lease_s": world.lease_s}
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                worker(f"{kind}-{number}", kind, {"members": part, "runs": runs, **more}, directory, world.mark)
            )
            for kind, members, more in (("native_computers", native, of_nats), ("socketio_computers", socketio, {}))
            for number, part in enumerate(shared(members, load.processes))
        ]


@asynccontextmanager
async def callers(load: Load, world: World, front: str, directory: Path) -> AsyncIterator[list[Worker]]:
    """Agents of both kinds, and guests, start; those that are `ready` are in their offices, or have connected.

    Args:
        front: where published clients connect.
    """
    python = await asyncio.to_thread(published_env.python)
    sdk = [
        {"office": office, "name": "caller", "computer": COMPUTER, "urls": _urls(world, number)}
        for number, office in enumerate(load.offices_of(published=False))
    ]
    published = [
        {"office": office, "name": "caller", "computer": COMPUTER, "url": front, "address": f"127.0.1.{number + 1}"}
        for number, office in enumerate(load.offices_of(published=True))
    ]
    # Each joins once in some seconds: a guest that has to wait does not make the others wait.
    names = [f"guest {number}" for number in range(round(load.joins * GUEST_S))]
    guests = {"offices": load.offices_of(), "names": names, "pause_s": GUEST_S, "urls": _urls(world, 0)}
    async with AsyncExitStack() as stack:

        async def start(name: str, module: str, told: Mapping[str, Any], interpreter: str | Path) -> Worker:
            told = {**told, "pace": load.pace, "journal": str(directory / f"{name}.journal")}
            return await stack.enter_async_context(worker(name, module, told, directory, world.mark, interpreter))

        found = []
        for kind, members, timeout, interpreter in (
            ("sdk_agents", sdk, load.timeout_s, sys.executable),
            ("published_agents", published, load.published_s, python),
        ):
            for number, part in enumerate(shared(members, load.processes)):
                told = {"members": part, "timeout_s": timeout}
                found.append(await start(f"{kind}-{number}", kind, told, interpreter))
        found.append(await start("guests", "guests", guests, sys.executable))
        yield found


def _urls(world: World, number: int) -> Sequence[str]:
    """Of all gateways, beginning with one or another of those that run."""
    urls = [gateway.url for gateway in world.gateways]
    first = number % sum(gateway.part.running for gateway in world.gateways)
    return urls[first:] + urls[:first]
