"""Members of offices on one gateway and on several: admission, and one notification for each change.

What is said here holds on a bad bus, too, except where a test says that it needs a sound one.
"""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Protocol

import pytest

from smcp_bus.bus import Incoming, Reply
from smcp_registry.bucket_watch import Change
from smcp_testing.bad_buses import DOUBLED, BadBuses, Faults
from smcp_testing.fault_schedule import Rates
from smcp_testing.gateway_world import NAMESPACE, Client, World, connected, gateway_world, reply
from smcp_testing.waiting import eventually

OFTEN_LATE = Rates(late=0.9)
FAULTS = {
    # what nobody hears of, nobody can tell: only a broken connection loses notices
    "lost": Faults(requests=Rates(lost=0.15), replies=Rates(lost=0.15)),
    "doubled": Faults(requests=Rates(doubled=1.0), notices=Rates(doubled=1.0), happen=DOUBLED.happen),
    "late": Faults(
        requests=Rates(late=0.9),
        replies=Rates(late=0.9),
        notices=Rates(late=0.9),
        happen=("request late", "reply late"),
    ),
}


SEED = 107
"""With it the first joins of these tests are lost, where messages are."""


class OpenWorld(Protocol):
    def __call__(
        self, *, gateways: int = ..., registry: bool = ..., lease_s: float = ...
    ) -> AbstractAsyncContextManager[World]: ...


@pytest.fixture(params=["sound", *FAULTS])
def open_world(request: pytest.FixtureRequest, nats_url: str) -> Iterator[OpenWorld]:
    """A `gateway_world`, over a sound bus and over bad ones."""
    faults = FAULTS.get(request.param)
    if faults is None:
        yield partial(gateway_world, nats_url)
        return
    bad = BadBuses(faults, SEED)
    yield partial(gateway_world, nats_url, bad=bad, lease_s=10.0)
    bad.check()
    if request.param == "lost":
        assert bad.met["request lost"] + bad.met["reply lost"]


sound_only = pytest.mark.parametrize("open_world", ["sound"], indirect=True)


async def names(client: Client, me: str, office: str) -> set[tuple[str, str]]:
    listed = await client.call("server:list_room", {"agent": me, "req_id": "1", "office_id": office})
    return {(session["role"], session["name"]) for session in listed["sessions"]}


def enters(client: Client) -> list[Any]:
    return client.told("notify:enter_office")


def leaves(client: Client) -> list[Any]:
    return client.told("notify:leave_office")


async def settled(*clients: Client) -> None:
    """Until nothing more is heard for a while: what was published before has arrived."""
    loop = asyncio.get_running_loop()
    seen, since = -1, loop.time()

    def quiet() -> bool:
        nonlocal seen, since
        count = sum(len(client.events) for client in clients)
        if count != seen:
            seen, since = count, loop.time()
        return loop.time() - since > 0.3

    await eventually(quiet)


def held(world: World) -> int:
    return sum(len(gateway.offices) for gateway in world.gateways)


