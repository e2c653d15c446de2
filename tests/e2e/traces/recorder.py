"""What the processes of a world have exported, read from the OTLP receiver."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import orjson

from smcp_agent import SmcpAgent
from smcp_testing.waiting import eventually
from tests.e2e.actors.bare import BareMember, member
from tests.e2e.scenarios.calls import text
from tests.e2e.traces import golden_files
from tests.e2e.traces.tree import forest
from tests.e2e.worlds.kinds import OPEN
from tests.e2e.worlds.world import LAB, Collector, ComputerHost, World

ENVIRONMENT = {"OTEL_BSP_SCHEDULE_DELAY": "100"}  # milliseconds
"""For everybody whose spans are to be read, beside the receiver's address."""

Barrier = Callable[[str], Awaitable[int]]
"""Sends a request with this `req_id` through the same processes as before; returns how many spans it has. They are
exported after all that ended before, so once they are there nothing is on its way any more."""


def through(agent: BareMember, computer: str = "alpha", spans: int = 4) -> Barrier:
    """A call of so many spans, and a question to the registry."""

    async def pass_through(req_id: str) -> int:
        await agent.call(computer, "echo", {"text": ""}, req_id=req_id)
        await agent.ask("server:list_room", {"agent": agent.name, "req_id": req_id, "office_id": agent.office})
        return spans + 3

    return pass_through


def calling(agent: SmcpAgent, computer: str = "alpha", spans: int = 4) -> Barrier:
    async def call(req_id: str) -> int:
        await agent.call_tool(computer, "echo", {"text": ""}, req_id=req_id)
        return spans

    return call


def runs(host: ComputerHost, mark: str) -> bool:
    """Whether its tool `sleep` was started with this mark."""
    return host.ran.exists() and f"sleep {mark}" in host.ran.read_text(encoding="utf-8")


@dataclass(frozen=True)
class Recorder:
    """`world`: one with a collector."""

    world: World

    @property
    def collector(self) -> Collector:
        assert self.world.collector is not None
        return self.world.collector

    @property
    def url(self) -> str:
        return self.collector.url

    @property
    def environment(self) -> dict[str, str]:
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, **ENVIRONMENT}

    async def spans(self, *trace_ids: str) -> list[dict[str, Any]]:
        """The spans of these traces so far, or of all."""
        async with aiohttp.ClientSession() as http, http.get(f"{self.url}/spans") as response:
            listed: list[dict[str, Any]] = orjson.loads(await response.read())
        return [span for span in listed if not trace_ids or span["trace_id"] in trace_ids]

    async def matches(self, name: str, traces: Mapping[str, str], barrier: Barrier | None) -> None:
        """The traces become what the golden file `name` says, and stay so.

        Args:
            traces: trace ids, and the words that stand for them.
            barrier: None where nothing can be sent any more; all must have been exported then.
        """

        async def matching() -> bool:
            return golden_files.matches(name, await self._forest(traces))

        if barrier is not None and golden_files.updating():
            await self.settled(barrier)
        await eventually(matching, message=f"the trace is not as in {name}.json")
        if barrier is not None:
            await self.settled(barrier)
            await matching()

    async def _forest(self, traces: Mapping[str, str]) -> list[dict[str, Any]]:
        return forest(await self.spans(*traces), instance=_instance, known=traces)

    async def follows_a_call_to(self, computer: str, golden: str) -> None:
        """A call is one trace, as in this golden file, and its MCP server is told of its last span."""
        req_id = uuid4().hex
        async with member(self.world.url(0), "agent", LAB, "caller") as agent:
            told = text(await agent.call(computer, "trace", req_id=req_id))
            await self.matches(golden, {req_id: "req_id"}, through(agent))
        (called,) = [span for span in await self.spans(req_id) if span["name"] == "tools/call trace"]
        assert told == f"00-{req_id}-{called['span_id']}-01"

    async def settled(self, barrier: Barrier) -> None:
        """Return when all spans that have ended are here."""
        req_id = uuid4().hex
        count = await barrier(req_id)

        async def all_there() -> bool:
            return len(await self.spans(req_id)) >= count

        await eventually(all_there, message=f"the {count} spans of the last request did not come")


@asynccontextmanager
async def recording(
    kind: str, directory: Path, environment: Mapping[str, str] | None = None, **options: Any
) -> AsyncIterator[Recorder]:
    """A world of this kind that has a collector; `options` are for what opens it."""
    told = {**ENVIRONMENT, **(environment or {})}
    async with OPEN[kind](directory, environment=told, collector=True, **options) as world:
        yield Recorder(world)


def _instance(span: Mapping[str, Any]) -> str:
    return str(span["resource"]["service.instance.id"])
