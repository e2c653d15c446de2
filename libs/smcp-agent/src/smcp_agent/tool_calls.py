"""The tool calls of `SmcpAgent`: one request, or several where the tool elicits input (docs/adr/0047).

Below is `RpcClient`, which repeats one request. `on_input` asks a user between two of them. Of a result that is too
long the application gets the beginning, and a link under which the rest can be read for a while.
"""

import asyncio
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from inspect import iscoroutinefunction
from typing import Any, Final, TypedDict, Unpack
from uuid import uuid4

from pydantic import ValidationError

from smcp_agent import results
from smcp_agent.cache import AnswerCache, ToolCache
from smcp_agent.errors import BadReply, NoAnswer, NotFound
from smcp_agent.rpc import RpcClient, checked, mapping_of, replier, request_span
from smcp_proto.catalog import GRACE_S
from smcp_proto.schemas import PROGRESS, SMCPTool, ToolCallReq, ToolProgress, ToolProgressNotification
from smcp_proto.schemas.tools import MAX_TIMEOUT_S, ON_BEHALF, OnBehalf
from smcp_proto.validation import refused

DEFAULT_TIMEOUT_S: Final = 60
"""How long a tool may take where the application does not say: a model and its user wait."""
MAX_CHARS: Final = 100_000
"""Characters of a cut result that are read in one go where the application does not say."""

KEPT_CHARS: Final = 32 * 1024 * 1024
"""Characters of all kept texts together: one result of the largest size fits."""
KEPT_TEXTS: Final = 1000
"""Each text costs memory of its own, however short it is: it counts as this part of `KEPT_CHARS` at least."""
RESULT_SCHEME: Final = "a2c-result://"
_OFFSET: Final = "?offset="
"""In a link, before the character at which the next page begins."""
MAX_RESULT_META: Final = "anthropic/maxResultSizeChars"
"""In a tool's `_meta`: up to this length its results are not cut."""
LARGEST: Final = 500_000
"""The most that `MAX_RESULT_META` may say: the bound of the clients that know the key."""

_on_behalf: ContextVar[Mapping[str, Any]] = ContextVar("on_behalf", default={})  # noqa: B039 -- nobody changes it


@contextmanager
def on_behalf_of(user: OnBehalf) -> Iterator[None]:
    """Tool calls in this block are made for that user; only that user can read the rest of their results.
    The Agent's key or token needs `delegates`."""
    token = _on_behalf.set({ON_BEHALF: user.model_dump(mode="json", exclude_unset=True)})
    try:
        yield
    finally:
        _on_behalf.reset(token)


def _user() -> str | None:
    user: Mapping[str, Any] = _on_behalf.get().get(ON_BEHALF, {})
    return user.get("identity")


class Previews:
    """Cuts results, and keeps the whole texts, each for the user for whom the tool was called. Where they are too many,
    the user who has most of them loses the oldest."""

    def __init__(self) -> None:
        self._texts: dict[str, tuple[str, str | None]] = {}
        """The whole texts with their users, by URI, the oldest first."""

    def cut(self, result: results.CallResult, max_chars: int, user: str | None = None) -> results.CallResult:
        """The result, with a preview of its text where a model would get more than `max_chars` characters."""
        texts = [results.as_text(each) for each in result.content if _is_text(each)]
        if not texts and result.structured_content is not None:
            texts = [json.dumps(result.structured_content, ensure_ascii=False)]
        whole = "\n".join(texts)
        if len(whole) <= max_chars:
            return result
        uri = f"{RESULT_SCHEME}{uuid4().hex}"
        self._texts[uri] = whole, user
        self._drop_surplus()
        shown, *link = _page(uri, whole, 0, max_chars)
        content = [shown, *(each for each in result.raw["content"] if not _is_text(results.content_block(each))), *link]
        raw = {**result.raw, "content": content, "structuredContent": None}
        return replace(result, content=tuple(map(results.content_block, content)), structured_content=None, raw=raw)

    def _drop_surplus(self) -> None:
        least = KEPT_CHARS // KEPT_TEXTS
        held: Counter[str | None] = Counter()
        for text, owner in self._texts.values():
            held[owner] += max(least, len(text))
        while held.total() > KEPT_CHARS:
            ((most, _),) = held.most_common(1)
            oldest = next(uri for uri, (_, owner) in self._texts.items() if owner == most)
            held[most] -= max(least, len(self._texts.pop(oldest)[0]))

    def read(self, uri: str, max_chars: int, user: str | None = None) -> results.CallResult:
        """The text from where the link says. Raises NotFound, Malformed."""
        name, _, said = uri.partition(_OFFSET)
        whole, owner = self._texts.get(name, (None, None))
        if whole is None or owner != user:
            raise NotFound(f"{name} is not kept (any more): call the tool again, for less", details={"uri": uri})
        offset = int(said or 0) if (said or "0").isdecimal() and len(said) < 20 else -1
        if not 0 <= offset <= len(whole):
            raise refused("uri", f"its offset has to be a whole number from 0 to {len(whole)}")
        return results.CallResult(content=tuple(map(results.content_block, _page(name, whole, offset, max_chars))))


