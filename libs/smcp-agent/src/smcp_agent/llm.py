"""Tools of many Computers as tools of an LLM API: names, schemas, the calls that a model makes, and what it gets.

Both APIs want names of `[A-Za-z0-9_-]{1,64}` that are unique in the request. A tool keeps its own name where that is
legal, no other Computer has it, and it does not look like the name of another Computer's tool; otherwise the name is
qualified, `<computer>__<tool>`; what is still not legal or not unique gets a hash of the pair.
"""

import asyncio
import json
import re
from base64 import b64decode
from collections import Counter
from collections.abc import Collection, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from typing import Any, Final, Literal, TypedDict, TypeVar, Unpack, get_args

from pydantic import ValidationError

from smcp_agent.errors import Malformed, NotFound, SmcpError, may_have_run
from smcp_agent.results import CallResult, Content, ImageContent, OnInput, ResourceContent, TextContent, as_text
from smcp_agent.tool_calls import DEFAULT_TIMEOUT_S, CallOptions, ToolCallMethods, allowed_chars
from smcp_proto.member_names import MAX_NAME_LENGTH
from smcp_proto.printable import did_you_mean
from smcp_proto.schemas import SMCPTool, ToolMeta
from smcp_proto.validation import refused

MAX_NAME: Final = 64
READ_RESULT: Final = "a2c_read_result"
"""The name of the model's tool that reads on in a result that was cut; no tool of a Computer gets it."""
PICTURES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
"""What both APIs take; they refuse a whole request for another one."""
MAX_PICTURE: Final = 5 * 1024 * 1024
"""Characters of base64: the limit of Anthropic's API for one picture, the smaller of the two."""
NOTHING: Final = "(the tool returned nothing)"
_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9_-]")
_QUALIFIED: Final = re.compile("(?=__)")

_Result = TypeVar("_Result")

OpenAITool = dict[str, Any]
AnthropicTool = dict[str, Any]
OpenAIApi = Literal["chat", "responses"]

_READER: Final = SMCPTool(
    name=READ_RESULT,
    description="Reads on in a result that was too long to be shown whole, where its link says so.",
    params_schema={"properties": {"uri": {"type": "string"}}, "required": ["uri"]},
)


class ToolFilter(TypedDict, total=False):
    """Which tools a model gets: those that pass all that is set."""

    computers: Collection[str] | None
    """Only tools of these Computers."""
    tags: Collection[str] | None
    """Only tools with one of these tags of the Computer's configuration."""
    only: Collection[str] | None
    """Only tools of these names: their own, or the model's."""
    max_chars: int | None
    """From now on a model gets at most so many characters of a result, and one more tool, with which it reads on."""


