"""Tools of many Computers as tools of an LLM API: their names there, and their schemas. Pure.

Both APIs want names of `[A-Za-z0-9_-]{1,64}` that are unique in the request. A tool keeps its own name where that is
legal and no other Computer has it; otherwise the name is qualified, `<computer>__<tool>`; what is still not
legal or not unique gets a hash of the pair. A name depends on the set of tools only, not on their order.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Literal

from smcp_proto.schemas import SMCPTool

MAX_NAME: Final = 64
_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9_-]")
_DIGITS: Final = 8

OpenAITool = dict[str, Any]
AnthropicTool = dict[str, Any]
OpenAIApi = Literal["chat", "responses"]


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


def name_tools(tools: Mapping[str, Iterable[SMCPTool]]) -> list[NamedTool]:
    """Name the tools of the Computers (by their names); sorted by Computer, then by tool."""
    pairs = {(computer, tool.name): tool for computer, listed in tools.items() for tool in listed}
    names: dict[tuple[str, str], str] = {}
    steps: tuple[Callable[[str, str], str], ...] = (_plain, _qualified, _hashed)
    for name_of in steps:
        open_pairs = [pair for pair in sorted(pairs) if pair not in names]
        wanted = {pair: name_of(*pair) for pair in open_pairs}
        taken = Counter(wanted.values()) + Counter(names.values())
        names.update({pair: name for pair, name in wanted.items() if taken[name] == 1})
    for pair in sorted(pairs):
        digits = _DIGITS
        while pair not in names:
            digits += _DIGITS
            name = _with_digest("tool", pair, digits)
            if name not in names.values():
                names[pair] = name
    return [NamedTool(names[pair], pair[0], pairs[pair]) for pair in sorted(pairs)]


def openai_tool(named: NamedTool, api: OpenAIApi = "chat") -> OpenAITool:
    """An entry of `tools` for OpenAI's Chat Completions, or for its Responses API."""
    function = {
        "name": named.name,
        "description": named.description,
        "parameters": object_schema(named.tool.params_schema),
    }
    if api == "responses":
        # strict is on by default there, and refuses most schemas of MCP servers
        return {"type": "function", **function, "strict": False}
    return {"type": "function", "function": function}


def anthropic_tool(named: NamedTool) -> AnthropicTool:
    """An entry of `tools` for Anthropic's Messages API."""
    return {
        "name": named.name,
        "description": named.description,
        "input_schema": object_schema(named.tool.params_schema),
    }


def object_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with `type` and `properties`, which MCP servers may leave out and the APIs insist on."""
    return {**schema, "type": "object", "properties": schema.get("properties") or {}}


class ToolBook:
    """Which tool a name meant when it was given to a model.

    The names of the latest list win; an older name, which a model may still use in a conversation that began before
    the room changed, keeps its meaning as long as the latest list does not use it otherwise.
    """

    def __init__(self) -> None:
        self._given: dict[str, tuple[str, str]] = {}

    @property
    def empty(self) -> bool:
        """Whether no name was given yet."""
        return not self._given

    def give(self, named: Sequence[NamedTool]) -> None:
        """Remember what the names of the latest list mean."""
        self._given.update({each.name: (each.computer, each.tool.name) for each in named})

    def find(self, name: str) -> tuple[str, str] | None:
        """The Computer and its tool; None for a name that was never given."""
        return self._given.get(name)


def _plain(computer: str, tool: str) -> str:
    return tool if _legal(tool) else _with_digest(tool, (computer, tool))


def _qualified(computer: str, tool: str) -> str:
    name = f"{computer}__{tool}"
    return name if _legal(name) else _with_digest(name, (computer, tool))


def _hashed(computer: str, tool: str) -> str:
    return _with_digest(f"{computer}__{tool}", (computer, tool))


def _legal(name: str) -> bool:
    return 1 <= len(name) <= MAX_NAME and not _ILLEGAL.search(name)


def _with_digest(readable: str, pair: tuple[str, str], digits: int = _DIGITS) -> str:
    digest = sha256("\0".join(pair).encode("utf-8", "surrogatepass")).hexdigest()[:digits]
    head = _ILLEGAL.sub("_", readable)[: MAX_NAME - len(digest) - 1]
    return f"{head}_{digest}"
