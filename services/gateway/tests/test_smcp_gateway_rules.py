"""Rules of the pages that no other test of the gateway holds by itself."""

import asyncio
from functools import partial
from typing import Any

import orjson
import pytest

from smcp_bus.bus import Incoming, Reply
from smcp_proto.catalog import CATALOG
from smcp_testing.gateway_world import MIB, NAMESPACE, Client, connected, gateway_world, reply
from smcp_testing.waiting import eventually

OFFICE = "office"
ASKED: dict[str, Any] = {"agent": "anna", "req_id": "r", "computer": "box"}
URI = {"uri": "file:///notes.txt"}
REFERENCE = {"ref": {"type": "ref/resource", "uri": "file:///{path}"}, "argument": {"name": "path", "value": "n"}}
MAX_IN_FLIGHT = 64
"""In place of 4096: before so many are sent, the time of the first may be over on a busy machine."""


def envelope(method: str, params: dict[str, Any]) -> dict[str, Any]:
    payload = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return {"roomId": OFFICE, "computerId": "box", "serverId": None, "payload": payload}


REQUESTS: dict[str, dict[str, Any]] = {
    "client:tool_call": {**ASKED, "tool_name": "t", "params": {"深": None}, "timeout": 5},
    "client:get_config": ASKED,
    "client:get_tools": ASKED,
    "client:get_status": ASKED,
    "client:get_desktop": {**ASKED, "desktop_size": 3, "window": "window://h/a"},
    "client:get_finder": {**ASKED, "keywords": ["x"], "file_type": "pdf", "offset": 0, "limit": 20},
    "client:resources/list": envelope("resources/list", {"cursor": "c"}),
    "client:resources/read": envelope("resources/read", URI),
    "client:resources/templates/list": envelope("resources/templates/list", {}),
    "client:resources/subscribe": envelope("resources/subscribe", URI) | {"agent": "anna"},
    "client:resources/unsubscribe": envelope("resources/unsubscribe", URI) | {"agent": "anna"},
    "client:completion/complete": envelope("completion/complete", REFERENCE),
    "client:prompts/list": envelope("prompts/list", {"cursor": "c"}),
    "client:prompts/get": envelope("prompts/get", {"name": "greet", "arguments": {"who": "深"}}),
    "client:get_skills": {"computer": "box", "later": [1]},
}


@pytest.mark.rule(
    "events.{classes.client.direction,classes.client.routing,tool_call.flow,get_desktop.relayed}",
    "events.{get_finder.relayed,flow.call.2,flow.call.4,flow.discovery.4,flow.discovery.6,flow.config.4}",
    "events.{flow.config.6,flow.desktop.6,flow.desktop.9,flow.finder.6,flow.finder.9,must.server.routes}",
    "computer.{architecture.4,call.2,call.8,resources.server.routing,resources.flow.list.forwarded}",
    "answers.{unknown.client,nats.payload}",
    "desktop.lifecycle.first.forwarded",
    "finder.lifecycle.first.forwarded",
)
async def test_every_client_event_reaches_its_computer_unchanged(nats_url: str) -> None:
    async def mirror(verb: str, incoming: Incoming) -> Reply:
        return reply({"verb": verb, "body": orjson.loads(incoming.body)})

    assert {event for event in CATALOG if event.startswith("client:")} <= set(REQUESTS)
    async with (
        gateway_world(nats_url) as world,
        connected(world.url) as anna,
        world.computer(OFFICE, "box", mirror),
        world.computer(OFFICE, "bystander", mirror),
    ):
        await anna.join("agent", "anna", OFFICE)
        for event, request in REQUESTS.items():
            answer = await anna.call(event, request)
            assert answer == {"verb": event.partition(":")[2].replace("/", "_"), "body": request}, event


