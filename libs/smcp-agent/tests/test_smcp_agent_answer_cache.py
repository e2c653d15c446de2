import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smcp_agent.cache import MAX_BYTES, MIN_BYTES, ROUNDS, AnswerCache, Query, Spawn
from smcp_agent.errors import Closed, SmcpError, Unavailable
from smcp_testing.profiles import scaled


class Side:
    """The other side: a version for each key; questions wait until the test answers them."""

    def __init__(self) -> None:
        self.versions: dict[str, int] = {}
        self.error: SmcpError | None = None
        self.questions: list[tuple[str, int, asyncio.Future[None]]] = []
        self.asked: list[str] = []

    async def fetch(self, key: str) -> int:
        """Answers what was so when the question came."""
        self.asked.append(key)
        seen: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.questions.append((key, self.versions.get(key, 0), seen))
        version = self.versions.get(key, 0)
        await seen
        if self.error is not None:
            raise self.error
        return version

    def answer(self) -> None:
        """Answer all that is asked."""
        for _, _, seen in self.questions:
            if not seen.done():
                seen.set_result(None)
        self.questions.clear()


class Cache:
    """An `AnswerCache` whose queries are named by a letter."""

    def __init__(self, side: Side, spawn: Spawn, *, again: bool = False, size: int = 512) -> None:
        self._side = side
        self._again = again
        self._cache = AnswerCache(spawn, max_bytes=size * MIN_BYTES)

    async def get(self, key: str) -> int:
        return await self._cache.get(Query(key), lambda: self._side.fetch(key), again=self._again)

    def outdate(self, *keys: str, kept: int | None = None, again: bool = True) -> None:
        self._cache.outdate(
            lambda query, answer: query.computer in keys and (kept is None or kept == answer), again=again
        )

    def forget(self, key: str) -> None:
        self._cache.forget(key)


@asynccontextmanager
async def caching(side: Side, **options: Any) -> AsyncIterator[Cache]:
    async with asyncio.TaskGroup() as group:
        yield Cache(side, group.create_task, **options)
        side.error = None
        side.answer()


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def got(side: Side, cache: Cache, key: str = "a") -> int:
    task = asyncio.create_task(cache.get(key))
    await settle()
    side.answer()
    await settle()
    assert task.done()
    return task.result()


async def test_an_answer_is_cached_until_it_is_outdated() -> None:
    side = Side()
    async with caching(side) as cache:
        assert await got(side, cache) == 0
        side.versions["a"] = 1
        assert await cache.get("a") == 0
        cache.outdate("b")
        assert await cache.get("a") == 0
        cache.outdate("a", kept=0)
        assert await got(side, cache) == 1
        assert side.asked == ["a", "a"]


async def test_a_notification_during_a_request_outdates_its_answer() -> None:
    side = Side()
    async with caching(side) as cache:
        getting = asyncio.create_task(cache.get("a"))
        await settle()
        side.versions["a"] = 1
        cache.outdate("a")
        side.answer()
        await settle()
        assert not getting.done()
        side.answer()
        assert await getting == 1
        assert await cache.get("a") == 1


async def test_a_notification_that_precedes_the_return_outdates_an_answer() -> None:
    side = Side()
    async with caching(side) as cache:
        getting = asyncio.create_task(cache.get("a"))
        await settle()
        side.answer()
        await asyncio.sleep(0)  # the question has its answer, and who waits for it does not run yet
        side.versions["a"] = 1
        cache.outdate("a")
        await settle()
        side.answer()
        assert await getting == 1


async def test_concurrent_callers_share_one_request_that_survives_their_cancellation() -> None:
    side = Side()
    async with caching(side) as cache:
        getting = [asyncio.create_task(cache.get("a")) for _ in range(3)]
        await settle()
        getting[0].cancel()
        await settle()
        side.answer()
        assert await asyncio.gather(*getting[1:]) == [0, 0]
        assert side.asked == ["a"]


async def test_an_error_is_raised_and_not_cached() -> None:
    side = Side()
    async with caching(side) as cache:
        side.error = Unavailable("not now")
        getting = asyncio.create_task(cache.get("a"))
        await settle()
        side.answer()
        with pytest.raises(Unavailable):
            await getting
        side.error = None
        assert await got(side, cache) == 0


async def test_an_answer_that_is_always_outdated_is_returned_but_not_cached() -> None:
    side = Side()
    async with caching(side) as cache:
        getting = asyncio.create_task(cache.get("a"))
        for number in range(1, ROUNDS + 1):
            await settle()
            assert not getting.done()
            side.versions["a"] = number
            cache.outdate("a")
            side.answer()
        await settle()
        assert await getting == ROUNDS - 1
        assert await got(side, cache) == ROUNDS


