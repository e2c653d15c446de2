"""Inputs of hostile guests, random changes of good ones. The same seed gives the same inputs."""

import json
from random import Random
from typing import Any, Final

from smcp_testing.event_payloads import GOOD

TEXTS: Final = (
    "",
    "x" * 129,
    "x" * 600,
    "x" * 70_000,
    "\x00",
    "a\nb",
    "\ud800",
    "\u202e\u2028",
    "*",
    ">",
    "../..",
    "$(id)",
    "{{7*7}}",
    "client:tool_call",
    "notify:enter_office",
    "__proto__",
    "null",
    "1e400",
    "\x1b]0;x\x07",
)
VALUES: Final[tuple[Any, ...]] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    3601,
    10**30,
    -(2**63) - 1,
    0.5,
    [],
    {},
    [[]],
    {"": None},
    *TEXTS,
)
PIECES: Final = (
    b'"',
    b"\\",
    b"\\ud800",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\x00",
    b"\xff\xfe",
    b"\xf0\x9f",
    b"1e999",
    b"9" * 400,
    b"NaN",
    b"[" * 300,
    b'{"a":' * 300,
    b"\r\n",
    b"\r\n\r\n",
    b" " * 2000,
    b"[]," * 3000,
)
PATHS: Final = (
    "/",
    "/socket.io/",
    "/socket.io/?EIO=4",
    "/socket.io/?EIO=4&transport=polling",
    "/livez",
    "/readyz",
    "/metrics",
    "/statz",
    "/socket.io/?EIO=4&transport=websocket",
    "/socket.io/?EIO=3&transport=polling",
    "/%2e%2e/",
    "//",
    "/socket.io/?sid=x",
    "/mcp/third",
    "/mcp/third?tools=search&max_chars=-1",
    "/mcp/%ff",
    "/mcp",
    "/.well-known/oauth-protected-resource/mcp/third",
)
HEADERS: Final = (
    "Content-Encoding: gzip",
    "Content-Encoding: deflate",
    "Transfer-Encoding: chunked",
    "Content-Length: 5",
    "Content-Length: -1",
    "Content-Length: 99999999999",
    "Host: evil.example",
    "Origin: http://evil.example",
    "Authorization: Bearer x",
    "Upgrade: websocket",
    "Authorization: Bearer smcp_000000000000_x",
    "Connection: Upgrade",
    "Sec-WebSocket-Version: 13",
    "X-Forwarded-For: 1.2.3.4",
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    "Expect: 100-continue",
    "traceparent: 00-" + "0" * 600,
    "Cookie: a=b",
    "Mcp-Session-Id: x",
    "MCP-Protocol-Version: 2026-07-28",
    "Accept: application/json, text/event-stream",
)
BUS_HEADERS: Final = ("Smcp-Error", "Smcp-Not-Run", "Smcp-Size", "Smcp-Chunks", "Smcp-Progress", "Smcp-Epoch", "x")
BUS_VALUES: Final = ("", "0", "1", "2", "-1", "404", "99999999999999999999", "moving", "a,b", "{}", "x" * 600)
_META: Final = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
    "progressToken": 1,
}
MCP_REQUESTS: Final[dict[str, dict[str, Any]]] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
    "server/discover": {},
    "ping": {},
    "tools/list": {"cursor": "c"},
    "tools/call": {"name": "add", "arguments": {"a": 1, "b": 2}},
    "resources/list": {},
    "resources/templates/list": {},
    "resources/read": {"uri": "file:///notes.txt"},
    "resources/subscribe": {"uri": "file:///notes.txt"},
    "resources/unsubscribe": {"uri": "file:///notes.txt"},
    "subscriptions/listen": {"notifications": {"toolsListChanged": True, "resourceSubscriptions": ["file:///a"]}},
    "prompts/list": {},
    "prompts/get": {"name": "greet", "arguments": {"who": "a"}},
    "completion/complete": {
        "ref": {"type": "ref/resource", "uri": "file:///{path}"},
        "argument": {"name": "path", "value": "n"},
    },
    "logging/setLevel": {"level": "debug"},
    "notifications/initialized": {},
    "notifications/cancelled": {"requestId": 1, "reason": "a"},
    "notifications/progress": {"progressToken": 1, "progress": 1},
}
"""Good parameters of each request and notification of an MCP client, of both eras."""
_TOOL: Final = {
    "name": "t",
    "title": "T",
    "description": "d",
    "inputSchema": {"type": "object", "properties": {"a": {"type": "string", "default": "b"}}, "required": ["a"]},
    "outputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": True, "title": "T"},
    "icons": [{"src": "data:image/png;base64,AAAA", "mimeType": "image/png", "sizes": ["1x1"]}],
    "_meta": {"a2c_tags": ["a"]},
}
_ABOUT: Final = {"mimeType": "text/plain", "annotations": {"priority": 1, "audience": ["user"]}, "size": 1}
_MESSAGE: Final = {"role": "user", "content": {"type": "text", "text": "a"}}
MCP_RESULTS: Final[dict[str, dict[str, Any]]] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {"listChanged": True}, "resources": {"subscribe": True}, "prompts": {}},
        "serverInfo": {"name": "s", "version": "1", "title": "S"},
        "instructions": "a",
    },
    "tools/list": {"tools": [_TOOL, {**_TOOL, "name": "u"}], "nextCursor": "c"},
    "resources/list": {
        "resources": [
            {"uri": "window://h/a?priority=1", "name": "a", **_ABOUT},
            {"uri": "dpe://h/d", "name": "d", "description": "d", **_ABOUT},
            {"uri": "file:///notes.txt", "name": "n", "title": "N", **_ABOUT},
        ]
    },
    "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "file:///{path}", "name": "f", **_ABOUT}]},
    "resources/read": {
        "contents": [
            {"uri": "file:///notes.txt", "mimeType": "text/plain", "text": "a"},
            {"uri": "file:///notes.png", "mimeType": "image/png", "blob": "AAAA", "_meta": {}},
        ]
    },
    "resources/subscribe": {},
    "resources/unsubscribe": {},
    "prompts/list": {"prompts": [{"name": "greet", "title": "G", "arguments": [{"name": "who", "required": True}]}]},
    "prompts/get": {"description": "d", "messages": [_MESSAGE]},
    "completion/complete": {"completion": {"values": ["a"], "total": 1, "hasMore": False}},
}
"""A good result of each request that a Computer sends to an MCP server, except `tools/call`."""
_LISTED: Final = {
    "name": "t",
    "description": "d",
    "params_schema": _TOOL["inputSchema"],
    "return_schema": _TOOL["outputSchema"],
    "meta": {"a2c_tool_meta": '{"tags":["a"]}', "MCP_TOOL_ANNOTATION": '{"readOnlyHint":true}', "a": ["b"]},
}
OWN_ERROR: Final = "a hostile Computer says"
"""The message of its errors, unless it is changed."""
ACCEPTED: Final = "application/json, text/event-stream"
MCP_HEADERS: Final = {
    "MCP-Protocol-Version": ("2026-07-28", "2025-11-25", "2025-06-18", "1", "x" * 600),
    "Mcp-Method": ("tools/call", "tools/list", "x", "", "x" * 600),
    "Mcp-Name": ("add", "=?base64?YWRk?=", "=?base64?x", "", "x" * 600),
    "Mcp-Session-Id": ("x", "", "0" * 32),
    "Accept": ("text/event-stream", "application/json, text/event-stream", "*/*", "x"),
    "Content-Type": ("application/json", "text/plain", "application/json; charset=utf-7", "x"),
    "Last-Event-ID": ("1", "x" * 600),
    "traceparent": ("00-" + "0" * 32 + "-" + "0" * 16 + "-01", "x" * 600),
}
KINDS: Final = ("0", "1", "2", "3", "4", "5", "6")


