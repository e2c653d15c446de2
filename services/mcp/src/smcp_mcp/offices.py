"""The offices whose seats this process holds: for each one Agent, one MCP server, and the sessions of its clients.

Above is `app`, which passes requests of other offices on (docs/adr/0048).
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Final

import anyio
from mcp.server.context import CallNext, HandlerResult
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from smcp_agent import JoinRefused, RateLimited, RejoinRefused, SmcpAgent, SmcpError, Unavailable
from smcp_agent.connecting.options import MAX_MESSAGE, MAX_PAYLOAD
from smcp_agent.connecting.transport import ReadTurns
from smcp_agent.events import Event
from smcp_agent.mcp.bridge import OfficeServer
from smcp_agent.mcp.resources import Context
from smcp_agent.mcp.tools import AWAY_S, ToolListOptions, ToolMode
from smcp_agent.rpc import checked
from smcp_agent.tool_calls import Previews
from smcp_auth.quotas import Quotas
from smcp_mcp.auth import Authorization, RequestHolder
from smcp_mcp.buffered_request import KEPT_BYTES, BufferedRequest
from smcp_mcp.settings import McpSettings
from smcp_service.lifecycle import Background
from smcp_service.settings import listed

LAST_CALLS_S: Final = 5.0
"""How long running calls may take when the office is being left: other replicas wait for its seat meanwhile."""
MAX_SESSIONS: Final = 1000
"""Sessions of clients up to MCP 2025-11-25 in one office; each takes about 50 kB until it ends, at most some 500 kB."""
READ_PER_S: Final = 32 * 1024 * 1024
"""Characters of large answers that all offices get in a second: reading and writing these takes a quarter of the event
loop's time."""
FORGET_S: Final = 1.0
"""How long a session may take to forget a request."""

_log: Final = logging.getLogger(__name__)


class ClientOptions(BaseModel):
    """The query of a client's URL: how tools are listed, where results are cut."""

    model_config = ConfigDict(extra="forbid")

    tools: ToolMode = ToolMode.AUTO
    max_chars: Annotated[int, Field(ge=1)] | None = None


def client_options(request: Request | None) -> ClientOptions:
    """Raises Malformed: there is no such query parameter, or it has a wrong value."""
    return checked(ClientOptions, **({} if request is None else request.query_params))


def _when_gone(context: Context, then: Callable[[], None]) -> AbstractContextManager[object]:
    return nullcontext() if context.request is None else BufferedRequest.of(context.request).when_gone(then)


