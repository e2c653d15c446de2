"""What is recorded of one call of a tool.

The SDK of MCP opens a CLIENT span for every request, and puts its `traceparent` into the request's `_meta`. Here the
span of a call gets the name and the attributes of OpenTelemetry's conventions for MCP, and its outcome.
"""

from collections.abc import Mapping
from typing import Any, Final

import orjson
from mcp_types import JSONRPCRequest
from opentelemetry import trace
from opentelemetry.trace import Span, Status, StatusCode

CONTENT_CHARS: Final = 16 * 1024
"""What is recorded of a call's arguments and of its result at most, where they are recorded at all."""


class CallSpan:
    """Args:
    labels: attributes that every span of the request has.
    content: whether arguments and results are recorded, too.
    """

    def __init__(self, labels: Mapping[str, str], *, content: bool = False) -> None:
        self._labels = labels
        self._content = content
        self._span: Span = trace.INVALID_SPAN

    def goes_to(self, server: Mapping[str, str]) -> None:
        """Which server is asked, as attributes."""
        self._labels = {**self._labels, **server}

    def began(self, span: Span, request: JSONRPCRequest) -> None:
        """A request is sent for the call, in `span`."""
        span.update_name(request.method)
        span.set_attributes(dict(self._labels))
        self._span = trace.INVALID_SPAN
        if request.method != "tools/call":
            return  # the SDK asks for the tools anew
        params: dict[str, Any] = request.params or {}
        tool = str(params.get("name"))
        self._span = span
        span.update_name(f"tools/call {tool}")
        span.set_attributes({"gen_ai.tool.name": tool, "gen_ai.operation.name": "execute_tool"})
        if self._content:
            span.set_attribute("gen_ai.tool.call.arguments", _text(params.get("arguments", {})))

    def answered(self, result: Mapping[str, Any]) -> None:
        """Its result came."""
        if self._content:
            self._span.set_attribute("gen_ai.tool.call.result", _text(result))
        if result.get("isError") is True:
            self.failed("tool_error")
        self._span = trace.INVALID_SPAN

    def failed(self, why: str) -> None:
        """The call ends without a good result; to be said before it is cancelled, since then its span has ended."""
        if self._span.is_recording():
            self._span.set_attribute("error.type", why)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span = trace.INVALID_SPAN


def _text(value: object) -> str:
    try:
        return orjson.dumps(value).decode()[:CONTENT_CHARS]
    except TypeError:
        return repr(value)[:CONTENT_CHARS]
