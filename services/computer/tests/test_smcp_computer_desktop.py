"""`client:get_desktop` over the wire, with real servers of MCP 2025 and 2026."""

import asyncio
import gc
import logging
import tracemalloc
from typing import Any

import psutil
import pytest

from smcp_computer.handlers import get_desktop
from smcp_testing.computer_office import World, world
from smcp_testing.gateway_world import MIB
from smcp_testing.mcp_servers import configs
from smcp_testing.waiting import Stopwatch, eventually, within

QUICK = {"read_s": 1.5}


def window(host: str, number: int = 0) -> str:
    return f"window://{host}/{number}"


def shown(host: str, number: int = 0) -> str:
    """The window of a context server as it stands on the desktop."""
    return f"{window(host, number)}\n\ntext of {window(host, number)}"


async def desktop(here: World, **asked: Any) -> list[str]:
    answer = await here.ask("get_desktop", **asked)
    assert answer["req_id"] == "r1"
    found: list[str] = answer["desktops"]
    return found


@pytest.mark.rule(
    "events.{must.computer.all,flow.desktop.7,flow.desktop.8}",
    "desktop.{overview.aggregate,overview.plain_servers,servers.prerequisite,servers.contents}",
    "desktop.organize.2.record",
    "finder.versus.volume",
)
async def test_the_windows_of_all_servers_are_shown_those_of_the_server_used_last_first(nats_url: str) -> None:
    async with world(
        nats_url,
        alpha=configs.context("2025", windows=2, host="a"),
        beta=configs.context("2026", windows=1, host="b"),
        gamma=configs.context("2026", windows=1, host="c", without=["subscribe"]),
        delta=configs.context("2025", without=["resources"]),
    ) as here:
        assert await desktop(here) == [shown("a", 0), shown("a", 1), shown("b", 0)]
        await here.call("beta__reads", req_id="r2")
        assert await desktop(here) == [shown("b", 0), shown("a", 0), shown("a", 1)]
        await here.call("alpha__reads", req_id="r3")
        assert await desktop(here, desktop_size=1) == [shown("a", 0)]


