"""The Agent of the benchmarks of desktops and catalogs."""

import asyncio
import json
import uuid
from typing import Any

import socketio

OFFICE, AGENT = "lab", "alice"


class Agent:
    """An Agent on plain python-socketio. Notifications about desktops, catalogs and Computers set
    `told`."""

    def __init__(self) -> None:
        untyped: Any = socketio.AsyncClient
        self._sio = untyped(reconnection=False)
        self.told = asyncio.Event()
        for event in ("notify:update_desktop", "notify:update_finder", "notify:enter_office"):
            self._sio.on(event, self._told, namespace="/smcp")

    async def join(self, url: str) -> None:
        await self._sio.connect(url, namespaces=["/smcp"], transports=["websocket"])
        joined = await self._ask("server:join_office", {"role": "agent", "name": AGENT, "office_id": OFFICE})
        if joined != [True, None]:
            raise SystemExit(f"the Agent was not let in: {joined}")

    async def leave(self) -> None:
        await self._sio.disconnect()

    async def desktop(self, computer: str) -> list[str]:
        """Empty where the Computer is not there."""
        answer = await self._ask("client:get_desktop", {"agent": AGENT, "req_id": "d", "computer": computer})
        shown: list[str] = answer.get("desktops", [])
        return shown

    async def finder(self, computer: str, **asked: Any) -> dict[str, Any]:
        """The answer, an error too."""
        found: dict[str, Any] = await self._ask(
            "client:get_finder", {"agent": AGENT, "req_id": "f", "computer": computer, **asked}
        )
        return found

    async def call(self, computer: str, tool: str, **params: Any) -> Any:
        """What a tool of its first MCP server gives."""
        request = {"agent": AGENT, "req_id": uuid.uuid4().hex, "computer": computer, "timeout": 30}
        answer = await self._ask("client:tool_call", {**request, "tool_name": f"desk-0__{tool}", "params": params})
        if "code" in answer or answer.get("isError"):
            raise SystemExit(f"a call failed: {answer}")
        return json.loads(answer["content"][0]["text"])

    async def _ask(self, event: str, payload: dict[str, Any]) -> Any:
        return await self._sio.call(event, payload, namespace="/smcp", timeout=30)

    async def _told(self, _: Any) -> None:
        self.told.set()
