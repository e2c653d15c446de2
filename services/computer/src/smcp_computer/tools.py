"""The tools of all MCP servers as one list (`client:get_tools`): names, `SMCPTool.meta`, and the server of each tool.

Names are given by these rules, in this order:

1. A tool that its server's `forbidden_tools` names, by its original name or its alias, is not listed.
2. A tool wants its alias, or else its own name, made legal for every LLM API: `[A-Za-z0-9_-]{1,64}`.
3. A name that more than one tool wants is given to none of them: each is listed as `<server>__<name>`.
4. What still collides, or is too long, ends in a digest of the server's name and the tool's own.

So all names are legal and unique, and depend on what is configured and offered, not on any order.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import mcp_types as types

from smcp_computer.mcp.supervisor import Supervisor
from smcp_proto.schemas.base import Attributes, AttributeValue
from smcp_proto.schemas.config import MCPServerConfig
from smcp_proto.schemas.tools import SMCPTool, ToolMeta

MAX_LENGTH: Final = 64
SEPARATOR: Final = "__"
_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9_-]")
_DIGEST_LENGTH: Final = 8
TOOL_META: Final = "a2c_tool_meta"
ANNOTATION: Final = "MCP_TOOL_ANNOTATION"


@dataclass(frozen=True, slots=True, order=True)
class ToolRef:
    server: str
    tool: str


@dataclass(frozen=True, slots=True)
class Target:
    ref: ToolRef
    supervisor: Supervisor
    configured: ToolMeta | None


class Catalogue:
    """The tools of all servers; `refresh` after each change. Those of servers that are not ready are not listed, but
    keep their names, so that a restart renames nothing."""

    def __init__(self, supervisors: Mapping[str, Supervisor]) -> None:
        self._supervisors = supervisors
        self._names = name_tools(())
        self.listing: tuple[SMCPTool, ...] = ()
        """What `client:get_tools` answers, sorted by name."""

    def find(self, name: str) -> Target | None:
        """The tool that is called `name`; also of a server that is not ready now."""
        if (ref := self._names.listed.get(name)) is None:
            return None
        supervisor = self._supervisors[ref.server]
        return Target(ref, supervisor, tool_meta_of(supervisor.config, ref.tool))

    def is_forbidden(self, name: str) -> bool:
        """Whether the configuration forbids what a caller means by `name`: original, alias or qualified."""
        return name in self._names.forbidden

    def candidates(self, name: str) -> list[str]:
        return [listed for listed, ref in self._names.listed.items() if ref.tool == name]

    def refresh(self) -> bool:
        """Look at the servers again. Returns whether the listing changed."""
        names = name_tools(
            Offer(
                server=name,
                tools=[tool.name for tool in supervisor.tools],
                aliases={tool: meta.alias for tool, meta in supervisor.config.tool_meta.items() if meta.alias},
                forbidden=frozenset(supervisor.config.forbidden_tools),
            )
            for name, supervisor in self._supervisors.items()
        )
        listing = self._listed(names)
        changed = listing != self.listing
        self._names, self.listing = names, listing
        return changed

    def _listed(self, names: "Names") -> tuple[SMCPTool, ...]:
        tools = {
            ToolRef(server, tool.name): tool
            for server, supervisor in self._supervisors.items()
            if supervisor.ready
            for tool in reversed(supervisor.tools)  # of two with one name the first counts
        }
        return tuple(
            SMCPTool(
                name=name,
                description=tool.description or "",
                params_schema=tool.input_schema,
                return_schema=tool.output_schema,
                meta=attributes(tool, tool_meta_of(self._supervisors[ref.server].config, ref.tool)),
            )
            for name, ref in names.listed.items()
            if (tool := tools.get(ref)) is not None
        )


class History:
    """The MCP servers of the tool calls, for the order of windows and documents. Only the last call of each counts."""

    def __init__(self) -> None:
        self._servers: dict[str, None] = {}

    def called(self, server: str) -> None:
        self._servers.pop(server, None)
        self._servers[server] = None

    @property
    def servers(self) -> tuple[str, ...]:
        """The one called last stands at the end."""
        return tuple(self._servers)


def tool_meta_of(server: MCPServerConfig, tool: str) -> ToolMeta | None:
    """What is configured about a tool, by its original name: its own entry, else the server's default as a whole."""
    return server.tool_meta.get(tool, server.default_tool_meta)