@pytest.mark.rule(
    "events.{classes.server.direction,classes.server.must,classes.notify.direction}",
    "events.{list.server:join_office.sender,list.server:leave_office.sender}",
    "events.{list.notify:enter_office.members,list.notify:leave_office.members,join_office.who}",
    "events.{join_office.reply.done,leave_office.who,leave_office.effect,list_room.all}",
    "events.{notify.enter_office.told,notify.leave_office.told,flow.discovery.1,flow.discovery.2}",
    "events.{must.server.handles,must.server.broadcasts}",
    "answers.{acks.join.done,acks.leave.done,names.text,rooms.notification.one-key}",
    "answers.{rooms.notification.not-cause,rooms.list.both-roles}",
)
@pytest.mark.parametrize(
    ("open_world", "office"),
    [
        *(("sound", office) for office in ("office", "办公室 一.*.>", 'a/b\\c"d')),
        *((fault, "办公室 一.*.>") for fault in FAULTS),
    ],
    indirect=["open_world"],
)
async def test_members_on_two_gateways_get_each_enter_and_leave_once(open_world: OpenWorld, office: str) -> None:
    async with open_world(gateways=2) as world, connected(world.gateways[0].url) as anna:
        assert await anna.join("agent", "anna", office) == [True, None]
        async with connected(world.gateways[1].url) as box, connected(world.gateways[0].url) as car:
            assert await box.join("computer", "box", office) == [True, None]
            assert await car.join("computer", "车.*", office) == [True, None]
            await eventually(lambda: len(enters(anna)) == 2 and len(enters(box)) == 1)
            everybody = {("agent", "anna"), ("computer", "box"), ("computer", "车.*")}
            for client, me in ((anna, "anna"), (box, "box"), (car, "车.*")):  # a list has at least what was heard
                assert await names(client, me, office) == everybody
            assert await box.call("server:leave_office", {"office_id": office}) == [True, None]
            await eventually(lambda: len(leaves(anna)) == 1)
        await eventually(lambda: len(leaves(anna)) == 2)
        await settled(anna)
        for told in (enters(anna), leaves(anna)):
            if world.bad is not None:  # what is late is overtaken
                told.sort(key=str)
            assert told == [{"office_id": office, "computer": name} for name in ("box", "车.*")]
        assert enters(box) == [{"office_id": office, "computer": "车.*"}]
        assert enters(car) == []
    assert held(world) == 0


@pytest.mark.rule(
    "events.join_office.{reply.refused,agent.only-one}",
    "answers.{acks.join.refused,acks.details,rooms.one-agent,rooms.refused.no-member}",
    "answers.rooms.refused.hears-nothing",
)
async def test_an_office_has_one_agent_across_gateways(open_world: OpenWorld) -> None:
    async with open_world(gateways=2) as world:
        clients = [connected(world.gateways[number % 2].url) for number in range(20)]
        agents = await asyncio.gather(*(client.__aenter__() for client in clients))
        answers = await asyncio.gather(
            *(agent.join("agent", f"agent-{number}", "office") for number, agent in enumerate(agents))
        )
        assert sorted(done for done, *_ in answers) == [False] * 19 + [True]
        assert all(why for done, why, *_ in answers if not done)
        winner = next(number for number, (done, *_) in enumerate(answers) if done)
        assert {details["holder"] for done, _, *rest in answers if not done for details in rest} == {f"agent-{winner}"}
        assert await names(agents[winner], f"agent-{winner}", "office") == {("agent", f"agent-{winner}")}
        refused = (winner + 1) % 20
        answer = await agents[refused].call(
            "server:list_room", {"agent": f"agent-{refused}", "req_id": "1", "office_id": "office"}
        )
        assert answer["code"] == 4103
        await settled(*agents)
        assert [agent.events for agent in agents] == [[]] * 20
        await asyncio.gather(*(client.__aexit__(None, None, None) for client in clients))
        await eventually(lambda: held(world) == 0)