class ModelMethods(ToolCallMethods):
    """What `SmcpAgent` can do for a model.

    Names refer to the latest list; an older name still works unless that list gives it to another tool.
    """

    _given: dict[str, tuple[str, str]] | None = None
    """Computer and tool, by the name that a model was given; None: nothing was given yet."""
    _max_chars: int | None = None
    """As the last list for a model said."""

    async def openai_tools(self, api: OpenAIApi = "chat", **filters: Unpack[ToolFilter]) -> list[OpenAITool]:
        """The tools of all Computers for OpenAI's Chat Completions, or with `api="responses"` for its Responses API.

        A Computer whose tools could not be fetched so far is left out. A model can call what was in a list, and nothing
        else. Raises Malformed: there is no such `api`, or a filter has the wrong type.
        """
        if api not in get_args(OpenAIApi):
            raise refused("api", f"has to be {' or '.join(map(repr, get_args(OpenAIApi)))}")
        return [openai_tool(named, api) for named in await self._choose(**filters)]

    async def anthropic_tools(self, **filters: Unpack[ToolFilter]) -> list[AnthropicTool]:
        """The tools of all Computers for Anthropic's Messages API, as `openai_tools`."""
        return [anthropic_tool(named) for named in await self._choose(**filters)]

    async def run_openai_tool_calls(
        self,
        tool_calls: Iterable[Any] | None,
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
        pictures: bool = False,
        on_input: OnInput | None = None,
    ) -> list[dict[str, Any]]:
        """Run all tool calls of an answer at once: of `message.tool_calls`, or of `response.output`, whose other items
        are passed over; dicts, or objects of OpenAI's SDK. Returns the messages to append. Errors become a message that
        the model can read; only cancellation is raised, and what `on_input` raises.

        With `pictures`, a model that sees gets them: in the Responses API as parts of the output, in Chat Completions
        in a user's message, the last of those returned. `on_input`: as `call_tool`; several calls may ask at a time.
        """
        calls = [each for each in tool_calls or () if _field(each, "type") in (None, "function", "function_call")]
        named = [each if _is_response(each) else _field(each, "function") for each in calls]
        invocations = [(_field(each, "name"), _field(each, "arguments")) for each in named]
        results = await _all(self.run_tool(*each, timeout=timeout, on_input=on_input) for each in invocations)
        messages: list[dict[str, Any]] = []
        seen: list[dict[str, Any]] = []
        for call, result in zip(calls, results, strict=True):
            shown = [each for each in model_parts(result) if isinstance(each, ImageContent)] if pictures else []
            if _is_response(call):
                output = openai_parts(result) if shown else result_text(result)
                messages.append({"type": "function_call_output", "call_id": _field(call, "call_id"), "output": output})
                continue
            call_id = _field(call, "id")
            messages.append({"role": "tool", "tool_call_id": call_id, "content": result_text(result)})
            if shown:
                seen.append({"type": "text", "text": f"The pictures of tool call {call_id}:"})
                seen += [{"type": "image_url", "image_url": {"url": data_url(each)}} for each in shown]
        return [*messages, {"role": "user", "content": seen}] if seen else messages

    async def run_anthropic_tool_uses(
        self, content: Iterable[Any], *, timeout: float = DEFAULT_TIMEOUT_S, on_input: OnInput | None = None
    ) -> list[dict[str, Any]]:
        """Run all `tool_use` blocks of an answer's `content` (dicts, or objects of Anthropic's SDK) at once; returns
        their `tool_result` blocks, for one message. Errors and `on_input`: as `run_openai_tool_calls`."""
        uses = [each for each in content if _field(each, "type") == "tool_use"]
        invocations = [(_field(each, "name"), _field(each, "input")) for each in uses]
        results = await _all(self.run_tool(*each, timeout=timeout, on_input=on_input) for each in invocations)
        return [
            {
                "type": "tool_result",
                "tool_use_id": _field(use, "id"),
                "content": anthropic_output(result),
                "is_error": result.is_error,
            }
            for use, result in zip(uses, results, strict=True)
        ]

    async def run_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | str | None = None,
        *,
        on_input: OnInput | None = None,
        **options: Unpack[CallOptions],
    ) -> CallResult:
        """Run a tool by the name that a model was given; `arguments` may be the JSON text of an object. Errors become a
        result for a model (`result_text`); only cancellation is raised, and what `on_input` raises."""
        try:
            if self._given is None:  # a model may call tools that another run of the application showed it
                await self._choose()
            given = _arguments(arguments)
            if name == READ_RESULT and self._max_chars is not None:
                return self.read_result(str(given.get("uri")), max_chars=self._max_chars)
            known = self._given or {}
            if (pair := known.get(str(name))) is None:
                raise NotFound(f"there is no tool {name!r}{did_you_mean(str(name), known)}")
            options.setdefault("max_chars", self._max_chars)
            return await self.call_tool(*pair, given, on_input=on_input, **options)
        except SmcpError as error:
            return error_result(error)

    async def _choose(
        self,
        computers: Collection[str] | None = None,
        tags: Collection[str] | None = None,
        only: Collection[str] | None = None,
        max_chars: int | None = None,
    ) -> "list[NamedTool]":
        wanted = {"computers": computers, "tags": tags, "only": only}
        for field, names in wanted.items():
            if isinstance(names, str):
                raise refused(field, "a list of names, not text")
        self._max_chars = None if max_chars is None else allowed_chars(max_chars)
        given, chosen = self._given or {}, []
        for each in name_tools(await self._tools.all()):
            pair = (each.computer, each.tool.name)
            of_it = () if tags is None else tool_meta(each.tool).tags or ()
            own = {"computers": {each.computer}, "tags": set(of_it), "only": {each.name, each.tool.name}}
            if all(names is None or not own[field].isdisjoint(names) for field, names in wanted.items()):
                chosen.append(each)
                given[each.name] = pair
            elif given.get(each.name) != pair:  # the name is another tool's now
                given.pop(each.name, None)
        self._given = given
        return chosen if max_chars is None else [*chosen, NamedTool(READ_RESULT, "", _READER)]


