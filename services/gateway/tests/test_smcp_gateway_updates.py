"""What a Computer on Socket.IO announces of its resources: told at once, or together where updates come fast."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from smcp_bus.errors import NotConnected
from smcp_bus.registry_client import RegistryClient
from smcp_gateway.computers import subscriptions as updates
from smcp_gateway.computers.subscriptions import Key, Updates
from smcp_proto.errors import NotAllowed, Unavailable
from smcp_proto.schemas.resources import MISSED
from smcp_testing.gateway_world import NAMESPACE
from smcp_testing.granting_computer import BOX, UPDATED, ask, scene, updated
from smcp_testing.waiting import eventually

KIB = 1024


class Office:
    """Hears what `Updates` tell, and does so again where it did not work, as a gateway does."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.heard: list[str] = []
        self.failure: Exception | None = None
        self.updates = Updates(self._hear, self._later, office="o", computer="box")
        self._tasks = tasks

    def say(self, uri: str, text: str = "", *, size: int = 1, agent: str = "anna") -> None:
        self.updates.add(Key(agent, None, uri), f"{uri}{text}".encode().ljust(size))

    async def _hear(self, verb: str, body: bytes) -> None:
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        self.heard.append(body.decode().strip() if verb == "resources_updated" else verb)

    def _later(self, _: str, errand: Callable[[], Awaitable[object]]) -> None:
        self._tasks.create_task(self._until_done(errand))

    async def _until_done(self, errand: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await errand()
            except (Unavailable, NotConnected):
                await asyncio.sleep(0.01)
            else:
                return


@asynccontextmanager
async def office() -> AsyncIterator[Office]:
    async with asyncio.TaskGroup() as tasks:
        yield Office(tasks)


async def test_each_resource_is_sent_once_with_its_newest_update_in_order_of_the_first() -> None:
    async with office() as here:
        here.say("a", "1")
        await eventually(lambda: here.heard == ["a1"])
        for uri, text in (("b", "1"), ("a", "2"), ("b", "2"), ("c", "1"), ("a", "3")):
            here.say(uri, text)
        here.say("a", "x", agent="bert")
        assert here.heard == ["a1"]
        await eventually(lambda: here.heard == ["a1", "b2", "a3", "c1", "ax"])
        await here.updates.flush()
        assert len(here.updates) == 0


async def test_waiting_updates_are_sent_before_later_events() -> None:
    async with office() as here:
        for number in range(5):
            here.say("a", str(number))
        await here.updates.flush()
        assert here.heard == ["a4"]


@pytest.mark.rule("answers.resources.flood")
@pytest.mark.parametrize("failure", [Unavailable("no registry"), NotConnected("no NATS")])
async def test_above_the_bound_one_list_changed_replaces_all_waiting_updates(
    monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    monkeypatch.setattr(updates, "MOST_BYTES", 4 * KIB)
    async with office() as here:
        here.failure = failure
        for number in range(4):
            here.say(f"{number}", size=KIB)
        assert len(here.updates) == 4
        for number in range(4, 6):
            here.say(f"{number}", size=KIB)
        assert len(here.updates) == 2
        here.failure = None
        await eventually(lambda: here.heard == ["resources_list_changed", "5"])


async def test_a_refused_update_does_not_block_others(caplog: pytest.LogCaptureFixture) -> None:
    async with office() as here:
        here.failure = NotAllowed("not yours")
        here.say("a")
        await eventually(lambda: "an update cannot be sent, and is dropped: NotAllowed" in caplog.messages)
        here.failure = None
        here.say("b")
        await eventually(lambda: here.heard == ["b"])


async def test_waiting_updates_of_ended_subscriptions_are_dropped() -> None:
    async with office() as here:
        here.failure = Unavailable("no registry")
        here.say("a")
        here.say("b")
        here.updates.missed()
        here.failure = None
        await eventually(lambda: here.heard == ["resources_list_changed"])


async def test_waiting_updates_of_a_computer_that_left_are_tried_once_more() -> None:
    async with office() as here:
        here.say("a")
        here.updates.end()
        await eventually(lambda: here.heard == ["a"])
    async with office() as here:
        here.failure = Unavailable("no registry")
        here.say("a")
        here.updates.end()
    assert here.heard == []  # and it has ended


@pytest.mark.rule("answers.resources.flood")
async def test_an_agent_is_told_to_subscribe_again_after_too_many_updates_without_a_registry(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates, "MOST_BYTES", 4 * KIB)
    failing = True

    async def tell(self: RegistryClient, *told: Any, **asked: Any) -> Any:
        if failing:
            raise Unavailable("no registry answered")
        return await told_well(self, *told, **asked)

    async with scene(nats_url, lease_s=60.0) as (_, anna, box):
        await ask(anna, uri="file:///whole")
        told_well = RegistryClient.tell
        monkeypatch.setattr(RegistryClient, "tell", tell)
        for number in range(30):
            assert await box.client.call(UPDATED, updated(f"file:///whole/{number}", "t" * KIB)) is None
        assert anna.told(UPDATED) == []
        failing = False
        await eventually(lambda: any(each.get(MISSED) for each in anna.told("notify:resources/list_changed")))
        assert len(anna.told(UPDATED)) < 10


async def test_a_resource_that_changes_constantly_is_sent_as_often_as_by_a_native_computer(
    nats_url: str,
) -> None:
    async with scene(nats_url, lease_s=60.0) as (_, anna, box):
        await ask(anna)
        loop = asyncio.get_running_loop()
        began, count = loop.time(), 300
        for number in range(count):
            await box.client.sio.emit(UPDATED, updated(title=str(number)), namespace=NAMESPACE)
        assert await box.client.call("server:update_config", {"computer": BOX}) is None
        took = loop.time() - began
        await eventually(lambda: anna.told("notify:update_config"))
        titles = [said["payload"]["params"]["title"] for said in anna.told(UPDATED)]
        assert titles == sorted(titles, key=int)
        assert titles[-1] == str(count - 1)
        assert len(titles) <= 2 + took / updates.GATHER_S
