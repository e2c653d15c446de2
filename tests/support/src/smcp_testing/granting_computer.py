"""A Computer on Socket.IO that grants subscriptions to its resources, and its Agent on another gateway."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from smcp_testing.gateway_world import NAMESPACE, Client, World, connected, gateway_world
from smcp_testing.waiting import eventually

OFFICE: Final = "办公室 1"
BOX: Final = "盒子.*"
URI: Final = "file:///深"
SUBSCRIBE: Final = "client:resources/subscribe"
UNSUBSCRIBE: Final = "client:resources/unsubscribe"
UPDATED: Final = "notify:resources/updated"


@dataclass
class Granting:
    """A Computer's client that grants every subscription but those to `refused`; `asked` is what it was asked."""

    client: Client
    asked: list[dict[str, Any]] = field(default_factory=list)
    refused: str = "file:///refused"

    def __post_init__(self) -> None:
        for event in (SUBSCRIBE, UNSUBSCRIBE):
            self.client.sio.on(event, self.answer, namespace=NAMESPACE)

    async def updated(self, uri: str = URI, **envelope: Any) -> Any:
        return await self.client.call(UPDATED, updated(uri) | envelope)

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(request)
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": request["payload"]["id"]}
        if request["payload"]["params"]["uri"] == self.refused:
            answer["error"] = {
                "code": -32601,
                "message": "no",
                "data": {"smcp_code": "SMCP_SUBSCRIPTION_NOT_SUPPORTED"},
            }
        else:
            answer["result"] = {}
        return request | {"payload": answer}


def updated(uri: str = URI, title: str = "t") -> dict[str, Any]:
    """What such a Computer says of a resource that changed."""
    params = {"uri": uri, "title": title}
    payload = {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": params}
    return {"roomId": OFFICE, "computerId": BOX, "payload": payload}


def asking(event: str, uri: str = URI, **envelope: Any) -> dict[str, Any]:
    payload = {"jsonrpc": "2.0", "id": 7, "method": event.partition(":")[2], "params": {"uri": uri}}
    return {"roomId": OFFICE, "computerId": BOX, "payload": payload, **envelope}


async def ask(agent: Client, /, event: str = SUBSCRIBE, uri: str = URI, **envelope: Any) -> Any:
    """Subscribe an Agent, or end that."""
    return await agent.call(event, asking(event, uri, **envelope))


async def heard(agent: Client, box: Granting) -> list[str]:
    """URIs of the updates that the Agent received since the last call; another notification comes behind them."""
    before = len(agent.told("notify:update_config"))
    assert await box.client.call("server:update_config", {"computer": BOX}) is None
    await eventually(lambda: len(agent.told("notify:update_config")) > before)
    told = agent.told(UPDATED)
    assert all(payload.get("agent", "anna") == "anna" for payload in told)
    agent.events[:] = [event for event in agent.events if event[0] != UPDATED]
    return [payload["payload"]["params"]["uri"] for payload in told]


@asynccontextmanager
async def scene(nats_url: str, **options: Any) -> AsyncIterator[tuple[World, Client, Granting]]:
    """The Agent is on the first gateway, its Computer on the second."""
    async with (
        gateway_world(nats_url, gateways=2, **options) as world,
        connected(world.gateways[0].url) as anna,
        connected(world.gateways[1].url) as client,
    ):
        assert await client.join("computer", BOX, OFFICE) == [True, None]
        assert await anna.join("agent", "anna", OFFICE) == [True, None]
        await eventually(lambda: client.told("notify:enter_office"))
        yield world, anna, Granting(client)
