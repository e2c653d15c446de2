"""An MCP server whose tools elicit input of the user, over stdio or Streamable HTTP.

    python -m smcp_testing.mcp_servers.eliciting --era 2025|2026 [--log FILE] [--transport streamable --port PORT]

In the era of 2025 it sends `elicitation/create` while the call runs; in that of 2026 the call ends with
`input_required`. With `--log` each call that has what it asked for, or was cancelled, is a line of that file.
"""

import argparse
import asyncio
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from mcp.server import Server
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata

from smcp_testing.mcp_servers.http_serving import serve_on_loopback

DAY = {
    "type": "object",
    "properties": {"day": {"type": "string", "enum": ["monday", "friday"]}, "guests": {"type": "integer"}},
    "required": ["day"],
}
TOOLS = ("book", "pay", "insist", "crowd", "think", "die", "gate")
"""`gate` wants a page to be opened before it runs (error -32042 of the 2025 era)."""


def _elicitation(tool: str, number: int) -> types.InputRequest:
    if tool == "think":
        text = types.TextContent(type="text", text="hm")
        params = types.CreateMessageRequestParams(
            messages=[types.SamplingMessage(role="user", content=text)], max_tokens=1
        )
        return types.CreateMessageRequest(params=params)
    if tool == "pay":
        asked = types.ElicitRequestURLParams(message="Pay first", url="https://pay.example/1", elicitation_id="e1")
        return types.ElicitRequest(params=asked)
    form = types.ElicitRequestFormParams(message=f"Which day ({number})?", requested_schema=DAY)
    return types.ElicitRequest(params=form)


class Eliciting:
    def __init__(self, log: Path | None) -> None:
        self._log = log
        self._asked = False
        self.server: Server[Any] = Server("eliciting", version="1", on_list_tools=self._list, on_call_tool=self._call)

    def _write(self, line: str) -> None:
        if self._log is not None:
            with self._log.open("a") as file:
                file.write(line + "\n")

    async def _list(self, ctx: Any, params: Any) -> types.ListToolsResult:
        schema = {"type": "object", "properties": {"note": {"type": "string", "x-mcp-header": "Note"}}}
        tools = [types.Tool(name=name, description="It elicits.", input_schema=schema) for name in TOOLS]
        return types.ListToolsResult(tools=tools)

    async def _call(self, ctx: Any, params: types.CallToolRequestParams) -> Any:
        given = params.arguments or {}
        if params.name == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if params.name == "gate" and not self._asked:
            self._asked = True
            page = {"mode": "url", "message": "Sign in", "url": "https://gate.example/1", "elicitationId": "g1"}
            raise MCPError(types.URL_ELICITATION_REQUIRED, "sign in first", {"elicitations": [page]})
        if params.name == "gate":
            return types.CallToolResult(content=[types.TextContent(type="text", text=f"gate {dict(given)}: open")])
        rounds, at_once = int(given.get("times", 1)), int(given.get("at_once", 1))
        if ctx.protocol_version.startswith("2026"):
            done = int(params.request_state or "0")
            if done + (params.input_responses is not None) < rounds:
                elicitations = {f"q{number}": _elicitation(params.name, number) for number in range(1, at_once + 1)}
                asked = done + (params.input_responses is not None)
                return types.InputRequiredResult(input_requests=elicitations, request_state=str(asked))
            answers = list((params.input_responses or {}).values())
            return self._result(params.name, given, answers)
        try:
            answers = []
            for _ in range(rounds):
                sent = [self._elicit(ctx, _elicitation(params.name, number)) for number in range(1, at_once + 1)]
                answers += await asyncio.gather(*sent)
        except anyio.get_cancelled_exc_class():
            self._write(f"cancelled {params.name}")
            raise
        except MCPError as error:
            return types.CallToolResult(
                content=[types.TextContent(type="text", text=f"the client said: {error.message}")], is_error=True
            )
        return self._result(params.name, given, answers[-at_once:])

    async def _elicit(self, ctx: Any, request: Any) -> Any:
        result = types.CreateMessageResult if request.method.startswith("sampling") else types.ElicitResult
        related = ServerMessageMetadata(related_request_id=ctx.request_id)
        return await ctx.session.send_request(request, result, metadata=related)

    def _result(self, tool: str, given: Mapping[str, Any], answers: list[Any]) -> types.CallToolResult:
        said = [f"{each.action} {each.content}" if each.content else each.action for each in answers]
        text = f"{tool} {dict(given)}: {', '.join(said)}"
        self._write(text)
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)])

    async def serve_http(self, era: str, port: int) -> None:
        async def handshake_only(ctx: Any, call_next: Any) -> Any:
            if era == "2025" and ctx.protocol_version.startswith("2026"):
                raise MCPError(types.METHOD_NOT_FOUND, "Method not found")
            return await call_next(ctx)

        self.server.middleware.append(handshake_only)
        await serve_on_loopback(self.server.streamable_http_app(), port)

    async def serve(self, era: str) -> None:
        options = self.server.create_initialization_options()
        async with stdio_server() as (read, write):
            if era == "2025":
                await serve_loop(self.server, read, write, lifespan_state={}, init_options=options)
            else:
                await self.server.run(read, write, options)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--era", choices=["2025", "2026"], required=True)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--transport", choices=["streamable"])
    parser.add_argument("--port", type=int)
    chosen = parser.parse_args()
    server = Eliciting(chosen.log)
    asyncio.run(server.serve_http(chosen.era, chosen.port) if chosen.transport else server.serve(chosen.era))
