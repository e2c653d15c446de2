"""An Agent that calls tools for users, and says for whom: the Computer and the audit trail are told of the user."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from smcp_bus.audit import Batch, Sink, Trail
from smcp_bus.bus import Incoming, Reply
from smcp_bus.headers import RIGHTS, SUBJECT
from smcp_testing import issuer
from smcp_testing.gateway_world import Client, connected, gateway_world, reply
from smcp_testing.issuer import shared_token
from smcp_testing.waiting import eventually

SECRET = "a shared secret of the tests, long enough"
USER = {"identity": "a" * 32, "subject": "otto"}
RESULT = {"content": [], "isError": False}


@dataclass
class Scene(Sink):
    client: Client
    calls: list[Incoming]
    """Of tools of the native Computer `box`."""
    cancels: list[Incoming]
    records: list[dict[str, Any]] = field(default_factory=list)
    """The audit trail of the gateway."""

    def send(self, batch: Batch) -> None:
        self.records.append(json.loads(batch.body))


@asynccontextmanager
async def agent(nats_url: str, *, answer: asyncio.Event | None = None, **allowed: Any) -> AsyncIterator[Scene]:
    """The Agent `mcp` with these rights. The Computer answers calls at once, or after the event."""
    calls: list[Incoming] = []
    cancels: list[Incoming] = []

    async def serve(verb: str, incoming: Incoming) -> Reply:
        if verb == "tool_call":
            calls.append(incoming)
            if answer is not None:
                await answer.wait()
        return reply(RESULT)

    async def hear(incoming: Incoming) -> None:
        cancels.append(incoming)

    settings = issuer.settings(auth_secret=SECRET)
    token = shared_token(SECRET, sub="service", smcp={"offices": ["office"], **allowed})
    async with (
        gateway_world(nats_url, settings=settings) as world,
        world.computer("office", "box", serve) as box,
        connected(world.url, auth={"token": token}) as client,
    ):
        await box.bus.listen("smcp.v1.office.notify.tool_call_cancel", hear)
        scene = Scene(client, calls, cancels)
        world.gateways[0]._audit.trail = Trail(logging.getLogger("test"), open_sink=lambda _: scene)
        assert await client.join("agent", "mcp", "office") == [True, None]
        yield scene


def call(user: Any, req_id: str = "r1", **more: Any) -> dict[str, Any]:
    asked = {"agent": "mcp", "req_id": req_id, "computer": "box", "tool_name": "read", "params": {}, "timeout": 30}
    return {**asked, "a2c_on_behalf": user, **more}


def told(incoming: Incoming) -> tuple[str, dict[str, Any]]:
    return incoming.headers[SUBJECT], json.loads(incoming.headers[RIGHTS])


async def test_a_call_for_a_user_is_his_to_the_computer_the_audit_trail_and_its_cancel(nats_url: str) -> None:
    async with agent(nats_url, delegates=True) as scene:
        user = {**USER, "tools": ["read*"], "computers": ["b*"]}
        assert await scene.client.call("client:tool_call", call(user)) == RESULT
        assert told(scene.calls[0]) == ("a" * 32, {"holder": "otto", "delegate": "service", "tools": ["read*"]})
        assert "a2c_on_behalf" not in json.loads(scene.calls[0].body)
        cancel = {"agent": "mcp", "req_id": "r1", "a2c_on_behalf": USER}
        assert await scene.client.call("server:tool_call_cancel", cancel) is None
        await eventually(lambda: scene.cancels)
        assert scene.cancels[0].headers[SUBJECT] == "a" * 32
        assert json.loads(scene.cancels[0].body) == {"agent": "mcp", "req_id": "r1"}
        assert await scene.client.call("client:tool_call", call(None, "r2")) == RESULT
        assert told(scene.calls[1])[1] == {"holder": "service"}
    said = {(record["kind"], record["subject"], record.get("by")) for record in scene.records}
    assert said == {
        ("leave", "service", None),
        ("join", "service", None),
        ("call", "otto", "service"),
        ("cancel", "otto", "service"),
        ("call", "service", None),
    }


@pytest.mark.parametrize("end", ["disconnects", "leaves"])
async def test_calls_of_an_agent_that_is_gone_are_cancelled_as_those_of_its_users(nats_url: str, end: str) -> None:
    answer = asyncio.Event()
    users: list[Any] = [USER, {"identity": "b" * 32, "subject": "bert"}, None]
    async with agent(nats_url, answer=answer, delegates=True) as scene, asyncio.TaskGroup() as waiting:
        asked = [
            waiting.create_task(scene.client.call("client:tool_call", call(user, f"r{number}")))
            for number, user in enumerate(users)
        ]
        await eventually(lambda: len(scene.calls) == len(users))
        if end == "leaves":
            await scene.client.call("server:leave_office", {"office_id": "office"})
        else:
            await scene.client.sio.disconnect()
        await eventually(lambda: len(scene.cancels) == len(users))
        for each in asked:
            each.cancel()
        answer.set()

        def subjects(messages: list[Incoming]) -> dict[str, str]:
            return {json.loads(each.body)["req_id"]: each.headers[SUBJECT] for each in messages}

        assert subjects(scene.cancels) == subjects(scene.calls)
        assert len({*subjects(scene.calls).values()}) == len(users)


@pytest.mark.parametrize(
    ("own", "user", "expected"),
    [
        ({"tools": ["read"]}, {}, {"tools": ["read"], "delegate_tools": ["read"]}),
        ({"tools": ["re*"]}, {"tools": ["*ad"]}, {"tools": ["*ad"], "delegate_tools": ["re*"]}),
        ({"tools": ["re*"]}, {"tools": ["*"]}, {"delegate_tools": ["re*"]}),
        ({"read_only": True}, {"tools": ["read"]}, {"tools": ["read"], "read_only": True}),
        ({}, {"read_only": True}, {"read_only": True}),
    ],
)
async def test_a_call_for_a_user_may_do_what_both_may(
    nats_url: str, own: dict[str, Any], user: dict[str, Any], expected: dict[str, Any]
) -> None:
    async with agent(nats_url, delegates=True, **own) as scene:
        assert await scene.client.call("client:tool_call", call({**USER, **user})) == RESULT
        assert told(scene.calls[0])[1] == {"holder": "otto", "delegate": "service", **expected}


@pytest.mark.parametrize(
    ("own", "user", "wrong"),
    [
        ({"tools": ["write"]}, {"tools": ["read"]}, "tool_name"),
        ({}, {"tools": ["write"]}, "tool_name"),
        ({"computers": ["other"]}, {}, "computer"),
        ({"computers": ["b*"]}, {"computers": ["other"]}, "computer"),
    ],
)
async def test_a_call_for_a_user_that_one_of_both_may_not_make_is_403(
    nats_url: str, own: dict[str, Any], user: dict[str, Any], wrong: str
) -> None:
    async with agent(nats_url, delegates=True, **own) as scene:
        answer = await scene.client.call("client:tool_call", call({**USER, **user}))
        assert (answer["code"], answer["details"]) == (403, {"field": wrong})
        assert scene.calls == []


async def test_an_agent_without_delegates_cannot_call_or_cancel_for_a_user(nats_url: str) -> None:
    async with agent(nats_url) as scene:
        for event in ("client:tool_call", "server:tool_call_cancel"):
            answer = await scene.client.call(event, call(USER))
            assert (answer["code"], answer["details"]["field"]) == (400, "a2c_on_behalf")
            assert "delegates" in answer["message"]
        assert scene.cancels == []
        assert scene.calls == []


@pytest.mark.parametrize(
    ("user", "wrong"),
    [
        ({"subject": "otto"}, "a2c_on_behalf.identity"),
        ({**USER, "identity": "otto"}, "a2c_on_behalf.identity"),
        ({**USER, "subject": "a\nb"}, "a2c_on_behalf.subject"),
        ({**USER, "tools": []}, "a2c_on_behalf.tools"),
        ({**USER, "offices": ["lab"]}, "a2c_on_behalf.offices"),
        ("otto", "a2c_on_behalf"),
    ],
)
async def test_a_user_that_cannot_be_read_is_400_and_names_the_field(nats_url: str, user: Any, wrong: str) -> None:
    async with agent(nats_url, delegates=True) as scene:
        answer = await scene.client.call("client:tool_call", call(user))
        assert (answer["code"], answer["details"]["field"]) == (400, wrong)
        assert scene.calls == []