async def _all(calls: Iterable[Coroutine[Any, Any, _Result]]) -> list[_Result]:
    """Their results. What one of them raises (`on_input` may) cancels the others."""
    tasks = [asyncio.ensure_future(each) for each in calls]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def model_parts(result: CallResult) -> list[str | ImageContent]:
    """What a model gets of a result, at least one: texts, and the pictures that the APIs take. Other contents are
    described."""
    parts: list[str | ImageContent] = []
    for block in result.content:
        if (picture := _picture(block)) is not None:
            parts.append(picture)
        elif text := as_text(block):
            parts.append(text)
    if not parts and result.structured_content is not None:
        parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    return parts or [NOTHING]


def result_text(result: CallResult) -> str:
    """The result as text for a model; a failure is marked, and what is not text is described."""
    text = "\n".join(each if isinstance(each, str) else as_text(each) for each in model_parts(result))
    return f"The tool failed: {text}" if result.is_error and not text.startswith("Error") else text


def openai_parts(result: CallResult) -> list[dict[str, Any]]:
    """The result as parts of an output in OpenAI's Responses API: texts and pictures."""
    parts = [
        {"type": "input_text", "text": each}
        if isinstance(each, str)
        else {"type": "input_image", "image_url": data_url(each)}
        for each in model_parts(result)
    ]
    return [{"type": "input_text", "text": "The tool failed:"}, *parts] if result.is_error else parts


def anthropic_output(result: CallResult) -> list[dict[str, Any]]:
    """The result as content blocks: texts and pictures as they are, other contents described."""
    return [
        {"type": "text", "text": each}
        if isinstance(each, str)
        else {"type": "image", "source": {"type": "base64", "media_type": each.mime_type, "data": each.data}}
        for each in model_parts(result)
    ]


def _picture(block: Content) -> ImageContent | None:
    match block:
        case ImageContent(data, kind) | ResourceContent(blob=str(data), mime_type=kind) if kind in PICTURES:
            with suppress(ValueError):
                if len(data) <= MAX_PICTURE and b64decode(data, validate=True):
                    return ImageContent(data, str(kind))
    return None


def data_url(picture: ImageContent) -> str:
    """The picture as a URL, as OpenAI's APIs take it."""
    return f"data:{picture.mime_type};base64,{picture.data}"


def error_result(error: SmcpError) -> CallResult:
    """An error as a result that a model can read, with its code."""
    ran = " (the tool may have run nevertheless)" if may_have_run(error) else ""
    return CallResult(content=(TextContent(f"Error {int(error.code)}: {error}{ran}"),), is_error=True)


def tool_meta(tool: SMCPTool) -> ToolMeta:
    """What the Computer's configuration says of a tool (`a2c_tool_meta`); empty where it says nothing readable."""
    value = (tool.meta or {}).get("a2c_tool_meta")
    try:
        return ToolMeta.model_validate_json(value) if isinstance(value, str) else ToolMeta()
    except ValidationError:
        return ToolMeta()


def tags(tool: SMCPTool) -> tuple[str, ...]:
    """The tags that the Computer's configuration gives to a tool."""
    return tuple(tool_meta(tool).tags or ())


def auto_apply(tool: SMCPTool) -> bool | None:
    """Whether the tool runs without asking the Computer's user. False: asked each time; None: the Computer decides."""
    return tool_meta(tool).auto_apply


@dataclass(frozen=True, slots=True)
class NamedTool:
    """A tool of a Computer and what a model calls it."""

    name: str
    computer: str
    tool: SMCPTool

    @property
    def description(self) -> str:
        """The tool's own; it says whose tool it is where the name alone is not the tool's own."""
        if self.name == self.tool.name:
            return self.tool.description
        return f"[{self.computer}: {self.tool.name}] {self.tool.description}".rstrip()


