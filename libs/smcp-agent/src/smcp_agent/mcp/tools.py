"""The tools of an office as an MCP client gets them: all of them, or three that search, describe and call the others.

`mcp.bridge` says which tools a client may see, and runs calls (docs/adr/0050).
"""

import json
import math
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from smcp_agent.cache import in_turns
from smcp_agent.errors import NotFound
from smcp_agent.llm import NamedTool, object_schema, tags
from smcp_agent.rpc import checked
from smcp_proto.printable import did_you_mean
from smcp_proto.schemas import MCP_TOOL

if TYPE_CHECKING:  # the command line takes its options from here, and works without the MCP SDK
    from smcp_agent.mcp.resources import Context

MAX_TOOLS: Final = 40
"""Models choose worse from longer lists, and definitions fill their context."""
AWAY_S: Final = 10.0
"""How long a request of an MCP client waits for a lost connection. A gateway that is replaced is back sooner."""
MAX_FOUND: Final = 50
MAX_QUERY: Final = 500
MAX_LINE: Final = 200
"""Characters of a description among search results, and of the Computers in the description of the search."""
MAX_TEXT: Final = 2000
"""Characters of a description that are searched."""
MAX_TEXTS: Final = 5 * MAX_TEXT
"""Characters that are searched of a tool."""
SEARCH, DESCRIBE, CALL = "search_tools", "describe_tool", "call_tool"
RESERVED: Final = {("", name): name for name in (SEARCH, DESCRIBE, CALL)}
"""In the form of `name_tools`: no tool of a Computer gets these names."""
NO_TOOLS: Final = "the office has no tools: is a Computer in it, and is the name of the office right?"
ANNOTATION: Final = "MCP_TOOL_ANNOTATION"
ALWAYS_LOAD: Final = "anthropic/alwaysLoad"
"""In a tool's `_meta`, true: clients with a search of their own list it. A key of Claude Code's."""
_K1, _B = 1.2, 0.75
"""The usual parameters of BM25."""
_NAME_WEIGHT: Final = 3
"""A tool named so comes before one whose description says so."""
_CAMEL: Final = re.compile("([a-z0-9])([A-Z])")
_WORD: Final = re.compile(r"[぀-ヿ㐀-鿿]|[^\W_぀-ヿ㐀-鿿]+")
"""Chinese and Japanese have no spaces: each character is a word."""


class ToolMode(StrEnum):
    """What tools/list gives: all tools, the search, or (auto) the search where there are more than `max_tools`."""

    AUTO = "auto"
    ALL = "all"
    SEARCH = "search"


@dataclass(frozen=True)
class ToolListOptions:
    """How tools are listed. `mode`: of all clients, or of the one that asks. `always`: patterns (`*`, `?`, `[abc]`) of
    names that are listed in a search, too, at most `max_tools`."""

    mode: "ToolMode | Callable[[Context], ToolMode]" = ToolMode.AUTO
    max_tools: int = MAX_TOOLS
    always: Sequence[str] = ()


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Search(_Strict):
    query: str = Field(min_length=1, max_length=MAX_QUERY, description="Words, or a tool's name")
    limit: int = Field(10, ge=1, le=MAX_FOUND)


class _Describe(_Strict):
    name: str = Field(description="As search_tools gives it")


class _Call(_Describe):
    arguments: dict[str, Any] = Field(default_factory=dict, description="As the tool's inputSchema says")


