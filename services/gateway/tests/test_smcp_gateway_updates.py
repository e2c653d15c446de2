"""What a Computer on Socket.IO tells of its resources: at once, or together where updates come fast."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from smcp_bus.errors import NotConnected
from smcp_bus.registry_client import RegistryClient
from smcp_gateway.computers import updates
from smcp_gateway.computers.updates import Key, Short, Updates
from smcp_proto.errors import NotAllowed, Unavailable
from smcp_testing.gateway_world import NAMESPACE
from smcp_testing.granting_computer import BOX, UPDATED, ask, scene, updated
from smcp_testing.waiting import eventually

KIB = 1024


class Office:
    """Hears what `Updates` tell, and does so again where it did not work, as a gateway does."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.heard: list[str] = []
        self.failure: Exception | None = None
        self.unwanted: Callable[[Key], bool] = lambda key: False
        self.updates = Updates(self._later, unwanted=self._is_unwanted, computer="box")
        self._tasks = tasks

    async def say(self, uri: str, text: str = "", *, size: int = 1, agent: str = "anna", whole: str = "") -> None:
        """Args:
        whole: what was subscribed to; else it is `uri`.
        """
        subscribed = whole or uri
        short = Short(Key(agent, None, subscribed), partial(self._hear, f"{subscribed} in short"))
        await self.updates.add(Key(agent, None, uri), partial(self._hear, f"{uri}{text}"), size, short=short)

    def _is_unwanted(self, key: Key) -> bool:
        return self.unwanted(key)

    async def _hear(self, said: str) -> None:
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        self.heard.append(said)

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


async def test_the_last_word_of_a_resource_is_told_where_it_is_said_while_others_are_told() -> None:
    async with office() as here:
        await here.say("a", "1")
        for uri in ("b", "c"):
            await here.say(uri, "1")
        telling = asyncio.create_task(here.updates.flush())
        await asyncio.sleep(0)  # `b` is being told
        await here.say("c", "2")
        await telling
        assert here.heard == ["a1", "b1", "c2"]


async def test_what_follows_closely_is_told_once_for_each_resource_with_its_last_word_in_the_order_of_the_first() -> (
    None
):
    async with office() as here:
        await here.say("a", "1")
        assert here.heard == ["a1"]
        for uri, text in (("b", "1"), ("a", "2"), ("b", "2"), ("c", "1"), ("a", "3")):
            await here.say(uri, text)
        await here.say("a", "x", agent="bert")
        assert here.heard == ["a1"]
        await eventually(lambda: len(here.heard) == 5)
        assert here.heard == ["a1", "b2", "a3", "c1", "ax"]
        await eventually(lambda: not here.updates.gathering)
        await here.say("a", "4")
        assert here.heard[-1] == "a4"  # at once, after a pause


async def test_what_waits_is_told_before_what_is_said_next() -> None:
    async with office() as here:
        for number in range(5):
            await here.say("a", str(number))
        await here.updates.flush()
        assert here.heard == ["a0", "a4"]
        assert len(here.updates) == 0


@pytest.mark.rule("answers.resources.flood.short")
@pytest.mark.parametrize("failure", [Unavailable("no registry"), NotConnected("no NATS")])
async def test_above_the_bound_changes_wait_in_short_and_those_of_parts_as_one_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    monkeypatch.setattr(updates, "MOST_BYTES", 4 * KIB)
    async with office() as here:
        here.failure = failure
        for number in range(4):
            await here.say(f"{number}", size=KIB)
            await here.say(f"{number}", "!", size=KIB)  # in its place
        for number in range(100):
            await here.say(f"doc/{number}", size=KIB, whole="doc")
        await here.say("4", size=KIB)
        await here.say("0", "?", size=KIB)
        assert (len(here.updates), here.heard) == (6, [])
        here.failure = None
        await eventually(lambda: len(here.heard) == 6)
        assert here.heard == ["0 in short", "1!", "2!", "3!", "doc in short", "4 in short"]


