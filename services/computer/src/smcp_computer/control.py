"""What the user of this host can ask a running Computer for: HTTP with JSON over a Unix socket in its state directory.

Only this user can open the socket. `control_commands` is the other end. Agents never come here: what they may know is
in the handlers.
"""

import asyncio
import fcntl
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Final
from uuid import uuid4

import orjson
from aiohttp import web

from smcp_bus import exact_json
from smcp_bus.callers import Caller
from smcp_computer.computer import Computer
from smcp_computer.config.secret_store import SecretsError
from smcp_computer.mcp.events import State
from smcp_computer.pins import entry_of
from smcp_computer.settings import SOCKET, ComputerSettings, state_path
from smcp_proto import tool_results
from smcp_proto.catalog import CATALOG
from smcp_proto.errors import Malformed
from smcp_proto.printable import did_you_mean
from smcp_proto.schemas.base import AgentCallData
from smcp_service.http_server import SHUTDOWN_S
from smcp_service.settings import SettingsError

_log = logging.getLogger("smcp_computer.control")

LOCAL: Final = "user of this host"
"""The name of whoever calls by the socket, in the log and in questions."""
SETTLE_S: Final = 10.0
"""How long a command waits for the server that it starts: its user wants to see whether it works."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def open_control(settings: ComputerSettings, computer: Computer | None = None) -> AsyncIterator["Control"]:
    """Answer on the socket while the body runs, for a Computer that may be opened, and set, in it: so it also answers
    while that stops. Where another process has the socket, this one has none, and says so."""
    control = Control(settings, computer)
    directory = state_path(settings)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (directory / "lock").open("w")
    except OSError as error:
        why = error.strerror
        raise SettingsError(f"SMCP_STATE_DIR: {directory} cannot be made or written to: {why}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it ends with the process, however that ends
        except OSError:
            other = "--name" if settings.state_dir is None else "SMCP_STATE_DIR"
            what = "another process has the control socket in %s: commands talk to that one; give this one another %s"
            _log.warning(what, directory, other)
            yield control
            return
        path = directory / SOCKET
        path.unlink(missing_ok=True)  # of a process that was killed
        app = web.Application(client_max_size=settings.max_payload, middlewares=[control.check])
        app.add_routes(control.routes())
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S, handler_cancellation=True)
        await runner.setup()
        try:
            try:
                await web.UnixSite(runner, str(path)).start()
                path.chmod(0o600)  # before that, the directory's mode has to do
            except OSError as error:  # a path may be too long for a socket
                what = "commands cannot reach this Computer: the control socket %s cannot be made: %s"
                _log.warning(what, path, error)
            yield control
        finally:
            await runner.cleanup()
            path.unlink(missing_ok=True)


@dataclass(eq=False)
class Control:
    """The answers."""

    _settings: ComputerSettings
    computer: Computer | None

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/status", self._status),
            web.get("/tools", self._tools),
            web.post("/call", self._call),  # {tool_name, params, timeout}
            web.get("/history", self._history),
            web.get("/pins", self._pins),
            web.get("/inputs", self._inputs),
            web.post("/servers/{name}/reload", self._reload),
            web.post("/servers/{name}/restart", self._restart),
        ]

    @property
    def _computer(self) -> Computer:
        assert self.computer is not None  # `check`
        return self.computer

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse what cannot be done before the Computer is there, and what begins anything while it stops. Every error
        is `{"error": text}`."""
        try:
            if self.computer is None:
                raise web.HTTPServiceUnavailable(text="the Computer is starting")
            if self.computer.readiness.draining and request.method != "GET":
                raise web.HTTPServiceUnavailable(text="the Computer is stopping")
            return await handler(request)
        except Malformed as error:
            return _json({"error": error.message}, error.code)
        except web.HTTPException as error:
            return _json({"error": error.text}, error.status)

    async def _status(self, request: web.Request) -> web.Response:
        recent, tools = self._computer.calls.recent(), self._computer.catalogue.counts
        ready, checks = self._computer.readiness.report()
        said = {
            "office": self._settings.office,
            "name": self._settings.name,
            "pid": os.getpid(),
            "ready": ready,
            "stopping": self._computer.readiness.draining,
            "problems": {name: why for name, why in checks.items() if why != "ok"},
            "config": str(self._settings.config.absolute()),
            "config_problem": self._computer.config_problem,
            "calls": self._computer.owner.running,
            "servers": [
                {
                    **asdict(each),
                    "warnings": [*each.warnings, *self._computer.pins.warnings(each.name)],
                    "tools": tools[each.name],
                    "calls": sum(call["outcome"] in ("running", "asking") for call in recent.get(each.name, ())),
                }
                for each in self._computer.fleet.statuses()
            ],
        }
        return _json(said)

    async def _tools(self, request: web.Request) -> web.Response:
        catalogue = self._computer.catalogue
        found = []
        for tool in catalogue.listing:
            target = catalogue.find(tool.name)
            assert target is not None  # it is listed
            found.append({"server": target.ref.server, **tool.model_dump(exclude_unset=True)})
        return _json({"tools": found})

    async def _call(self, request: web.Request) -> web.Response:
        """Through all that an Agent's call goes through, approval too. A client that goes away cancels it."""
        req_id = uuid4().hex
        said = exact_json.read_object(await request.read())
        asked = {**said, "agent": LOCAL, "computer": self._settings.name, "req_id": req_id}
        caller = Caller("agent", self._settings.office, LOCAL, local=True)
        try:
            answer = await self._computer.dispatcher.dispatch(CATALOG["client:tool_call"], caller, asked)
        except asyncio.CancelledError:
            self._computer.calls.cancel(AgentCallData(agent=LOCAL, req_id=req_id))
            raise
        if answer.error is not None:
            said = orjson.loads(answer.body)
            return _json({"error": said["message"]}, said["code"])
        if tool_results.INPUT_REQUIRED.encode() in answer.body:  # nobody answers here (SMCP_ELICIT=terminal does)
            self._computer.calls.cancel(AgentCallData(agent=LOCAL, req_id=req_id))
        return web.Response(body=answer.body, content_type="application/json")

    async def _history(self, request: web.Request) -> web.Response:
        return _json({"servers": self._computer.calls.recent()})

    async def _inputs(self, request: web.Request) -> web.Response:
        try:
            sources = await asyncio.to_thread(self._computer.inputs.sources)
        except SecretsError as error:
            raise web.HTTPConflict(text=str(error)) from None
        return _json({"inputs": sources})

    async def _pins(self, request: web.Request) -> web.Response:
        servers = {
            name: {tool.name: entry_of(tool) for tool in reversed(supervisor.tools)}
            for name, supervisor in self._computer.fleet.supervisors.items()
            if supervisor.state is State.READY
        }
        return _json({"file": str(self._computer.pins.path.absolute()), "servers": servers})

    async def _reload(self, request: web.Request) -> web.Response:
        await self._computer.reload()
        await self._settled(request.match_info["name"])
        return await self._status(request)

    async def _restart(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self._computer.fleet.supervisors:
            known = self._computer.fleet.supervisors
            raise web.HTTPNotFound(text=f"no MCP server {name!r} runs here{did_you_mean(name, known)}")
        self._computer.fleet.restart(name)
        await self._settled(name)
        return await self._status(request)

    async def _settled(self, name: str) -> None:
        """Return once this server has started or failed, or takes longer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                await self._computer.fleet.wait_settled([name])


def _json(body: object, status: int = 200) -> web.Response:
    return web.Response(status=status, body=exact_json.written(body), content_type="application/json")
