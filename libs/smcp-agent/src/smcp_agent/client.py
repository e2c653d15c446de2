"""`SmcpAgent`, an Agent in an office: it calls tools of Computers, and follows what changes there."""

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import iscoroutinefunction
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from pydantic import ValidationError

from smcp_agent.background import Background
from smcp_agent.cache import AnswerCache, ToolCache, Tools
from smcp_agent.connecting.addresses import Addresses
from smcp_agent.connecting.link import Link
from smcp_agent.connecting.options import (
    DEFAULT_TRANSPORTS,
    MAX_MESSAGE,
    ConnectionOptions,
    Token,
    Transport,
    check_token,
)
from smcp_agent.desktop import DesktopMethods, DesktopQuery
from smcp_agent.errors import BadReply, Closed, NoAnswer, not_open
from smcp_agent.events import Event, EventHub, EventStream
from smcp_agent.finder import FinderMethods, FinderQuery
from smcp_agent.llm import DEFAULT_TIMEOUT_S, ModelMethods
from smcp_agent.office import ROOM_S, Office
from smcp_agent.previews import Previews, allowed_chars
from smcp_agent.prompts import PromptMethods
from smcp_agent.resources import ResourceMethods
from smcp_agent.results import MAX_ROUNDS, CallResult, OnInput, call_result, given_up, input_fields
from smcp_agent.rpc import (
    GRACE_S,
    RpcClient,
    checked,
    mapping_of,
    replier,
    request_span,
    seconds_of,
)
from smcp_agent.subscriptions import Subscriptions
from smcp_proto.schemas import (
    PROGRESS,
    TOLD_OF_PROGRESS,
    EnterOfficeReq,
    GetComputerConfigReq,
    GetComputerConfigRet,
    GetStatusReq,
    GetStatusRet,
    GetToolsReq,
    GetToolsRet,
    ListRoomReq,
    ListRoomRet,
    SessionInfo,
    ToolCallReq,
    ToolProgress,
    ToolProgressNotification,
)
from smcp_proto.validation import refused