@pytest.mark.rule(
    "events.{classes.server.must,list.notify:update_config.members,list.notify:update_tool_list.members}",
    "events.{list.notify:update_desktop.members,list.notify:update_finder.members}",
    "events.{update_config.broadcast,update_tool_list.broadcast,update_desktop.broadcast}",
    "events.{update_finder.broadcast,notify.update_desktop.heard,notify.update_finder.heard}",
    "events.{flow.config.1,flow.config.2,flow.desktop.3,flow.desktop.4,flow.finder.3,flow.finder.4}",
    "events.{must.server.handles,must.server.broadcasts}",
    "data-structures.Desktop.update-events",
    "answers.capabilities.update",
)
async def test_every_update_of_a_computer_reaches_its_office_unchanged(nats_url: str) -> None:
    capabilities = {"resources": {"subscribe": True, "listChanged": False}}
    updates = {
        "update_config": {"computer": "box"},
        "update_tool_list": {"computer": "box"},
        "update_desktop": {"computer": "box"},
        "update_finder": {"computer": "box"},
        "update_capabilities": {"computer": "box", "capabilities": capabilities},
    }
    known = {row.event for row in CATALOG.values() if row.event.startswith("server:update_")}
    assert known == {f"server:{verb}" for verb in updates}
    async with (
        gateway_world(nats_url) as world,
        connected(world.url) as anna,
        connected(world.url) as box,
        connected(world.url) as mate,
    ):
        await anna.join("agent", "anna", OFFICE)
        await box.join("computer", "box", OFFICE)
        await mate.join("computer", "mate", OFFICE)
        for verb, payload in updates.items():
            assert await box.call(f"server:{verb}", payload) is None
        # the bus keeps the order: when the last has come, so have all before it
        assert await box.call("server:update_last", {"computer": "box"}) is None
        for hearer in (anna, mate):
            await eventually(partial(hearer.told, "notify:update_last"))
            assert {verb: hearer.told(f"notify:{verb}") for verb in updates} == {
                verb: [payload] for verb, payload in updates.items()
            }
        assert box.told("notify:update_config") == []


@pytest.mark.rule("events.update_tool_list.request.computer")
async def test_a_tool_list_update_without_a_name_is_announced_with_the_computers_name(nats_url: str) -> None:
    async with gateway_world(nats_url) as world, connected(world.url) as anna, connected(world.url) as box:
        await anna.join("agent", "anna", OFFICE)
        await box.join("computer", "box", OFFICE)
        assert await box.call("server:update_tool_list", {}) is None
        assert await box.call("server:update_later", {"more": 1}) is None
        refused = await box.call("server:update_config", {})
        assert (refused["code"], refused["details"]["field"]) == (400, "computer"), "there the page demands it"
        await eventually(partial(anna.told, "notify:update_later"))
        assert anna.told("notify:update_tool_list") == [{"computer": "box"}]
        assert anna.told("notify:update_later") == [{"computer": "box", "more": 1}]
        assert box.told("notify:update_later") == [], "who caused it is not told"


@pytest.mark.rule(
    "events.{classes.server.must,list.server:list_room.sender,list_room.all}",
    "events.{list_room.reply.of-this-request,list_room.session.sid,list_room.session.name}",
    "events.{list_room.session.role,list_room.session.office_id,must.server.handles}",
    "answers.rooms.list.{both-roles,sid}",
)
async def test_a_listed_session_has_the_documented_fields(nats_url: str) -> None:
    async with gateway_world(nats_url) as world, connected(world.url) as anna, connected(world.url) as box:
        await anna.join("agent", "anna", OFFICE)
        await box.join("computer", "box", OFFICE)
        listed = await anna.call("server:list_room", {"agent": "anna", "req_id": "r1", "office_id": OFFICE})
        again = await box.call("server:list_room", {"agent": "box", "req_id": "r2", "office_id": OFFICE})
        assert (listed["req_id"], again["req_id"]) == ("r1", "r2")
        assert set(listed) == {"sessions", "req_id"}
        by_name = {session.pop("name"): session for session in listed["sessions"]}
        sids = {name: session.pop("sid") for name, session in by_name.items()}
        assert by_name == {
            "anna": {"role": "agent", "office_id": OFFICE},
            "box": {"role": "computer", "office_id": OFFICE},
        }
        assert len(set(sids.values())) == 2
        assert all(isinstance(sid, str) and sid for sid in sids.values())
        own = {client.sio.get_sid(NAMESPACE) for client in (anna, box)} | {client.sio.sid for client in (anna, box)}
        assert not own & set(sids.values()), "an opaque id says nothing about a connection"


@pytest.mark.rule("answers.rooms.agent-no-switch")
async def test_an_agent_in_an_office_cannot_join_another_even_an_empty_one(nats_url: str) -> None:
    async with gateway_world(nats_url) as world, connected(world.url) as anna, connected(world.url) as mate:
        assert await anna.join("agent", "anna", "one") == [True, None]
        assert await mate.join("computer", "mate", "one") == [True, None]
        done, why, *_ = await anna.join("agent", "anna", "two")
        assert done is False
        assert why
        listed = await mate.call("server:list_room", {"agent": "mate", "req_id": "r", "office_id": "one"})
        assert {session["name"] for session in listed["sessions"]} == {"anna", "mate"}
        assert mate.told("notify:leave_office") == []


