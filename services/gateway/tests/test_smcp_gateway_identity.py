"""Who a client is, is what its session says: whatever a payload claims, it reaches and tells nobody else's office.

The events are those of the catalog: a new row without a line here fails.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from smcp_bus.bus import Incoming, Reply
from smcp_proto.catalog import CATALOG
from smcp_testing.event_payloads import GOOD
from smcp_testing.gateway_world import Client, World, connected, gateway_world, reply
from smcp_testing.waiting import eventually

HERE, THERE = "office", "other"
SPOKEN = {"agent", "computer", "computerId"}
"""The fields in which a payload names its sender."""
UNKNOWN: dict[str, dict[str, Any]] = {
    "client:get_later": {"computer": "box", "agent": "anna"},
    "server:update_later": {"computer": "box"},
}
EVENTS = {**GOOD, **UNKNOWN}
DONE = {"server:join_office", "server:leave_office"}


@dataclass
class Scene:
    """Two offices with an Agent and a Computer each, on one gateway. The other office's Computer is native, too."""

    world: World
    anna: Client
    box: Client
    foreign: Client
    mate: Client
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Requests that reached a native Computer: its office and the verb."""
    bodies: list[Any] = field(default_factory=list)
    """What they said."""

    async def nobody_heard(self) -> None:
        """Of anything in the other office, and nothing ran there. A notice of our own comes last."""
        assert await self.foreign.call("server:tool_call_cancel", {"agent": "otto", "req_id": "last"}) is None
        await eventually(lambda: self.mate.told("notify:tool_call_cancel"))
        assert [event for event, _ in self.mate.events] == ["notify:tool_call_cancel"]
        assert self.foreign.events == []
        assert [office for office, _ in self.asked if office == THERE] == []
        self.mate.events.clear()


@asynccontextmanager
async def opened(nats_url: str) -> AsyncIterator[Scene]:
    asked: list[tuple[str, str]] = []
    bodies: list[Any] = []

    async def serve(verb: str, incoming: Incoming) -> Reply:
        if verb != "pending":  # the gateway asks so after a call that takes longer
            asked.append((incoming.subject.split(".")[2], verb))
            bodies.append(json.loads(incoming.body))
        return reply({"verb": verb})

    async with (
        gateway_world(nats_url) as world,
        world.computer(HERE, "native", serve),
        world.computer(THERE, "native", serve),
        world.computer(THERE, "hidden", serve),
        connected(world.url) as foreign,
        connected(world.url) as mate,
        connected(world.url) as anna,
        connected(world.url) as box,
    ):
        assert await foreign.join("agent", "otto", THERE) == [True, None]
        assert await mate.join("computer", "box", THERE) == [True, None]
        await eventually(lambda: foreign.told("notify:enter_office"))
        assert await anna.join("agent", "anna", HERE) == [True, None]
        assert await box.join("computer", "box", HERE) == [True, None]
        foreign.events.clear()
        yield Scene(world, anna, box, foreign, mate, asked, bodies)


def refused(event: str, answer: Any, *codes: int, naming: str | None = None) -> None:
    if event in DONE:
        done, why, *_ = answer
        assert done is False, event
        assert why
        return
    assert set(answer) == {"code", "message", "details"}, (event, answer)
    assert answer["code"] in codes, (event, answer)
    if naming is not None:
        assert answer["details"] == {"field": naming}, event


def test_every_event_of_clients_has_an_example() -> None:
    assert set(GOOD) == {event for event, row in CATALOG.items() if row.senders}


@pytest.mark.rule("answers.who.agent")
async def test_the_session_name_replaces_the_agent_field(nats_url: str) -> None:
    async with opened(nats_url) as scene:
        for number, written in enumerate(("otto", "eve", "box", "", 5, None, ["anna"])):
            scene.box.events.clear()
            for event, payload in EVENTS.items():
                if event.startswith("client:"):
                    computer = "computerId" if "computerId" in payload else "computer"
                    asked = payload | {"agent": written, computer: "native", "large": 2**70}
                    answer = await scene.anna.call(event, asked)
                    verb, said = scene.asked.pop()[1], scene.bodies.pop()
                    assert answer == {"verb": verb}, event
                    assert said == asked | {"agent": "anna"}, event
            asked = GOOD["server:list_room"] | {"agent": written, "office_id": HERE}
            room = await scene.anna.call("server:list_room", asked)
            assert {session["name"] for session in room["sessions"]} == {"anna", "box", "native"}
            cancel = {"agent": written, "req_id": f"r{number}"}
            assert await scene.anna.call("server:tool_call_cancel", cancel) is None
            heard = [cancel | {"agent": "anna"}]
            await eventually(lambda: scene.box.told("notify:tool_call_cancel") == heard)  # noqa: B023 -- waited for
            assert scene.asked == []
        await scene.nobody_heard()


@pytest.mark.rule("answers.who.computer")
async def test_a_computer_cannot_name_another_computer_in_any_event(nats_url: str) -> None:
    tried = 0
    async with opened(nats_url) as scene:
        for event, payload in EVENTS.items():
            if not event.startswith(("server:update_", "server:resources/", "notify:")):
                continue
            for name in payload.keys() & SPOKEN:
                for forged in ("native", "anna", "hidden"):
                    answer = await scene.box.call(event, payload | {name: forged})
                    refused(event, answer, 400, 403)
                    tried += 1
        assert tried >= 9
        assert scene.anna.events in ([], [("notify:enter_office", {"office_id": HERE, "computer": "box"})])
        assert scene.asked == []
        await scene.nobody_heard()


FORGED: dict[str, tuple[str, ...]] = {
    "agent": ("otto", "eve", "box"),
    "computer": ("native", "anna"),
    "computerId": ("native", "anna"),
    "office_id": (THERE,),
    "roomId": (THERE,),
}
"""Of fields that say who speaks: what is not the sender's."""


