"""Computers on Socket.IO, a few to a process, by a bare client that comes back when it is cut off."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import uvloop

from tests.e2e.actors.socketio_computer import SocketIoComputer, coming_back
from tests.e2e.restarts.orders import Work, config, follow
from tests.e2e.restarts.runs import note
from tests.e2e.restarts.together import idle


class Worker(SocketIoComputer):
    """Its tool is `work`, as that of `tool_server`."""

    TOOLS = ("work",)

    def __init__(self, office: str, name: str, runs: str) -> None:
        super().__init__(office, name)
        self._runs = runs

    async def _tool_call(self, request: Mapping[str, Any]) -> dict[str, Any]:
        seconds = request["params"]["seconds"]
        note(self._runs, request["req_id"], seconds)
        with suppress(TimeoutError):
            await asyncio.wait_for(self.closing.wait(), seconds)
        return {"content": [{"type": "text", "text": request["req_id"]}], "isError": False}


@asynccontextmanager
async def computers(told: dict[str, Any]) -> AsyncIterator[Work]:
    async with AsyncExitStack() as stack:
        for member in told["members"]:
            computer = Worker(member["office"], member["name"], told["runs"])
            await stack.enter_async_context(coming_back(computer, member["urls"]))
        yield idle


if __name__ == "__main__":
    uvloop.run(follow(computers(config())))