class OfficeTools:
    """The part of the office's MCP server that lists, finds and searches tools. `may` as of `OfficeServer`."""

    def __init__(self, may: "Callable[[Context | None, NamedTool], bool]", listing: ToolListOptions) -> None:
        self._may = may
        self._listing = listing
        self._tools: dict[str, _Tool] = {}

    def put(self, tools: Iterable[NamedTool]) -> None:
        """These are the tools from now on."""
        before = self._tools
        self._tools = {
            each.name: found if (found := before.get(each.name)) and found.named.tool is each.tool else _Tool(each)
            for each in tools
        }

    async def entries(self, context: "Context") -> list[dict[str, Any]]:
        """The entries of tools/list."""
        tools = [each.named async for each in self._visible(context)]
        mode = self._listing.mode if isinstance(self._listing.mode, ToolMode) else self._listing.mode(context)
        if mode is ToolMode.ALL or (mode is ToolMode.AUTO and len(tools) <= self._listing.max_tools):
            return [mcp_tool(each) async for each in in_turns(tools)]
        chosen = [each for each in tools if any(fnmatchcase(each.name, always) for always in self._listing.always)]
        return [*_search_tools(tools), *map(mcp_tool, chosen[: self._listing.max_tools])]

    async def find(
        self, context: "Context", name: str, unlisted: Callable[[str], NamedTool | None] = lambda _: None
    ) -> NamedTool:
        """The tool of this name. Raises NotFound, also where the client may not use it: nobody learns what is there."""
        tool = self._tools.get(name)
        if (named := tool.named if tool else unlisted(name)) is None or not self._may(context, named):
            visible = [each.named.name async for each in self._visible(context)]
            raise NotFound(f"there is no tool {name!r} that you may use{did_you_mean(name, visible)}")
        return named

    def input_schema(self, name: str) -> dict[str, Any] | None:
        """The schema by which the MCP SDK checks the `Mcp-Param-*` headers of a call; None if it names no header: the
        SDK would search it in each call. None also if the sender may not use the tool: an error about a header would
        reveal that the tool exists."""
        tool = self._tools.get(name)
        return tool.header_schema if tool is not None and self._may(None, tool.named) else None

    async def run(self, context: "Context", name: str, arguments: Mapping[str, Any] | None) -> dict[str, Any]:
        """The CallToolResult of search_tools or describe_tool. Raises Malformed, NotFound."""
        if name == DESCRIBE:
            return _result(mcp_tool(await self.find(context, checked(_Describe, **(arguments or {})).name)))
        given = checked(_Search, **(arguments or {}))
        if not self._tools:
            raise NotFound(NO_TOOLS)
        found = await self.search(context, given.query)
        shown = [
            {"name": each.name, "computer": each.computer, "description": _one_line(each.tool.description)}
            for each in found[: given.limit]
        ]
        return _result({"tools": shown, "total": len(found)})

    async def search(self, context: "Context", query: str) -> list[NamedTool]:
        """The tools that have a word of the query, best first by BM25. Its statistics come from these tools alone, so
        they reveal none that the client may not see."""
        found = [each async for each in self._visible(context)]
        lengths = [each.length async for each in in_turns(found)]
        wanted = sorted({f" {word} " for word in _words(query)})
        average = sum(lengths) / max(1, len(lengths)) or 1
        having = Counter([word async for each in in_turns(found) for word in wanted if word in each.text])
        known = sorted(having.items())
        rarity = {word: math.log(1 + (len(found) - count + 0.5) / (count + 0.5)) for word, count in known}

        def score(tool: _Tool) -> float:
            damping = _K1 * (1 - _B + _B * tool.length / average)
            counts = ((rarity[word], tool.text.count(word)) for word in rarity)
            return sum(weight * count * (_K1 + 1) / (count + damping) for weight, count in counts)

        ranked = [(-score(each), each.named.name, each.named) async for each in in_turns(found)]
        return [named for negative, _, named in sorted(ranked) if negative]

    async def _visible(self, context: "Context") -> "AsyncIterator[_Tool]":
        async for each in in_turns(self._tools.values()):
            if self._may(context, each.named):
                yield each


class _Tool:
    def __init__(self, named: NamedTool) -> None:
        self.named = named

    @cached_property
    def header_schema(self) -> dict[str, Any] | None:
        from mcp.shared.inbound import x_mcp_header_map  # noqa: PLC0415 -- the command line works without it

        schema = _input_schema(self.named)
        return schema if x_mcp_header_map(schema) else None

    @cached_property
    def text(self) -> str:
        """Its words, each between two spaces: a Counter of them would be 35 times as large as the tool."""
        return "".join(f" {word} " for word in _words(" ".join(_texts(self.named))[:MAX_TEXTS]))

    @cached_property
    def length(self) -> int:
        """In words."""
        return self.text.count(" ") // 2


