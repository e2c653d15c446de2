import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from smcp_agent.cache import MAX_ANSWERS, MAX_CACHED_BYTES, AnswerCache, Query
from smcp_agent.errors import SmcpError, Unavailable
from smcp_testing.waiting import longest_step


class Cache:
    """An `AnswerCache` whose queries are named by a letter; the answers count how often each was asked."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self.error: SmcpError | None = None
        self.asked: list[str] = []
        self._cache = AnswerCache(group.create_task)

    async def get(self, key: str) -> int:
        async def ask() -> int:
            self.asked.append(key)
            answer = self.asked.count(key)
            await asyncio.sleep(0)
            if self.error is not None:
                raise self.error
            return answer

        return await self._cache.get(Query("desktop", key), ask)

    def invalidate(self, key: str, *kinds: str, again: bool = False) -> None:
        self._cache.invalidate(key, *kinds, again=again)


@asynccontextmanager
async def caching() -> AsyncIterator[Cache]:
    async with asyncio.TaskGroup() as group:
        yield Cache(group)


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.rule("finder.navigation.own", "computer.resources.agent.cache")
async def test_an_answer_is_cached_until_it_is_outdated() -> None:
    async with caching() as cache:
        assert await cache.get("a") == 1
        assert await cache.get("a") == 1
        cache.invalidate("b")
        cache.invalidate("a", "finder", "resources")
        assert await cache.get("a") == 1
        cache.invalidate("a", "desktop")
        assert await cache.get("a") == 2


async def test_an_answer_that_is_outdated_on_its_way_is_not_cached() -> None:
    async with caching() as cache:
        getting = asyncio.create_task(cache.get("a"))
        await asyncio.sleep(0)
        cache.invalidate("a")
        assert await getting == 1
        assert await cache.get("a") == 2
        assert await cache.get("a") == 2


async def test_an_error_is_raised_and_not_cached() -> None:
    async with caching() as cache:
        cache.error = Unavailable("not now")
        with pytest.raises(Unavailable):
            await cache.get("a")
        cache.error = None
        assert await cache.get("a") == 2


@pytest.mark.rule(
    "events.notify.{update_desktop.advice,update_finder.advice}",
    "events.should.agent.update_finder",
    "desktop.events.agent",
    "finder.changes.agent",
)
async def test_an_outdated_answer_that_was_read_is_fetched_again() -> None:
    async with caching() as cache:
        await cache.get("a")
        cache.invalidate("a", again=True)
        await settle()
        assert len(cache.asked) == 2
        cache.invalidate("a", again=True)  # nobody read what came
        await settle()
        assert len(cache.asked) == 2
        assert await cache.get("a") == 3


async def test_the_latest_answers_are_kept() -> None:
    async with caching() as cache:
        for number in range(MAX_ANSWERS + 1):
            await cache.get(str(number))
        cache.asked.clear()
        await cache.get("1")
        assert not cache.asked
        await cache.get("0")
        assert cache.asked == ["0"]


async def test_large_answers_take_the_place_of_older_ones() -> None:
    async with asyncio.TaskGroup() as group:
        cache = AnswerCache(group.create_task)
        asked: list[str] = []

        async def get(key: str) -> None:
            async def ask() -> str:
                asked.append(key)
                return "x" * (MAX_CACHED_BYTES // 3)

            await cache.get(Query("desktop", key), ask)

        for key in ("a", "b", "c", "b", "c", "a"):
            await get(key)
        assert asked == ["a", "b", "c", "a"]


async def test_a_large_answer_does_not_hold_the_event_loop_while_it_is_kept() -> None:
    large = {"desktops": ["window://a/b\n\n" + "x = [1, 2]\n" * 1_000_000]}
    began = time.thread_time()
    assert repr(large)
    to_write_it = time.thread_time() - began

    async def ask() -> object:
        return large

    async with asyncio.TaskGroup() as group:
        cache = AnswerCache(group.create_task)
        answer, longest = await longest_step(cache.get(Query("desktop", "a"), ask))
        assert answer is await cache.get(Query("desktop", "a"), ask), "it is kept"
    assert longest < to_write_it / 5
