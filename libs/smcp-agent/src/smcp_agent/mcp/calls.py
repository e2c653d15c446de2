"""One tool call of an MCP client: its progress, its elicitations and its result, in the forms of MCP (docs/adr/0046).

A client of 2026-07-28 gets elicitations as the result, and calls again with the answers and the state, which are those
of A2C-SMCP unchanged. A client of MCP 2025 is sent `elicitation/create` while its call waits.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from typing import Any
from uuid import uuid4

import anyio
import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from smcp_agent.client import SmcpAgent
from smcp_agent.errors import Malformed
from smcp_agent.llm import NamedTool
from smcp_agent.mcp.resources import Context, as_sent
from smcp_agent.results import InputAnswer, InputRequest
from smcp_proto.schemas import ToolProgress

OnProgress = Callable[[ToolProgress], None]
WhenGone = Callable[[Context, Callable[[], None]], AbstractContextManager[object]]


class ElicitationUnsupported(Exception):
    """The client cannot ask its user. The text says why, for a model."""


async def call(
    agent: SmcpAgent,
    context: Context,
    named: NamedTool,
    arguments: Mapping[str, Any] | None,
    *,
    when_gone: WhenGone,
    **options: Any,
) -> dict[str, Any]:
    """MCP's CallToolResult, or its InputRequiredResult; `options` as of `SmcpAgent.call_once`. Raises SmcpError."""
    called = named.computer, named.tool.name, arguments
    if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        try:
            answer = partial(_ask, context, when_gone=when_gone)
            return mcp_result((await agent.call_tool(*called, **options, on_input=answer)).raw)
        except ElicitationUnsupported as error:
            return failed(str(error))
    sent = context.params or {}
    state = sent.get("requestState")
    answers = None if state is None else sent.get("inputResponses")  # answers to nothing: asked anew
    try:
        result = await agent.call_once(*called, **options, input_state=state, input_responses=answers)
    except Malformed as error:
        if error.details.get("field") == "input_state":  # forged, used, or too old: MCP wants a protocol error
            said = as_sent(error)
            raise MCPError(types.INVALID_PARAMS, said.message, {"field": said.details["field"]}) from None
        raise
    if not result.input_required:
        return mcp_result(result.raw)
    requests = result.input_requests
    try:
        _check_modes(context, (each["params"] for each in requests.values()))
    except ElicitationUnsupported as error:
        agent.cancel_call(result.req_id)
        return failed(str(error))
    return {"resultType": "input_required", "inputRequests": requests, "requestState": result.input_state}


async def _ask(context: Context, request: InputRequest, when_gone: WhenGone) -> InputAnswer:
    """The answer of the client's user, asked on its session while its call waits. Raises ElicitationUnsupported."""
    _check_modes(context, [request.raw])
    said = dict(request.raw)
    if request.url is not None:
        said.setdefault("elicitationId", uuid4().hex)  # clients of 2025 want one; servers of 2026 give none
    try:
        with anyio.CancelScope() as scope, when_gone(context, scope.cancel):
            answer = await context.session.send_request(
                types.ElicitRequest.model_validate({"method": "elicitation/create", "params": said}),
                types.ElicitResult,
                metadata=ServerMessageMetadata(related_request_id=context.request_id),
            )
            return InputAnswer(answer.action, answer.content)
    except MCPError as error:
        raise _cannot([request.raw], f"the MCP client answered with the error {error.error.code}") from None
    except ValidationError:
        raise _cannot([request.raw], "the elicitation or the MCP client's answer is not valid in MCP") from None
    raise _cannot([request.raw], "the MCP client closed the connection of its call")


def _check_modes(context: Context, elicitations: Iterable[Mapping[str, Any]]) -> None:
    """Raises ElicitationUnsupported: the client does not declare the mode of each of the elicitations."""
    elicitations = list(elicitations)
    declared = (context.session.client_capabilities or types.ClientCapabilities()).elicitation
    declares = {} if declared is None else declared.model_dump(exclude_none=True) or {"form": {}}
    for mode in ("url" if "url" in each else "form" for each in elicitations):
        if mode not in declares:
            raise _cannot(elicitations, f"this MCP client cannot ask its user: it declares no `elicitation.{mode}`")


def _cannot(elicitations: Iterable[Mapping[str, Any]], why: str) -> ElicitationUnsupported:
    said = [f"{each['message']} (page: {each['url']})" if "url" in each else each["message"] for each in elicitations]
    asked = "; ".join(said)
    return ElicitationUnsupported(f"the tool asks its user: {asked}\nThe call was cancelled: {why}.")


@asynccontextmanager
async def progress(context: Context) -> AsyncIterator[OnProgress | None]:
    """Reports the progress of a call to a client that wants it, in the block; nothing is reported after it."""
    if "progress_token" not in (context.meta or {}):
        yield None
        return
    reporting: asyncio.Task[None] | None = None
    newest: list[ToolProgress] = []
    """One at most: a client that reads slowly misses some, and gets the last."""

    async def report() -> None:
        while newest:
            note = newest.pop()
            await context.session.report_progress(note.progress, note.total, note.message)

    def take(note: ToolProgress) -> None:
        nonlocal reporting
        newest[:] = [note]
        if reporting is None or reporting.done():
            reporting = asyncio.create_task(report())

    try:
        yield take
    finally:
        if reporting is not None:
            await reporting


def failed(text: str) -> dict[str, Any]:
    """A result that a model can read."""
    return mcp_result({"content": [{"type": "text", "text": text}], "isError": True})


def mcp_result(raw: Mapping[str, Any]) -> dict[str, Any]:
    """MCP's CallToolResult as the tool gave it; the wire of A2C-SMCP calls its `_meta` `meta`."""
    found = {key: raw[key] for key in ("structuredContent", "isError") if raw.get(key) is not None}
    found |= {"_meta": raw["meta"]} if raw.get("meta") else {}
    return {"content": raw.get("content", []), "resultType": "complete", **found}