@pytest.mark.rule("answers.who.other-fields")
async def test_a_foreign_name_in_an_extra_field_has_no_effect(nats_url: str) -> None:
    own = {"agent": "anna", "computer": "box"}
    addresses = {"notify:resources/updated": "agent"}  # whom it is for
    tried = 0
    async with opened(nats_url) as scene:
        for event, payload in EVENTS.items():
            if event in DONE or event.startswith("server:resources/"):
                continue
            senders = CATALOG[event].senders if event in CATALOG else {event.startswith("client") and "agent"}
            role: Literal["agent", "computer"] = "agent" if "agent" in senders else "computer"
            client = scene.anna if role == "agent" else scene.box
            for name in FORGED.keys() - payload.keys() - {addresses.get(event)}:
                if role == "agent" and name in ("agent", "computer", "computerId"):
                    continue  # its own name is written over, and it names whom it asks
                for forged in FORGED[name]:
                    refused(event, await client.call(event, payload | {name: forged}), 403, naming=name)
                    tried += 1
                for no_name in ([own[role]], 5):
                    refused(event, await client.call(event, payload | {name: no_name}), 400, 403)
        assert tried >= 60
        assert scene.asked == []
        await scene.nobody_heard()


@pytest.mark.rule("answers.who.list-room")
async def test_a_computer_lists_the_room_only_under_its_own_name(nats_url: str) -> None:
    async with opened(nats_url) as scene:
        asked = {"req_id": "r", "office_id": HERE}
        for forged in ("anna", "native", "eve"):
            refused("", await scene.box.call("server:list_room", asked | {"agent": forged}), 403, naming="agent")
        room = await scene.box.call("server:list_room", asked | {"agent": "box"})
        assert {session["name"] for session in room["sessions"]} == {"anna", "box", "native"}


@pytest.mark.rule("answers.rooms.list.own-office")
async def test_no_event_reaches_another_office(nats_url: str) -> None:
    async with opened(nats_url) as scene:
        for event, payload in EVENTS.items():
            for name in ("office_id", "roomId"):
                if name not in payload or event == "server:join_office":
                    continue
                for client in (scene.anna, scene.box):
                    answer = await client.call(event, payload | {name: THERE})
                    refused(event, answer, 400, 403)
        for event, payload in EVENTS.items():
            if event.startswith("client:"):
                name = "computerId" if "computerId" in payload else "computer"
                refused(event, await scene.anna.call(event, payload | {name: "hidden"}), 404)
        assert scene.asked == []
        await scene.nobody_heard()


@pytest.mark.rule(
    "events.{classes.client.direction,list.server:update_config.sender}",
    "events.{list.server:update_tool_list.sender,list.server:update_desktop.sender}",
    "events.{list.server:update_finder.sender,list.server:tool_call_cancel.sender}",
    "answers.{errors.403,who.client-events,who.cancel,who.updates}",
)
@pytest.mark.parametrize("role", ["agent", "computer"])
async def test_an_event_of_the_other_role_is_403(nats_url: str, role: Literal["agent", "computer"]) -> None:
    async with opened(nats_url) as scene:
        client = scene.anna if role == "agent" else scene.box
        tried = 0
        for event, payload in EVENTS.items():
            row = CATALOG.get(event)
            senders = row.senders if row is not None else {"agent" if event.startswith("client:") else "computer"}
            if role in senders:
                continue
            own = {"computer": "native", "agent": "box"} if role == "computer" else {}
            answer = await client.call(event, payload | {key: own[key] for key in payload.keys() & own.keys()})
            # what native Computers alone say is not an event of a client
            refused(event, answer, 400 if event.startswith("server:resources/") else 403)
            tried += 1
        assert tried >= 8
        assert scene.asked == []
        await scene.nobody_heard()


@pytest.mark.rule("events.classes.notify.direction", "answers.who.notifications")
async def test_a_client_cannot_send_notifications(nats_url: str) -> None:
    async with opened(nats_url) as scene:
        for event, row in CATALOG.items():
            if not event.startswith("notify:") or row.senders:
                continue
            for client in (scene.anna, scene.box):
                body = {"office_id": THERE, "computer": "box", "agent": "anna", "req_id": "r"}
                refused(event, await client.call(event, body), 400, 403)
        await scene.nobody_heard()


@pytest.mark.rule("answers.rooms.role-fixed", "answers.rooms.name-fixed")
async def test_role_and_name_stay_after_a_leave(nats_url: str) -> None:
    async with opened(nats_url) as scene:
        for client, role, name in ((scene.anna, "agent", "anna"), (scene.box, "computer", "box")):
            assert await client.call("server:leave_office", {"office_id": HERE}) == [True, None]
            other = "computer" if role == "agent" else "agent"
            refused("server:join_office", await client.join(other, name, HERE))
            refused("server:join_office", await client.join(role, "somebody else", HERE))
            assert await client.join(role, name, HERE) == [True, None]
        await scene.nobody_heard()


async def test_an_unknown_computer_name_with_special_characters_is_404_and_reaches_nobody(nats_url: str) -> None:
    async with opened(nats_url) as scene:
        for name in ("*", ">", "native.>", "other.client.native", "=", "=2A", "nat*", "native\u200b"):
            answer = await scene.anna.call("client:get_tools", GOOD["client:get_tools"] | {"computer": name})
            refused("client:get_tools", answer, 404)
            assert scene.asked == [], name
        await scene.nobody_heard()
