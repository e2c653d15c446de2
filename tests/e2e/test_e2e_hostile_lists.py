"""The Computers of an office list thousands of tools at smcp-mcp, and announce changes without end; the MCP client of
another office goes on. All offices share the memory and the event loop of smcp-mcp."""

import asyncio
import json
import re
import statistics
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import psutil

from smcp_testing.gateway_world import MIB, NAMESPACE, connected
from smcp_testing.mcp_service import office_client
from smcp_testing.service_process import service_process
from smcp_testing.waiting import Stopwatch, eventually

BIN: Final = Path(sys.executable).parent
CALL: Final = re.compile(r"42/smcp,(\d+)\[")
TOOLS: Final = 4_000
COMPUTERS: Final = 25
TEXT: Final = json.dumps([{"name": f"t{number}", "description": "", "params_schema": {}} for number in range(TOOLS)])
ROUNDS: Final = 40
"""Lists that are read of all hostile Computers together."""
LISTS: Final = 100
"""Requests of the bystander."""
SLOWER_S: Final = 0.5
HELD: Final = 100 * MIB
"""32 MiB of tools, four lists that are being read, and what Python does not give back at once."""


class HostileComputer:
    """Lists `TOOLS`, different ones each time, and announces a change after each request and several times between."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, name: str) -> None:
        self._socket = socket
        self._name = name
        self.asked = 0

    async def join(self) -> None:
        await self._socket.receive()
        await self._socket.send_str('40/smcp,{"flat_errors":true}')
        await self._socket.receive()
        await self._say("server:join_office", role="computer", office_id="here", name=self._name)

    async def announce(self) -> None:
        await self._say("server:update_tool_list", computer=self._name)

    async def answer(self) -> None:
        """Until it is cancelled."""
        while (message := await self._socket.receive()).type is aiohttp.WSMsgType.TEXT:
            if message.data == "2":
                await self._socket.send_str("3")
            elif asked := CALL.match(message.data):
                self.asked += 1
                req_id = json.loads(message.data[message.data.index("[") :])[1]["req_id"]
                tools = TEXT.replace('"t', f'"t{self.asked}_')
                await self._socket.send_str(f'43/smcp,{asked[1]}[{{"tools":{tools},"req_id":"{req_id}"}}]')
                await self.announce()

    async def _say(self, event: str, **data: str) -> None:
        await self._socket.send_str("42/smcp,1" + json.dumps([event, data]))


@asynccontextmanager
async def hostile_computers(url: str) -> AsyncIterator[list[HostileComputer]]:
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        address = f"{url}/socket.io/?EIO=4&transport=websocket"
        found = [
            HostileComputer(await stack.enter_async_context(http.ws_connect(address)), f"evil-{number}")
            for number in range(COMPUTERS)
        ]
        for each in found:
            await each.join()
        tasks = [group.create_task(each.answer()) for each in found]
        yield found
        for task in tasks:
            task.cancel()


async def answer_tools(data: Any) -> Any:
    tools: list[dict[str, Any]] = [
        {"name": name, "description": "", "params_schema": {}} for name in ("add", "echo", "look")
    ]
    return {"tools": tools, "req_id": data["req_id"]}


async def test_computers_that_list_and_announce_tools_without_end_cost_another_office_little(nats_url: str) -> None:
    """Before there were limits, smcp-mcp grew by 180 MiB, and the other office's list took up to 1.8 s more."""
    common = {"SMCP_NATS_URL": nats_url, "SMCP_LOG_FORMAT": "json", "SMCP_LEASE_S": "5"}
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        registry = await enter(service_process(BIN / "smcp-registry", env=common))
        gateway = await enter(service_process(BIN / "smcp-gateway", env=common | {"SMCP_GATEWAY_PORT": "0"}))
        await registry.logged("ready")
        url = (await gateway.logged("ready"))["url"]
        mcp = await enter(
            service_process(BIN / "smcp-mcp", env={"SMCP_URL": url, "SMCP_MCP_PORT": "0", "SMCP_LOG_FORMAT": "json"})
        )
        mcp_url = (await eventually(lambda: mcp.output))[0].split()[-1]
        box = await enter(connected(url))
        box.sio.on("client:get_tools", answer_tools, namespace=NAMESPACE)
        assert await box.join("computer", "box", "there") == [True, None]
        bob = await enter(office_client(f"{mcp_url}/mcp/there"))

        async def list_s() -> float:
            watch = Stopwatch()
            assert await bob.names() == ["add", "echo", "look"]
            return max(watch.undisturbed, 0.0)

        victim = psutil.Process(mcp.pid)
        usual_s = [await list_s() for _ in range(LISTS)]
        size = victim.memory_info().rss
        evil = await enter(hostile_computers(url))
        eve = await enter(office_client(f"{mcp_url}/mcp/here"))
        await eventually(lambda: all(each.asked for each in evil))
        took_s: list[float] = []
        largest = 0
        while len(took_s) < LISTS or sum(each.asked for each in evil) < ROUNDS:
            for each in evil:
                await each.announce()
            took_s.append(await list_s())
            largest = max(largest, victim.memory_info().rss)
        assert "search_tools" in await eve.names()
        assert max(took_s) - statistics.median(usual_s) < SLOWER_S
        assert largest - size < HELD