@pytest.mark.rule("answers.resources.flood.short")
async def test_what_does_not_fit_even_in_short_is_refused_to_the_computer_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(updates, "MOST_BYTES", KIB)
    monkeypatch.setattr(updates, "MOST_SHORT_BYTES", 2 * KIB)
    async with office() as here:
        here.failure = Unavailable("no registry")
        for number in range(4):
            await here.say(f"{number}", size=KIB)
        for number in range(4, 7):
            with pytest.raises(Unavailable):
                await here.say(f"{number}", size=KIB)
        assert len(here.updates) == 4
        assert caplog.text.count("the Computer 'box' says more changes than are kept") == 1
        here.failure = None
        await here.say("7", size=KIB)  # the others are told to make room
        await eventually(lambda: len(here.heard) == 5)
        assert here.heard == ["0", "1 in short", "2 in short", "3 in short", "7"]


async def test_what_is_refused_for_good_holds_up_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with office() as here:
        here.failure = NotAllowed("not yours")
        await here.say("a")
        assert len(here.updates) == 0
        assert "an update cannot be told, and is dropped: NotAllowed" in caplog.messages
        here.failure = None
        await here.say("b")
        await eventually(lambda: here.heard == ["b"])


async def test_what_waits_for_a_subscription_that_has_ended_is_dropped_and_what_else_waits_is_told() -> None:
    async with office() as here:
        here.failure = Unavailable("no registry")
        await here.say("a", size=KIB)
        await here.say("b", size=KIB)
        await here.say("a", size=KIB, agent="bert")
        here.unwanted = lambda key: key.agent == "anna" and key.uri == "a"
        here.updates.drop()
        assert len(here.updates) == 2
        here.failure = None
        await eventually(lambda: here.heard == ["b", "a"])
        assert len(here.updates) == 0


async def test_what_is_dropped_while_it_is_told_is_not_asked_for_again_and_holds_up_nothing() -> None:
    async with office() as here:
        stuck = asyncio.Event()

        async def never() -> None:
            stuck.set()
            await asyncio.Event().wait()

        key = Key("anna", None, "a")
        telling = asyncio.create_task(here.updates.add(key, never, KIB, short=Short(key, never)))
        await stuck.wait()
        await here.say("b")
        here.unwanted = lambda update: update == key
        for _ in range(2):
            here.updates.drop()
        await telling
        await eventually(lambda: here.heard == ["b"])


async def test_a_change_that_waited_for_room_is_not_kept_when_its_subscription_has_ended_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(updates, "MOST_BYTES", 4 * KIB)
    async with office() as here:
        telling, told = asyncio.Event(), asyncio.Event()

        async def slow() -> None:
            telling.set()
            await told.wait()

        first = Key("anna", None, "first")
        saying = asyncio.create_task(here.updates.add(first, slow, 3 * KIB, short=Short(first, slow)))
        await telling.wait()
        adding = asyncio.create_task(here.say("second", size=3 * KIB))  # it waits for room
        await asyncio.sleep(0)
        here.unwanted = lambda key: key.agent == "anna"
        here.updates.drop()
        told.set()
        await asyncio.gather(saying, adding)
        assert len(here.updates) == 0
        assert here.heard == []


async def test_of_a_computer_that_went_what_waits_is_tried_once_more() -> None:
    async with office() as here:
        await here.say("a")
        await here.say("b")
        here.updates.end()
        await eventually(lambda: here.heard == ["a", "b"])
    async with office() as here:
        here.failure = Unavailable("no registry")
        await here.say("a")
        here.updates.end()
    assert here.heard == []  # and it has ended


@pytest.mark.rule("answers.resources.flood.short")
async def test_changes_that_pile_up_without_a_registry_reach_the_agent_when_there_is_one_again(
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
        await ask(anna, uri="file:///other")
        told_well = RegistryClient.tell
        monkeypatch.setattr(RegistryClient, "tell", tell)
        for number in range(30):
            assert await box.client.call(UPDATED, updated(f"file:///whole/{number}", "t" * KIB)) is None
        assert await box.client.call(UPDATED, updated("file:///other", "t" * KIB)) is None
        assert anna.told(UPDATED) == []
        failing = False
        await eventually(lambda: any(said["payload"]["params"]["uri"].endswith("other") for said in anna.told(UPDATED)))
        told = [said["payload"]["params"] for said in anna.told(UPDATED)]
        assert {"uri": "file:///whole"} in told
        assert {"uri": "file:///other"} in told
        assert len(told) < 10


async def test_a_resource_that_changes_all_the_time_is_told_of_as_often_as_a_native_computer_tells_it(
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
