"""A gateway's Socket.IO server as the Agent SDK sees it, scripted by the test: one office, no bus behind it.

It stands beside the tests against the real gateway and shows what that one cannot be made to do on purpose.
"""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import socketio
from aiohttp import web

from smcp_agent import SmcpAgent
from smcp_testing.ports import Ports

NAMESPACE = "/smcp"
PING_S = 0.2
"""Short, because python-engineio's ping task outlives its socket by one interval."""

Json = dict[str, Any]
Answer = Callable[[Json], Awaitable[Any]]


class FakeGateway:
    """Every event gets the ack that the attributes say; `received` keeps what came, in order."""

    def __init__(
        self,
        *,
        max_bytes: int = 64 * 1024 * 1024,
        ping_timeout: float = 20,
    ) -> None:
        self.computers: dict[str, list[Json]] = {}
        self.refusal: str | None = None
        """Why joins are refused, with these details."""
        self.details: Json = {}
        self.ready = True
        """What `/readyz` says."""
        self.readiness_asked = 0
        self.connect_error: Json | None = None
        self.received: list[tuple[str, Json]] = []
        self.auths: list[Any] = []
        self.answers: dict[str, Answer] = {}
        """By event: an answer of the test's own."""
        self.port = Ports().take()
        self._max_bytes = max_bytes
        self._ping_timeout = ping_timeout
        self._stopped = asyncio.Event()
        self._requests: dict[str, web.Request] = {}
        self._runner: web.AppRunner | None = None
        self._sio: Any = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def sessions(self) -> list[str]:
        return list(self._requests)

    def seen(self, event: str) -> list[Json]:
        """The data of all such events so far."""
        return [data for name, data in self.received if name == event]

    async def start(self) -> None:
        """Listen, on the same port each time."""
        self._stopped.clear()
        self._sio = socketio.AsyncServer(  # type: ignore[no-untyped-call]
            async_mode="aiohttp",
            namespaces=[NAMESPACE],
            monitor_clients=False,
            max_http_buffer_size=self._max_bytes,
            ping_interval=PING_S,
            ping_timeout=self._ping_timeout,
        )
        self._sio.on("connect", self._on_connect, namespace=NAMESPACE)
        self._sio.on("disconnect", self._on_disconnect, namespace=NAMESPACE)
        self._sio.on("*", self._on_event, namespace=NAMESPACE)
        app = web.Application()
        app.router.add_get("/readyz", self._readyz)
        self._sio.attach(app)
        self._runner = web.AppRunner(app, shutdown_timeout=1, handle_signals=False)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()

    async def stop(self) -> None:
        """Die: cut all sockets, listen no more."""
        self._stopped.set()
        self.cut()
        assert self._runner is not None
        await self._runner.cleanup()
        await self._sio.shutdown()
        self._requests.clear()

    def cut(self) -> None:
        """Break all connections without a word."""
        for request in self._requests.values():
            if request.transport is not None:
                request.transport.abort()

    async def send_away(self) -> None:
        """Tell all clients to go, as a gateway that drains does: by closing the engine.io connection."""
        for sid in self.sessions:
            await self._sio.eio.disconnect(self._sio.manager.eio_sid_from_sid(sid, NAMESPACE))

    def close_sockets(self, code: int) -> None:
        """Close all WebSockets with that code."""
        for request in self._requests.values():
            assert request.transport is not None
            request.transport.write(struct.pack("!BBH", 0x88, 2, code))  # RFC 6455, 5.5.1

    async def notify(self, event: str, **data: Any) -> None:
        await self._sio.emit(event, data, namespace=NAMESPACE)

    async def enter(self, computer: str, tools: list[Json]) -> None:
        self.computers[computer] = tools
        await self.notify("notify:enter_office", office_id="office", computer=computer)

    async def leave(self, computer: str) -> None:
        del self.computers[computer]
        await self.notify("notify:leave_office", office_id="office", computer=computer)

    async def never(self, data: Json) -> Any:
        """An answer that does not come."""
        await self._stopped.wait()

    async def _readyz(self, _: web.Request) -> web.Response:
        self.readiness_asked += 1
        return web.Response(status=200 if self.ready else 503)

    async def _on_connect(self, sid: str, environ: dict[str, Any], auth: Any) -> None:
        if self.connect_error is not None:
            raise socketio.exceptions.ConnectionRefusedError(  # type: ignore[no-untyped-call]
                self.connect_error["message"], self.connect_error
            )
        self.auths.append(auth)
        self._requests[sid] = environ["aiohttp.request"]

    async def _on_disconnect(self, sid: str, reason: str) -> None:
        self._requests.pop(sid, None)

    async def _on_event(self, event: str, sid: str, data: Json) -> Any:
        self.received.append((event, data))
        if event in self.answers:
            return await self.answers[event](data)
        match event:
            case "server:join_office":
                return [True, None] if self.refusal is None else [False, self.refusal, self.details]
            case "server:leave_office":
                return [True, None]
            case "server:list_room":
                sessions = [{"sid": name, "name": name, "role": "computer"} for name in self.computers]
                sessions.append({"sid": sid, "name": data["agent"], "role": "agent"})
                return {"sessions": sessions, "req_id": data["req_id"]}
            case "client:get_tools":
                if data["computer"] not in self.computers:
                    return {"code": 404, "message": "no such Computer", "details": {}}
                return {"tools": self.computers[data["computer"]], "req_id": data["req_id"]}
            case "client:get_config":
                return {"inputs": None, "servers": {}}
            case "client:tool_call":
                return {"content": [{"type": "text", "text": data["tool_name"]}], "isError": False}
            case _:
                return None


def agent_at(gateway: FakeGateway, **options: Any) -> SmcpAgent:
    """An Agent of the office, not open yet."""
    return SmcpAgent(gateway.url, office="office", name="bot", **options)


def tool(name: str, description: str = "", **schema: Any) -> Json:
    """A tool as a Computer lists it."""
    return {"name": name, "description": description, "params_schema": schema, "return_schema": None, "meta": {}}


def answered_the_second_time(gateway: FakeGateway) -> None:
    """A tool's first call is not answered; every other one is, with `done`."""

    async def answer(data: Json) -> Any:
        if len(gateway.seen("client:tool_call")) == 1:
            await gateway.never(data)
        return {"content": [{"type": "text", "text": "done"}]}

    gateway.answers["client:tool_call"] = answer


@asynccontextmanager
async def fake_gateway(**options: Any) -> AsyncIterator[FakeGateway]:
    gateway = FakeGateway(**options)
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.stop()
