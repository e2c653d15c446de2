"""Our Agent SDK, two gateways, a native Computer with servers of MCP 2025 and 2026, and a Computer on Socket.IO: an
Agent uses what both know beside tools, and cannot tell one from the other."""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from smcp_agent import ConfigChanged, DesktopChanged, Event, FinderChanged, ResourceUpdated, SmcpAgent, SmcpError
from smcp_testing.computer_world import native_computer
from smcp_testing.gateway_world import MIB, NAMESPACE, Client, connected, gateway_world
from smcp_testing.mcp_servers import configs
from smcp_testing.profiles import scaled
from smcp_testing.waiting import eventually

OFFICE, BOX, NATIVE = "办公室 1", "盒子.*", "native"
HOST = "com.example.desk"
WINDOW, DOCUMENT = "window://com.example.box/1", "dpe://com.example.box/a"
BLOB = bytes(range(256)) * (scaled(ci=4, soak=20) * MIB // 256)


class Box:
    """A Computer on Socket.IO, as another team would write it: its own answers, in the protocol's words."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.completed: list[Any] = []
        for event, answer in {
            "client:get_desktop": self._desktop,
            "client:get_finder": self._finder,
            "client:resources/list": self._list,
            "client:resources/templates/list": self._templates,
            "client:resources/read": self._read,
            "client:resources/subscribe": self._grant,
            "client:resources/unsubscribe": self._grant,
            "client:completion/complete": self._complete,
        }.items():
            client.sio.on(event, answer, namespace=NAMESPACE)

    async def changed(self, uri: str) -> None:
        payload = {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": uri}}
        envelope = {"roomId": OFFICE, "computerId": BOX, "payload": payload}
        assert await self._client.call("notify:resources/updated", envelope) is None

    async def update(self, what: str) -> None:
        assert await self._client.call(f"server:update_{what}", {"computer": BOX}) is None

    async def _desktop(self, request: dict[str, Any]) -> Any:
        return {"desktops": [f"{WINDOW}\n\n深", WINDOW][: request["desktop_size"]], "req_id": request["req_id"]}

    async def _finder(self, request: dict[str, Any]) -> Any:
        document = {"doc_ref": "a", "title": "A", "file_type": "pdf", "uri": DOCUMENT, "pages": []}
        return {"documents": [document], "total_count": 1, "req_id": request["req_id"]}

    async def _list(self, request: dict[str, Any]) -> Any:
        cursor = (request["payload"].get("params") or {}).get("cursor")
        uri, following = (DOCUMENT, {}) if cursor else (WINDOW, {"nextCursor": "2"})
        return self._result(request, {"resources": [{"uri": uri, "name": uri}], **following})

    async def _templates(self, request: dict[str, Any]) -> Any:
        return self._result(request, {"resourceTemplates": [{"uriTemplate": "box://{x}", "name": "box"}]})

    async def _read(self, request: dict[str, Any]) -> Any:
        uri = request["payload"]["params"]["uri"]
        if uri == WINDOW:
            return self._result(request, {"contents": [{"uri": uri, "blob": base64.b64encode(BLOB).decode()}]})
        error = {"code": -32002, "message": "no", "data": {"smcp_code": "SMCP_RESOURCE_NOT_FOUND"}}
        return self._answer(request, {"error": error})

    async def _grant(self, request: dict[str, Any]) -> Any:
        return self._result(request, {})

    async def _complete(self, request: dict[str, Any]) -> Any:
        self.completed.append(request["payload"]["params"])
        return self._result(request, {"completion": {"values": ["a", "b"], "total": 2, "hasMore": False}})

    def _result(self, request: dict[str, Any], result: dict[str, Any]) -> Any:
        return self._answer(request, {"result": result})

    def _answer(self, request: dict[str, Any], answer: dict[str, Any]) -> Any:
        payload = {"jsonrpc": "2.0", "id": request["payload"]["id"], **answer}
        return {"roomId": OFFICE, "computerId": BOX, "payload": payload}


@dataclass
class Scene:
    agent: SmcpAgent
    box: Box
    heard: list[Event]

    async def hears(self, event: Event) -> None:
        await eventually(partial(self.heard.__contains__, event), timeout=30)


@asynccontextmanager
async def opened(nats_url: str) -> AsyncIterator[Scene]:
    servers = {
        "old": configs.context("2025", windows=1, documents=1),
        "new": configs.context("2026", windows=1, host="com.example.new"),
    }
    async with (
        gateway_world(nats_url, gateways=2, lease_s=60.0) as world,
        connected(world.gateways[1].url) as client,
        native_computer(world, OFFICE, NATIVE, servers, lease_s=60.0),
        SmcpAgent(world.gateways[0].url, office=OFFICE, name="anna") as agent,
    ):
        box, heard = Box(client), list[Event]()
        agent.on_event(heard.append)
        assert await client.join("computer", BOX, OFFICE) == [True, None]
        await eventually(lambda: set(agent.computers()) == {BOX, NATIVE})
        yield Scene(agent, box, heard)


@pytest.mark.rule("answers.resources.either")
async def test_resources_of_native_and_socketio_computers_are_listed_read_and_completed(nats_url: str) -> None:
    async with opened(nats_url) as scene:
        agent = scene.agent
        listed, cursor = list[tuple[str, str]](), None
        while True:
            page = await agent.list_resources(cursor=cursor)
            listed += [(page["computer"], each["uri"]) for each in page["resources"]]
            cursor = page.get("nextCursor")
            if cursor is None:
                break
        own = ["window://com.example.new/0", f"window://{HOST}/0", f"dpe://{HOST}/doc-0"]
        assert listed == [*((NATIVE, uri) for uri in own), (BOX, WINDOW), (BOX, DOCUMENT)]
        templates = await agent.list_resource_templates()
        assert templates["computer"] == NATIVE
        last = await agent.list_resource_templates(cursor=templates["nextCursor"])
        assert [each["name"] for each in last["resourceTemplates"]] == ["box"]
        assert await agent.read_resource(BOX, WINDOW) == BLOB
        assert (await agent.read_resource(NATIVE, f"dpe://{HOST}/doc-0"))["doc_ref"] == "doc-0"
        for computer in (BOX, NATIVE):
            with pytest.raises(SmcpError) as refused:
                await agent.read_resource(computer, "file:///nothing")
            assert refused.value.smcp_code == "SMCP_RESOURCE_NOT_FOUND"
        found = await agent.complete(BOX, "box://{x}", "x", "a", chosen={"y": "1"})
        assert found["values"] == ["a", "b"]
        assert scene.box.completed[0]["context"] == {"arguments": {"y": "1"}}
        template = f"dpe://{HOST}/{{doc_ref}}/pages/{{page_index}}"
        assert template in [each["uriTemplate"] for each in templates["resourceTemplates"]]
        assert (await agent.complete(NATIVE, template, "doc_ref", "doc"))["values"] == ["doc-0"]


@pytest.mark.rule("answers.resources.either")
async def test_changes_of_both_computers_are_announced_and_resource_updates_only_to_subscribers(nats_url: str) -> None:
    async with opened(nats_url) as scene:
        agent = scene.agent
        assert (await agent.get_desktop(BOX, size=1))["desktops"] == [f"{WINDOW}\n\n深"]
        assert len((await agent.get_desktop(NATIVE))["desktops"]) == 2
        assert (await agent.get_finder(BOX))["documents"][0]["doc_ref"] == "a"
        assert (await agent.get_finder(NATIVE))["documents"][0]["doc_ref"] == "doc-0"
        await scene.box.update("desktop")
        await scene.box.update("finder")
        await scene.hears(DesktopChanged(BOX))
        await scene.hears(FinderChanged(BOX))
        own = f"window://{HOST}/0"
        await scene.box.changed(WINDOW)
        await agent.subscribe_resource(BOX, DOCUMENT)
        await agent.subscribe_resource(NATIVE, own)
        await scene.box.changed(WINDOW)
        await scene.box.changed(DOCUMENT)
        await scene.hears(ResourceUpdated(BOX, DOCUMENT))
        await agent.call_tool(NATIVE, "old__update", {"uri": own, "text": "new"})
        await scene.hears(ResourceUpdated(NATIVE, own, "old"))
        await scene.hears(DesktopChanged(NATIVE))
        await agent.unsubscribe_resource(BOX, DOCUMENT)
        await scene.box.changed(DOCUMENT)
        await scene.box.update("config")
        await scene.hears(ConfigChanged(BOX))
        updates = [event for event in scene.heard if isinstance(event, ResourceUpdated)]
        assert {(event.computer, event.uri) for event in updates} == {(BOX, DOCUMENT), (NATIVE, own)}
        assert len([event for event in updates if event.computer == BOX]) == 1