class SmcpAgent(DesktopMethods, FinderMethods, ModelMethods, PromptMethods, ResourceMethods):
    """An Agent in an office, as an async context manager.

        async with SmcpAgent("http://127.0.0.1:8000", office="kitchen", name="cook") as agent:
            result = await agent.call_tool("robot", "chop", {"what": "onion"}, timeout=30)

    `open` and `close` are the same for a program that has a start and an end of its own, such as a FastAPI lifespan.
    Entering connects, joins and learns who is in the room; the tools of the Computers are fetched in the background and
    kept up to date. A lost connection is replaced, and what changed meanwhile comes as events. `get_…`, `list_…` and
    `read_…` ask now; the same without that word answers from a cache that notifications keep true.
    All methods raise `smcp_agent.errors.SmcpError` and nothing else for what can go wrong.

    Args:
        url: where a gateway listens, or several that are tried in turn; a query string is kept.
        office, name: the seat to take. There is one Agent per office.
        token: an API key, a JWT, or an async function that gives a fresh one before each connection. None: the key of
            the `smcp up` of this user at that URL, if there is one.
        auth: what else the server wants to know at connect.
        transports: in the order in which they are tried; see `ConnectionOptions`.
        max_message: bytes of the largest reply to receive; a larger one is answered with `TooLarge`.
        on_input: answers the elicitations of all calls that have no `on_input` of their own; see `call_tool`.

    Raises:
        Malformed: a URL or a name that cannot be right; at once, everything else on entering.
        CannotConnect: no gateway at any of the URLs.
        NotAuthenticated, RateLimited: the gateway does not know the token; too many wrong ones came from here.
        JoinRefused: the office did not take the Agent in.
        Unavailable: the gateway could not find out (no registry, no NATS behind it): try again.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        office: str,
        name: str,
        token: Token | None = None,
        auth: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        transports: Sequence[Transport] = DEFAULT_TRANSPORTS,
        max_message: int = MAX_MESSAGE,
        connect_timeout: float = 10.0,
        on_input: OnInput | None = None,
    ) -> None:
        seat = checked(EnterOfficeReq, role="agent", name=name, office_id=office)
        options = ConnectionOptions(
            transports=transports,
            max_message=max_message,
            auth=auth or {},
            headers=headers or {},
            token=check_token(token) if isinstance(token, str) else token,
            connect_s=connect_timeout,
        )
        self.office = seat.office_id
        self.name = seat.name
        self._events = EventHub()
        self._background = Background(self._ended)
        spawn, publish = self._background.spawn, self._events.publish
        self._answers = AnswerCache(spawn)
        self._tools = ToolCache(self.get_tools, spawn, publish)
        self._previews = Previews()
        self._on_input = on_input
        self._subscriptions = Subscriptions(self._send_subscription, spawn, publish)
        self._room = Office(seat, self._tools, self._answers, self._subscriptions, publish)
        given: Any = url  # whatever the application passed
        addresses = Addresses(given if isinstance(given, Iterable) and not isinstance(given, str) else [given])
        self._link = Link(addresses, seat, options, self._room, self._on_notice)
        self._link.fail(not_open())
        self._on_progress: defaultdict[str, list[Callable[[ToolProgress], None]]] = defaultdict(list)
        """Of the calls in flight, by their req_id."""
        self._rpc = RpcClient(self.office, self.name, self._link, spawn, lambda: self._room.computers)

    @property
    def connected(self) -> bool:
        """Whether the agent is in its office at this moment."""
        return self._link.connection is not None

    # Tools

    async def call_tool(
        self,
        computer: str,
        tool: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
        req_id: str | None = None,
        max_chars: int | None = None,
        on_progress: Callable[[ToolProgress], None] | None = None,
        on_input: OnInput | None = None,
    ) -> CallResult:
        """Call a tool of a Computer and wait for its result.

        Cancelling the awaiting task cancels the call. When the connection breaks, the call is repeated under its
        req_id, which runs nothing twice. `may_have_run(error)` says whether a call that failed may have run.

        Args:
            timeout: seconds, up to 3600. A Computer gets whole ones, the next above; the call is cancelled at its time.
            max_chars: a longer text is cut, and its last content is a link for `read_result`; a tool that says
                `anthropic/maxResultSizeChars` may give more. None: everything.
            on_progress: a plain function, called with what the tool reports while it runs, at most ten times a second,
                if its MCP server reports anything. The loop handles its exceptions.
            on_input: an async function that answers elicitation and approval requests. The answer is sent with the
                same `timeout`, under a new req_id; a Computer waits 5 minutes for it. None: the call is cancelled,
                and its result is an error that says what was asked.

        Raises:
            Malformed: an argument is not what the protocol allows, or an answer not what was asked; `details.field`
                names it.
            NotFound: there is no such Computer in the office.
            BadReply: the Computer elicits without end.
            TimedOut: nobody answered in time. (A tool stopped by its Computer is a result with `timed_out`.)
            TooLarge, RateLimited, NotAllowed, Unavailable: as the server says.
            ConnectionLost: the connection broke, and was not back in time.
            JoinRefused: it broke, and the office does not take the Agent back.
            Closed: this `SmcpAgent` is not open, or was closed while the call waited for a connection.
        """
        seconds = seconds_of(timeout)
        given: Any = on_progress
        if given is not None and (not callable(given) or iscoroutinefunction(given)):
            raise refused("on_progress", "a plain function of one argument, not an async one")
        on_input = on_input or self._on_input
        given = on_input
        if given is not None and not callable(given):
            raise refused("on_input", "an async function of one argument")
        fields: dict[str, Any] = {} if on_progress is None else {PROGRESS: True}
        unanswered: str | None = None  # the req_id of the request whose elicitation has no answer yet
        rounds = 0
        try:
            while True:
                request = checked(
                    ToolCallReq,
                    agent=self.name,
                    req_id=uuid4().hex if req_id is None else req_id,
                    computer=computer,
                    tool_name=tool,
                    params=mapping_of("params", params),
                    timeout=math.ceil(seconds),
                    **fields,
                )
                if max_chars is not None:
                    max_chars = allowed_chars(max_chars, self._tools.known(computer, tool))
                result = await self._call(request, seconds, on_progress)
                if not result.input_required:
                    unanswered = None
                    return result if max_chars is None else self._previews.cut(result, max_chars)
                unanswered, req_id = request.req_id, None
                if on_input is None:
                    return given_up(result)
                if rounds == MAX_ROUNDS:
                    raise BadReply(
                        f"the Computer {computer!r} elicited more than {MAX_ROUNDS} times in a call of {tool!r}"
                    )
                rounds += 1
                fields |= await input_fields(result, on_input, computer, tool, request.params)
        finally:
            if unanswered is not None:  # the MCP server may wait
                self._rpc.cancel(unanswered, within=GRACE_S, fields={})

    async def _call(
        self, request: ToolCallReq, seconds: float, on_progress: Callable[[ToolProgress], None] | None
    ) -> CallResult:
        """One request, repeated as `RpcClient.send` does."""
        if on_progress is not None:
            self._on_progress[request.req_id].append(on_progress)
        loop = asyncio.get_running_loop()
        start = loop.time()
        attributes = {"smcp.computer": request.computer, "gen_ai.tool.name": request.tool_name}
        with request_span("client:tool_call", self.office, self.name, request.req_id, attributes) as traced:
            data = {**request.model_dump(exclude_unset=True), **traced.fields}
            try:
                reply = await self._rpc.send("client:tool_call", data, timeout=seconds, expected=("content", "isError"))
            except (asyncio.CancelledError, NoAnswer):
                left = start + request.timeout + GRACE_S - loop.time()
                self._rpc.cancel(request.req_id, within=max(left, GRACE_S), fields=traced.fields)
                raise
            finally:
                if on_progress is not None:
                    self._on_progress[request.req_id].remove(on_progress)
                    if not self._on_progress[request.req_id]:
                        del self._on_progress[request.req_id]
                # it reorders the Computer's MCP servers (desktop.txt; finder.txt, step 2)
                if self._answers.entries:
                    self._answers.outdate(
                        lambda query, _: (
                            isinstance(query, DesktopQuery | FinderQuery) and query.computer == request.computer
                        ),
                        again=False,
                    )
            result = call_result(
                reply,
                req_id=request.req_id,
                trace_id=traced.trace_id,
                duration_s=loop.time() - start,
                what=f"the result of {request.tool_name!r} from {replier(request.computer)}",
            )
            if result.is_error and not result.input_required:
                traced.failed("timeout" if result.timed_out else "cancelled" if result.cancelled else "tool_error")
            return result

    def read_result(self, uri: str, offset: int = 0, *, max_chars: int = 100_000) -> str:
        """The text from a character on, of a result that `max_chars` cut. Raises NotFound: it is not kept any more."""
        return self._previews.read(uri, offset, allowed_chars(max_chars)).text

    async def tools(self, computer: str) -> Tools:
        """A Computer's tools as they are known; waits only if they were never fetched.

        Raises SmcpError: there is no such Computer, or its tools could not be fetched so far.
        """
        return await self._tools.get(computer)

    async def get_tools(self, computer: str) -> Tools:
        """A Computer's tools, asked of it now. Raises SmcpError: as `call_tool`."""
        request = self._rpc.question(GetToolsReq, computer)
        reply = await self._rpc.ask("client:get_tools", request, GetToolsRet, "tools", computer)
        return tuple(reply.tools)

    async def get_config(self, computer: str) -> GetComputerConfigRet:
        """A Computer's configuration; its secrets stay there. Raises SmcpError: as `call_tool`."""
        request = self._rpc.question(GetComputerConfigReq, computer)
        return await self._rpc.ask("client:get_config", request, GetComputerConfigRet, "servers", computer)

    async def get_status(self, computer: str) -> GetStatusRet:
        """The states of a Computer's MCP servers, asked of it now.

        Raises SmcpError: as `call_tool`. Not every Computer knows the question: those of the published package do not.
        """
        request = self._rpc.question(GetStatusReq, computer)
        return await self._rpc.ask("client:get_status", request, GetStatusRet, "servers", computer)

    async def why_no_tools(self, computer: str) -> str:
        """Why a Computer lists no tools, for people; empty where it lists some. Raises SmcpError: as `get_status`."""
        return _why_no_tools(await self.get_status(computer))

    # The room

    def computers(self) -> list[str]:
        """The names of the Computers in the office, sorted, as far as the notifications have come."""
        return self._room.computers

    async def list_room(self) -> list[SessionInfo]:
        """Fetch all members of the office, this Agent included. Raises SmcpError: as `call_tool`."""
        request = ListRoomReq(agent=self.name, req_id=uuid4().hex, office_id=self.office)
        return (await self._rpc.ask("server:list_room", request, ListRoomRet, "sessions", timeout=ROOM_S)).sessions

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
            raise Closed("an SmcpAgent is opened once")
        connection = await self._link.open()
        try:
            self._background.started = True
            self._background.spawn(self._link.run())
            await self._room.enter(connection)
        except BaseException:
            await self._stop()
            raise
        return self

    async def close(self) -> None:
        """Leave the office and disconnect; nothing where it is not open."""
        await self._rpc.flush()
        await self._stop()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
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
        if event == TOLD_OF_PROGRESS:
            self._progressed(data)
        elif not self._background.stopped:
            self._room.on_notice(event, data)

    def _progressed(self, data: Mapping[str, Any]) -> None:
        try:
            note = ToolProgressNotification.model_validate(data)
        except ValidationError:
            return
        for on_progress in self._on_progress.get(note.req_id, ()):
            asyncio.get_running_loop().call_soon(on_progress, note)


def _why_no_tools(status: GetStatusRet) -> str:
    """One sentence for each MCP server; empty where tools are listed."""
    if any(each.tools for each in status.servers):
        return ""
    sentences = [
        f"{each.name} is {each.state}{f': {each.reason}' if each.reason else ''}"
        if each.state != "ready"
        else f"{each.name} is ready, and lists none"
        for each in status.servers
    ] or ["it has no MCP servers"]
    if status.config_problem:
        sentences.append(f"its configuration file is not in use: {status.config_problem}")
    return "; ".join(sentences)
