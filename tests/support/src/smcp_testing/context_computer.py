"""What a Computer on Socket.IO answers about its desktop, its documents and its resources, scripted by the test.

Its `answers` can be given to a `FakeGateway`, or to a client that is a Computer behind a real gateway (`serve_all`).
"""

import json
from dataclasses import dataclass, field
from typing import Any, Final

from smcp_agent import Event, SmcpAgent
from smcp_testing.fake_gateway import Answer, FakeGateway
from smcp_testing.gateway_world import NAMESPACE, Client
from smcp_testing.mcp_servers.shelf import Shelf, document

JsonObject = dict[str, Any]

NOT_FOUND: Final = -32002
"""MCP's code for a resource that does not exist."""
SERVER: Final = "files"
OFFICE: Final = "office"
PAGE_HOST: Final = "com.example.docs"
WINDOW: Final = "window://com.example.desk/now"


@dataclass
class ContextComputer:
    """One MCP server with a shelf."""

    name: str
    office: str = OFFICE
    shelf: Shelf = field(default_factory=Shelf)
    desktops: list[str] = field(default_factory=list)
    page_size: int = 100
    prompts: list[JsonObject] = field(default_factory=list)
    """As they are listed; one says its arguments and whose it is."""
    as_listed: int = 0
    """Documents whose metadata it says that it does not know."""
    asked: list[tuple[str, JsonObject]] = field(default_factory=list)
    """What it was asked, in order."""
    subscribed: set[str] = field(default_factory=set)
    refusal: JsonObject | None = None
    """The JSON-RPC error with which it refuses to subscribe."""

    @property
    def answers(self) -> dict[str, Answer]:
        handlers = {
            "client:get_desktop": self._get_desktop,
            "client:get_finder": self._get_finder,
            "client:resources/list": self._list,
            "client:resources/read": self._read,
            "client:resources/templates/list": self._templates,
            "client:resources/subscribe": self._subscribe,
            "client:resources/unsubscribe": self._unsubscribe,
            "client:completion/complete": self._complete,
            "client:prompts/list": self._list_prompts,
            "client:prompts/get": self._get_prompt,
        }
        return {event: self._noting(event, answer) for event, answer in handlers.items()}

    def enter(self, gateway: FakeGateway) -> None:
        """Be a Computer of the gateway's office."""
        gateway.computers[self.name] = []
        gateway.answers |= self.answers

    def serve_all(self, client: Client) -> None:
        """Let a client answer as this Computer."""
        for event, answer in self.answers.items():
            client.sio.on(event, answer, namespace=NAMESPACE)

    def seen(self, event: str) -> list[JsonObject]:
        """The data of all such questions so far."""
        return [data for asked, data in self.asked if asked == event]

    def says(self, method: str, **params: Any) -> JsonObject:
        """The envelope of a notification of its MCP server."""
        payload = {"jsonrpc": "2.0", "method": f"notifications/{method}"} | ({"params": params} if params else {})
        return {"roomId": self.office, "computerId": self.name, "serverId": SERVER, "payload": payload}

    def _noting(self, event: str, answer: Answer) -> Answer:
        async def noted(data: JsonObject) -> Any:
            self.asked.append((event, data))
            return await answer(data)

        return noted

    async def _get_desktop(self, data: JsonObject) -> Any:
        size, window = data.get("desktop_size"), data.get("window")
        shown = [each for each in self.desktops if window is None or each.partition("\n\n")[0] == window]
        return {"desktops": shown if size is None else shown[: max(0, size)], "req_id": data["req_id"]}

    async def _get_finder(self, data: JsonObject) -> Any:
        (catalog,) = self.shelf.read(f"dpe://{self.shelf.host}") or []
        words, kind = data.get("keywords"), data.get("file_type")
        found = [
            each
            for each in json.loads(catalog["text"])["documents"]
            if (not words or any(word in each["title"] for word in words)) and kind in (None, each["file_type"])
        ]
        part = found[data["offset"] : data["offset"] + data["limit"]]
        said = {"a2c_as_listed": self.as_listed} if self.as_listed else {}
        return {"documents": part, "total_count": len(found), "req_id": data["req_id"], **said}

    async def _list(self, data: JsonObject) -> Any:
        return self._paged(data, "resources", self.shelf.listed())

    async def _templates(self, data: JsonObject) -> Any:
        return self._paged(data, "resourceTemplates", self.shelf.templates())

    async def _read(self, data: JsonObject) -> Any:
        uri = data["payload"]["params"]["uri"]
        contents = self.shelf.read(uri)
        if contents is None:
            said = {"uri": uri, "smcp_code": "SMCP_RESOURCE_NOT_FOUND"}
            return self._reply(data, error={"code": NOT_FOUND, "message": "Resource not found", "data": said})
        return self._reply(data, result={"contents": contents})

    async def _subscribe(self, data: JsonObject) -> Any:
        if self.refusal is not None:
            return self._reply(data, error=self.refusal)
        self.subscribed.add(data["payload"]["params"]["uri"])
        return self._reply(data, result={})

    async def _unsubscribe(self, data: JsonObject) -> Any:
        self.subscribed.discard(data["payload"]["params"]["uri"])
        return self._reply(data, result={})

    async def _list_prompts(self, data: JsonObject) -> Any:
        return self._paged(data, "prompts", self.prompts)

    async def _get_prompt(self, data: JsonObject) -> Any:
        params = data["payload"]["params"]
        if params["name"] not in [each.get("name") for each in self.prompts]:
            return self._reply(data, error={"code": -32602, "message": "Unknown prompt"})
        text = " ".join([self.name, *params.get("arguments", {}).values()])
        messages = [{"role": "user", "content": {"type": "text", "text": text}}]
        return self._reply(data, result={"messages": messages, "meta": {"from": data.get("serverId")}})

    async def _complete(self, data: JsonObject) -> Any:
        params = data["payload"]["params"]
        if params["ref"]["type"] == "ref/prompt":
            return self._reply(data, result={"completion": {"values": [params["ref"]["name"] + self.name]}})
        chosen = params.get("context", {}).get("arguments", {})
        values = self.shelf.complete(params["argument"]["name"], params["argument"]["value"], chosen)
        return self._reply(data, result={"completion": {"values": values, "total": len(values), "hasMore": False}})

    def _paged(self, data: JsonObject, key: str, items: list[JsonObject]) -> JsonObject:
        start = int(data["payload"].get("params", {}).get("cursor") or 0)
        end = start + self.page_size
        more = {"nextCursor": str(end)} if end < len(items) else {}
        return self._reply(data, result={key: items[start:end], **more})

    def _reply(self, data: JsonObject, **response: Any) -> JsonObject:
        payload = {"jsonrpc": "2.0", "id": data["payload"]["id"], **response}
        return {"roomId": data["roomId"], "computerId": self.name, "serverId": SERVER, "payload": payload}


