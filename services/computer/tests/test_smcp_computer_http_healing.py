"""Servers over HTTP that forget sessions, refuse requests, and are away for a while."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from smcp_computer.mcp.errors import RequestRefused, ServerNotRunning
from smcp_computer.mcp.events import State
from smcp_computer.mcp.server_log import HANGS
from smcp_computer.mcp.transports import Limits
from smcp_testing.mcp_servers import configs
from smcp_testing.ports import Ports
from smcp_testing.supervised import call, running, text
from smcp_testing.waiting import eventually

LIMITS = Limits(silence_s=3.0, wait_s=0.0)


class Server:
    """One of MCP 2025 with the tool `echo`.

    Attributes:
        status: of HTTP, what each request gets; 0: an answer.
        sessions: those that it knows.
        goes_on: cleared while it hangs.
    """

    def __init__(self) -> None:
        self.status = 0
        self.sessions: set[str] = set()
        self.opened = 0
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self._port = Ports().take()
        self.url = f"http://127.0.0.1:{self._port}/mcp?token=canary"

    async def _post(self, request: web.Request) -> web.Response:
        await self.goes_on.wait()
        if self.status:
            return web.Response(status=self.status)
        message = await request.json()
        method, session = message["method"], request.headers.get("mcp-session-id", "")
        if method == "initialize":
            self.opened += 1
            session = f"s{self.opened}"
            self.sessions.add(session)
        elif "id" in message and method != "server/discover" and session not in self.sessions:
            return web.Response(status=404)
        if "id" not in message:
            return web.Response(status=202)
        answers: dict[str, Any] = {
            "initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "web", "version": "1"},
            },
            "ping": {},
            "tools/list": {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]},
            "tools/call": {"content": [{"type": "text", "text": session}]},
        }
        body = {"jsonrpc": "2.0", "id": message["id"]}
        if method in answers:
            return web.json_response({**body, "result": answers[method]}, headers={"mcp-session-id": session})
        return web.json_response({**body, "error": {"code": -32601, "message": "Method not found"}})

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_post("/mcp", self._post)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", self._port, reuse_address=True).start()
            yield
        finally:
            await runner.cleanup()


def server() -> tuple[Server, dict[str, Any]]:
    made = Server()
    return made, configs.http("streamable", made.url)


async def test_a_forgotten_session_is_opened_again_without_a_call() -> None:
    made, config = server()
    async with made.serving(), running(limits=LIMITS, web=config) as servers:
        assert text(await call(servers["web"], "echo")) == "s1"
        made.sessions.clear()
        await eventually(lambda: servers["web"].ready and servers["web"].starts == 2)
        assert text(await call(servers["web"], "echo")) == "s2"


@pytest.mark.parametrize(("status", "reason"), [(401, "answered 401 Unauthorized"), (503, "answered 503 Service Un")])
async def test_a_server_that_refuses_is_tried_until_it_does_not(
    status: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="smcp_computer")
    made, config = server()
    async with made.serving(), running(limits=LIMITS, web=config) as servers:
        box = servers["web"]
        made.status = status
        with pytest.raises(RequestRefused):
            await call(box, "echo")
        await eventually(lambda: box.state is State.BACKOFF and box.reason.startswith(reason))
        with pytest.raises(ServerNotRunning, match=reason):
            await call(box, "echo")
        made.status = 0
        await eventually(lambda: box.ready)
        assert text(await call(box, "echo")) == f"s{made.opened}"
    assert not [record for record in caplog.records if "canary" in record.getMessage()]


async def test_a_server_that_hangs_is_found_as_soon_when_it_is_to_be_asked_for_its_tools(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("smcp_computer.mcp.supervisor.POLL_S", 0.0)  # each time that it is asked whether it is there
    made, config = server()
    async with made.serving(), running(limits=LIMITS, web=config) as servers:
        made.goes_on.clear()
        await eventually(lambda: servers["web"].reason == HANGS, timeout=15)
        made.goes_on.set()
        await eventually(lambda: servers["web"].ready and servers["web"].starts == 2)


async def test_a_server_that_is_away_for_a_while_is_connected_to_again(caplog: pytest.LogCaptureFixture) -> None:
    made, config = server()
    async with running(limits=LIMITS, ready=(), web=config) as servers:
        box = servers["web"]
        assert (box.reason, box.starts) == ("cannot be reached", 0)
        assert "MCP server 'web': cannot be reached (All connection attempts failed)" in caplog.text
        for starts in (1, 2):
            async with made.serving():
                await eventually(lambda: box.ready and box.starts == starts, timeout=30)  # noqa: B023 -- at once
            await eventually(lambda: box.state is State.BACKOFF and box.reason == "cannot be reached")


async def test_a_call_waits_until_its_server_is_back() -> None:
    made, config = server()
    async with running(limits=Limits(silence_s=3.0, wait_s=30.0), ready=(), web=config) as servers:
        async with made.serving():
            await eventually(lambda: servers["web"].ready)
        await eventually(lambda: not servers["web"].ready)
        waiting = asyncio.create_task(call(servers["web"], "echo", timeout=30))
        async with made.serving():
            assert text(await waiting) == f"s{made.opened}"
