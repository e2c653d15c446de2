"""The tool calls of `SmcpAgent`: one request, or several where the tool elicits input (docs/adr/0047).

Below is `RpcClient`, which repeats one request. `on_input` asks a user between two of them.
"""

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import iscoroutinefunction
from typing import Any, Final, TypedDict, Unpack
from uuid import uuid4

from pydantic import ValidationError

from smcp_agent.cache import AnswerCache, ToolCache
from smcp_agent.errors import BadReply, NoAnswer
from smcp_agent.result_formats import Previews, allowed_chars
from smcp_agent.results import MAX_ROUNDS, CallResult, OnInput, Responses, answered, call_result, given_up
from smcp_agent.rpc import GRACE_S, RpcClient, checked, mapping_of, replier, request_span
from smcp_proto.schemas import PROGRESS, ToolCallReq, ToolProgress, ToolProgressNotification
from smcp_proto.schemas.tools import MAX_TIMEOUT_S, ON_BEHALF, OnBehalf
from smcp_proto.validation import refused

DEFAULT_TIMEOUT_S: Final = 60
"""How long a tool may take where the application does not say: a model and its user wait."""
MAX_CHARS: Final = 100_000
"""Characters of a cut result that are read in one go where the application does not say."""

_on_behalf: ContextVar[Mapping[str, Any]] = ContextVar("on_behalf", default={})  # noqa: B039 -- nobody changes it


@contextmanager
def on_behalf_of(user: OnBehalf) -> Iterator[None]:
    """Calls of tools in the block are a user's, for whom this Agent calls; nobody else can read on in their results.
    The Agent's key or token needs `delegates`."""
    token = _on_behalf.set({ON_BEHALF: user.model_dump(mode="json", exclude_unset=True)})
    try:
        yield
    finally:
        _on_behalf.reset(token)


def _user() -> str | None:
    user: Mapping[str, Any] = _on_behalf.get().get(ON_BEHALF, {})
    return user.get("identity")


class CallOptions(TypedDict, total=False):
    """Options of a call; `SmcpAgent.call_tool` explains them."""

    timeout: float
    max_chars: int | None
    on_progress: Callable[[ToolProgress], None] | None