def name_tools(
    tools: Mapping[str, Iterable[SMCPTool]], kept: Mapping[tuple[str, str], str] | None = None
) -> list[NamedTool]:
    """Name the tools of the Computers, by their names; sorted by Computer, then by tool. `kept`: names by Computer and
    tool that no other tool gets, also while theirs is not there."""
    pairs = {(computer, tool.name): tool for computer, listed in tools.items() for tool in listed}
    names: dict[tuple[str, str], str] = dict(kept or {})
    qualifying, taken = qualifiers(tools), {READ_RESULT, *names.values()}
    unnamed = {pair: _names(*pair, qualifying) for pair in pairs if pair not in names}
    while unnamed:
        wanted = {pair: next(candidates) for pair, candidates in unnamed.items()}
        times = Counter(wanted.values())
        found = {pair: name for pair, name in wanted.items() if times[name] == 1 and name not in taken}
        names |= found
        taken.update(found.values())  # a Computer may choose names so that one of them takes thousands of rounds
        unnamed = {pair: candidates for pair, candidates in unnamed.items() if pair not in found}
    return [NamedTool(names[pair], pair[0], pairs[pair]) for pair in sorted(pairs)]


def _names(computer: str, tool: str, qualifying: Collection[str]) -> Iterator[str]:
    """Names for a tool, the best first."""
    qualified = f"{computer}__{tool}"
    for name in (qualified if looks_foreign(tool, computer, qualifying) else tool, qualified):
        is_legal = len(name) in range(1, MAX_NAME + 1) and not _ILLEGAL.search(name)
        yield name if is_legal else _with_digest(name, f"{computer}\0{tool}")
    for salt in count():
        yield _with_digest(qualified, f"{computer}\0{tool}" + "\0" * salt)


def qualifiers(computers: Iterable[str]) -> frozenset[str]:
    """What stands before `__` in the qualified names of these Computers."""
    return frozenset(form for each in computers for form in (each, _ILLEGAL.sub("_", each)))


def looks_foreign(name: str, computer: str, qualifying: Collection[str]) -> bool:
    """Whether a Computer's name for something of its own looks like the qualified name of another Computer's."""
    # not Computer by Computer: an office may have thousands of them, each with thousands of tools
    begins = {name[: each.start()] for each in _QUALIFIED.finditer(name, 0, MAX_NAME_LENGTH + 2)}
    return not begins.isdisjoint(qualifying) and begins.isdisjoint(qualifiers([computer]))


def openai_tool(named: NamedTool, api: OpenAIApi = "chat") -> OpenAITool:
    """An entry of `tools` for OpenAI's APIs."""
    schema = object_schema(named.tool.params_schema)
    function = {"name": named.name, "description": named.description, "parameters": schema}
    if api == "responses":
        # strict is on by default there, and refuses most schemas of MCP servers
        return {"type": "function", **function, "strict": False}
    return {"type": "function", "function": function}


def anthropic_tool(named: NamedTool) -> AnthropicTool:
    """An entry of `tools` for Anthropic's Messages API."""
    schema = object_schema(named.tool.params_schema)
    return {"name": named.name, "description": named.description, "input_schema": schema}


def object_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with `type` and `properties`, which MCP servers may leave out and the APIs insist on."""
    return {**schema, "type": "object", "properties": schema.get("properties") or {}}


def _with_digest(readable: str, hashed: str) -> str:
    digest = sha256(hashed.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{_ILLEGAL.sub('_', readable)[: MAX_NAME - 9]}_{digest}"


def _arguments(arguments: object) -> Mapping[str, Any]:
    """A tool call's arguments: an object, or the JSON text of one; empty text means none. Raises Malformed."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            raise Malformed(f"the arguments are not JSON: {error}") from error
    if arguments is None:
        return {}
    if not isinstance(arguments, Mapping):
        raise Malformed("the arguments are not a JSON object")
    return arguments


def _is_response(call: Any) -> bool:
    return bool(_field(call, "type") == "function_call")


def _field(thing: Any, name: str) -> Any:
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)
