"""The flows of the pages, step by step in their order: an Agent, a gateway, a native Computer and its MCP servers."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

from smcp_computer.computer import Computer
from smcp_computer.outbox import CONFIG
from smcp_testing.computer_world import native_computer
from smcp_testing.context_computer import PAGE_HOST, page_documents
from smcp_testing.gateway_world import Client, connected, gateway_world
from smcp_testing.mcp_servers import configs
from smcp_testing.waiting import eventually

OFFICE, NAME, AGENT = "room-123", "comp-1", "bot"
TOLD = {"computer": NAME}
APP = "window://com.example.myapp"


@dataclass
class Scene:
    """What an Agent sees of a Computer, and the hands that change its MCP servers."""

    agent: Client
    computer: Computer
    numbers: "count[int]" = field(default_factory=count)

    async def ask(self, event: str, **more: Any) -> dict[str, Any]:
        req_id = f"req-{next(self.numbers)}"
        asked = {"agent": AGENT, "req_id": req_id, "computer": NAME, **more}
        answer: dict[str, Any] = await self.agent.call(event, asked, timeout=30)
        assert answer["req_id"] == req_id, answer
        return answer

    async def tell(self, server: str, tool: str, **arguments: Any) -> None:
        """Have an MCP server change, past the handlers of its Computer."""
        supervisor = self.computer.fleet.supervisors[server]
        result = await supervisor.call(tool, arguments, timeout=30)
        assert not result.get("isError"), result

    async def hears(self, event: str) -> Any:
        """The first notification of that name from now on."""
        await eventually(lambda: self.agent.told(event), timeout=30)
        return self.agent.told(event)[0]

    async def settled(self, server: str, *uris: str) -> None:
        """Wait until the server has accepted these subscriptions and all pending notifications were sent; drop them."""
        subscribed = self.computer.resources.subscriptions.subscribed
        await eventually(lambda: subscribed(server) == set(uris), timeout=30)

        async def quiet() -> bool:
            self.agent.events.clear()
            self.computer.outbox.changed(CONFIG)  # sent after the one that is being sent
            await self.hears("notify:update_config")
            return not (self.agent.told("notify:update_desktop") or self.agent.told("notify:update_finder"))

        await eventually(quiet, timeout=30)
        self.agent.events.clear()


@asynccontextmanager
async def scene(nats_url: str, **servers: dict[str, Any]) -> AsyncIterator[Scene]:
    async with (
        gateway_world(nats_url) as world,
        native_computer(world, OFFICE, NAME, servers) as computer,
        connected(world.url) as agent,
    ):
        assert await agent.join("agent", AGENT, OFFICE) == [True, None]
        yield Scene(agent, computer)


def window(name: str, text: str, **resource: Any) -> dict[str, Any]:
    uri = f"{APP}/{name}"
    return {"uri": uri, "resource": resource, "contents": [{"uri": uri, "mimeType": "text/plain", "text": text}]}


@pytest.mark.rule(
    "desktop.{render.reply,lifecycle.first.asked,lifecycle.first.forwarded,lifecycle.first.organized}",
    "desktop.{lifecycle.first.answered,lifecycle.first.relayed,lifecycle.list.notified}",
    "desktop.{lifecycle.list.collected,lifecycle.list.compared,lifecycle.list.said,lifecycle.list.told}",
    "desktop.{lifecycle.list.asked,lifecycle.contents.notified,lifecycle.contents.confirmed}",
    "desktop.{lifecycle.contents.said,lifecycle.contents.told,lifecycle.contents.asked}",
    "desktop.{servers.windows.example,servers.contents.example}",
    "finder.versus.{access,life}",
)
async def test_the_desktop_follows_its_windows_and_their_contents(nats_url: str) -> None:
    about = {"priority": 0.6, "audience": ["assistant"], "lastModified": "2026-01-15T08:30:00Z"}
    status = window("status", "运行中 | CPU: 45% | 内存: 2.1GB", annotations=about, _meta={"fullscreen": False})
    console = window("console", "> _", annotations={"priority": 0.3, "audience": ["assistant"]})
    async with scene(nats_url, myapp=configs.context("2025", content=[console, status])) as here:

        async def shows(*desktops: str) -> bool:
            found: list[str] = (await here.ask("client:get_desktop"))["desktops"]
            return found == list(desktops)

        # 初始拉取流程
        await here.settled("myapp", status["uri"], console["uri"])
        first, second = f"{APP}/status\n\n运行中 | CPU: 45% | 内存: 2.1GB", f"{APP}/console\n\n> _"
        assert await shows(first, second)
        # 窗口列表变化触发流程: the same set of windows is not notified, another one is
        await here.tell("myapp", "put", **{**console, "resource": {**console["resource"], "title": "another"}})
        known = here.computer.resources.index.known
        await eventually(lambda: known("myapp")[console["uri"]].get("title") == "another", timeout=30)
        await here.settled("myapp", status["uri"], console["uri"])
        alert = window("alert", "!", annotations={"priority": 1.0})
        await here.tell("myapp", "put", **alert)
        assert await here.hears("notify:update_desktop") == TOLD
        await eventually(lambda: shows(f"{APP}/alert\n\n!", first, second), timeout=30)
        await here.settled("myapp", status["uri"], console["uri"], alert["uri"])
        await here.tell("myapp", "remove", uri=alert["uri"])
        assert await here.hears("notify:update_desktop") == TOLD
        await eventually(lambda: shows(first, second), timeout=30)
        # 窗口内容变化触发流程
        await here.settled("myapp", status["uri"], console["uri"])
        await here.tell("myapp", "update", uri=status["uri"], text="空闲")
        assert await here.hears("notify:update_desktop") == TOLD
        assert await shows(f"{APP}/status\n\n空闲", second)
        assert here.agent.told("notify:update_finder") == [], "no window concerns the finder"


@pytest.mark.rule(
    "finder.{versus.life,lifecycle.first.asked,lifecycle.first.forwarded,lifecycle.first.organized}",
    "finder.{lifecycle.first.answered,lifecycle.first.relayed,lifecycle.list.notified}",
    "finder.{lifecycle.list.collected,lifecycle.list.compared,lifecycle.list.said,lifecycle.list.told}",
    "finder.{lifecycle.list.asked,lifecycle.contents.notified,lifecycle.contents.confirmed}",
    "finder.{lifecycle.contents.said,lifecycle.contents.told,lifecycle.contents.asked,scope.events}",
    "finder.{server.notices.list,server.notices.updated}",
)
async def test_the_finder_follows_its_documents_and_their_contents(nats_url: str) -> None:
    content = [{"document": each} for each in page_documents()]
    report, contract, new = (f"dpe://{PAGE_HOST}/{ref}" for ref in ("rpt-2026", "contract-a1", "new"))
    async with scene(nats_url, docs=configs.context("2026", host=PAGE_HOST, content=content)) as here:

        async def lists(*titles: str) -> bool:
            found = await here.ask("client:get_finder")
            assert found["total_count"] == len(found["documents"])
            return [each["title"] for each in found["documents"]] == list(titles)

        # 初始拉取流程
        await here.settled("docs", report, contract)
        assert await lists("2026 年度报告", "A1 合同")
        # 文档列表变化触发流程: the same set of documents is not notified, another one is
        await here.tell("docs", "put", uri="file:///other")
        known = here.computer.resources.index.known
        await eventually(lambda: "file:///other" in known("docs"), timeout=30)
        await here.settled("docs", report, contract)
        last = {"ref": "new", "title": "New", "last_modified": "2025-01-01T00:00:00Z"}
        await here.tell("docs", "put", document=last)
        assert await here.hears("notify:update_finder") == TOLD
        await eventually(lambda: lists("2026 年度报告", "A1 合同", "New"), timeout=30)
        # 文档内容变化触发流程
        await here.settled("docs", report, contract, new)
        changed = {"title": "Newer", "last_modified": "2026-12-31T00:00:00Z"}
        await here.tell("docs", "update", uri=new, text=json.dumps(changed))
        assert await here.hears("notify:update_finder") == TOLD
        assert await lists("Newer", "2026 年度报告", "A1 合同")
        assert here.agent.told("notify:update_desktop") == [], "no document concerns the desktop"


@pytest.mark.rule(
    "computer.resources.{events.namespace,events.direction,events.list_changed,events.updated}",
    "computer.resources.{models.resource.example,models.contents.example,payload.event}",
    "computer.resources.{payload.server_null,payload.params,payload.jsonrpc,flow.list.asked}",
    "computer.resources.{flow.list.forwarded,flow.list.aggregated,flow.subscribe.asked}",
    "computer.resources.{flow.subscribe.acknowledged,flow.subscribe.told,notes.agent,models.routing}",
)
async def test_listing_reading_and_subscribing_match_the_protocol_page(nats_url: str) -> None:
    uri, title = "file:///project/src/main.rs", "Rust Software Application Main File"
    item = {"uri": uri, "name": "main.rs", "title": title, "mimeType": "text/x-rust"}
    listed = {**item, "description": "Primary application entry point"}
    contents = {**item, "text": 'fn main() {\n    println("Hello world!");\n}'}
    excel = configs.context("2025", host="excel", content=[{"uri": uri, "resource": listed, "contents": [contents]}])
    async with scene(nats_url, excel=excel, erp=configs.context("2026", host="erp", windows=1)) as here:

        async def asked(method: str, server: str | None = "excel", **payload: Any) -> Any:
            event = f"client:{method}"
            envelope = {
                "event": event,
                "roomId": OFFICE,
                "computerId": NAME,
                "serverId": server,
                "payload": {"jsonrpc": "2.0", "method": method, **payload},
            }
            answer = await here.agent.call(event, envelope, timeout=30)
            assert (answer["roomId"], answer["computerId"]) == (OFFICE, NAME), answer
            assert (answer["payload"]["jsonrpc"], answer["payload"]["id"]) == ("2.0", payload["id"])
            return answer["payload"]["result"]

        # 资源列表, as `list_resources` of the implementation notes asks: `serverId` is null
        found = (await asked("resources/list", None, id=1, params={}))["resources"]
        assert [each["uri"] for each in found] == ["window://erp/0", uri]
        assert found[1] == {**listed, "serverId": "excel"}
        assert (await asked("resources/read", id=2, params={"uri": uri}))["contents"] == [contents]
        templates = (await asked("resources/templates/list", id=3))["resourceTemplates"]
        assert {each["uriTemplate"] for each in templates} > {"dpe://excel/{doc_ref}/pages/{page_index}"}
        # 资源订阅: the acknowledgement comes before the notifications
        assert await asked("resources/subscribe", id=4, params={"uri": uri}) == {}
        assert here.agent.told("notify:resources/updated") == []
        await here.tell("excel", "update", uri=uri)
        told = await here.hears("notify:resources/updated")
        assert (told["roomId"], told["computerId"], told["serverId"]) == (OFFICE, NAME, "excel")
        assert told["payload"] == {
            "jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": uri, "title": title},
        }  # fmt: skip
        await here.tell("erp", "put", uri="window://erp/1")
        told = await here.hears("notify:resources/list_changed")
        assert told["payload"] == {"jsonrpc": "2.0", "method": "notifications/resources/list_changed"}
        assert await asked("resources/unsubscribe", id=5, params={"uri": uri}) == {}
