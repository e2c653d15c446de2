import asyncio
import gc
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from smcp_agent.cache import ABANDONED_BYTES, MAX_CACHED_BYTES, READ_AT_ONCE, READ_PER_S, SLOT_S, ToolCache, Tools
from smcp_agent.errors import Closed, Malformed, NotAllowed, NotFound, SmcpError, TooLarge, Unavailable
from smcp_agent.events import Event, ToolsChanged
from smcp_proto.schemas import SMCPTool
from smcp_testing.waiting import eventually


class Computers:
    """Answers of the Computers, and the events that they caused."""

    def __init__(self) -> None:
        self.tools: dict[str, list[str] | SmcpError] = {}
        self.asked: list[str] = []
        self.told: list[tuple[str, list[str]]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def fetch(self, computer: str) -> Tools:
        self.asked.append(computer)
        await self.may_answer.wait()
        answer = self.tools[computer]
        if isinstance(answer, SmcpError):
            raise answer
        return tuple(SMCPTool(name=name, description="", params_schema={}) for name in answer)

    def publish(self, event: Event) -> None:
        assert isinstance(event, ToolsChanged)
        self.told.append((event.computer, names(event.tools)))


@asynccontextmanager
async def caching(computers: Computers) -> AsyncIterator[ToolCache]:
    async with asyncio.TaskGroup() as group:
        cache = ToolCache(computers.fetch, group.create_task, computers.publish)
        yield cache
        computers.may_answer.set()
        for name in computers.tools:
            cache.drop(name)


def names(tools: Tools) -> list[str]:
    return [tool.name for tool in tools]


async def test_get_waits_for_the_first_fetch_and_is_answered_from_the_cache_then() -> None:
    computers = Computers()
    computers.tools["a"] = ["echo"]
    async with caching(computers) as cache:
        cache.refresh("a")
        assert names(await cache.get("a")) == ["echo"]
        assert names(await cache.get("a")) == ["echo"]
        assert computers.asked == ["a"]
        assert computers.told == [("a", ["echo"])]


async def test_get_returns_though_the_tools_change_faster_than_they_are_fetched() -> None:
    computers = Computers()
    computers.tools["a"] = ["echo"]
    changing = True
    async with asyncio.TaskGroup() as group:

        async def fetch(computer: str) -> Tools:
            if changing:
                cache.refresh(computer)
                await asyncio.sleep(0)  # as any question over a connection
            return await computers.fetch(computer)

        cache = ToolCache(fetch, group.create_task, computers.publish)
        cache.refresh("a")
        async with asyncio.timeout(30):
            assert names(await cache.get("a")) == ["echo"]
        changing = False
        cache.drop("a")


async def test_many_refreshes_during_one_fetch_become_one_more_fetch() -> None:
    computers = Computers()
    computers.tools["a"] = ["old"]
    computers.may_answer.clear()
    async with caching(computers) as cache:
        cache.refresh("a")
        await eventually(lambda: computers.asked == ["a"])
        for _ in range(5):
            cache.refresh("a")
        computers.may_answer.set()
        await eventually(lambda: computers.asked == ["a", "a"])
        assert names(await cache.get("a")) == ["old"]
    assert computers.told == [("a", ["old"])], "the same tools again are not news"


async def test_cached_tools_are_returned_while_new_ones_are_fetched() -> None:
    computers = Computers()
    computers.tools["a"] = ["old"]
    async with caching(computers) as cache:
        cache.refresh("a")
        await cache.get("a")
        computers.may_answer.clear()
        computers.tools["a"] = ["new"]
        cache.refresh("a")
        assert names(await cache.get("a")) == ["old"]
        computers.may_answer.set()
        await eventually(lambda: computers.told[1:] == [("a", ["new"])])
        assert names(await cache.get("a")) == ["new"]


async def test_a_passing_failure_is_tried_again_until_it_succeeds() -> None:
    computers = Computers()
    computers.tools["a"] = Unavailable("not now")
    async with caching(computers) as cache:
        cache.refresh("a")
        with pytest.raises(Unavailable):
            await cache.get("a")
        assert await cache.all() == {}
        computers.tools["a"] = ["echo"]
        await eventually(lambda: computers.told == [("a", ["echo"])])
        assert list(await cache.all()) == ["a"]


async def test_a_lasting_failure_is_retried_only_after_a_change() -> None:
    computers = Computers()
    computers.tools["a"] = Malformed("no")
    async with caching(computers) as cache:
        cache.refresh("a")
        with pytest.raises(Malformed):
            await cache.get("a")
        assert computers.asked == ["a"]
        computers.tools["a"] = ["echo"]
        cache.refresh("a")
        await eventually(lambda: computers.told == [("a", ["echo"])])
        assert list(await cache.all()) == ["a"]


@pytest.mark.rule("events.should.agent.leave")
async def test_waiting_callers_get_not_found_when_a_computer_leaves() -> None:
    computers = Computers()
    computers.tools["a"] = ["echo"]
    computers.may_answer.clear()
    async with caching(computers) as cache:
        cache.refresh("a")
        waiting = asyncio.create_task(cache.get("a"))
        await eventually(lambda: computers.asked == ["a"])
        cache.drop("a")
        with pytest.raises(NotFound):
            await waiting
        with pytest.raises(NotFound):
            await cache.get("a")
        assert await cache.all() == {}


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NotAllowed("by the key"), "error 403: by the key"),
        (Malformed("no"), "error 400: no"),
    ],
)
async def test_the_log_says_why_there_are_no_tools(
    caplog: pytest.LogCaptureFixture, error: SmcpError, said: str
) -> None:
    computers = Computers()
    computers.tools["a"] = error
    async with caching(computers) as cache:
        cache.refresh("a")
        assert await cache.all() == {}
    assert caplog.messages == [f"the tools of Computer 'a': {said}"]


