"""The MCP server that MCP's conformance suite (npm `@modelcontextprotocol/conformance`) expects: it fixes the names.

    python -m smcp_testing.mcp_servers.conformance [--era 2025|2026] [--transport stdio|streamable] [--port N]

Over stdio it speaks that era, over Streamable HTTP both. `src/scenarios/server` of the suite says what each
tool, prompt and resource has to give.
"""

import argparse
import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final

import mcp_types as types
from mcp.server import Server, ServerRequestContext, subscriptions
from mcp.server.caching import CacheHint
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata

from smcp_testing.mcp_servers.http_serving import serve_on_loopback

PICTURE: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4z8DwHwAFAAH/iZk9HQAAAABJRU5ErkJggg=="
SOUND: Final = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
STATE: Final = "state of the conformance server"

TEXT: Final = {"type": "text", "text": "This is a simple text response for testing."}
IMAGE: Final = {"type": "image", "data": PICTURE, "mimeType": "image/png"}
AUDIO: Final = {"type": "audio", "data": SOUND, "mimeType": "audio/wav"}


def _embedded(uri: str, text: str, mime_type: str = "text/plain") -> dict[str, Any]:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime_type, "text": text}}


CONTENTS: Final[dict[str, list[dict[str, Any]]]] = {
    "test_simple_text": [TEXT],
    "test_image_content": [IMAGE],
    "test_audio_content": [AUDIO],
    "test_embedded_resource": [_embedded("test://embedded-resource", "This is an embedded resource content.")],
    "test_multiple_content_types": [
        {"type": "text", "text": "Multiple content types test:"},
        IMAGE,
        _embedded("test://mixed-content-resource", '{"test":"data","value":123}', "application/json"),
    ],
    "json_schema_2020_12_tool": [TEXT],
    "test_streaming_elicitation": [TEXT],
    "test_logging_tool": [TEXT],
}
"""Tools that always give the same."""