def allowed_chars(max_chars: object, tool: SMCPTool | None = None) -> int:
    """How many characters a result of this tool may have. Raises Malformed: `max_chars` is not a positive number."""
    if not isinstance(max_chars, int) or isinstance(max_chars, bool) or max_chars < 1:
        raise refused("max_chars", "a whole number of characters from 1")
    limit = (tool.meta or {}).get(MAX_RESULT_META) if tool is not None else None
    return max(max_chars, min(limit, LARGEST)) if isinstance(limit, int) else max_chars


def _is_text(block: results.Content) -> bool:
    return isinstance(block, results.TextContent) or (
        isinstance(block, results.ResourceContent) and block.text is not None
    )


def _page(uri: str, whole: str, offset: int, max_chars: int) -> list[dict[str, Any]]:
    """A content block with the text from `offset`, and a link where there is more."""
    end = offset + max_chars
    name = f"characters {offset} to {end} of {len(whole)}; read on here"
    link = [{"type": "resource_link", "uri": f"{uri}{_OFFSET}{end}", "name": name}] if end < len(whole) else []
    return [{"type": "text", "text": whole[offset:end]}, *link]


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
    _on_input: results.OnInput | None
    _on_progress: dict[str, Callable[[ToolProgress], None]]
    """Of the calls in flight, by their req_id."""

    async def call_tool(
        self,
        computer: str,
        tool: str,
        params: Mapping[str, Any] | None = None,
        *,
        req_id: str | None = None,
        on_input: results.OnInput | None = None,
        **options: Unpack[CallOptions],
    ) -> results.CallResult:
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
        asked: results.CallResult | None = None  # elicits input, and has no answer yet
        more: dict[str, Any] = {"req_id": req_id}
        rounds = 0
        try:
            while True:
                result = await self.call_once(computer, tool, params, **options, **more)
                asked = result if result.input_required else None
                if asked is None:
                    return result
                if rounds == results.MAX_ROUNDS:
                    raise BadReply(f"the Computer {computer!r} elicited more than {rounds} times in a call of {tool!r}")
                if on_input is None:
                    return results.given_up(asked)
                limit = asyncio.timeout(asked.input_expires_in_s)
                try:
                    async with limit:
                        responses = await results.answered(
                            asked, on_input, computer, tool, mapping_of("params", params)
                        )
                except TimeoutError:
                    if not limit.expired():  # it is the application's own
                        raise
                    return results.given_up(asked)
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
        input_responses: results.Responses | None = None,
    ) -> results.CallResult:
        """As `call_tool`, but a call that elicits input ends with it: `input_required` of the result.

        The call waits at its Computer for the result's `input_expires_in_s`. To answer, call it again with the same
        `params`, the result's `input_state`, and `input_responses`: MCP's ElicitResult for each of the result's
        `input_requests`. Otherwise end it by `cancel_call`.

        Raises SmcpError: as `call_tool`; Malformed: answers do not fit, and can be given again.
        """
        seconds = seconds_of(timeout)
        given: Any = on_progress
        if given is not None and (not callable(given) or iscoroutinefunction(given)):
            raise refused("on_progress", "must be a non-async function of one argument")
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
    ) -> results.CallResult:
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
                    self._answers.invalidate(request.computer, "desktop", "finder")
            result = results.call_result(
                reply,
                req_id=request.req_id,
                trace_id=traced.trace_id,
                duration_s=loop.time() - start,
                what=f"the result of {request.tool_name!r} from {replier(request.computer)}",
            )
            if result.is_error and not result.input_required:
                traced.failed("timeout" if result.timed_out else "cancelled" if result.cancelled else "tool_error")
            return result

    def read_result(self, uri: str, *, max_chars: int = MAX_CHARS) -> results.CallResult:
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
    """The `timeout` of a call. Raises Malformed: it is not a number of seconds up to 3600 (events.txt)."""
    if not isinstance(timeout, int | float) or isinstance(timeout, bool) or not 0 < timeout <= MAX_TIMEOUT_S:
        raise refused("timeout", f"seconds, more than 0 and at most {MAX_TIMEOUT_S}")
    return timeout