async def test_a_desktop_has_so_many_windows_of_a_server_and_each_one_by_its_uri(
    nats_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(get_desktop, "MOST_WINDOWS", 2)
    many, few = configs.context("2025", windows=3, host="a"), configs.context("2026", windows=2, host="b")
    async with world(nats_url, many=many, few=few) as here:
        assert await desktop(here) == [shown("b", 0), shown("b", 1), shown("a", 0), shown("a", 1)]
        assert "'many': lists 3 windows; a desktop has the first 2" in caplog.text
        assert await desktop(here, window=window("a", 2)) == [shown("a", 2)]


@pytest.mark.rule("desktop.changes.pull", "answers.desktop.window")
async def test_a_desktop_can_be_limited_to_one_window_or_a_number(nats_url: str) -> None:
    content: list[dict[str, Any]] = [
        {"uri": "window://b/full", "resource": {"_meta": {"fullscreen": True}}},
        {"uri": "window://b/c%2Fd?priority=80"},
    ]
    async with world(
        nats_url,
        alpha=configs.context("2025", windows=2, host="a"),
        beta=configs.context("2026", windows=1, host="b", content=content),
    ) as here:
        assert await desktop(here, window=window("a", 1)) == [shown("a", 1)]
        assert await desktop(here, window=window("b", 0)) == [shown("b", 0)]  # though another one is fullscreen
        assert await desktop(here, window="WINDOW://b/c%2fd") == [
            "window://b/c%2Fd\n\ntext of window://b/c%2Fd?priority=80"
        ]
        assert await desktop(here, window=window("a", 1), desktop_size=0) == []
        assert await desktop(here, window=window("a", 7)) == []
        assert await desktop(here, window="no window") == []
        assert await desktop(here, desktop_size=-1) == []
        assert await desktop(here, desktop_size=2) == [shown("a", 0), shown("a", 1)]
        assert await desktop(here) == [
            shown("a", 0), shown("a", 1), "window://b/full\n\ntext of window://b/full",
        ]  # fmt: skip
        refused = await here.ask("get_desktop", desktop_size="two")
        assert (refused["code"], refused["details"]["field"]) == (400, "desktop_size")


@pytest.mark.rule("desktop.servers.contents.blob", "answers.desktop.failures")
async def test_a_misbehaving_server_loses_its_own_windows_with_one_warning_for_each_cause(
    nats_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    hows = ["refuse", "fail", "not_found", "blob", "no_contents", "no_list", "bad_items", "mime", "other_uri", "vanish"]
    async with world(
        nats_url,
        QUICK,
        bad=configs.context("2025", windows=len(hows) + 1, host="bad"),
        fine=configs.context("2026", windows=1, host="fine"),
    ) as here:
        for number, how in enumerate(hows):
            await here.tell("bad", "misbehave", uri=window("bad", number), how=how)
        kept = [shown("bad", number) for number, how in enumerate(hows) if how in ("bad_items", "mime", "other_uri")]
        expected = [*kept, shown("bad", len(hows)), shown("fine")]
        for _ in range(3):
            assert await desktop(here) == expected
        said = [
            record.getMessage()
            for record in caplog.records
            if record.name == "smcp_computer.mcp" and record.levelno >= logging.WARNING
        ]
        assert len(said) == len(set(said))
        assert {how for number, how in enumerate(hows) if any(window("bad", number) in line for line in said)} == {
            "refuse", "fail", "not_found", "blob", "no_list", "bad_items", "vanish",
        }  # fmt: skip
        assert not any("secret" in line for line in said)


@pytest.mark.rule("computer.resources.computer.failure", "answers.desktop.failures")
async def test_a_late_window_is_left_out_and_the_rest_is_delivered(nats_url: str) -> None:
    async with world(
        nats_url,
        {"read_s": 3.0},
        silent=configs.context("2025", windows=2, host="silent"),
        listless=configs.context("2026", windows=1, host="listless", without=["list_changed"]),
        dying=configs.context("2025", windows=1, host="dying"),
        fine=configs.context("2026", windows=1, host="fine"),
    ) as here:
        await here.tell("silent", "misbehave", uri=window("silent", 0), how="never")
        await here.tell("listless", "misbehave", uri="list", how="never")
        await here.tell("dying", "misbehave", uri=window("dying"), how="die")
        watch = Stopwatch()
        assert await desktop(here) == [shown("fine"), shown("silent", 1)]
        assert watch.undisturbed < 15  # not one time-out after the other for each of them
        await here.tell("listless", "misbehave", uri="list", how="")
        await here.tell("silent", "misbehave", uri=window("silent", 0), how="")
        # what it was asked before it would be waited for until 30 s are over
        await here.tell("silent", "update", uri=window("silent", 0))
        everything = [shown("dying"), shown("fine"), shown("listless"), shown("silent", 0), shown("silent", 1)]
        await _shows(here, everything)


@pytest.mark.rule("answers.desktop.failures", "answers.desktop.ages")
async def test_the_windows_of_a_server_that_takes_no_requests_are_shown_as_they_were_read_before(nats_url: str) -> None:
    listed = [{"uri": f"{window('stopped')}/{'x' * 8000}/{number}"} for number in range(12)]
    everything = [shown("fine"), *(f"{one['uri']}\n\ntext of {one['uri']}" for one in listed)]
    async with world(
        nats_url,
        {"read_s": 1.5},
        stopped=configs.context("2025", content=listed),
        fine=configs.context("2026", windows=1, host="fine"),
    ) as here:
        await _shows(here, everything)
        server = psutil.Process(await here.tell("stopped", "pid"))
        server.suspend()
        try:
            took = []
            for _ in range(6):  # until its pipe is full, and after that
                watch = Stopwatch()
                answer = await here.ask("get_desktop")
                took.append(watch.undisturbed)
                assert answer["desktops"] == everything
                assert min(answer["a2c_ages"][1:]) >= 1.5
                assert "a2c_missing" not in answer
            assert sorted(took)[-2] < 4  # the SDK takes 5 s to give up what it cannot write
        finally:
            server.resume()

        async def is_read_anew() -> bool:
            answer = await here.ask("get_desktop")
            return answer["desktops"] == everything and "a2c_ages" not in answer

        await eventually(is_read_anew, timeout=30)


@pytest.mark.rule("answers.desktop.at_once")
async def test_a_small_desktop_does_not_wait_for_slow_windows_that_could_not_be_on_it(nats_url: str) -> None:
    async with world(
        nats_url,
        {"read_s": 25.0},
        alpha=configs.context("2025", windows=1, host="a"),
        beta=configs.context("2026", windows=2, host="b"),
    ) as here:
        await here.tell("beta", "misbehave", uri=window("b", 1), how="never")
        async with within(15):  # what is waited for takes longer
            assert await desktop(here, desktop_size=1) == [shown("a")]
            assert await desktop(here, desktop_size=2) == [shown("a"), shown("b", 0)]


@pytest.mark.rule("answers.desktop.at_once")
async def test_a_small_desktop_notices_a_window_that_comes_while_it_looks_at_many_others(nats_url: str) -> None:
    silent = {window("c", number): "never" for number in range(500)}
    async with world(
        nats_url,
        {"read_s": 25.0},
        alpha=configs.context("2025", windows=2, host="a"),
        gamma=configs.context("2026", windows=len(silent), host="c", misbehave=silent),
    ) as here:
        async with within(15):
            for _ in range(5):
                assert await desktop(here, desktop_size=2) == [shown("a", 0), shown("a", 1)]


async def test_a_small_desktop_does_not_break_off_what_another_one_waits_for(nats_url: str) -> None:
    async with world(
        nats_url,
        {"read_s": 25.0},
        alpha=configs.context("2025", windows=1, host="a"),
        beta=configs.context("2026", windows=1, host="b"),
    ) as here:
        await here.tell("beta", "delay", seconds=2.0)
        whole = asyncio.create_task(desktop(here))

        async def is_asked() -> bool:
            return bool(await here.tell("beta", "reads"))

        await eventually(is_asked)
        assert await desktop(here, desktop_size=1) == [shown("a")]
        assert await whole == [shown("a"), shown("b")]


async def test_a_desktop_after_a_small_one_reads_what_that_one_gave_up(nats_url: str) -> None:
    listed = [{"uri": f"{window('b')}/{'x' * 8000}/{number}"} for number in range(15)]
    async with world(
        nats_url,
        {"read_s": 25.0},
        alpha=configs.context("2025", windows=1, host="a"),
        beta=configs.context("2025", content=listed),
    ) as here:
        server = psutil.Process(await here.tell("beta", "pid"))
        server.suspend()
        try:
            for _ in range(6):  # until its pipe is full: to give up a read takes a second then
                assert await desktop(here, desktop_size=1) == [shown("a")]
            asked = asyncio.create_task(here.ask("get_desktop"))
            await eventually(lambda: here.computer.dispatcher.running)
        finally:
            server.resume()
        answer = await asked
        assert "a2c_missing" not in answer
        assert len(answer["desktops"]) == 1 + len(listed)


@pytest.mark.rule("answers.desktop.at_once", "answers.desktop.ages")
async def test_a_small_desktop_waits_for_a_slow_window_that_comes_first_and_shows_its_last_contents(
    nats_url: str,
) -> None:
    async with world(
        nats_url,
        {"read_s": 3.0},
        alpha=configs.context("2025", windows=1, host="a"),
        beta=configs.context("2026", windows=1, host="b"),
    ) as here:
        await _shows(here, [shown("a"), shown("b")])
        await here.tell("alpha", "misbehave", uri=window("a"), how="never")
        answer = await here.ask("get_desktop", desktop_size=1)
        assert answer["desktops"] == [shown("a")]
        assert answer["a2c_ages"][0] > 0


@pytest.mark.rule("desktop.changes.pull", "desktop.lifecycle.list", "finder.versus.life")
async def test_a_desktop_shows_added_windows_and_drops_removed_ones(nats_url: str) -> None:
    async with world(nats_url, alpha=configs.context("2026", windows=1, host="a", page_size=2)) as here:
        for number in range(1, 5):
            await here.tell("alpha", "put", uri=window("a", number))
        await _shows(here, [shown("a", number) for number in range(5)])
        await here.tell("alpha", "remove", uri=window("a", 2))
        await here.tell("alpha", "update", uri=window("a", 3), text="new")
        await _shows(here, [shown("a", 0), shown("a", 1), f"{window('a', 3)}\n\nnew", shown("a", 4)])


async def test_windows_without_a_text_take_little_memory_of_their_computer(nats_url: str) -> None:
    empty = [{"text": ""}] * 20_000
    async with world(nats_url, alpha=configs.context("2025", windows=0)) as here:
        for number in range(10):
            await here.tell("alpha", "put", uri=window("a", number), contents=empty)
        await _shows(here, [window("a", number) for number in range(10)])
        tracemalloc.start()
        try:
            assert len(await desktop(here)) == 10
            gc.collect()
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert kept < 8 * MIB  # 38 MB as they came


async def _shows(here: World, expected: list[str]) -> None:
    async def so() -> bool:
        return await desktop(here) == expected

    await eventually(so, timeout=30)