def _form(message: str, required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    needed = list(properties) if required is None else required
    schema = {"type": "object", "properties": properties, "required": needed}
    return {"method": "elicitation/create", "params": {"message": message, "requestedSchema": schema}}


def _sampling(text: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": {"type": "text", "text": text}}]
    return {"method": "sampling/createMessage", "params": {"messages": messages, "maxTokens": 100}}


STRING: Final = {"type": "string"}
NAME: Final = _form("What is your name?", name=STRING)
ROOTS: Final[dict[str, Any]] = {"method": "roots/list", "params": {}}
CONFIRM: Final = _form("Please confirm", ok={"type": "boolean"})
OPTIONS: Final = [{"const": f"value{number}", "title": f"Option {number}"} for number in (1, 2, 3)]
PLAIN: Final = ["option1", "option2", "option3"]

ASKING: Final[dict[str, list[dict[str, dict[str, Any]]]]] = {
    "test_sampling": [{"sample": _sampling("What is 6 * 7?")}],
    "test_elicitation": [{"response": _form("Please answer", response=STRING)}],
    "test_elicitation_sep1034_defaults": [
        {
            "defaults": _form(
                "Please review the defaults",
                [],
                name={"type": "string", "default": "John Doe"},
                age={"type": "integer", "default": 30},
                score={"type": "number", "default": 95.5},
                status={"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
                verified={"type": "boolean", "default": True},
            )
        }
    ],
    "test_elicitation_sep1330_enums": [
        {
            "enums": _form(
                "Please choose",
                [],
                untitledSingle={"type": "string", "enum": PLAIN},
                titledSingle={"type": "string", "oneOf": OPTIONS},
                legacyEnum={
                    "type": "string",
                    "enum": ["opt1", "opt2", "opt3"],
                    "enumNames": ["Option One", "Option Two", "Option Three"],
                },
                untitledMulti={"type": "array", "items": {"type": "string", "enum": PLAIN}},
                titledMulti={"type": "array", "items": {"anyOf": OPTIONS}},
            )
        }
    ],
    "test_input_required_result_elicitation": [{"user_name": NAME}],
    "test_input_required_result_sampling": [{"capital_question": _sampling("What is the capital of France?")}],
    "test_input_required_result_list_roots": [{"client_roots": ROOTS}],
    "test_input_required_result_request_state": [{"confirm": CONFIRM}],
    "test_input_required_result_tampered_state": [{"confirm": CONFIRM}],
    "test_input_required_result_multiple_inputs": [
        {"user_name": NAME, "greeting": _sampling("Generate a greeting"), "client_roots": ROOTS}
    ],
    "test_input_required_result_multi_round": [
        {"step1": _form("Step 1: What is your name?", name=STRING)},
        {"step2": _form("Step 2: What is your favorite color?", color=STRING)},
    ],
    "test_input_required_result_capabilities": [
        {"elicit_input": _form("Elicitation input", value=STRING), "sample_input": _sampling("Sample request")}
    ],
}
"""What these tools ask for, by round."""
SCHEMA_2020_12: Final[dict[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": {"$anchor": "addressDef", "type": "object", "properties": {"street": STRING, "city": STRING}}},
    "properties": {
        "name": STRING,
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": STRING,
        "email": STRING,
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
OTHERS: Final = (
    "test_tool_with_progress",
    "test_tool_with_logging",
    "test_error_handling",
    "test_missing_capability",
    "test_trigger_tool_change",
    "test_trigger_prompt_change",
)
PROMPTS: Final[dict[str, list[str]]] = {
    "test_simple_prompt": [],
    "test_prompt_with_arguments": ["arg1", "arg2"],
    "test_prompt_with_embedded_resource": ["resourceUri"],
    "test_prompt_with_image": [],
    "test_input_required_result_prompt": [],
}
"""The prompts, and their arguments."""
CONTEXT: Final = {"user_context": _form("What context should the prompt use?", context=STRING)}
RESOURCES: Final = {
    "test://static-text": {"mimeType": "text/plain", "text": "This is the content of the static text resource."},
    "test://static-binary": {"mimeType": "image/png", "blob": PICTURE},
    "test://watched-resource": {"mimeType": "text/plain", "text": "Watched resource content"},
}
CAPABILITY: Final = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
RESULTS: Final[dict[str, Any]] = {
    "elicitation/create": (types.ElicitRequest, types.ElicitResult),
    "sampling/createMessage": (types.CreateMessageRequest, types.CreateMessageResult),
    "roots/list": (types.ListRootsRequest, types.ListRootsResult),
}
CACHED: Final = CacheHint(ttl_ms=0, scope="private")

Context = ServerRequestContext[Any, Any]
Requests = Mapping[str, dict[str, Any]]


class Conformance:
    def __init__(self) -> None:
        self._changes = subscriptions.InMemorySubscriptionBus()
        self._added: list[str] = []
        """Tools and prompts that were added while it runs."""
        self.server: Server[Any] = Server(
            "conformance",
            version="1",
            cache_hints=dict.fromkeys(
                ("tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read"), CACHED
            ),
            on_list_tools=self._tools,
            on_call_tool=self._call,
            on_list_prompts=self._prompts,
            on_get_prompt=self._prompt,
            on_list_resources=self._resources,
            on_list_resource_templates=self._templates,
            on_read_resource=self._read,
            on_subscribe_resource=self._nothing,
            on_unsubscribe_resource=self._nothing,
            on_subscriptions_listen=subscriptions.ListenHandler(self._changes),
            on_completion=self._complete,
            on_set_logging_level=self._nothing,
        )

    async def _tools(self, ctx: Context, params: Any) -> Any:
        names = [*CONTENTS, *ASKING, *OTHERS, *self._added]
        schemas = {"json_schema_2020_12_tool": SCHEMA_2020_12}
        empty = {"type": "object", "properties": {}}
        return types.ListToolsResult.model_validate(
            {
                "tools": [
                    {"name": name, "description": f"What {name} says.", "inputSchema": schemas.get(name, empty)}
                    for name in names
                ]
            }
        )

    async def _call(self, ctx: Context, params: types.CallToolRequestParams) -> Any:
        name = params.name
        if name in CONTENTS:
            return _result(CONTENTS[name])
        if name in ASKING:
            return await self._asked(ctx, params, ASKING[name])
        match name:
            case "test_tool_with_progress":
                for step in (0, 50, 100):
                    await ctx.session.report_progress(step, 100, f"Completed step {step} of 100")
                    await asyncio.sleep(0.15)  # two within a tenth of a second may come as one
            case "test_tool_with_logging":
                for said in ("started", "processing data", "completed"):
                    await ctx.session.send_log_message(
                        level="info", data=f"Tool {said}", related_request_id=ctx.request_id
                    )
                    await asyncio.sleep(0.05)
            case "test_error_handling":
                raised = {"type": "text", "text": "This tool intentionally returns an error for testing"}
                return {**_result([raised]), "isError": True}
            case "test_missing_capability":
                self._need(ctx, "sampling")
            case "test_trigger_tool_change" | "test_trigger_prompt_change":
                tool = name == "test_trigger_tool_change"
                self._added.append(f"test_added_{len(self._added)}")
                event = subscriptions.ToolsListChanged() if tool else subscriptions.PromptsListChanged()
                await self._changes.publish(event)
            case _ if name not in self._added:
                raise MCPError(types.INVALID_PARAMS, f"unknown tool {name}")
        return _result([TEXT])

    def _need(self, ctx: Context, capability: str) -> None:
        if _declared(ctx, capability) is None:
            raise MCPError(
                types.MISSING_REQUIRED_CLIENT_CAPABILITY,
                f"the client has no {capability}",
                {"requiredCapabilities": {capability: {}}},
            )

    async def _asked(self, ctx: Context, params: Any, rounds: list[dict[str, dict[str, Any]]]) -> Any:
        """The tool's result, with all that it asks for, or its next requests."""
        if ctx.protocol_version < "2026":
            answers = [await self._send(ctx, request) for requests in rounds for request in requests.values()]
            return _result([{"type": "text", "text": f"answers: {json.dumps(answers)}"}])
        done, state = 0, params.request_state
        if state is not None:
            kept, _, number = state.partition("#")
            if kept != STATE or not number.isdigit():
                raise MCPError(types.INVALID_PARAMS, "requestState integrity check failed")
            done = int(number)
        answered = params.input_responses or {}
        if not all(_fits(rounds[done][key], answered[key]) for key in answered if key in rounds[done]):
            raise MCPError(types.INVALID_PARAMS, "inputResponses do not fit")
        requests = {
            key: request for key, request in rounds[done].items() if _declared(ctx, CAPABILITY[request["method"]])
        }
        if requests.keys() <= answered.keys():
            done += 1
        if done == len(rounds):
            return _result([{"type": "text", "text": "state-ok: all answers are there"}])
        if requests.keys() <= answered.keys():
            requests = rounds[done]
        stated = {} if params.name == "test_input_required_result_elicitation" else {"requestState": f"{STATE}#{done}"}
        return {"resultType": "input_required", "inputRequests": requests, **stated}

    async def _send(self, ctx: Context, request: dict[str, Any]) -> Any:
        """A request of the 2025 era, and its answer; an error as text.

        It goes out on the call's own stream: over HTTP, the client's stream for all else may not be open yet.
        """
        kind, result = RESULTS[request["method"]]
        related = ServerMessageMetadata(related_request_id=ctx.request_id)
        try:
            answer = await ctx.session.send_request(kind.model_validate(request), result, metadata=related)
        except MCPError as error:
            return error.error.message
        return answer.model_dump(mode="json", by_alias=True, exclude_none=True)

    async def _prompts(self, ctx: Context, params: Any) -> Any:
        listed = [
            {
                "name": name,
                "description": f"What {name} says.",
                "arguments": [{"name": each, "description": "Anything.", "required": True} for each in arguments],
            }
            for name, arguments in {**PROMPTS, **{name: [] for name in self._added}}.items()
        ]
        return types.ListPromptsResult.model_validate({"prompts": listed})

    async def _prompt(self, ctx: Context, params: types.GetPromptRequestParams) -> Any:
        given = params.arguments or {}
        match params.name:
            case "test_simple_prompt":
                contents = [{"type": "text", "text": "This is a simple prompt for testing."}]
            case "test_prompt_with_arguments":
                text = f"Prompt with arguments: arg1='{given['arg1']}', arg2='{given['arg2']}'"
                contents = [{"type": "text", "text": text}]
            case "test_prompt_with_embedded_resource":
                embedded = _embedded(given["resourceUri"], "Embedded resource content for testing.")
                contents = [embedded, {"type": "text", "text": "Please process the embedded resource above."}]
            case "test_prompt_with_image":
                contents = [IMAGE, {"type": "text", "text": "Please analyze the image above."}]
            case _ if params.input_responses:
                contents = [{"type": "text", "text": f"Prompt with context: {params.input_responses}"}]
            case _:
                return {"resultType": "input_required", "inputRequests": CONTEXT}
        return {"messages": [{"role": "user", "content": each} for each in contents], "resultType": "complete"}

    async def _resources(self, ctx: Context, params: Any) -> Any:
        listed = [{"uri": uri, "name": uri.removeprefix("test://")} for uri in RESOURCES]
        return types.ListResourcesResult.model_validate({"resources": listed})

    async def _templates(self, ctx: Context, params: Any) -> Any:
        template = {"uriTemplate": "test://template/{id}/data", "name": "template", "mimeType": "application/json"}
        return types.ListResourceTemplatesResult.model_validate({"resourceTemplates": [template]})

    async def _read(self, ctx: Context, params: types.ReadResourceRequestParams) -> Any:
        uri = params.uri
        content: Mapping[str, str] | None = RESOURCES.get(uri)
        if content is None and uri.startswith("test://template/"):
            id_ = uri.split("/")[3]
            text = json.dumps({"id": id_, "templateTest": True, "data": f"Data for ID: {id_}"})
            content = {"mimeType": "application/json", "text": text}
        if content is None:
            raise MCPError(types.INVALID_PARAMS, "no such resource", {"uri": uri})
        return types.ReadResourceResult.model_validate({"contents": [{"uri": uri, **content}]})

    async def _complete(self, ctx: Context, params: Any) -> Any:
        return types.CompleteResult.model_validate({"completion": {"values": [], "total": 0, "hasMore": False}})

    async def _nothing(self, ctx: Context, params: Any) -> types.EmptyResult:
        return types.EmptyResult()

    async def serve_stdio(self, era: str) -> None:
        options = self.server.create_initialization_options()
        async with stdio_server() as (read, write):
            if era == "2025":
                await serve_loop(self.server, read, write, lifespan_state={}, init_options=options)
            else:
                await self.server.run(read, write, options)


def _result(content: list[dict[str, Any]]) -> dict[str, Any]:
    return {"content": content, "resultType": "complete"}


def _declared(ctx: Context, capability: str) -> Any:
    """What the client declared of a capability."""
    declared = ctx.session.client_capabilities
    return getattr(declared, capability) if declared is not None else None


def _fits(request: dict[str, Any], answer: Any) -> bool:
    if request["method"] != "elicitation/create":
        return True
    schema = request["params"]["requestedSchema"]
    content = answer.content or {}
    return answer.action != "accept" or all(isinstance(content.get(key), str | bool) for key in schema["required"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--era", choices=["2025", "2026"], default="2026")
    parser.add_argument("--transport", choices=["stdio", "streamable"], default="stdio")
    parser.add_argument("--port", type=int, default=0)
    chosen = parser.parse_args()
    if chosen.transport == "stdio":
        asyncio.run(Conformance().serve_stdio(chosen.era))
    else:
        asyncio.run(serve_on_loopback(Conformance().server.streamable_http_app(), chosen.port))