def computers_at(gateway: FakeGateway, *names: str) -> dict[str, ContextComputer]:
    """Computers that each have the same window; each question goes to the one that it names."""
    made = {name: ContextComputer(name) for name in names}
    for name, computer in made.items():
        computer.shelf.put(WINDOW, {"title": f"Now at {name}"}, [{"uri": WINDOW, "text": name}])
        gateway.computers[name] = []
    for event in next(iter(made.values())).answers:

        async def answer(data: dict[str, Any], event: str = event) -> Any:
            named = data.get("computerId") or data["computer"]
            if named not in made:
                return {"code": 404, "message": f"there is no Computer {named!r}", "details": {}}
            return await made[named].answers[event](data)

        gateway.answers[event] = answer
    return made


def page_documents() -> list[JsonObject]:
    """The documents of finder.txt's examples, as `shelf.document` takes them; they are those of `PAGE_HOST`."""
    text = {"element_id": "txt-001", "category": "text", "summary": "报告引言段落", "content": {"text": "本报告总结…"}}
    heading = {
        "element_id": "h-001", "category": "heading", "summary": "2026 年度总结",
        "content": {"level": 1, "text": "2026 年度总结"},
    }  # fmt: skip
    rows = [["Q1", "1,250", "+12%"], ["Q2", "1,380", "+15%"], ["Q3", "1,420", "+8%"], ["Q4", "1,560", "+18%"]]
    table = {
        "element_id": "tbl-001", "category": "table", "summary": "季度收入对比表(4行3列)",
        "content": {"headers": ["季度", "收入(万元)", "同比增长"], "rows": rows},
        "metadata": {"source_range": "A1:C5", "has_formulas": True},
    }  # fmt: skip
    fillers = [{**text, "element_id": f"txt-{number:03}"} for number in range(2, 17)]
    first = {"title": "概览", "elements": [heading, text, table, *fillers[:5]]}
    pages = [first, {"title": "收入分析", "elements": fillers}]
    pages += [{"title": f"第 {number} 章", "elements": fillers[:number]} for number in range(2, 12)]
    report = {
        "ref": "rpt-2026", "title": "2026 年度报告", "file_uri": "file:///data/reports/2026-annual.xlsx",
        "keywords": ["财务", "年报"], "summary": "2026 年度财务与运营报告", "pages": pages,
        "last_modified": "2026-03-15T08:30:00Z",
    }  # fmt: skip
    contract = {
        "ref": "contract-a1", "title": "A1 合同", "file_uri": "file:///data/contracts/a1.pdf", "file_type": "pdf",
        "keywords": ["合同"], "summary": "A1 项目服务合同", "pages": [first] * 5,
        "last_modified": "2026-02-01T14:00:00Z",
    }  # fmt: skip
    return [report, contract]


def page_shelf() -> Shelf:
    """A shelf with the documents of finder.txt's examples."""
    shelf = Shelf(PAGE_HOST)
    for each in page_documents():
        shelf.put_document(document(**each))
    return shelf


def agent_beside(computer: ContextComputer, gateway: FakeGateway) -> SmcpAgent:
    """An Agent in whose office that Computer is."""
    computer.enter(gateway)
    return SmcpAgent(gateway.url, office=computer.office, name="bot")


def watched(agent: SmcpAgent) -> list[Event]:
    """What happens to the agent from now on."""
    events: list[Event] = []
    agent.on_event(events.append)
    return events


async def quiet(agent: SmcpAgent, computer: ContextComputer) -> None:
    """Everything that is to be said because of what happened has been said: a request after it was answered."""
    for _ in range(3):
        await agent.get_desktop(computer.name)
