"""`SmcpAgent`, an Agent in an office: it calls tools of Computers, and follows what changes there."""

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar

from smcp_agent.cache import AnswerCache, ToolCache, Tools
from smcp_agent.connecting.link import Addresses, Link
from smcp_agent.connecting.options import MAX_MESSAGE, ConnectionOptions, Token, check_token
from smcp_agent.connecting.transport import ReadTurns
from smcp_agent.errors import Closed, not_open
from smcp_agent.events import Event, EventHub, EventStream
from smcp_agent.llm import ModelMethods
from smcp_agent.office import Office, Subscriptions
from smcp_agent.resources import ResourceMethods
from smcp_agent.results import OnInput
from smcp_agent.rpc import RpcClient, checked
from smcp_agent.tool_calls import Previews
from smcp_proto import schemas

_Result = TypeVar("_Result")


class SmcpAgent(ModelMethods, ResourceMethods):
    """An Agent in an office, as an async context manager.

        async with SmcpAgent("http://127.0.0.1:8000", office="kitchen", name="cook") as agent:
            result = await agent.call_tool("robot", "chop", {"what": "onion"}, timeout=30)

    `open` and `close` do the same without a block. A lost connection is replaced, and what changed meanwhile comes as
    events. `get_…`, `list_…` and `read_…` ask now; names without these answer from a cache that notifications keep
    current. All methods raise SmcpError.

    Args:
        url: where a gateway listens, or several that are tried in turn; a query string is kept.
        office, name: the seat to take. There is one Agent per office.
        token: an API key, a JWT, or an async function that gives a fresh one before each connection. None: the key of
            the `smcp up` of this user at that URL, if there is one.
        max_message: bytes of the largest reply to receive; a larger one is answered with `TooLarge`.
        max_values: the same in JSON values (items of lists and objects). None: the gateway's limit.
        on_input: for calls that give none; see `call_tool`.
        previews: keeps the results that `max_chars` cuts; Agents of one process may share it, and its bound.
        max_away: seconds that a request waits for a lost connection, within its own time.
        read_turns: for large replies; Agents of one process may share them, so that no office takes all of its time.

    Raises:
        Malformed: an invalid argument; from the constructor. All others: on entering.
        CannotConnect: no gateway at any of the URLs.
        NotAuthenticated, RateLimited: the gateway does not know the token; too many wrong ones came from here.
        JoinRefused: the office did not take the Agent in.
        Unavailable: the gateway reaches no registry or no NATS: retry.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        office: str,
        name: str,
        token: Token | None = None,
        headers: Mapping[str, str] | None = None,
        max_message: int = MAX_MESSAGE,
        max_values: int | None = None,
        connect_timeout: float = 10.0,
        on_input: OnInput | None = None,
        previews: Previews | None = None,
        max_away: float = math.inf,
        read_turns: ReadTurns | None = None,
    ) -> None:
        seat = checked(schemas.EnterOfficeReq, role="agent", name=name, office_id=office)
        options = checked(
            ConnectionOptions,
            max_message=max_message,
            max_values=max_values,
            headers=headers or {},
            token=check_token(token) if isinstance(token, str) else token,
            connect_timeout=connect_timeout,
            read_turns=read_turns,
        )
        self.office = seat.office_id
        self.name = seat.name
        self._events = EventHub()
        self._background = _Background(self._ended)
        spawn, publish = self._background.spawn, self._events.publish
        self._answers = AnswerCache(spawn)
        self._tools = ToolCache(self.get_tools, spawn, publish)
        self._previews = previews or Previews()
        self._on_input = on_input
        self._subscriptions = Subscriptions(self._send_subscription, spawn, publish)
        self._office = Office(seat, self._tools, self._answers, self._subscriptions, publish)
        given: Any = url  # whatever the application passed
        addresses = Addresses(given if isinstance(given, Iterable) and not isinstance(given, str) else [given])
        self._link = Link(addresses, seat, options, self._office, self._on_notice)
        self._link.fail(not_open())
        self._on_progress = {}
        self._rpc = RpcClient(self.office, self.name, self._link, spawn, max_away, self.computers)

    @property
    def connected(self) -> bool:
        """Whether the agent is in its office at this moment."""
        return self._link.connection is not None

    # Tools

    async def tools(self, computer: str) -> Tools:
        """A Computer's tools as they are known; waits only if they were never fetched. Raises SmcpError: there is no
        such Computer, or its tools could not be fetched so far."""
        return await self._tools.get(checked(schemas.UpdateComputerConfigReq, computer=computer).computer)

    async def get_tools(self, computer: str) -> Tools:
        """A Computer's tools, asked of it now. Raises SmcpError: as `call_tool`."""
        reply: schemas.GetToolsRet = await self._rpc.query("client:get_tools", computer)
        return tuple(reply.tools)

    async def get_config(self, computer: str) -> schemas.GetComputerConfigRet:
        """A Computer's configuration; its secrets stay there. Raises SmcpError: as `call_tool`."""
        reply: schemas.GetComputerConfigRet = await self._rpc.query("client:get_config", computer)
        return reply

    async def get_status(self, computer: str) -> schemas.GetStatusRet:
        """The states of a Computer's MCP servers, asked of it now; only our Computers answer. Raises SmcpError: as
        `call_tool`."""
        reply: schemas.GetStatusRet = await self._rpc.query("client:get_status", computer)
        return reply

    async def why_no_tools(self, computer: str) -> str:
        """Why a Computer lists no tools, for people; empty where it lists some. Raises SmcpError: as `get_status`."""
        status = await self.get_status(computer)
        if any(each.tools for each in status.servers):
            return ""
        said = [f"{each.name} is {each.state}{each.reason and f': {each.reason}'}" for each in status.servers]
        if status.config_problem:
            said.append(f"its configuration file is not in use: {status.config_problem}")
        return "; ".join(said) or "it has no MCP servers"

    # The room

    def computers(self) -> list[str]:
        """The names of the Computers in the office, sorted."""
        return self._office.room.computers

    async def list_room(self) -> list[schemas.SessionInfo]:
        """Fetch all members of the office, this Agent included. Raises SmcpError: as `call_tool`."""
        reply: schemas.ListRoomRet = await self._rpc.ask("server:list_room", None, {"office_id": self.office})
        return reply.sessions

    def events(self) -> EventStream:
        """The events from now on, for `async for`; ends when the agent is closed."""
        return self._events.stream()

    def on_event(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Call `callback` with every event from now on, in order; the loop handles its exceptions. Returns the end."""
        return self._events.call(callback)

    # Lifetime

    async def open(self) -> Self:
        """Connect and join, as entering does; `close` ends it."""
        if self._background.started:
            raise Closed("this SmcpAgent was already opened; create a new one")
        connection = await self._link.open()
        try:
            self._background.started = True
            self._background.spawn(self._link.run())
            await self._office.enter(connection)
        except BaseException:
            await self._stop()
            raise
        return self

    async def close(self) -> None:
        """Leave the office and disconnect; nothing where it is not open."""
        try:
            await self._rpc.flush()
        finally:
            await self._stop()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _stop(self) -> None:
        try:
            await self._background.stop()
        finally:
            await self._link.close()

    def _ended(self) -> None:
        self._link.fail(not_open())
        self._events.close()

    def _on_notice(self, event: str, data: Mapping[str, Any]) -> None:
        if event == schemas.TOLD_OF_PROGRESS:
            self._progressed(data)
        elif not self._background.stopped:
            self._office.on_notice(event, data)


class _Background:
    """The tasks of an agent. A defect in one of them ends all. `on_end` is called when they are about to end."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        self.started = False
        self.stopped = False
        self._on_end = on_end
        self._tasks: set[asyncio.Task[Any]] = set()
        self._defect: BaseException | None = None

    def spawn(self, work: Coroutine[Any, Any, _Result]) -> asyncio.Task[_Result]:
        """Raises Closed: nothing runs, not yet or not any more."""
        if self.stopped or not self.started:
            work.close()
            raise not_open()
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def stop(self) -> None:
        """Raises the first defect."""
        self._end()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._defect is not None:
            raise self._defect

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._defect = self._defect or error
            self._end()

    def _end(self) -> None:
        self.stopped = True
        self._on_end()
        for task in self._tasks:
            task.cancel()
