"""The system that is attacked, and what attacks share: keys, and clients of a gateway that write packets themselves."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from smcp_testing.mcp_servers import configs
from tests.e2e.hostile.mutations import Mutator
from tests.e2e.worlds.layout import Place
from tests.e2e.worlds.process import Process
from tests.e2e.worlds.world import LAB, World

AT_ONCE: Final = 100
"""Inputs in one group. The next one waits for all of it."""
ANSWER_S: Final = 30.0
JOIN: Final = 10**9
"""The id of the packet that joins."""
SERVERS: Final = {"raw": configs.stdio("raw"), "scripted": configs.stdio("scripted")}
VICTIM: Final = Place("host-alpha", LAB, "alpha", SERVERS)
GUEST: Final = Place("host-guest", LAB, "guest")
"""A host with a credential for NATS. The attack is its only Computer."""
RESULT: Final = {"content": [{"type": "text", "text": "a"}], "isError": False, "_meta": {"a": 1}}
THIRD: Final = "third"
"""The office whose Agent is smcp-mcp, for hostile MCP clients and Computers."""

Attack = Callable[["Target", Mutator, int], Coroutine[Any, Any, Counter[str]]]
"""Sends so many inputs; returns how often each outcome came."""


@dataclass(frozen=True)
class Keys:
    agent: str
    """Of an Agent, for `LAB`."""
    computer: str
    """Of a Computer, for `LAB`."""
    mcp_client: str
    """Of an MCP client, for `THIRD`."""
    mcp_computer: str
    """Of a Computer, for `THIRD`."""


class Target:
    """The world that is attacked, and what the attackers know and have."""

    def __init__(self, world: World, mcp: Process, directory: Path, keys: Keys) -> None:
        self.world = world
        self.mcp = mcp
        self.directory = directory
        """Where the configuration of the Computers is."""
        self.keys = keys
        self.failed: list[object] = []
        """The inputs that were not answered as their row says, each with why."""

    def outcome(self, answer: Any, said: object, wrong: str) -> str:
        """`said`: the input that it answers. `wrong`: why that is not as its row says, or empty."""
        if wrong:
            self.failed.append((wrong, said))
        if not isinstance(answer, dict):
            return "answered"
        payload = answer.get("payload", answer)
        error = answer if "code" in answer else payload.get("error") if isinstance(payload, dict) else None
        return "answered" if not isinstance(error, dict) else str(error.get("code"))

    @property
    def url(self) -> str:
        """The gateway's."""
        return self.world.url()

    @property
    def mcp_url(self) -> str:
        """That of smcp-mcp."""
        return f"http://127.0.0.1:{self.mcp.env['SMCP_MCP_PORT']}"

    @property
    def health_urls(self) -> list[str]:
        """The health ports of all processes but NATS."""
        parts = [part for part in self.world.parts if part is not self.world.nats]
        return [part.stats_url.removesuffix("/statz") for part in (*parts, self.mcp)]


@asynccontextmanager
async def connected(url: str, token: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """A client that is let in. It writes its packets itself."""
    async with aiohttp.ClientSession() as http:
        address = f"{url}/socket.io/?EIO=4&transport=websocket"
        async with http.ws_connect(address, max_msg_size=64 * 1024 * 1024) as socket:
            await socket.receive()
            await socket.send_str("40/smcp," + json.dumps({"token": token, "flat_errors": True}))
            await socket.receive()
            yield socket


async def acknowledged(socket: aiohttp.ClientWebSocketResponse, numbers: set[int]) -> dict[int, Any]:
    """The packets' acknowledgements. Raises AssertionError: the connection ended; TimeoutError: one is missing."""
    found: dict[int, Any] = {}
    async with asyncio.timeout(ANSWER_S):
        while numbers - found.keys():
            message = await socket.receive()
            assert message.type is aiohttp.WSMsgType.TEXT, f"the connection ended: {message}"
            text: str = message.data
            if text == "2":
                await socket.send_str("3")
            elif text.startswith("43/smcp,"):
                number, bracket, rest = text[8:].partition("[")
                found[int(number)] = json.loads(bracket + rest)[0]
    return found


async def join(socket: aiohttp.ClientWebSocketResponse, role: str, name: str, office: str = LAB) -> None:
    request = {"role": role, "name": name, "office_id": office}
    await socket.send_str(f"42/smcp,{JOIN}" + json.dumps(["server:join_office", request]))
    assert (await acknowledged(socket, {JOIN}))[JOIN] == [True, None]


async def call(
    socket: aiohttp.ClientWebSocketResponse,
    number: int,
    make: Mutator,
    computer: str,
    tool: str,
    params: object,
    timeout: int = 2,
) -> str:
    """Returns the request's id, a new one: a repeated request is not run."""
    req_id = f"{make.random.getrandbits(128):032x}"
    request = {"agent": "mallory", "req_id": req_id, "computer": computer, "tool_name": tool, "timeout": timeout}
    await socket.send_str(f"42/smcp,{number}" + json.dumps(["client:tool_call", {**request, "params": params}]))
    return req_id