def meant(name: str, arguments: Mapping[str, Any] | None) -> tuple[str, Mapping[str, Any] | None]:
    """Name and arguments of the tool that is to run: of call_tool those that it was given. Raises Malformed."""
    if name != CALL:
        return name, arguments
    given = checked(_Call, **(arguments or {}))
    return given.name, given.arguments


def mcp_tool(named: NamedTool) -> dict[str, Any]:
    """MCP's Tool, as the MCP server behind the Computer lists it, under its name here."""
    tool, meta = named.tool, named.tool.meta or {}
    own = {key: _parsed(value) for key, value in meta.items() if key not in ("a2c_tool_meta", ANNOTATION, MCP_TOOL)}
    found = {
        **_object(meta.get(MCP_TOOL)),  # title and icons; only our Computers tell them
        "name": named.name,
        "description": named.description,
        "inputSchema": _input_schema(named),
        "outputSchema": tool.return_schema,
        "annotations": _object(meta.get(ANNOTATION)),
        "_meta": own,
    }
    return {key: value for key, value in found.items() if value}


def _input_schema(named: NamedTool) -> dict[str, Any]:
    schema = named.tool.params_schema
    return schema if schema.get("type") == "object" else object_schema(schema)


def _object(text: object) -> dict[str, Any]:
    found = _parsed(text)
    return found if isinstance(found, dict) else {}


def _parsed(value: object) -> Any:
    """A value of `_meta` as the MCP server sent it: Computers write objects, and lists of more than texts, as JSON."""
    with suppress(ValueError, RecursionError):
        found = json.loads(value) if isinstance(value, str) and value[:1] in ("{", "[") else value
        if isinstance(found, dict) or (isinstance(found, list) and not all(isinstance(each, str) for each in found)):
            return found
    return value


def _search_tools(tools: Iterable[NamedTool]) -> list[dict[str, Any]]:
    computers = _one_line(", ".join(sorted({each.computer for each in tools}))) or "none now"
    finds = (
        "Finds tools by words of their names, descriptions, parameters, tags and Computers; the best match first. "
        f"{DESCRIBE} gives a tool's parameters, {CALL} runs it. Computers: {computers}"
    )
    return [
        _search_tool(SEARCH, finds, _Search),
        _search_tool(DESCRIBE, f"Gives the whole definition of a tool that {SEARCH} found.", _Describe),
        _search_tool(CALL, f"Runs a tool that {SEARCH} found, and gives its result.", _Call),
    ]


def _search_tool(name: str, description: str, arguments: type[BaseModel]) -> dict[str, Any]:
    hints = {} if name == CALL else {"annotations": {"readOnlyHint": True, "openWorldHint": False}}
    meta = {"_meta": {ALWAYS_LOAD: True}}
    return {"name": name, "description": description, "inputSchema": _schema(arguments), **hints, **meta}


@cache  # pydantic makes it anew each time
def _schema(arguments: type[BaseModel]) -> dict[str, Any]:
    return {key: value for key, value in arguments.model_json_schema().items() if key != "title"}


def _result(found: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    return {"content": [{"type": "text", "text": text}], "structuredContent": found}


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_LINE else line[: MAX_LINE - 1] + "…"


def _texts(named: NamedTool) -> list[str]:
    found = [named.tool.name] * _NAME_WEIGHT + [named.name, named.computer, *tags(named.tool)]
    found.append(str(_object((named.tool.meta or {}).get(MCP_TOOL)).get("title", "")))
    found.append(named.tool.description[:MAX_TEXT])
    parameters = named.tool.params_schema.get("properties")
    for name, schema in parameters.items() if isinstance(parameters, dict) else ():
        described = schema.get("description") if isinstance(schema, dict) else None
        found += [name, described[:MAX_TEXT] if isinstance(described, str) else ""]
    return found


def _words(text: str) -> list[str]:
    """The words of a text, of `snake_case` and of `camelCase`; a plural is as its singular."""
    words = _WORD.findall(_CAMEL.sub(r"\1 \2", text).casefold())
    return [word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word for word in words]