class ToolCallMethods:
    """What `SmcpAgent` can do with tools that it knows by Computer and name."""

    name: str
    office: str
    _rpc: RpcClient
    _tools: ToolCache
    _answers: AnswerCache
    _previews: Previews
    _on_input: OnInput | None
    _on_progress: dict[str, Callable[[ToolProgress], None]]
    """Of the calls in flight, by their req_id."""

    async def call_tool(
        self,
        computer: str,
        tool: str,
        params: Mapping[str, Any] | None = None,
        *,
        req_id: str | None = None,
        on_input: OnInput | None = None,
        **options: Unpack[CallOptions],
    ) -> CallResult:
        """Call a tool of a Computer and wait for its result.

        Cancelling the awaiting task cancels the call. When the connection breaks, the call is repeated under its
        req_id, which runs nothing twice. `may_have_run(error)` says whether a call that failed may have run.

        Args:
            timeout: seconds, up to 3600. A Computer gets whole ones, the next above.
            max_chars: a longer text is cut, and its last content is a link for `read_result`; a tool that says
                `anthropic/maxResultSizeChars` may give more. None: everything.
            on_progress: a plain function, called with what the tool reports, at most ten times a second.
            on_input: an async function that answers elicitation and approval requests, each within the time for which
                the Computer waits (5 minutes by default). Otherwise, and where it is None, the call is cancelled, and
                its result is an error that says what was asked.

        Raises:
            Malformed: an argument, or an answer to what was asked; `details.field` names it.
            NotFound: there is no such Computer in the office.
            BadReply: the Computer elicits without end.
            TimedOut: nobody answered in time. (A tool stopped by its Computer is a result with `timed_out`.)
            TooLarge, RateLimited, NotAllowed, Unavailable: as the server says.
            ConnectionLost: the connection broke, and was not back in time.
            JoinRefused: it broke, and the office does not take the Agent back.
            Closed: this `SmcpAgent` is not open.
        """
        on_input = on_input or self._on_input
        asked: CallResult | None = None  # elicits input, and has no answer yet
        more: dict[str, Any] = {"req_id": req_id}
        rounds = 0
        try:
            while True:
                result = await self.call_once(computer, tool, params, **options, **more)
                asked = result if result.input_required else None
                if asked is None:
                    return result
                if rounds == MAX_ROUNDS:
                    raise BadReply(f"the Computer {computer!r} elicited more than {rounds} times in a call of {tool!r}")
                if on_input is None:
                    return given_up(asked)
                limit = asyncio.timeout(asked.input_expires_in_s)
                try:
                    async with limit:
                        responses = await answered(asked, on_input, computer, tool, mapping_of("params", params))
                except TimeoutError:
                    if not limit.expired():  # it is the application's own
                        raise
                    return given_up(asked)
                more, rounds = {"input_state": asked.input_state, "input_responses": responses}, rounds + 1
        finally:
            if asked is not None:  # the MCP server may wait
                self.cancel_call(asked.req_id)

    async def call_once(
        self,
        computer: str,
        tool: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
        req_id: str | None = None,
        max_chars: int | None = None,
        on_progress: Callable[[ToolProgress], None] | None = None,
        input_state: str | None = None,
        input_responses: Responses | None = None,
    ) -> CallResult:
        """As `call_tool`, but a call that elicits input ends with it: `input_required` of the result.

        The call waits at its Computer for the result's `input_expires_in_s`. To answer, call it again with the same
        `params`, the result's `input_state`, and `input_responses`: MCP's ElicitResult for each of the result's
        `input_requests`. Otherwise end it by `cancel_call`.

        Raises SmcpError: as `call_tool`; Malformed: answers do not fit, and can be given again.
        """
        seconds = seconds_of(timeout)
        given: Any = on_progress
        if given is not None and (not callable(given) or iscoroutinefunction(given)):
            raise refused("on_progress", "a plain function of one argument, not an async one")
        fields: dict[str, Any] = {} if on_progress is None else {PROGRESS: True}
        answers = {"input_state": input_state, "input_responses": input_responses}
        request = checked(
            ToolCallReq,
            agent=self.name,
            req_id=uuid4().hex if req_id is None else req_id,
            computer=computer,
            tool_name=tool,
            params=mapping_of("params", params),
            timeout=math.ceil(seconds),
            **fields,
            **{name: value for name, value in answers.items() if value is not None},
        )
        if max_chars is not None:
            max_chars = allowed_chars(max_chars, self._tools.known(computer, tool))
        result = await self._call(request, seconds, on_progress)
        return result if max_chars is None or result.input_required else self._previews.cut(result, max_chars, _user())

    def cancel_call(self, req_id: str) -> None:
        """Cancel a call whose elicitation will not be answered; the office is told in the background."""
        self._rpc.cancel(req_id, within=GRACE_S, fields=_on_behalf.get())

    async def _call(
        self, request: ToolCallReq, seconds: float, on_progress: Callable[[ToolProgress], None] | None
    ) -> CallResult:
        if on_progress is not None:
            self._on_progress[request.req_id] = on_progress
        loop = asyncio.get_running_loop()
        start = loop.time()
        attributes = {"smcp.computer": request.computer, "gen_ai.tool.name": request.tool_name}
        with request_span("client:tool_call", self.office, self.name, request.req_id, attributes) as traced:
            fields = {**_on_behalf.get(), **traced.fields}
            data = {**request.model_dump(exclude_unset=True), **fields}
            try:
                reply = await self._rpc.send("client:tool_call", data, timeout=seconds, expected=("content", "isError"))
            except (asyncio.CancelledError, NoAnswer):
                left = start + request.timeout + GRACE_S - loop.time()
                self._rpc.cancel(request.req_id, within=max(left, GRACE_S), fields=fields)
                raise
            finally:
                self._on_progress.pop(request.req_id, None)
                # it reorders the Computer's MCP servers (desktop.txt; finder.txt, step 2)
                if self._answers.used:
                    self._answers.outdate(request.computer, "desktop", "finder")
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

    def read_result(self, uri: str, *, max_chars: int = MAX_CHARS) -> CallResult:
        """The text of a result that `max_chars` cut, from where its link says. The last content is a link where there
        is more. Raises NotFound: it is not kept any more, or another user's."""
        return self._previews.read(uri, allowed_chars(max_chars), _user())

    def _progressed(self, data: Mapping[str, Any]) -> None:
        try:
            note = ToolProgressNotification.model_validate(data)
        except ValidationError:
            return
        if (on_progress := self._on_progress.get(note.req_id)) is not None:
            asyncio.get_running_loop().call_soon(on_progress, note)


def seconds_of(timeout: object) -> float:
    """The `timeout` of a call. Raises Malformed: it is no number of seconds up to 3600 (events.txt)."""
    if not isinstance(timeout, int | float) or isinstance(timeout, bool) or not 0 < timeout <= MAX_TIMEOUT_S:
        raise refused("timeout", f"seconds, more than 0 and at most {MAX_TIMEOUT_S}")
    return timeout
