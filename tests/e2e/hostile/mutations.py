"""Inputs of hostile guests, made by chance from good ones. The same seed gives the same inputs."""

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
)
BUS_HEADERS: Final = ("Smcp-Error", "Smcp-Not-Run", "Smcp-Size", "Smcp-Chunks", "Smcp-Progress", "Smcp-Epoch", "x")
BUS_VALUES: Final = ("", "0", "1", "2", "-1", "404", "99999999999999999999", "moving", "a,b", "{}", "x" * 600)
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
        """The value with some fields missing, of another kind, or beside others, at any depth."""
        if not isinstance(good, dict):
            return self.value() if self.random.random() < 0.3 else good
        chosen = {name: self.changed(inner) for name, inner in good.items() if self.random.random() > 0.1}
        if self.random.random() < 0.2:
            chosen[self.random.choice([*GOOD["client:tool_call"], "office_id", "traceparent", *TEXTS[:3]])] = (
                self.value()
            )
        return chosen

    def text(self, good: Any) -> bytes:
        """JSON of almost the good value, or almost JSON."""
        text = json.dumps(self.changed(good), ensure_ascii=True).encode()
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
        """Those of an answer on the bus: mostly none."""
        if self.random.random() < 0.4:
            return {}
        chosen = self.random.sample(BUS_HEADERS, self.random.randrange(1, 4))
        return {name: self.random.choice(BUS_VALUES) for name in chosen}

    def http(self) -> bytes:
        """A request of HTTP, or almost one."""
        method = self.random.choice(["GET", "POST", "PUT", "OPTIONS", "HEAD", "PRI", "get", "\x00"])
        headers = "\r\n".join(self.random.sample(HEADERS, self.random.randrange(6)))
        head = f"{method} {self.random.choice(PATHS)} HTTP/{self.random.choice(['1.1', '1.1', '1.0', '2.0', '9'])}\r\n"
        body = self.text(GOOD["server:join_office"]) if self.random.random() < 0.5 else b""
        request = f"{head}Connection: close\r\n{headers}\r\n\r\n".encode() + body
        return self.spoilt(request) if self.random.random() < 0.4 else request

    def mcp_answer(self) -> str:
        """What the tool `say` of `smcp_testing.mcp_servers.raw` answers a call with."""
        content = [{"type": "text", "text": "a"}, {"type": "image", "data": "AAAA", "mimeType": "image/png"}]
        good = {
            "jsonrpc": "2.0",
            "id": "$ID",
            "result": {"content": content, "isError": False, "structuredContent": {"a": 1}},
        }
        text = self.text(good).replace(b'"$ID"', b"$ID")
        return text.replace(b"\n", b" ").decode("utf-8", "replace")
