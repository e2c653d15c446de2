"""What the holder of a key or token may ask of Computers.

A gateway checks names, and leaves what is not allowed out of answers. The annotation of a tool is checked by the
Computer's owner: a native Computer itself, or the gateway of one on Socket.IO. A Computer's own `allow` is not here.
"""

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from smcp_bus import exact_json
from smcp_proto.errors import NotAllowed
from smcp_proto.member_names import matches

ANY: Final = ("*",)
ANNOTATION: Final = "MCP_TOOL_ANNOTATION"
"""The key in a tool's `meta` under which a Computer lists the annotations of its MCP server, as a JSON text."""
_OF_TOOLS: Final[Mapping[str, Any]] = {"tool_meta": {}, "forbidden_tools": []}
"""What a server's configuration says of tools, by their original names; patterns mean the names that are listed."""


class Rights(BaseModel):
    """Ignores what a newer gateway adds: it checks that itself."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    holder: str
    """The subject as the key or token says it."""
    computers: tuple[str, ...] = ANY
    tools: tuple[str, ...] = ANY
    read_only: bool = False

    @property
    def restricts_tools(self) -> bool:
        return self.read_only or self.tools != ANY

    def may_ask(self, computer: str) -> bool:
        return _any(self.computers, computer)

    def may_name(self, tool: str) -> bool:
        return _any(self.tools, tool)

    def check_computer(self, computer: str, field: str) -> None:
        """Raises NotAllowed: `details.field` is `field`."""
        if not self.may_ask(computer):
            raise NotAllowed("the token is not for this Computer", details={"field": field})

    def check_tool(self, tool: str, *, read_only: bool | None = None) -> None:
        """Raises NotAllowed (`details.field`).

        Args:
            tool: the name under which it is listed.
            read_only: what its annotation says; None: not known here.
        """
        if not self.may_name(tool):
            raise NotAllowed("the token is not for this tool", details={"field": "tool_name"})
        if self.read_only and read_only is False:
            raise NotAllowed(
                "the token is for tools that only read (readOnlyHint), and this one may change something",
                details={"field": "tool_name"},
            )


NOTHING: Final = Rights(holder="", computers=(), tools=())


def _any(patterns: Iterable[str], name: str) -> bool:
    return patterns == ANY or any(matches(pattern, name) for pattern in patterns)


def as_json(rights: Rights) -> dict[str, Any]:
    """The patterns of Computers are left out: a gateway has checked them."""
    return rights.model_dump(mode="json", exclude_defaults=True, exclude={"computers"})


def from_json(said: object) -> Rights:
    """What `as_json` gave. What cannot be read allows nothing."""
    try:
        return Rights.model_validate(said)
    except ValidationError:
        return NOTHING


@lru_cache(maxsize=4096)
def written(rights: Rights) -> str:
    """As text in ASCII."""
    return json.dumps(as_json(rights), separators=(",", ":"))


@lru_cache(maxsize=4096)
def read(text: str) -> Rights:
    try:
        return from_json(json.loads(text))
    except ValueError:
        return NOTHING


def is_read_only(tool: Mapping[str, Any]) -> bool:
    """Whether the server of a listed tool says that it only reads."""
    meta = tool.get("meta")
    said = meta.get(ANNOTATION) if isinstance(meta, dict) else None
    try:
        hints = orjson.loads(said) if isinstance(said, str) else said
    except orjson.JSONDecodeError:
        return False
    return isinstance(hints, dict) and hints.get("readOnlyHint") is True


def listed_hints(tools: Any) -> dict[str, bool]:
    """Whether each tool of a Computer's list only reads, by its name."""
    named = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    return {name: is_read_only(tool) for tool in named if isinstance(name := tool.get("name"), str)}


def check_listed(rights: Rights, listed: Mapping[str, bool], name: str) -> None:
    """Check a call by the list of a Computer that does not check it itself. Raises NotAllowed."""
    if name not in listed:
        raise NotAllowed(
            "this Computer lists no tool of this name, and the token allows only listed tools",
            details={"field": "tool_name"},
        )
    rights.check_tool(name, read_only=listed[name])


def without_tools(rights: Rights, event: str, body: bytes) -> bytes:
    """A Computer's answer without the tools that the asker may not call."""
    if event not in ("client:get_tools", "client:get_config"):
        return body
    answer = exact_json.read(body)
    match answer:
        case {"tools": list(tools)}:
            answer["tools"] = [tool for tool in tools if _is_shown(rights, tool)]
        case {"servers": dict(servers)}:
            for server in servers.values():
                if isinstance(server, dict):
                    server |= {field: empty for field, empty in _OF_TOOLS.items() if field in server}
    return exact_json.written(answer)


def _is_shown(rights: Rights, tool: Any) -> bool:
    name = tool.get("name") if isinstance(tool, dict) else None
    return isinstance(name, str) and rights.may_name(name) and (not rights.read_only or is_read_only(tool))
