"""A Computer that speaks Socket.IO only, through a bare python-socketio client: what others may write."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from tests.e2e.actors.bare import NAMESPACE, BareMember


class SocketIoComputer(BareMember):
    """Its tools: `echo` of `text`, and `sleep` for `seconds`; what ran stands in `ran`, by `req_id`."""

    def __init__(self, office: str, name: str) -> None:
        super().__init__("computer", office, name)
        self.ran: list[str] = []
        self._closing = asyncio.Event()
        self._sio.on("client:tool_call", self._tool_call, namespace=NAMESPACE)
        self._sio.on("client:get_tools", self._get_tools, namespace=NAMESPACE)

    async def close(self) -> None:
        self._closing.set()  # a tool that sleeps does not outlive it
        await super().close()

    async def _get_tools(self, request: Mapping[str, Any]) -> dict[str, Any]:
        tools = [
            {"name": name, "description": "", "params_schema": {"type": "object"}, "return_schema": None}
            for name in ("echo", "sleep")
        ]
        return {"tools": tools, "req_id": request["req_id"]}

    async def _tool_call(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self.ran.append(request["req_id"])
        params = request["params"]
        if request["tool_name"] == "sleep":
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), params["seconds"])
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
