"""Those who have nothing to do with what happens, and must not notice it."""

import json
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from tests.e2e.actors.agents import sdk_agent
from tests.e2e.actors.traffic import traffic
from tests.e2e.worlds.world import ELSEWHERE, Part, World


@asynccontextmanager
async def undisturbed(world: World) -> AsyncIterator[None]:
    """While the block runs: an Agent in ELSEWHERE calls tools without a refusal, and no part ends or logs an error.

    Raises:
        AssertionError: otherwise.
    """
    before = {part.name: (part.pid, _size(part)) for part in world.parts}
    host = world.computer(ELSEWHERE, "alpha")
    async with sdk_agent(world.url(1), ELSEWHERE, "bystander") as agent, traffic(agent, host) as streams:
        yield
    assert [call for stream in streams for call in stream.failed] == []
    for part in world.parts:
        pid, size = before[part.name]
        assert part.running, f"{part.name} has ended"
        assert part.pid == pid
        assert errors_in(part, size) == []


def errors_in(part: Part, offset: int = 0) -> Collection[str]:
    """The lines of a part's log that tell of an error, from a place in it (bytes)."""
    with part.log.open("rb") as log:
        log.seek(offset)
        lines = log.read().decode("utf-8", "replace").splitlines()
    return [line for line in lines if _is_error(line)]


def _is_error(line: str) -> bool:
    try:
        told = json.loads(line)
    except ValueError:
        # nats-server's own, and what is printed by who does not log
        return "[ERR]" in line or "[FTL]" in line or line.startswith("Traceback")
    return isinstance(told, dict) and told.get("level") in ("error", "critical")


def _size(part: Part) -> int:
    return part.log.stat().st_size
