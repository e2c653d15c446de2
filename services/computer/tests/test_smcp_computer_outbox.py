"""A Computer's outbox while the registry refuses: it sends again what was refused, after the others."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import orjson
import pytest

from smcp_bus import subjects
from smcp_bus.bus import Incoming, Reply, RequestHandler
from smcp_bus.headers import ERROR
from smcp_computer.computer import Computer
from smcp_computer.outbox import CONFIG, DESKTOP, FINDER
from smcp_testing.computer_world import native_computer
from smcp_testing.gateway_world import Client, connected, gateway_world
from smcp_testing.interposed_buses import InterposedBuses
from smcp_testing.waiting import eventually

OFFICE, NAME = "lab", "pc"
TOLD = {"computer": NAME}


def refusal(code: int) -> Reply:
    return Reply(orjson.dumps({"code": code, "message": "not now", "details": {}}), {ERROR: str(code)})


@dataclass
class Refusing:
    """A registry that refuses what a Computer tells, as the test says; the rest is the real one's."""

    codes: dict[str, list[int]] = field(default_factory=dict)
    """By verb: with which errors the next ones are refused."""
    always: set[str] = field(default_factory=set)
    """Verbs that are refused with 503 until further notice."""
    asked: Counter[str] = field(default_factory=Counter)

    async def between(self, incoming: Incoming, handler: RequestHandler) -> Reply:
        verb = subjects.verb_of(incoming.subject)
        self.asked[verb] += 1
        if verb in self.always:
            return refusal(503)
        if self.codes.get(verb):
            return refusal(self.codes[verb].pop(0))
        return await handler(incoming)


@asynccontextmanager
async def office(nats_url: str, refusing: Refusing) -> AsyncIterator[tuple[Computer, Client]]:
    """A Computer, and an Agent that hears what it tells."""
    buses = InterposedBuses()
    buses.between = refusing.between
    async with (
        gateway_world(nats_url, bad=buses) as there,
        native_computer(there, OFFICE, NAME, {}) as computer,
        connected(there.url) as agent,
    ):
        assert await agent.join("agent", "anna", OFFICE) == [True, None]
        await eventually(lambda: not {each.key.verb for each in computer.outbox.waiting})
        agent.events.clear()
        yield computer, agent


async def test_a_refused_notification_is_sent_again_after_the_others(
    nats_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    refusing = Refusing()
    async with office(nats_url, refusing) as (computer, agent):
        asked = refusing.asked[DESKTOP]
        refusing.always.add(DESKTOP)
        for verb in (DESKTOP, CONFIG, FINDER):
            computer.outbox.changed(verb)
        await eventually(lambda: agent.told(f"notify:{CONFIG}") and agent.told(f"notify:{FINDER}"))
        assert agent.told(f"notify:{DESKTOP}") == []
        refusing.codes[DESKTOP] = [503, 429]
        refusing.always.clear()
        await eventually(lambda: agent.told(f"notify:{DESKTOP}"))
        assert refusing.asked[DESKTOP] - asked >= 4
        await eventually(lambda: not {each.key.verb for each in computer.outbox.waiting})
        computer.outbox.changed(CONFIG)
        await eventually(lambda: len(agent.told(f"notify:{CONFIG}")) == 2)
        assert agent.told(f"notify:{DESKTOP}") == [TOLD]
    assert f"{DESKTOP} could not be sent: not now" in caplog.text
