"""An application with an Agent in it that is traced by itself, with OpenTelemetry's SDK as anybody sets it up.

    python agent_app.py URL OFFICE COMPUTER TOOL REQ_ID

Calls the tool once, in a span of its own, and prints the trace's id as the application and as the Agent SDK see it.
"""

import asyncio
import json
import sys

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from smcp_agent import SmcpAgent


async def main(url: str, office: str, computer: str, tool: str, req_id: str) -> None:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    async with SmcpAgent(url, office=office, name="traced") as agent:
        with trace.get_tracer("app").start_as_current_span("answer the user") as span:
            result = await agent.call_tool(computer, tool, req_id=req_id)
            own = trace.format_trace_id(span.get_span_context().trace_id)
    sys.stdout.write(json.dumps({"app": own, "agent": result.trace_id}) + "\n")
    provider.shutdown()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