async def test_a_closing_agent_logs_no_failed_fetch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    computers = Computers()
    computers.tools["a"] = Closed("not open")
    async with caching(computers) as cache:
        cache.refresh("a")
        with pytest.raises(Closed):
            await cache.get("a")
    assert caplog.messages == []


async def test_a_first_answer_that_is_no_news_is_an_event_for_who_did_not_wait_for_it() -> None:
    computers = Computers()
    computers.tools |= {"a": ["echo"], "b": ["echo"]}
    computers.may_answer.clear()
    async with caching(computers) as cache:
        for name in computers.tools:
            cache.refresh(name, is_news=False)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(cache.get("a"), 0.01)
        computers.may_answer.set()
        assert list(await cache.all()) == ["a", "b"]
        assert computers.told == [("a", ["echo"])]


async def test_first_answers_are_events_for_who_did_not_wait_for_all_of_them() -> None:
    computers = Computers()
    computers.tools |= {"a": ["echo"], "b": ["echo"]}
    computers.may_answer.clear()
    async with caching(computers) as cache:
        for name in computers.tools:
            cache.refresh(name, is_news=False)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(cache.all(), 0.01)
        computers.may_answer.set()
        assert list(await cache.all()) == ["a", "b"]
        assert sorted(computers.told) == [("a", ["echo"]), ("b", ["echo"])]


async def test_a_first_answer_that_is_no_news_is_an_event_after_a_failure() -> None:
    computers = Computers()
    computers.tools["a"] = NotAllowed("not yet")
    async with caching(computers) as cache:
        cache.refresh("a", is_news=False)
        with pytest.raises(NotAllowed):
            await cache.get("a")
        computers.tools["a"] = ["echo"]
        cache.refresh("a")
        await eventually(lambda: computers.told == [("a", ["echo"])])