async def _keep_counted(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Have the session that this request begins counted until it ends, and not only until the request is answered; and
    the request until it was carried out, and not only until its client disconnects."""
    if ctx.request_id is None or ctx.request is None:
        return await call_next(ctx)
    exchange = BufferedRequest.of(ctx.request)
    with exchange.in_use():
        if ctx.method == "initialize" and exchange.may_begin_session:
            counted = exchange.session.pop_all()
            # the MCP SDK (below 2.4) means this stack for middleware, and has no public name for the connection yet
            ctx.session._connection.exit_stack.callback(counted.close)  # noqa: SLF001
        try:
            answer = await call_next(ctx)
        except Exception:
            if not exchange.gone:
                raise
        else:
            if not exchange.gone:
                return answer
        # the MCP SDK would keep the answer or error with the session
        raise MCPError(INTERNAL_ERROR, "the client has disconnected")


class SeatTaken(Exception):
    """An Agent has the office's seat. `by_replica`: it has our name, so it is a replica, alive or just dead."""

    def __init__(self, why: str, *, by_replica: bool) -> None:
        super().__init__(why)
        self.by_replica = by_replica


class HeldOffice:
    def __init__(self, manager: StreamableHTTPSessionManager, quotas: Quotas, idle_s: float) -> None:
        self.ended = asyncio.Event()
        self._manager = manager
        self._quotas = quotas
        self._idle_s = idle_s
        self._requests: dict[anyio.CancelScope, BufferedRequest] = {}
        self._unused = asyncio.get_running_loop().call_later(idle_s, self.ended.set)
        self._one_less = asyncio.Event()

    async def answer(self, exchange: BufferedRequest, sessions: RequestHolder) -> None:
        """`sessions` counts those of the client's key or token. Raises RateLimited: it would have one too many."""
        self._unused.cancel()
        scope = anyio.CancelScope()
        self._requests[scope] = exchange
        try:
            with exchange.session as counted, scope:
                if exchange.may_begin_session:
                    self._quotas.connected(sessions)
                    counted.callback(self._quotas.disconnected, sessions)
                try:
                    await self._manager.handle_request(exchange.request.scope, exchange.receive, exchange.send)
                finally:
                    exchange.gone, may_be_large = True, not exchange.answered or exchange.size > KEPT_BYTES
                    if may_be_large and exchange.has_session and exchange.request.method == "POST":
                        with anyio.move_on_after(FORGET_S, shield=True):
                            await self._manager.handle_request(*exchange.forgotten())
        finally:
            del self._requests[scope]
            self._one_less.set()
            if not self._requests:
                self._unused = asyncio.get_running_loop().call_later(self._idle_s, self.ended.set)
        if scope.cancelled_caught:
            await exchange.break_off("smcp-mcp left the office before the call ended")

    async def close(self) -> None:
        """Let calls end for a while, then break off what is left."""
        with anyio.move_on_after(LAST_CALLS_S):
            while any(not exchange.streams for exchange in self._requests.values()):
                self._one_less.clear()
                await self._one_less.wait()
        for scope in self._requests:
            scope.cancel()
        while self._requests:
            self._one_less.clear()
            await self._one_less.wait()
        self._unused.cancel()


class Offices:
    def __init__(self, settings: McpSettings, access: Authorization, quotas: Quotas, tasks: Background) -> None:
        self._settings = settings
        self._access = access
        self._quotas = quotas
        self._tasks = tasks
        self.held: dict[str, HeldOffice] = {}
        """By name; read-only for other classes."""
        self._joining: dict[str, asyncio.Future[HeldOffice]] = {}
        self._holding: dict[asyncio.Task[None], asyncio.Future[HeldOffice]] = {}
        self._stopping = False
        self._previews = Previews()
        """Of all offices, so that memory is bounded however many there are."""
        self._read_turns = ReadTurns(READ_PER_S)

    async def join(self, office: str, holder: RequestHolder) -> HeldOffice:
        """Take the seat of the office, which counts as a connection of this holder. Requests that come at the same time
        wait for one join.

        Raises:
            SeatTaken: an Agent has the seat, or this process has given it up again.
            SmcpError: the subject's quota; the gateway cannot be reached, or refuses the office or our token.
        """
        if self._stopping:
            raise SeatTaken("this replica is stopping", by_replica=True)
        if office not in self._joining:
            self._quotas.connected(holder)
            joined = self._joining[office] = asyncio.get_running_loop().create_future()
            task = self._tasks.start(self._hold(office, joined), name=f"office {office}")
            self._holding[task] = joined
            task.add_done_callback(self._holding.pop)
            task.add_done_callback(lambda _: self._quotas.disconnected(holder))
        try:
            held = await asyncio.shield(self._joining[office])
        except JoinRefused as error:
            if (name := error.details.get("holder")) is None:
                raise
            raise SeatTaken(error.details["why"], by_replica=name == self._settings.mcp_name) from None
        if held.ended.is_set():
            raise SeatTaken("this replica has left the office again", by_replica=True)
        return held

    async def close(self) -> None:
        """Leave all offices, and join none any more."""
        self._stopping = True
        for held in self.held.values():
            held.ended.set()
        for task, joined in list(self._holding.items()):
            if not joined.done():  # a gateway that hangs would delay the stop
                self._refuse(joined, Unavailable("this replica is stopping"))
                task.cancel()
        if self._holding:
            await asyncio.wait(self._holding)

    async def _hold(self, office: str, joined: asyncio.Future[HeldOffice]) -> None:
        settings = self._settings
        try:
            async with SmcpAgent(
                listed(settings.url),
                office=office,
                name=settings.mcp_name,
                token=settings.gateway_token,
                max_message=settings.max_payload + MAX_MESSAGE - MAX_PAYLOAD,
                max_values=settings.max_values // 8,  # reading and writing so many takes steps of 50 ms
                previews=self._previews,
                read_turns=self._read_turns,
                max_away=AWAY_S,
            ) as agent:
                await self._serve(agent, joined)
            _log.info("left an office", extra={"office": office})
        except RateLimited as error:  # the quota is that of smcp-mcp, not of the client, so the client gets no 429
            self._refuse(joined, Unavailable(f"the gateway refuses smcp-mcp for now: {error.message}"))
        except SmcpError as error:
            self._refuse(joined, error)
        finally:
            if self._joining.get(office) is joined:
                del self._joining[office]

    @staticmethod
    def _refuse(joined: asyncio.Future[HeldOffice], error: SmcpError) -> None:
        if not joined.done():
            joined.set_exception(error)
            joined.exception()  # those who waited may be gone

    async def _serve(self, agent: SmcpAgent, joined: asyncio.Future[HeldOffice]) -> None:
        settings = self._settings
        office = OfficeServer(
            agent,
            may=self._access.may,
            may_ask=self._access.may_ask,
            listing=ToolListOptions(
                mode=lambda context: client_options(context.request).tools,
                max_tools=settings.mcp_max_tools,
                always=listed(settings.mcp_always_list),
            ),
            max_chars=lambda context: client_options(context.request).max_chars,
            when_gone=_when_gone,
            watch_counter=self._access.watch_counter(self._quotas, agent.office),
            name="smcp-mcp",
        )
        self._access.guard(office.server, self._quotas, agent.office)
        office.server.middleware.append(_keep_counted)
        manager = StreamableHTTPSessionManager(
            office.server,
            session_idle_timeout=settings.mcp_idle_s,
            max_request_body_size=settings.max_request,
            max_sessions=MAX_SESSIONS,
        )
        async with office.following(), manager.run():
            held = HeldOffice(manager, self._quotas, settings.mcp_idle_s)

            def hear(event: Event) -> None:
                if isinstance(event, RejoinRefused):  # another process has the seat now
                    held.ended.set()

            stop_hearing = agent.on_event(hear)
            self.held[agent.office] = held
            del self._joining[agent.office]
            joined.set_result(held)
            computers = len(agent.computers())
            _log.info("joined an office", extra={"office": agent.office, "computers": computers})
            if not computers:
                where = {"office": agent.office}
                _log.warning("nobody is in the office: its name in the URL may be wrong", extra=where)
            try:
                await held.ended.wait()
            finally:
                stop_hearing()
                del self.held[agent.office]
                await held.close()