class Mutator:
    """Makes inputs of each kind."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def value(self, depth: int = 2) -> Any:
        chance = self.random.random()
        if depth and chance < 0.1:
            return [self.value(depth - 1) for _ in range(self.random.randrange(4))]
        if depth and chance < 0.2:
            return {
                str(self.random.choice(TEXTS))[:600]: self.value(depth - 1) for _ in range(self.random.randrange(4))
            }
        return self.random.choice(VALUES)

    def changed(self, good: Any) -> Any:
        """The value with some fields missing, of another type, or added, at any depth."""
        if isinstance(good, list) and self.random.random() > 0.1:
            return [self.changed(inner) for inner in good]
        if not isinstance(good, dict):
            return self.value() if self.random.random() < 0.3 else good
        chosen = {name: self.changed(inner) for name, inner in good.items() if self.random.random() > 0.1}
        if self.random.random() < 0.2:
            chosen[self.random.choice([*GOOD["client:tool_call"], "office_id", "traceparent", *TEXTS[:3]])] = (
                self.value()
            )
        return chosen

    def text(self, good: Any) -> bytes:
        """JSON of the value as changed, or broken JSON."""
        return self._written(self.changed(good))

    def _written(self, value: Any) -> bytes:
        text = json.dumps(value, ensure_ascii=True).encode()
        return self.spoilt(text) if self.random.random() < 0.3 else text

    def spoilt(self, text: bytes) -> bytes:
        """The text cut, with a piece put in, or with a part of it twice."""
        at = self.random.randrange(len(text) + 1)
        match self.random.randrange(3):
            case 0:
                return text[:at]
            case 1:
                return text[:at] + self.random.choice(PIECES) + text[at:]
            case _:
                return text[:at] + text[max(0, at - 20) :]

    def event(self) -> str:
        return self.random.choice([*GOOD, "client:other", "server:update_other", "notify:update_other", "client:", "x"])

    def packet(self) -> str:
        """A packet of Socket.IO over a WebSocket, or almost one."""
        kind = f"4{self.random.choice(KINDS)}{self.random.choice(['/smcp,', '', '/other,'])}"
        number = self.random.choice(["", "1", "99999999999999999999", "-1"])
        event = self.event()
        body = self.text([event, GOOD.get(event, {})])
        packet = kind.encode() + number.encode() + body
        return (self.spoilt(packet) if self.random.random() < 0.3 else packet).decode("utf-8", "replace")

    def headers(self) -> dict[str, str]:
        """Those of an answer on the bus: often none."""
        if self.random.random() < 0.4:
            return {}
        chosen = self.random.sample(BUS_HEADERS, self.random.randrange(1, 4))
        return {name: self.random.choice(BUS_VALUES) for name in chosen}

    def http(self) -> bytes:
        """A request of HTTP, or almost one."""
        method = self.random.choice([*["GET", "POST"] * 3, "PUT", "OPTIONS", "HEAD", "PRI", "get", "\x00"])
        headers = "\r\n".join(self.random.sample(HEADERS, self.random.randrange(6)))
        head = f"{method} {self.random.choice(PATHS)} HTTP/{self.random.choice([*['1.1'] * 8, '1.0', '2.0', '9'])}\r\n"
        body = self.text(GOOD["server:join_office"]) if self.random.random() < 0.5 else b""
        host = "" if "Host: " in headers or self.random.random() < 0.1 else "Host: 127.0.0.1\r\n"
        request = f"{head}{host}Connection: close\r\n{headers}\r\n\r\n".encode() + body
        return self.spoilt(request) if self.random.random() < 0.3 else request

    def mcp_request(self, session: str) -> tuple[str, bytes, dict[str, str]]:
        """The HTTP method, body and headers of an MCP client's request or notification."""
        method = self.random.choice([*MCP_REQUESTS, "x"])
        params = MCP_REQUESTS.get(method, {})
        headers = {"Accept": ACCEPTED, "Content-Type": "application/json"}
        if self.random.random() < 0.5:  # of the era of 2026
            params = {**params, "_meta": _META}
            headers |= {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method}
            if name := params.get("name") or params.get("uri"):
                headers["Mcp-Name"] = name
        elif self.random.random() < 0.8:
            headers["Mcp-Session-Id"] = session
        if self.random.random() < 0.3:
            changed = self.random.choice([*MCP_HEADERS])
            headers[changed] = self.random.choice(MCP_HEADERS[changed])
        good: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
        number = self.random.getrandbits(32)
        if not method.startswith("notifications/"):
            good["id"] = number
        said = self.changed(good)
        if type(said.get("id")) in (int, str):  # of requests of one session at a time no two have the same
            said["id"] = number
        return self.random.choice(["POST"] * 9 + ["GET"]), self._written(said), headers

    def tool_result(self) -> str:
        """What the tool `say` of `smcp_testing.mcp_servers.raw` answers a call with."""
        content = [{"type": "text", "text": "a"}, {"type": "image", "data": "AAAA", "mimeType": "image/png"}]
        more = {"structuredContent": {"a": 1}, "_meta": {"b": 1}, "meta": {"c": 1}}
        return self._mcp_answer({"content": content, "isError": False, **more})

    def mcp_result(self, method: str) -> str:
        """What `smcp_testing.mcp_servers.scripted` answers a request of that method with."""
        return self._mcp_answer(MCP_RESULTS[method])

    def computer_answer(self, event: str, asked: dict[str, Any], result: dict[str, Any]) -> bytes:
        """What a Computer acknowledges an Agent's request with. `result`: a good one of `client:tool_call`."""
        if (method := event.removeprefix("client:")) in MCP_RESULTS:
            error = self.changed({"code": -32002, "message": OWN_ERROR, "data": {"a": 1}})
            ends = {"error": error} if self.random.random() < 0.1 else {"result": self.changed(MCP_RESULTS[method])}
            result = {"roomId": asked["roomId"], "computerId": asked["computerId"], "serverId": None}
            result["payload"] = {"jsonrpc": "2.0", "id": asked["payload"]["id"], **ends}
        elif event == "client:get_tools":
            result = {"tools": [_LISTED, self.changed({**_LISTED, "name": "u"})], "req_id": asked["req_id"]}
        elif event == "client:tool_call":
            result = self.changed(result)
        if self.random.random() < 0.1:
            result = self.changed({"code": 404, "message": OWN_ERROR, "details": {"a": 1}})
        changed = self.random.random() < 0.3
        return b"[" + (self.text(result) if changed else json.dumps(result).encode()) + b"]"

    def _mcp_answer(self, result: dict[str, Any]) -> str:
        text = self.text({"jsonrpc": "2.0", "id": "$ID", "result": result}).replace(b'"$ID"', b"$ID")
        return text.replace(b"\n", b" ").decode("utf-8", "replace")


class Unchanged(Mutator):
    """Makes good inputs, which warm a process up."""

    def changed(self, good: Any) -> Any:
        return good

    def spoilt(self, text: bytes) -> bytes:
        return text