class Large(Computers):
    """Each of their tools has a description of a MiB."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[weakref.ref[SMCPTool]] = []
        self.asked_at: list[float] = []

    async def fetch(self, computer: str) -> Tools:
        self.asked_at.append(asyncio.get_running_loop().time())
        found = [each.model_copy(update={"description": "x" * 1024 * 1024}) for each in await super().fetch(computer)]
        self.given = [weakref.ref(each) for each in found]
        return tuple(found)


async def test_tools_that_do_not_fit_beside_those_of_other_computers_are_an_error_until_those_leave() -> None:
    computers = Large()
    most = MAX_CACHED_BYTES // (1024 * 1024)
    computers.tools |= {"hostile": ["t"] * (most - 2), "small": ["t"], "late": ["t"] * 3}
    async with caching(computers) as cache:
        for name in computers.tools:
            cache.refresh(name)
            if name != "late":
                await cache.get(name)
        with pytest.raises(TooLarge) as refused:
            await cache.get("late")
        assert refused.value.details["limit"] == MAX_CACHED_BYTES
        computers.tools["hostile"] = ["t"] * (most + 1)
        cache.refresh("hostile")
        await eventually(lambda: len(computers.asked) == 4)
        assert [len(await cache.get(name)) for name in ("hostile", "small")] == [most - 2, 1], "each keeps its own"
        cache.drop("hostile")
        await eventually(lambda: computers.told[-1][0] == "late")
        assert list(await cache.all()) == ["late", "small"]


async def test_tools_that_do_not_fit_are_asked_for_again_when_another_computer_lists_fewer() -> None:
    computers = Large()
    most = MAX_CACHED_BYTES // (1024 * 1024)
    computers.tools |= {"large": ["t"] * (most - 2), "late": ["t"] * 3}
    async with caching(computers) as cache:
        cache.refresh("large")
        await cache.get("large")
        cache.refresh("late")
        with pytest.raises(TooLarge):
            await cache.get("late")
        computers.tools["large"] = ["t"]
        cache.refresh("large")
        await eventually(lambda: computers.told[-1][0] == "late")
        assert {name: len(tools) for name, tools in (await cache.all()).items()} == {"large": 1, "late": 3}


async def test_tools_that_do_not_fit_are_asked_for_again_when_they_change() -> None:
    computers = Large()
    computers.tools["a"] = ["t"] * (MAX_CACHED_BYTES // (1024 * 1024) + 1)
    async with caching(computers) as cache:
        cache.refresh("a")
        with pytest.raises(TooLarge):
            await cache.get("a")
        computers.tools["a"] = ["t"]
        cache.refresh("a")
        await eventually(lambda: computers.told == [("a", ["t"])])
        assert names(await cache.get("a")) == ["t"]


async def test_tools_that_do_not_fit_are_not_kept_by_their_error() -> None:
    computers = Large()
    computers.tools["a"] = ["t"] * (MAX_CACHED_BYTES // (1024 * 1024) + 1)
    async with caching(computers) as cache:
        cache.refresh("a")
        for _ in range(2):
            with pytest.raises(TooLarge):
                await cache.get("a")

        def none_is_left() -> bool:
            gc.collect()
            return not any(each() for each in computers.given)

        await eventually(none_is_left)


async def test_computers_that_announce_without_end_are_asked_in_proportion_to_what_they_list() -> None:
    computers = Large()
    computers.tools |= {"a": ["t"] * 4, "b": ["t"] * 4}
    async with caching(computers) as cache:

        async def announce(name: str) -> bool:
            cache.refresh(name)
            return len(computers.asked) >= 6

        for name in computers.tools:
            cache.refresh(name)
        await eventually(lambda: announce("a"))
        await eventually(lambda: announce("b"))
        first, *_, last = computers.asked_at[1:6]
        assert last - first >= 4 * 4 * 1024 * 1024 / READ_PER_S


async def test_a_computer_that_comes_and_goes_without_end_is_asked_after_pauses() -> None:
    computers = Large()
    computers.tools["a"] = ["t"]
    computers.may_answer.clear()
    async with caching(computers) as cache:

        async def come_again() -> bool:
            cache.refresh("a", restart=True)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return len(computers.asked) >= 12

        await eventually(come_again, pause=0)
        assert computers.asked_at[11] - computers.asked_at[1] >= 10 * ABANDONED_BYTES / READ_PER_S


async def test_few_computers_are_asked_at_a_time_and_those_that_do_not_answer_stop_no_others() -> None:
    computers = Computers()
    silent = [f"silent-{number}" for number in range(READ_AT_ONCE)]
    computers.may_answer.clear()
    async with caching(computers) as cache:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for name in (*silent, "other"):
            computers.tools[name] = ["echo"]
            cache.refresh(name)
        await eventually(lambda: "other" in computers.asked)
        assert loop.time() - began >= SLOT_S
        assert computers.asked == [*silent, "other"]


async def test_other_tasks_run_every_few_milliseconds_while_a_long_list_is_kept() -> None:
    computers, rounds = Computers(), 0
    computers.tools["a"] = [f"t{number}" for number in range(8000)]

    async def watch() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    async with caching(computers) as cache:
        watching = asyncio.create_task(watch())
        began = time.thread_time()
        cache.refresh("a")
        await cache.get("a")
        took_s = time.thread_time() - began
        watching.cancel()
    assert took_s / rounds < 0.003