async def test_an_answer_forgotten_during_its_request_is_not_cached() -> None:
    side = Side()
    async with caching(side) as cache:
        assert await got(side, cache, "b") == 0
        getting = asyncio.create_task(cache.get("a"))
        await settle()
        side.versions |= {"a": 1, "b": 1}
        cache.forget("a")
        side.answer()
        await settle()
        side.answer()
        assert await getting == 1
        assert await cache.get("b") == 0


@pytest.mark.rule(
    "events.notify.update_desktop.advice",
    "events.notify.update_finder.advice",
    "events.should.agent.update_finder",
    "desktop.events.agent",
    "finder.changes.agent",
)
async def test_an_outdated_answer_that_was_used_is_fetched_again() -> None:
    side = Side()
    async with caching(side, again=True) as cache:
        await got(side, cache)
        cache.outdate("a")
        await settle()
        assert side.asked == ["a", "a"]
        side.answer()
        await settle()
        cache.outdate("a")  # nobody read what came
        await settle()
        assert side.asked == ["a", "a"]
        await got(side, cache)
        cache.outdate("a", again=False)
        await settle()
        assert len(side.asked) == 3


async def test_the_least_recently_used_answers_are_evicted() -> None:
    side = Side()
    async with caching(side, size=2) as cache:
        for key in ("a", "b", "a", "c"):
            await got(side, cache, key)
        side.asked.clear()
        assert await cache.get("a") == 0
        assert await cache.get("c") == 0
        assert side.asked == []
        await got(side, cache, "b")
        assert side.asked == ["b"]


async def test_large_answers_evict_others_by_their_bytes_and_one_above_the_limit_is_not_cached() -> None:
    asked: list[str] = []
    sizes = {"small": 1, "first": MAX_BYTES // 2, "second": MAX_BYTES // 2, "too large": MAX_BYTES}

    async with asyncio.TaskGroup() as group:
        cache = AnswerCache(group.create_task)

        async def get(key: str) -> None:
            async def fetch() -> dict[str, list[str]]:
                asked.append(key)
                return {"documents": ["x" * sizes[key]]}

            assert await cache.get(Query(key), fetch) == {"documents": ["x" * sizes[key]]}

        for key in ("first", "small", "second", "too large"):
            await get(key)
        asked.clear()
        for key in ("small", "second", "too large", "first"):
            await get(key)

    assert asked == ["too large", "first"]


async def test_a_running_question_is_not_evicted() -> None:
    side = Side()
    async with caching(side, size=1) as cache:
        getting = [asyncio.create_task(cache.get(key)) for key in "abc"]
        await settle()
        side.answer()
        assert await asyncio.gather(*getting) == [0, 0, 0]
        assert side.asked == ["a", "b", "c"]


async def test_waiting_callers_get_closed_when_the_agent_ends() -> None:
    side = Side()
    tasks: list[asyncio.Task[Any]] = []

    def spawn(work: Any) -> asyncio.Task[Any]:
        tasks.append(asyncio.create_task(work))
        return tasks[-1]

    cache = Cache(side, spawn)
    getting = asyncio.create_task(cache.get("a"))
    await settle()
    tasks[0].cancel()
    with pytest.raises(Closed):
        await getting


STEPS = st.lists(
    st.tuples(st.sampled_from(["change", "say", "get", "arrive", "answer", "forget", "run"]), st.sampled_from("abc")),
    max_size=60,
)


@pytest.mark.rule("finder.navigation.own", "computer.resources.agent.cache")
@settings(max_examples=scaled(ci=150, soak=3000))
@given(STEPS)
def test_a_returned_answer_is_never_older_than_the_last_notification(steps: list[tuple[str, str]]) -> None:
    """The other side answers as things are when a question comes, and says of a change at any time after it."""
    asyncio.run(_play(steps))


async def _play(steps: list[tuple[str, str]]) -> None:
    side, said = Side(), dict.fromkeys("abc", 0)
    given: list[asyncio.Task[None]] = []
    says: Counter[str] = Counter()

    async def get(cache: Cache, key: str) -> None:
        version = await cache.get(key)
        assert version >= said[key], f"{key} was given as {version}, after {said[key]}"

    async with caching(side, again=True, size=2) as cache:
        for step, key in steps:
            match step:
                case "change":
                    side.versions[key] = side.versions.get(key, 0) + 1
                case "say" if says[key] < ROUNDS - 1:
                    says[key] += 1
                    said[key] = side.versions.get(key, 0)
                    cache.outdate(key)
                case "get":
                    given.append(asyncio.create_task(get(cache, key)))
                case "arrive":
                    await asyncio.sleep(0)
                case "answer":
                    side.answer()
                case "forget" if says[key] < ROUNDS - 1:
                    says[key] += 1
                    said[key] = side.versions.get(key, 0)
                    cache.forget(key)
                case "run":
                    await settle()
        for _ in range(2 * ROUNDS):
            await settle()
            side.answer()
        await settle()
        assert all(task.done() for task in given)
        for task in given:
            task.result()
