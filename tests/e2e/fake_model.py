"""A fake of OpenAI's and Anthropic's APIs: a model that calls one tool, and then says what came back.

It refuses what the APIs refuse: a tool without a legal name or object schema, a result of a call that was not made.
"""

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from aiohttp import web

CALL: Final = "call_1"
Json = dict[str, Any]


class FakeModel:
    """Calls `tool` with `arguments` where no result is in the request."""

    def __init__(self, tool: str, arguments: Mapping[str, Any]) -> None:
        self.url = ""
        """Where the APIs are; OpenAI's has `/v1` behind it."""
        self.requests: list[str] = []
        """The paths that were asked for."""
        self._tool = tool
        self._arguments = dict(arguments)

    async def chat(self, request: web.Request) -> web.Response:
        asked = await self._asked(request, lambda tool: (tool["function"]["name"], tool["function"]["parameters"]))
        results = [each for each in asked["messages"] if each["role"] == "tool"]
        said: Json = {"role": "assistant", "content": self._said(results, "tool_call_id", "content")}
        if not results:
            function = {"name": self._tool, "arguments": json.dumps(self._arguments)}
            said["tool_calls"] = [{"id": CALL, "type": "function", "function": function}]
        choice = {"index": 0, "message": said, "finish_reason": "stop" if results else "tool_calls"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return web.json_response(
            {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
        )

    async def responses(self, request: web.Request) -> web.Response:
        asked = await self._asked(request, lambda tool: (tool["name"], tool["parameters"]))
        results = [each for each in asked["input"] if each.get("type") == "function_call_output"]
        text = {"type": "output_text", "text": self._said(results, "call_id", "output"), "annotations": []}
        item: Json = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [text]}
        if not results:
            item = {
                "type": "function_call",
                "id": "fc",
                "call_id": CALL,
                "status": "completed",
                "name": self._tool,
                "arguments": json.dumps(self._arguments),
            }
        usage = {
            "input_tokens": 1,
            "output_tokens": 1,
            "total_tokens": 2,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        }
        return web.json_response(
            {
                "id": "r",
                "object": "response",
                "created_at": 0,
                "model": "m",
                "status": "completed",
                "output": [item],
                "usage": usage,
                "tools": [],
                "tool_choice": "auto",
                "parallel_tool_calls": True,
            }
        )

    async def messages(self, request: web.Request) -> web.Response:
        asked = await self._asked(request, lambda tool: (tool["name"], tool["input_schema"]))
        last = asked["messages"][-1]["content"]
        results = [each for each in last if each["type"] == "tool_result"] if isinstance(last, list) else []
        use = {"type": "tool_use", "id": CALL, "name": self._tool, "input": self._arguments}
        block = {"type": "text", "text": self._said(results, "tool_use_id", "content")} if results else use
        return web.json_response(
            {
                "id": "m",
                "type": "message",
                "role": "assistant",
                "model": "m",
                "content": [block],
                "stop_reason": "end_turn" if results else "tool_use",
                "stop_sequence": None,
                "usage": {"input_tokens": 1, "output_tokens": 1},
            }
        )

    async def _asked(self, request: web.Request, name_and_schema: Any) -> Json:
        self.requests.append(request.path)
        asked: Json = await request.json()
        tools = dict(map(name_and_schema, asked["tools"]))
        legal = all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in tools)
        if not legal or self._tool not in tools or any(schema["type"] != "object" for schema in tools.values()):
            raise web.HTTPBadRequest(text=f"these are not tools: {asked['tools']}")
        return asked

    def _said(self, results: list[Json], call_id: str, content: str) -> str:
        if any(each[call_id] != CALL for each in results):
            raise web.HTTPBadRequest(text=f"there was no such call: {results}")
        said = results[-1][content] if results else ""
        return said if isinstance(said, str) else "".join(part.get("text", "") for part in said)


@asynccontextmanager
async def fake_model(tool: str, arguments: Mapping[str, Any]) -> AsyncIterator[FakeModel]:
    model, app = FakeModel(tool, arguments), web.Application()
    app.router.add_post("/v1/chat/completions", model.chat)
    app.router.add_post("/v1/responses", model.responses)
    app.router.add_post("/v1/messages", model.messages)
    runner = web.AppRunner(app, handle_signals=False)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    model.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield model
    finally:
        await runner.cleanup()
