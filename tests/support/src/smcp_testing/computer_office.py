"""A native Computer with its registry, on a real nats-server, as an Agent of its office sees it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from smcp_bus import subjects
from smcp_bus.bus import NO_HEADERS, Incoming, Reply
from smcp_bus.headers import ERROR
from smcp_bus.nats.bus import Bus, BusConfig, open_bus
from smcp_computer.app import open_computer
from smcp_computer.computer import Computer
from smcp_computer.config.file import parse_config
from smcp_computer.confirmation import Asker
from smcp_computer.settings import ComputerSettings
from smcp_registry.app import Registry, open_registry
from smcp_registry.settings import RegistrySettings
from smcp_service.metrics import Metrics

OFFICE, NAME = "lab", "pc"


class World:
    """An Agent's view of one Computer, and what the office hears."""

    def __init__(self, computer: Computer, agent: Bus) -> None:
        self.computer = computer
        self.agent = agent
        self.heard: list[tuple[str, dict[str, Any]]] = []

    async def hear(self, incoming: Incoming) -> None:
        self.heard.append((subjects.verb_of(incoming.subject), json.loads(incoming.body)))

    def told(self, verb: str) -> list[dict[str, Any]]:
        return [body for heard, body in self.heard if heard == verb]

    async def raw(self, verb: str, headers: Any = NO_HEADERS, **body: Any) -> Reply:
        request = {"agent": "alice", "req_id": "r1", "computer": NAME, **body}
        subject = subjects.client(OFFICE, NAME, verb)
        return await self.agent.request(subject, json.dumps(request).encode(), timeout=20.0, headers=headers)

    async def ask(self, verb: str, headers: Any = NO_HEADERS, **body: Any) -> dict[str, Any]:
        reply = await self.raw(verb, headers, **body)
        answer: dict[str, Any] = json.loads(reply.body)
        assert reply.headers.get(ERROR) == (str(answer["code"]) if "code" in answer else None)
        return answer

    async def call(self, tool: str, req_id: str = "r1", timeout: int = 15, **params: Any) -> dict[str, Any]:
        return await self.ask("tool_call", req_id=req_id, tool_name=tool, params=params, timeout=timeout)

    async def tell(self, server: str, tool: str, **arguments: Any) -> Any:
        """What a tool of a context server gives, past the Computer's own handlers: it is not a call of an Agent."""
        supervisor = self.computer.fleet.supervisors[server]
        result = await supervisor.call(tool, arguments, timeout=30)
        assert not result.get("isError"), result
        return json.loads(result["content"][0]["text"])

    async def cancel(self, req_id: str, agent: str = "alice") -> None:
        body = json.dumps({"agent": agent, "req_id": req_id}).encode()
        await self.agent.publish(subjects.notify(OFFICE, "tool_call_cancel"), body)


@asynccontextmanager
async def registry(url: str, **settings: Any) -> AsyncIterator[Registry]:
    async with (
        open_bus(BusConfig(url=url)) as bus,
        open_registry(RegistrySettings(nats_url=url, **settings), bus) as opened,
    ):
        yield opened


@asynccontextmanager
async def computer(
    url: str,
    servers: dict[str, Any] | None = None,
    *,
    joined: bool = True,
    office: str = OFFICE,
    name: str = NAME,
    lease_s: float = 10.0,
    metrics: Metrics | None = None,
    config: Path = Path("unused"),
    asker: Asker | None = None,
    **settings: Any,
) -> AsyncIterator[Computer]:
    """It keeps nothing for another one of its name, unless they share a `state_dir`."""
    parsed = parse_config(json.dumps({"servers": servers or {}}))
    with TemporaryDirectory(prefix="smcp-state-") as state:
        own = {"state_dir": Path(state), "drain_s": 5.0, **settings}
        given = ComputerSettings(nats_url=url, config=config, office=office, name=name, lease_s=lease_s, **own)
        async with (
            open_bus(BusConfig(url=url)) as bus,
            open_computer(given, bus, config=parsed, environ={}, asker=asker, metrics=metrics or Metrics()) as opened,
        ):
            if joined:
                await asyncio.wait_for(opened.wait_ready(), 60)
            yield opened


@asynccontextmanager
async def world(url: str, settings: dict[str, Any] | None = None, **servers: dict[str, Any]) -> AsyncIterator[World]:
    """Args:
    settings: of the Computer, its `metrics` and its `asker`.
    servers: their configurations by name.
    """
    async with registry(url), open_bus(BusConfig(url=url)) as agent:
        listening = None
        try:
            async with computer(url, servers, **(settings or {})) as opened:
                here = World(opened, agent)
                listening = await agent.listen(subjects.notify_all(OFFICE), here.hear)
                yield here
        finally:
            if listening is not None:
                await listening.drain()