def attributes(tool: types.Tool, configured: ToolMeta | None) -> Attributes:
    sent = tool.meta or {}
    meta: Attributes = {key: _simple(value) for key, value in sent.items() if key not in (TOOL_META, ANNOTATION)}
    if tool.annotations and (given := tool.annotations.model_dump(mode="json", by_alias=True, exclude_none=True)):
        meta[ANNOTATION] = _json(given)
    if configured is not None:
        meta[TOOL_META] = _json(configured.model_dump(mode="json"))
    return meta


def _simple(value: Any) -> AttributeValue:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    return _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Offer:
    server: str
    tools: Sequence[str]
    """Original names; one that stands twice counts once."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """By original name."""
    forbidden: frozenset[str] = frozenset()
    """Original names and aliases."""


@dataclass(frozen=True, slots=True)
class Names:
    listed: Mapping[str, ToolRef]
    """By the name under which a tool is listed, sorted."""
    forbidden: Mapping[str, ToolRef]
    """What is not listed, by each name that a caller may try: original, alias, qualified."""


def name_tools(offers: Iterable[Offer]) -> Names:
    """Apply the rules to what all servers offer. Pure."""
    wanted: dict[ToolRef, str] = {}
    forbidden: dict[str, ToolRef] = {}
    for offer in sorted(offers, key=lambda offer: offer.server):
        for tool in sorted(offer.tools):
            ref = ToolRef(offer.server, tool)
            alias = offer.aliases.get(tool)
            if tool in offer.forbidden or (alias is not None and alias in offer.forbidden):
                for name in (tool, alias or tool):
                    for form in (name, legal(name), qualified(ref, name)):
                        forbidden.setdefault(form, ref)
            else:
                wanted[ref] = alias or tool
    listed = _assign(wanted)
    by_name = dict(sorted((name, ref) for ref, name in listed.items()))
    return Names(
        listed=by_name,
        forbidden={name: ref for name, ref in sorted(forbidden.items()) if name not in by_name},
    )


def legal(name: str) -> str:
    """`name` with what is not legal replaced by `_`; a longer one is cut and ends in a digest of the whole."""
    changed = _ILLEGAL.sub("_", name) or "_"
    return changed if len(changed) <= MAX_LENGTH else _with_digest(changed, name)


def qualified(ref: ToolRef, wanted: str) -> str:
    return legal(f"{ref.server}{SEPARATOR}{wanted}")


def _assign(wanted: Mapping[ToolRef, str]) -> dict[ToolRef, str]:
    """Each tool the simplest name that no other tool could take as well, level by level."""
    names: dict[ToolRef, str] = {}
    open_refs = sorted(wanted)
    taken: set[str] = set()
    for level in (lambda _, name: legal(name), qualified):
        proposals = {ref: level(ref, wanted[ref]) for ref in open_refs}
        times = Counter(proposals.values())
        settled = {ref: name for ref, name in proposals.items() if times[name] == 1 and name not in taken}
        names |= settled
        # a name that several wanted goes to nobody, also not at a later level: it would look like one of theirs
        taken |= set(proposals.values())
        open_refs = [ref for ref in open_refs if ref not in settled]
    for ref in open_refs:
        base = _ILLEGAL.sub("_", f"{ref.server}{SEPARATOR}{wanted[ref]}")
        attempts = (_with_digest(base, f"{ref.server}\0{ref.tool}\0{attempt}") for attempt in count(0))
        names[ref] = next(name for name in attempts if name not in taken)
        taken.add(names[ref])
    return names


def _with_digest(base: str, whole: str) -> str:
    digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_LENGTH]
    return f"{base[: MAX_LENGTH - _DIGEST_LENGTH - 1]}_{digest}"
