"""Requests to servers behind Streamable HTTP: their headers, the proxy of the environment, the forms of answers."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from smcp_computer.config.file import parse_config
from smcp_computer.mcp.session import Connection, connect
from smcp_testing.mcp_servers import configs

RESULTS: dict[str, Any] = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "s", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]},
    "tools/call": {"content": [{"type": "text", "text": "done"}]},
}


class Server(asyncio.Protocol):
    """Answers in JSON (`plain`), compressed (`gzip`), or by a stream of events that ends with the answer (`events`), or
    goes on after it (`endless`); or calls are at another URL (`moved`)."""

    def __init__(self, asked: dict[str, str], form: str) -> None:
        self._asked = asked
        self._form = form

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        head, _, body = data.partition(b"\r\n\r\n")
        message = json.loads(body) if body else {}
        method = message.get("method", head.split()[0].decode())
        self._asked[method] = head.decode()
        if self._form == "moved" and method == "tools/call" and not head.startswith(b"POST /mcp/call "):
            self._transport.write(b"HTTP/1.1 307 Moved\r\nlocation: /mcp/call\r\ncontent-length: 0\r\n\r\n")
            return
        if "id" not in message:
            self._transport.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
            return
        answer = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": RESULTS[method]}).encode()
        kind = "application/json"
        if self._form == "gzip":
            answer, kind = gzip.compress(answer), f"{kind}\r\ncontent-encoding: gzip"
        elif self._form != "plain":
            note = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}'
            begun = b"event: message\r\ndata: " + note + b"\r\n\r\n" if method == "tools/list" else b": ping\n\n"
            answer, kind = begun + b"data:" + answer + b"\r\n\r\n: end\n\n", "text/event-stream"
        size = len(answer) + (1000 if self._form == "endless" else 0)
        self._transport.write(
            f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nmcp-session-id: 7\r\ncontent-length: {size}\r\n\r\n".encode()
            + answer
        )


@asynccontextmanager
async def serving(form: str) -> AsyncIterator[tuple[str, dict[str, str]]]:
    """The server's host and port, and the head of the last request of each method."""
    asked: dict[str, str] = {}
    listener = await asyncio.get_running_loop().create_server(lambda: Server(asked, form), "127.0.0.1", 0)
    yield f"127.0.0.1:{listener.sockets[0].getsockname()[1]}", asked
    listener.close()


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    given = json.dumps({"web": configs.http("streamable", url, headers={"X-Team": "blue"})})
    server = parse_config(given).servers["web"]
    async with connect(server, negotiation="legacy", max_message=2**20, notify=lambda event: None) as connection:
        assert await connection.list_tools()
        yield connection


@pytest.mark.parametrize("form", ["plain", "gzip", "events", "endless", "moved"])
async def test_a_call_has_the_headers_of_its_session_once_and_its_answer_is_read_in_each_form(form: str) -> None:
    async with serving(form) as (host, asked), connected(f"http://me:secret@{host}/mcp") as connection:
        for _ in range(3):
            assert await connection.call("t", {}, timeout=30) == RESULTS["tools/call"]
        first, *headers = asked["tools/call"].splitlines()
    assert first == ("POST /mcp/call HTTP/1.1" if form == "moved" else "POST /mcp HTTP/1.1")
    names = [each.split(":")[0].lower() for each in headers]
    assert len(names) == len(set(names))
    assert set(names) >= {each.split(":")[0].lower() for each in asked["tools/list"].splitlines()[1:]}
    found = {each.split(": ")[0].lower(): each.split(": ")[1] for each in headers}
    assert found["x-team"] == "blue"
    assert found["mcp-session-id"] == "7"
    assert found["authorization"].startswith("Basic ")
    assert found["accept"] == "application/json, text/event-stream"


async def test_a_server_is_called_through_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving("plain") as (proxy, asked):
        monkeypatch.setenv("HTTP_PROXY", f"http://{proxy}")
        async with connected("http://mcp.invalid/mcp") as connection:
            assert await connection.call("t", {}, timeout=30) == RESULTS["tools/call"]
        assert asked["tools/call"].startswith("POST http://mcp.invalid/mcp ")
