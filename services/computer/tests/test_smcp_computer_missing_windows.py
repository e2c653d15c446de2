"""When windows that desktops lacked are tried again, and told: less and less often, and never without a reason.

What reads them is a function here; whole servers are in `test_smcp_computer_missing.py`.
"""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from smcp_computer.desktop.missing import MissingWindows, Tried
from smcp_computer.desktop.reading import AT_ONCE
from smcp_computer.mcp.errors import ServerDied, ServerError, ServerTimedOut
from smcp_service.lifecycle import background
from smcp_testing.waiting import eventually

FIRST_S = 0.02
ONE = "window://h/1"


class Office:
    """Tries windows as it is told to, and counts."""

    def __init__(self) -> None:
        self.missing = MissingWindows(self.again, self.tell, first_s=FIRST_S, longest_s=100.0)
        self.there: frozenset[str] = frozenset()
        self.listed: Collection[str] = ()
        self.fails: ServerError | None = None
        self.tries: list[tuple[str, list[str] | None]] = []
        self.tried_at: list[float] = []
        self.told_at: list[float] = []
        self.reads_again = False
        """Whether somebody reads the desktop whenever it is told, and lacks `ONE` each time."""

    async def again(self, server: str, uris: Collection[str] | None) -> Tried:
        self.tries.append((server, None if uris is None else list(uris)))
        self.tried_at.append(asyncio.get_running_loop().time())
        if self.fails is not None:
            raise self.fails
        wanted = frozenset(self.listed if uris is None else uris)
        return Tried(wanted & self.there, wanted - self.there)

    def tell(self) -> None:
        self.told_at.append(asyncio.get_running_loop().time())
        if self.reads_again:
            asyncio.get_running_loop().call_soon(self.missing.lacked, "a", [ONE])

    def of(self, server: str) -> list[list[str] | None]:
        return [uris for name, uris in self.tries if name == server]


@asynccontextmanager
async def opened() -> AsyncIterator[Office]:
    async with background() as tasks:
        office = Office()
        tasks.start(office.missing.run(), name="missing")
        yield office


def pauses_grow(times: list[float]) -> bool:
    """Whether each pause has at least half of its step: they double, with jitter. A clock may tick in milliseconds."""
    pauses = [later - earlier for earlier, later in pairwise(times)]
    return all(pause >= FIRST_S * 2**number - 0.002 for number, pause in enumerate(pauses))


async def test_what_is_there_again_is_told_once_and_not_tried_any_more() -> None:
    async with opened() as office:
        office.there = frozenset([ONE])
        office.missing.lacked("a", [ONE])
        await eventually(lambda: len(office.told_at) == 1)
        office.missing.lacked("b", ["window://h/never"])
        await eventually(lambda: len(office.of("b")) == 5)
        assert office.of("a") == [[ONE]]
        assert len(office.told_at) == 1


@pytest.mark.rule("answers.desktop.missing")
async def test_what_never_comes_is_tried_less_and_less_often_and_never_told() -> None:
    async with opened() as office:
        office.missing.lacked("a", [ONE])
        office.missing.lacked("a", [])
        await eventually(lambda: len(office.tries) == 6, timeout=30)
        assert pauses_grow(office.tried_at)
        assert office.told_at == []


@pytest.mark.rule("answers.desktop.missing")
async def test_a_server_that_fails_whenever_a_desktop_is_read_is_told_less_and_less_often() -> None:
    async with opened() as office:
        office.there, office.reads_again = frozenset([ONE]), True
        office.missing.lacked("a", [ONE])
        await eventually(lambda: len(office.told_at) == 6, timeout=30)
        assert pauses_grow(office.told_at)


async def test_a_failure_long_after_the_last_one_is_found_out_as_soon_as_the_first() -> None:
    async with opened() as office:
        office.there = frozenset([ONE])
        office.missing.lacked("a", [ONE])
        await eventually(lambda: len(office.told_at) == 1)
        loop = asyncio.get_running_loop()
        began = loop.time()

        async def comes_after_a_calm(number: int) -> None:
            calm = office.tried_at[-1] + 4 * FIRST_S
            await eventually(lambda: loop.time() > calm)
            office.missing.lacked("a", [ONE])
            await eventually(lambda: len(office.told_at) == number)

        for number in range(2, 12):
            await comes_after_a_calm(number)
        assert loop.time() - began < 10, "the last pause alone would have that, had they grown"


async def test_a_server_that_did_not_list_is_asked_for_all_that_it_lists() -> None:
    async with opened() as office:
        office.fails = ServerTimedOut("a", "did not list in time")
        office.missing.lacked("a", None)
        await eventually(lambda: len(office.tries) == 2)
        office.fails, office.listed, office.there = None, ["window://h/2", ONE], frozenset([ONE])
        await eventually(lambda: len(office.told_at) == 1)
        assert set(map(str, office.of("a"))) == {"None"}


async def test_what_another_desktop_shows_is_told_soon() -> None:
    async with opened() as office:
        office.missing.lacked("a", [ONE])
        await eventually(lambda: len(office.tries) == 7, timeout=30)  # the next one is due in 1.28 s at the least
        loop, office.there = asyncio.get_running_loop(), frozenset([ONE])
        began = loop.time()
        office.missing.shown("a", ["window://h/other"])
        office.missing.shown("a", ["window://h/other", ONE])
        await eventually(lambda: len(office.told_at) == 1)
        assert office.told_at[0] - began < 1.2


@pytest.mark.parametrize("what", ["gone", "told"])
async def test_what_is_told_anyway_is_not_tried_again(what: str) -> None:
    async with opened() as office:
        office.missing.lacked("a", [ONE])
        if what == "gone":
            office.missing.gone("a")
        else:
            office.missing.told()
        office.missing.lacked("b", [ONE])
        await eventually(lambda: len(office.of("b")) == 4, timeout=30)
        assert office.of("a") == []


async def test_a_server_that_ended_is_tried_no_more() -> None:
    async with opened() as office:
        office.fails = ServerDied("a", "went away before it answered")
        office.missing.lacked("a", [ONE])
        await eventually(lambda: len(office.of("a")) == 1)
        office.fails = None
        office.missing.lacked("b", [ONE])
        await eventually(lambda: len(office.of("b")) == 5, timeout=30)
        assert len(office.of("a")) == 1


async def test_of_very_many_windows_some_are_tried_at_a_time() -> None:
    async with opened() as office:
        many = [f"window://h/{number}" for number in range(AT_ONCE + 3)]
        office.missing.lacked("a", many)
        await eventually(lambda: len(office.tries) == 2)
        first, second = office.of("a")
        assert first == many[:AT_ONCE]
        assert second is not None
        assert second[:3] == many[AT_ONCE:]
