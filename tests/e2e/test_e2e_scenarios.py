"""The scenarios, in every world."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from statistics import median_low
from typing import Any, Final
from uuid import uuid4

import aiohttp
import pytest

from smcp_bus import subjects
from smcp_testing.held_counts import FOR_SOME_TIME
from smcp_testing.nats_peer import nats_peer
from smcp_testing.profiles import scaled
from smcp_testing.waiting import eventually
from tests.e2e.actors.agents import AGENTS, OpenAgent
from tests.e2e.actors.bare import BareMember, FlatError, member
from tests.e2e.actors.socketio_computer import socketio_computer
from tests.e2e.scenarios import calls, context, metrics, socketio_computers
from tests.e2e.worlds.kinds import CONTAINERS, OPEN, PROCESSES, STANDALONE, kinds
from tests.e2e.worlds.layout import BETA
from tests.e2e.worlds.world import LAB, World

CALLS: Final = scaled(ci=30, soak=1000)
AT_ONCE: Final = 100
SAMPLES: Final = 5
QUIET_S: Final = 30.0
SILENT: Final = "silent"
COMPUTERS: Final = ("alpha", "beta", SILENT)

Counts = Mapping[str, int]
"""How many, by process and by what they are."""


class Auditor:
    """Asks the processes of a world what they hold."""

    def __init__(self, world: World, http: aiohttp.ClientSession) -> None:
        self._parts = [part for part in world.parts if part is not world.nats or not world.spread]
        self._monitor = f"http://{world.nats_model.http}" if world.nats_model.http else None
        self._http = http

    async def held(self) -> dict[str, int]:
        """All of it now."""
        counts: dict[str, int] = {}
        for part in self._parts:
            for source, held in (await self._read(part.stats_url)).items():
                counts |= {f"{part.name}: {source}.{what}": count for what, count in held.items()}
        if self._monitor is not None:
            counts["nats: subscriptions"] = (await self._read(f"{self._monitor}/subsz"))["num_subscriptions"]
            counts["nats: connections"] = (await self._read(f"{self._monitor}/connz"))["num_connections"]
        return counts

    async def held_at_rest(self) -> dict[str, int]:
        """The median of several times: what comes and goes by itself (a lease is renewed) is not in it. Not the least:
        for moments nats-py has fewer tasks than at rest, and later that moment would have to be met again."""
        samples = [await self.held() for _ in range(SAMPLES)]
        return {what: median_low(each[what] for each in samples) for what in samples[0]}

    async def _read(self, url: str) -> dict[str, Any]:
        async with self._http.get(url) as response:
            assert response.status == 200, f"{url}: {response.status}"
            read: dict[str, Any] = await response.json()
            return read


@asynccontextmanager
async def auditor(world: World) -> AsyncIterator[Auditor]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as http:
        yield Auditor(world, http)


def more(now: Counts, before: Counts) -> dict[str, int]:
    """Of what there is more than before, and how much; but for what is kept for some time."""
    return {what: count for what, count in _grown(now, before).items() if not _is_kept_for_some_time(what)}


def kept(now: Counts, before: Counts) -> dict[str, int]:
    """How much more there is of what is kept for some time."""
    return {what: count for what, count in _grown(now, before).items() if _is_kept_for_some_time(what)}


def _grown(now: Counts, before: Counts) -> dict[str, int]:
    return {what: count - before.get(what, 0) for what, count in now.items() if count > before.get(what, 0)}


def _is_kept_for_some_time(what: str) -> bool:
    return what.rpartition(".")[2] in FOR_SOME_TIME


@pytest.mark.rule("answers.calls.timeout.clean")
async def timed_out_calls_leave_nothing_behind_in_any_process(world: World) -> None:
    async with auditor(world) as auditor_, member(world.url(0), "agent", LAB, "caller") as agent:
        async with socketio_computer(world.url(1), LAB, SILENT) as silent:
            for number, computer in enumerate(COMPUTERS):
                assert await agent.tools(computer)
                await _times_out(agent, computer, f"first {number}")  # what is made once is there from now on
            before = await auditor_.held_at_rest()
            outcomes = Counter[str]()
            for start in range(0, CALLS, AT_ONCE):
                numbers = range(start, min(start + AT_ONCE, CALLS))
                async with asyncio.TaskGroup() as group:
                    calls = [
                        group.create_task(_times_out(agent, COMPUTERS[number % len(COMPUTERS)], f"r{number}"))
                        for number in numbers
                    ]
                    if start == 0:
                        await _are_seen(auditor_, before)
                outcomes.update(call.result() for call in calls)
            assert outcomes.total() == CALLS

            async def nothing_is_left() -> bool:
                left = more(await auditor_.held(), before)
                assert not left, left
                return True

            await eventually(nothing_is_left, timeout=QUIET_S, message="calls that timed out left something behind")
            # So that none runs twice: a key where it ran, a cancel with all of the office; they go by themselves.
            left = kept(await auditor_.held(), before)
            assert all(count <= CALLS for what, count in left.items() if not what.endswith("_bytes")), left
            assert len(silent.ran) == len(set(silent.ran))
        await agent.told("notify:leave_office", computer=SILENT)


async def _are_seen(auditor_: Auditor, before: Counts) -> None:
    """Calls that run are counted on both sides, so that one that stayed would be."""

    async def seen() -> bool:
        found = more(await auditor_.held(), before)
        assert any(what.endswith("gateway.calls") for what in found), found
        assert any(what.endswith("computer.tool_tasks") for what in found), found
        assert any(what.endswith("gateway.running_calls") for what in found), found
        return True

    # they run for a second
    await eventually(seen, timeout=QUIET_S, message="calls in flight are not counted")


async def _times_out(agent: BareMember, computer: str, req_id: str) -> str:
    """Who stopped the call: its Computer, or the gateway."""
    try:
        result = await agent.call(computer, "sleep", {"seconds": 600}, timeout=2, req_id=req_id)
    except FlatError as error:
        if error.code != 408:
            raise
        return "gateway"
    assert result["meta"]["a2c_timeout"] is True, result
    return "computer"


PROCESS = "0" * 32


async def a_reply_address_cannot_make_a_service_publish_elsewhere(world: World) -> None:
    """A request says where its answer goes; who answers has more rights than who asks, and must not lend them."""
    async with (
        member(world.url(0), "agent", LAB, "watcher") as watcher,
        nats_peer(world.nats_url, world.credentials / f"{BETA.credential}.json") as beta,
    ):
        ask = subjects.server(LAB, "computer", "beta", "list_room")
        body = b'{"agent": "beta", "req_id": "%b", "office_id": "lab"}' % uuid4().hex.encode()
        for address in (
            subjects.notify(LAB, "leave_office"),
            subjects.client(LAB, "alpha", "tool_call"),
            subjects.hosts("gateway-1", PROCESS, "alive"),
            "$JS.API.STREAM.PURGE.KV_members",
            "$KV.members.lab.computer.alpha",
        ):
            await beta.client.publish(ask, body, reply=address)
        await beta.flushed()
        for _ in world.registries:
            # Asked properly, it is answered; by then those from before have been dealt with.
            await beta.client.request(ask, body, timeout=30)
        async with member(world.url(0), "computer", LAB, "last"):
            await watcher.told("notify:enter_office", computer="last")
        assert [event for event, data in watcher.notices if data.get("computer") != "last"] == []
        assert {("computer", "alpha"), ("computer", "beta"), ("agent", "watcher")} <= await watcher.room()


WITH_AN_AGENT: list[Callable[[World, OpenAgent], Awaitable[None]]] = [
    calls.an_agent_on_one_gateway_calls_tools_on_both_computers,
    calls.two_offices_may_use_the_same_computer_name,
    socketio_computers.an_agent_calls_a_socketio_computer_of_another_gateway,
    socketio_computers.an_agent_calls_a_socketio_computer_of_its_own_gateway,
]
BY_ITSELF: list[Callable[[World], Awaitable[None]]] = [
    context.an_agent_goes_from_the_desktop_to_an_element_of_a_document_and_hears_of_changes,
    timed_out_calls_leave_nothing_behind_in_any_process,
    a_reply_address_cannot_make_a_service_publish_elsewhere,
]


@pytest.fixture(scope="module", params=kinds(STANDALONE, PROCESSES, CONTAINERS))
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One world for all scenarios that do not hurt it; its parts are processes, so they outlive a test's loop."""
    opened = OPEN[request.param](tmp_path_factory.mktemp(request.param), more=[context.STUDY])
    with asyncio.Runner() as runner:
        yield runner.run(opened.__aenter__())
        runner.run(opened.__aexit__(None, None, None))


@pytest.mark.parametrize("open_agent", AGENTS.values(), ids=AGENTS.keys())
@pytest.mark.parametrize("scenario", WITH_AN_AGENT, ids=lambda scenario: scenario.__name__)
async def test_calls_by_each_agent(
    world: World, scenario: Callable[[World, OpenAgent], Awaitable[None]], open_agent: OpenAgent
) -> None:
    with world.telling():
        await scenario(world, open_agent)


async def test_metrics_of_each_process(world: World) -> None:
    scenario = metrics.each_process_serves_the_documented_metrics
    with world.telling():
        await (scenario if world.spread else metrics.one_process_serves_the_metrics_of_its_gateway)(world)


@pytest.mark.parametrize("scenario", BY_ITSELF, ids=lambda scenario: scenario.__name__)
async def test_documents_and_what_is_left(world: World, scenario: Callable[[World], Awaitable[None]]) -> None:
    with world.telling():
        await scenario(world)
