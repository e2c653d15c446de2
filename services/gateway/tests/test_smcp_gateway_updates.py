"""What a Computer on Socket.IO tells of its resources: at once after a pause, and together where it comes closely."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest

from smcp_bus.errors import NotConnected
from smcp_gateway import updates
from smcp_gateway.updates import Key, Updates
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
        self.updates = Updates(self._later)
        self._tasks = tasks

    async def say(self, uri: str, text: str = "", *, size: int = 1, agent: str = "anna") -> None:
        await self.updates.add(Key(agent, None, uri), partial(self._hear, f"{uri}{text}"), size)

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


async def test_what_cannot_be_told_now_waits_and_no_more_is_kept_than_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(updates, "MOST_BYTES", 4 * KIB)
    async with office() as here:
        here.failure = Unavailable("no registry")
        for number in range(4):
            await here.say(f"{number}", size=KIB)
            await here.say(f"{number}", "!", size=KIB)  # in its place
        with pytest.raises(Unavailable):
            await here.say("4", size=KIB)
        assert (len(here.updates), here.heard) == (4, [])
        here.failure = NotConnected("no NATS")
        with pytest.raises(NotConnected):
            await here.say("4", size=KIB)
        here.failure = None
        await here.say("4", size=KIB)  # the others are told to make room
        await eventually(lambda: len(here.heard) == 5)
        assert here.heard == ["0!", "1!", "2!", "3!", "4"]


async def test_what_is_refused_for_good_holds_up_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with office() as here:
        here.failure = NotAllowed("not yours")
        await here.say("a")
        assert len(here.updates) == 0
        assert "an update cannot be told, and is dropped: NotAllowed" in caplog.messages
        here.failure = None
        await here.say("b")
        await eventually(lambda: here.heard == ["b"])


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
