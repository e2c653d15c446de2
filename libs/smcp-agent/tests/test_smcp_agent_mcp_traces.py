"""The trace of a call that an MCP client makes."""

from typing import Any

import pytest
from mcp.server.context import CallNext, HandlerResult
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext

from smcp_agent.mcp.bridge import OfficeServer
from smcp_agent.mcp.resources import Context
from smcp_testing.bridged import ERAS, bridged
from smcp_testing.fake_gateway import fake_gateway, tool

TRACED: Any = {"traceparent": f"00-{'c' * 32}-{'d' * 16}-00"}


async def dropping(ctx: Context, call_next: CallNext) -> HandlerResult:
    """A tracer that drops the span of the client's request, as services drop what a library begins."""
    dropped = SpanContext(1, 1, is_remote=False)
    if "traceparent" in (ctx.meta or {}):
        dropped = SpanContext(int("c" * 32, 16), 1, is_remote=False)
    with trace.use_span(NonRecordingSpan(dropped)):
        return await call_next(ctx)


@ERAS
async def test_a_call_is_traced_unless_its_client_says_that_its_own_trace_is_not_sampled(
    era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(*given: Any, **options: Any) -> OfficeServer:
        office = OfficeServer(*given, **options)
        office.server.middleware.insert(0, dropping)
        return office

    monkeypatch.setattr("smcp_testing.bridged.OfficeServer", made)
    async with fake_gateway() as gateway:
        gateway.computers["red"] = [tool("echo")]
        async with bridged(gateway, era) as bridge:
            await bridge.client.call_tool("echo", {})
            await bridge.client.call_tool("echo", {}, meta=TRACED)
        untraced, traced = gateway.seen("client:tool_call")
    assert "traceparent" not in untraced
    assert traced["traceparent"].startswith(f"00-{'c' * 32}-")
    assert traced["traceparent"].endswith("-00")
