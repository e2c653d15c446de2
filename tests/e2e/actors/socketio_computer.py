"""A Computer that speaks Socket.IO only, through a bare python-socketio client: what others may write."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, ClassVar, TypeVar

from socketio.exceptions import SocketIOError

from tests.e2e.actors.bare import NAMESPACE, BareMember, FlatError, Refused

Roaming = TypeVar("Roaming", bound="SocketIoComputer")


class SocketIoComputer(BareMember):
    """Its tools: `echo` of `text`, and `sleep` for `seconds`; what ran stands in `ran`, by `req_id`."""

    TOOLS: ClassVar[Sequence[str]] = ("echo", "sleep")

    def __init__(self, office: str, name: str) -> None:
        self.ran: list[str] = []
        self.joins = 0
        self.lost = asyncio.Event()
        """Its connection is gone."""
        self.closing = asyncio.Event()
        """It goes for good: a tool that sleeps does not outlive it."""
        super().__init__("computer", office, name)

    def _new_client(self) -> Any:
        client = super()._new_client()
        client.on("client:tool_call", self._tool_call, namespace=NAMESPACE)
        client.on("client:get_tools", self._get_tools, namespace=NAMESPACE)
        return client

    async def come_back(self, url: str) -> None:
        """Connect anew and join again. Raises Refused, and python-socketio's ConnectionError."""
        await super().close()
        self._sio = self._new_client()
        self.lost.clear()
        await self.connect(url)
        await self.join()

    async def join(self) -> None:
        await super().join()
        self.joins += 1

    async def _on_disconnect(self, *_: Any) -> None:
        await super()._on_disconnect()
        self.lost.set()

    async def close(self) -> None:
        self.closing.set()
        await super().close()

    async def _get_tools(self, request: Mapping[str, Any]) -> dict[str, Any]:
        tools = [
            {"name": name, "description": "", "params_schema": {"type": "object"}, "return_schema": None}
            for name in self.TOOLS
        ]
        return {"tools": tools, "req_id": request["req_id"]}

    async def _tool_call(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self.ran.append(request["req_id"])
        params = request["params"]
        if request["tool_name"] == "sleep":
            with suppress(TimeoutError):
                await asyncio.wait_for(self.closing.wait(), params["seconds"])
            text = f"slept {params['seconds']}"
        else:
            text = params["text"]
        return {"content": [{"type": "text", "text": text}], "isError": False}


@asynccontextmanager
async def socketio_computer(url: str, office: str, name: str) -> AsyncIterator[SocketIoComputer]:
    """One in its office for as long as the block runs. Raises Refused."""
    computer = SocketIoComputer(office, name)
    await computer.connect(url)
    try:
        await computer.join()
        yield computer
    finally:
        await computer.close()


@asynccontextmanager
async def roaming_computer(urls: Sequence[str], office: str, name: str) -> AsyncIterator[SocketIoComputer]:
    """One that comes back by the next URL whenever its connection is lost, as an application does. Raises Refused."""
    async with coming_back(SocketIoComputer(office, name), urls) as computer:
        yield computer


@asynccontextmanager
async def coming_back(computer: Roaming, urls: Sequence[str]) -> AsyncIterator[Roaming]:
    """It connects and joins, and comes back by the next URL whenever its connection is lost. Raises Refused."""
    await computer.connect(urls[0])
    await computer.join()
    returns = asyncio.create_task(_come_back(computer, urls))
    try:
        yield computer
    finally:
        returns.cancel()
        await asyncio.wait({returns})
        await computer.close()
        if not returns.cancelled():
            returns.result()  # what it did not expect


async def _come_back(computer: SocketIoComputer, urls: Sequence[str]) -> None:
    for url in itertools.cycle([*urls[1:], urls[0]]):
        await computer.lost.wait()
        try:
            await computer.come_back(url)
        except (SocketIOError, FlatError, Refused):  # also a join that no registry answered in time
            await asyncio.sleep(0.1)
            computer.lost.set()