async def answered(client: Client, answers: asyncio.Queue[Any]) -> Any:
    """The next answer. Raises AssertionError when the connection is lost instead."""
    lost, answer = asyncio.create_task(client.gone.wait()), asyncio.create_task(answers.get())
    try:
        async with asyncio.timeout(60):
            await asyncio.wait((lost, answer), return_when=asyncio.FIRST_COMPLETED)
        assert answer.done(), "the connection was lost"
        return answer.result()
    finally:
        lost.cancel()
        answer.cancel()


@pytest.mark.rule("answers.errors.429")
async def test_more_unanswered_events_than_a_client_may_have_are_429(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smcp_gateway.sockets.session.MAX_IN_FLIGHT", MAX_IN_FLIGHT)
    release = asyncio.Event()

    async def hang(_: str, __: Incoming) -> Reply:
        await release.wait()
        return reply({})

    async with (
        gateway_world(nats_url, lease_s=30.0) as world,
        connected(world.url) as anna,
        world.computer(OFFICE, "box", hang),
    ):
        await anna.join("agent", "anna", OFFICE)
        answers: asyncio.Queue[Any] = asyncio.Queue()
        for _ in range(MAX_IN_FLIGHT + 3):
            await anna.sio.emit("client:get_tools", ASKED, namespace=NAMESPACE, callback=answers.put_nowait)
        for _ in range(3):
            refused = await answered(anna, answers)
            assert (refused["code"], refused["details"]) == (429, {"limit": MAX_IN_FLIGHT})
        assert answers.empty()
        release.set()
        for _ in range(MAX_IN_FLIGHT):
            assert await answered(anna, answers) == {}


@pytest.mark.rule("answers.errors.429")
async def test_unanswered_events_above_a_total_size_are_429_except_a_single_one(nats_url: str) -> None:
    release = asyncio.Event()

    async def hang(_: str, __: Incoming) -> Reply:
        await release.wait()
        return reply({})

    async with (
        gateway_world(nats_url, lease_s=30.0, max_payload=MIB) as world,
        connected(world.url) as anna,
        world.computer(OFFICE, "box", hang),
    ):
        await anna.join("agent", "anna", OFFICE)
        answers: asyncio.Queue[Any] = asyncio.Queue()
        large = {
            "computer": "box",
            "agent": "anna",
            "tool_name": "t",
            "timeout": 60,
            "params": {"x": "y" * (MIB - 1024)},
        }
        for number in range(3):
            await anna.sio.emit(
                "client:tool_call", large | {"req_id": f"r{number}"}, namespace=NAMESPACE, callback=answers.put_nowait
            )
        refused = await answered(anna, answers)
        assert (refused["code"], refused["details"]) == (429, {"limit": 2 * MIB})
        assert answers.empty()
        release.set()
        for _ in range(2):
            assert await answered(anna, answers) == {}
        assert await anna.call("client:tool_call", large | {"req_id": "again"}) == {}


@pytest.mark.rule("answers.capabilities.join", "computer.resources.server.capabilities")
async def test_the_capabilities_of_a_join_are_listed(nats_url: str) -> None:
    capabilities = {"resources": {"aggregate": {"subscribe": True, "listChanged": True}, "byServer": {"excel": {}}}}
    async with gateway_world(nats_url) as world, connected(world.url) as anna, connected(world.url) as box:
        await anna.join("agent", "anna", OFFICE)
        request = {"role": "computer", "name": "box", "office_id": OFFICE, "capabilities": capabilities}
        assert await box.call("server:join_office", request) == [True, None]
        listed = await anna.call("server:list_room", {"agent": "anna", "req_id": "r", "office_id": OFFICE})
        shown = {session["name"]: session.get("capabilities") for session in listed["sessions"]}
        assert shown == {"anna": None, "box": capabilities}


async def test_capabilities_that_are_too_long_are_refused_by_name(nats_url: str) -> None:
    async with gateway_world(nats_url) as world, connected(world.url) as box:
        request = {"role": "computer", "name": "box", "office_id": OFFICE}
        joined = await box.call("server:join_office", {**request, "capabilities": {"x": [[]] * 8000}})
        assert joined[:2] == [False, "400 capabilities: are longer than 16384 bytes"]
        assert await box.call("server:join_office", {**request, "capabilities": {"x": [[]] * 5000}}) == [True, None]