@sound_only
async def test_a_list_has_all_announced_members_although_the_registry_lags(
    open_world: OpenWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Announced is from the log, listed from a view, which may come later: here only when somebody waits for it."""
    async with open_world() as world, connected(world.url) as anna, connected(world.url) as box:
        assert await anna.join("agent", "anna", "office") == [True, None]
        assert await names(anna, "anna", "office") == {("agent", "anna")}
        view = world.registries[0].view
        apply, reached = view.apply, view.reached
        late: list[Change] = []

        async def catch_up(revision: int, seconds: float) -> bool:
            while late:
                apply(late.pop(0))
            return await reached(revision, seconds)

        monkeypatch.setattr(view, "apply", late.append)
        monkeypatch.setattr(view, "reached", catch_up)
        assert await box.join("computer", "box", "office") == [True, None]
        await eventually(lambda: enters(anna))
        assert late
        assert await names(anna, "anna", "office") == {("agent", "anna"), ("computer", "box")}
        assert await box.call("server:leave_office", {"office_id": "office"}) == [True, None]
        await eventually(lambda: leaves(anna))
        assert late
        assert await names(anna, "anna", "office") == {("agent", "anna")}


@pytest.mark.rule("answers.rooms.rejoin.ack", "answers.rooms.rejoin.silent")
async def test_joining_ones_own_office_again_is_silent(open_world: OpenWorld) -> None:
    async with open_world() as world, connected(world.url) as anna, connected(world.url) as box:
        await anna.join("agent", "anna", "office")
        await box.join("computer", "box", "office")
        await eventually(lambda: len(enters(anna)) == 1)
        assert await anna.join("agent", "anna", "office") == [True, None]
        assert await box.join("computer", "box", "office") == [True, None]
        await settled(anna, box)
        assert [event for event, _ in anna.events] == ["notify:enter_office"]
        assert box.events == []


@pytest.mark.rule("events.join_office.computer.switch", "answers.rooms.switch.leave")
async def test_a_computer_switches_and_an_agent_does_not(open_world: OpenWorld) -> None:
    async with (
        open_world(gateways=2) as world,
        connected(world.gateways[0].url) as anna,
        connected(world.gateways[1].url) as bert,
        connected(world.gateways[0].url) as box,
    ):
        await anna.join("agent", "anna", "one")
        await bert.join("agent", "bert", "two")
        await box.join("computer", "box", "one")
        done, why, *_ = await anna.join("agent", "anna", "two")
        assert done is False
        assert why
        assert await box.join("computer", "box", "two") == [True, None]
        await eventually(lambda: len(leaves(anna)) == 1 and len(enters(bert)) == 1)
        assert await names(anna, "anna", "one") == {("agent", "anna")}
        assert await names(bert, "bert", "two") == {("agent", "bert"), ("computer", "box")}
        await settled(anna, bert, box)
        assert len(enters(anna)) == 1
        assert box.events == []


@pytest.mark.rule("answers.rooms.switch.refused")
async def test_a_refused_switch_changes_nothing(open_world: OpenWorld) -> None:
    async with (
        open_world() as world,
        connected(world.url) as anna,
        connected(world.url) as box,
        connected(world.url) as other,
    ):
        await anna.join("agent", "anna", "one")
        await other.join("computer", "box", "two")
        await box.join("computer", "box", "one")
        done, why, *_ = await box.join("computer", "box", "two")
        assert done is False
        assert "box" in why
        assert await names(box, "box", "one") == {("agent", "anna"), ("computer", "box")}
        await settled(anna, box, other)
        assert leaves(anna) == []
        assert other.events == []


@pytest.mark.rule(
    "events.leave_office.who",
    "answers.{acks.leave.done,acks.leave.refused,rooms.agent-after-leave,rooms.leave-foreign}",
)
async def test_only_the_own_office_can_be_left(open_world: OpenWorld) -> None:
    async with open_world() as world, connected(world.url) as anna, connected(world.url) as bert:
        await anna.join("agent", "anna", "one")
        await bert.join("agent", "bert", "two")
        done, why, *_ = await anna.call("server:leave_office", {"office_id": "two"})
        assert done is False
        assert why
        assert await names(bert, "bert", "two") == {("agent", "bert")}
        assert await anna.call("server:leave_office", {"office_id": "one"}) == [True, None]
        assert (await anna.call("server:leave_office", {"office_id": "one"}))[0] is False
        assert await anna.join("agent", "anna", "three") == [True, None]


@pytest.mark.rule(
    "events.{classes.server.must,classes.notify.broadcast,list.notify:tool_call_cancel.members}",
    "events.{update_config.room-only,update_tool_list.room-only,update_desktop.room-only}",
    "events.{update_finder.room-only,notify.tool_call_cancel.told,must.server.handles}",
    "events.must.server.broadcasts",
    "answers.{acks.update,acks.cancel,rooms.notification.not-cause,unknown.update}",
)
@sound_only  # a notification of a change may come twice, and says the same
async def test_updates_and_cancels_reach_the_office_except_their_sender(open_world: OpenWorld) -> None:
    async with (
        open_world(gateways=2) as world,
        connected(world.gateways[0].url) as anna,
        connected(world.gateways[1].url) as box,
        connected(world.gateways[1].url) as elsewhere,
    ):
        await anna.join("agent", "anna", "office")
        await box.join("computer", "box", "office")
        await elsewhere.join("computer", "box", "other")
        events = ["update_config", "update_tool_list", "update_desktop", "update_finder", "update_skills"]
        for verb in events:
            assert await box.call(f"server:{verb}", {"computer": "box", "more": [1]}) is None
        assert await anna.call("server:tool_call_cancel", {"agent": "anna", "req_id": "r"}) is None
        await eventually(lambda: len(anna.events) == 6 and len(box.events) == 1)
        await settled(anna, box, elsewhere)
        assert [event for event, _ in anna.events[1:]] == [f"notify:{verb}" for verb in events]
        assert all(payload["computer"] == "box" for _, payload in anna.events[1:])
        assert box.events == [("notify:tool_call_cancel", {"agent": "anna", "req_id": "r"})]
        assert elsewhere.events == []


@pytest.mark.rule("answers.rooms.disconnect")
async def test_the_name_of_a_disconnected_client_is_free_at_once(open_world: OpenWorld) -> None:
    async with open_world(gateways=2) as world:
        for number in range(6):
            async with connected(world.gateways[number % 2].url) as anna:
                assert await anna.join("agent", "anna", "office") == [True, None]
                await anna.sio.eio.disconnect(abort=True)
                await eventually(lambda: sum(len(gateway.sessions) for gateway in world.gateways) == 0)
        await eventually(lambda: held(world) == 0)


@pytest.mark.rule("answers.rooms.disconnect")
async def test_a_client_that_disconnects_while_joining_is_not_a_member(open_world: OpenWorld) -> None:
    async with open_world() as world:
        for _ in range(10):
            async with connected(world.url) as box:
                payload = {"role": "computer", "name": "box", "office_id": "office"}
                await box.sio.emit("server:join_office", payload, namespace="/smcp")
        await eventually(lambda: held(world) == 0)
        async with connected(world.url) as anna:
            await anna.join("agent", "anna", "office")

            async def alone() -> bool:
                return await names(anna, "anna", "office") == {("agent", "anna")}

            await eventually(alone)


@pytest.mark.rule("events.notify.leave_office.told")
async def test_members_leave_when_their_gateway_stops(open_world: OpenWorld) -> None:
    async with open_world() as staying, connected(staying.url) as anna:
        await anna.join("agent", "anna", "office")
        async with open_world(registry=False) as stopping, connected(stopping.url) as box:
            await box.join("computer", "box", "office")
            await eventually(lambda: len(enters(anna)) == 1)
        await eventually(lambda: len(leaves(anna)) == 1)


async def test_a_call_sent_right_after_the_join_waits_for_it(open_world: OpenWorld) -> None:
    async def answer(verb: str, _: Incoming) -> Reply:
        return reply({"verb": verb})

    ask = {"agent": "anna", "req_id": "1", "computer": "box"}
    async with (
        open_world() as world,
        world.computer("office", "box", answer),
        connected(world.url) as anna,
        connected(world.url) as eve,
    ):
        for client, name in ((anna, "anna"), (eve, "eve")):
            joins = {"role": "agent", "name": name, "office_id": "office"}
            await client.sio.emit("server:join_office", joins, namespace=NAMESPACE)
            answered = await client.call("client:get_tools", ask | {"agent": name})
            if name == "anna":
                assert answered["verb"] == "get_tools"
            else:  # the place is taken
                assert answered["code"] == 4103
