"""The tools of all MCP servers as one list (`client:get_tools`): names, `SMCPTool.meta`, and the server of each tool.

Names are given by these rules, in this order:

1. A tool that its server's `forbidden_tools` names, by its original name or its alias, is not listed.
2. A tool that is listed keeps its name, as long as its server offers it and its alias is the same.
3. A tool wants its alias, or else its own name, made legal for every LLM API: `[A-Za-z0-9_-]{1,64}`.
4. A name that another tool has, or that more than one new tool wants, is given to none of the new ones: each is listed
   as `<server>__<name>`.
5. What still collides, or is too long, ends in a digest of the server's name and the tool's own.

So all names are legal and unique. Until somebody has seen them, they depend on what is configured and offered alone,
not on which server was first. `<server>__<name>` can be called always, whatever a tool is listed as.
"""

import asyncio
import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import mcp_types as types

from smcp_computer.json_schema import Schema
from smcp_computer.pins import Pins, not_approved
from smcp_computer.settings import HostSettings
from smcp_proto.schemas.base import Attributes, AttributeValue
from smcp_proto.schemas.config import MCPServerConfig
from smcp_proto.schemas.tools import MCP_TOOL, PIN, SMCPTool, ToolMeta
from smcp_proto.validation import refused

if TYPE_CHECKING:  # with it comes the MCP SDK, a second that every command of `smcp-computer` would take longer
    from smcp_computer.mcp.supervisor import Supervisor

_log = logging.getLogger("smcp_computer.tools")

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


class Target(NamedTuple):
    """A tool that can be called."""

    ref: ToolRef
    supervisor: "Supervisor"
    tool: types.Tool
    configured: ToolMeta | None
    host: HostSettings
    """As it was when the tool was looked up, so that two of them differ where the policy changed."""


class Catalogue:
    """The tools of all servers; `refresh` after each change. Those of servers that are not ready are not listed, but
    keep their names, so that a restart renames nothing."""

    def __init__(self, supervisors: Mapping[str, "Supervisor"], pins: Pins | None = None) -> None:
        self._supervisors = supervisors
        self._pins = pins or Pins()
        self._changes: Mapping[ToolRef, str] = {}
        """The tools that differ from their pins, and why."""
        self._names = name_tools(())
        self._listed_names: Mapping[ToolRef, str] = {}
        self._tools: Mapping[ToolRef, types.Tool] = {}
        self._shown: object = ({}, {})
        """What the listing is made of."""
        self._listing: tuple[SMCPTool, ...] | None = ()
        """None: not made yet; nobody asks for most of what a server that changes its tools all the time lists."""
        self._checks: dict[ToolRef, tuple[types.Tool, Schema | None]] = {}
        self._seen = False
        """Whether anybody may know the names."""

    @property
    def listing(self) -> tuple[SMCPTool, ...]:
        """What `client:get_tools` answers, sorted by name. Who reads it relies on the names: they stay from then on."""
        self._seen = True
        if self._listing is None:
            self._listing = tuple(
                SMCPTool(
                    name=name,
                    description=tool.description or "",
                    params_schema=tool.input_schema,
                    return_schema=None if replaces_content(supervisor, ref.tool) else tool.output_schema,
                    meta=attributes(tool, tool_meta_of(supervisor.config, ref.tool), self._changes.get(ref)),
                )
                for name, ref in self._names.listed.items()
                if (supervisor := self._supervisors.get(ref.server)) is not None and supervisor.ready
                for tool in (self._tools[ref],)
            )
        return self._listing

    @property
    def counts(self) -> Counter[str]:
        """How many tools each server has that are not forbidden, also while it is not ready."""
        return Counter(ref.server for ref in self._listed_names)

    def find(self, name: str) -> Target | None:
        """The tool that is called `name`; also of a server that is not ready now."""
        self._seen = True
        ref = self._names.listed.get(name) or self._names.qualified.get(name)
        if ref is None or (supervisor := self._supervisors.get(ref.server)) is None:
            return None
        configured = tool_meta_of(supervisor.config, ref.tool)
        return Target(ref, supervisor, self._tools[ref], configured, supervisor.host)

    async def awaited(self, name: str, seconds: float) -> Target | None:
        """The same; a tool that is not there may come with a server that has its first start, for so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while (target := self.find(name)) is None:
                    is_settled = all(each.settled.is_set() for each in self._supervisors.values())
                    if is_settled or self.is_forbidden(name) or self.candidates(name):
                        return None
                    await asyncio.sleep(0.05)
                return target
        return None

    def listed_name(self, ref: ToolRef) -> str:
        """The name under which a tool is listed; its own where it is not."""
        return self._listed_names.get(ref, ref.tool)

    def is_forbidden(self, name: str, hidden: Collection[str] = ()) -> bool:
        """Whether `name` (original, alias or qualified) is a forbidden tool of a server that is not `hidden`."""
        return any(ref.server not in hidden for ref in self._names.forbidden.get(name, ()))

    def candidates(self, name: str) -> list[str]:
        """The listed names of the tools that are called `name` by their servers, or by their alias."""
        wanted = self._names.wanted
        return [listed for listed, ref in self._names.listed.items() if name in (ref.tool, wanted[ref])]

    def check(self, target: Target, params: Mapping[str, Any]) -> None:
        """Raises NotAllowed: it is not as it is pinned; Malformed: its schema does not take these parameters."""
        if self._pins.enforces and (change := self._changes.get(target.ref)) is not None:
            raise not_approved(self.listed_name(target.ref), target.ref.server, change)
        unchecked = target.host.unchecked_tools
        if unchecked and (target.ref.tool in unchecked or "*" in unchecked):
            return
        known = self._checks.get(target.ref)
        if known is None or known[0] is not target.tool:
            # compiled for the first call, as a list may have thousands of tools
            known = self._checks[target.ref] = (target.tool, _schema(target))
        if (schema := known[1]) is None:
            return
        with suppress(UnicodeEncodeError):  # it says nothing about such a value
            if schema.is_valid(params):
                return
        if (mistake := schema.mistake(params)) is not None:
            path, why = mistake
            raise refused(".".join(["params", *path]), why)

    def refresh(self) -> bool:
        """Look at the servers again. Returns whether the listing changed."""
        names = name_tools(
            (
                Offer(
                    server=name,
                    tools=[tool.name for tool in supervisor.tools],
                    aliases={tool: meta.alias for tool, meta in supervisor.config.tool_meta.items() if meta.alias},
                    forbidden=frozenset(supervisor.config.forbidden_tools),
                )
                for name, supervisor in self._supervisors.items()
            ),
            self._names if self._seen else None,
        )
        checked = self._pins.check({name: supervisor.tools for name, supervisor in self._supervisors.items()})
        self._tools = {
            ToolRef(server, tool.name): tool
            for server, found in checked.items()
            for tool in reversed(found.tools)  # of two with one name the first counts
        }
        self._changes = {
            ToolRef(name, tool): why for name, each in checked.items() for tool, why in each.changes.items()
        }
        self._checks = {ref: known for ref, known in self._checks.items() if ref in self._tools}
        shown = (
            names.listed,
            {
                name: (checked[name].tools, checked[name].changes, supervisor.config, supervisor.host)
                for name, supervisor in self._supervisors.items()
                if supervisor.ready
            },
        )
        changed = shown != self._shown
        self._names, self._shown = names, shown
        self._listed_names = {ref: name for name, ref in names.listed.items()}
        if changed:
            self._listing = None
        return changed


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


def replaces_content(supervisor: "Supervisor", tool: str) -> bool:
    """Whether the results of a tool do not have the shape that its MCP server promises."""
    configured = tool_meta_of(supervisor.config, tool)
    reshaped = supervisor.config.vrl or (configured is not None and configured.ret_object_mapper)
    return supervisor.host.replace_content and bool(reshaped)


def attributes(tool: types.Tool, configured: ToolMeta | None, change: str | None = None) -> Attributes:
    sent = tool.meta or {}
    ours = (TOOL_META, ANNOTATION, MCP_TOOL, PIN)
    meta: Attributes = {key: _simple(value) for key, value in sent.items() if key not in ours}
    if tool.annotations and (given := tool.annotations.model_dump(mode="json", by_alias=True, exclude_none=True)):
        meta[ANNOTATION] = _json(given)
    if shown := tool.model_dump(mode="json", by_alias=True, exclude_none=True, include={"title", "icons"}):
        meta[MCP_TOOL] = _json(shown)
    if configured is not None:
        meta[TOOL_META] = _json(configured.model_dump(mode="json"))
    if change is not None:
        meta[PIN] = change
    return meta


def _simple(value: Any) -> AttributeValue:
    is_texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
    return value if value is None or is_texts or isinstance(value, str | bool | int | float) else _json(value)


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
    wanted: Mapping[ToolRef, str]
    """The alias, or the original name, of each that is listed."""
    qualified: Mapping[str, ToolRef]
    """The same by `<server>__<name>`, for alias and original name, where it names one tool and is no listed name."""
    forbidden: Mapping[str, Collection[ToolRef]]
    """What is not listed, by each name that a caller may try: original, alias, qualified."""


def name_tools(offers: Iterable[Offer], before: Names | None = None) -> Names:
    """Apply the rules to what all servers offer; `before`: names to keep. Pure."""
    wanted: dict[ToolRef, str] = {}
    forbidden: dict[str, set[ToolRef]] = {}
    for offer in sorted(offers, key=lambda offer: offer.server):
        for tool in sorted(offer.tools):
            ref = ToolRef(offer.server, tool)
            alias = offer.aliases.get(tool)
            if tool in offer.forbidden or (alias is not None and alias in offer.forbidden):
                for name in (tool, alias or tool):
                    for form in (name, legal(name), qualified(ref, name)):
                        forbidden.setdefault(form, set()).add(ref)
            else:
                wanted[ref] = alias or tool
    kept = {ref: name for name, ref in before.listed.items() if wanted.get(ref) == before.wanted[ref]} if before else {}
    listed = _assign(wanted, kept)
    by_name = dict(sorted((name, ref) for ref, name in listed.items()))
    forms = {(qualified(ref, name), ref) for ref, alias in wanted.items() for name in (alias, ref.tool)}
    times = Counter(form for form, _ in forms)
    return Names(
        listed=by_name,
        wanted=wanted,
        qualified={form: ref for form, ref in forms if times[form] == 1 and form not in by_name},
        forbidden={name: refs for name, refs in sorted(forbidden.items()) if name not in by_name},
    )


def legal(name: str) -> str:
    """`name` with what is not legal replaced by `_`; a longer one is cut and ends in a digest of the whole."""
    changed = _ILLEGAL.sub("_", name) or "_"
    return changed if len(changed) <= MAX_LENGTH else _with_digest(changed, name)


def qualified(ref: ToolRef, wanted: str) -> str:
    return legal(f"{ref.server}{SEPARATOR}{wanted}")


def _assign(wanted: Mapping[ToolRef, str], kept: Mapping[ToolRef, str]) -> dict[ToolRef, str]:
    """The kept names, and each new tool the simplest name that no other tool could take as well, level by level."""
    names = dict(kept)
    open_refs = sorted(wanted.keys() - kept.keys())
    taken = set(kept.values())
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


def _schema(target: Target) -> Schema | None:
    try:
        return Schema(target.tool.input_schema)
    except ValueError as error:
        what = "MCP server %r: the schema of the tool %r cannot be used (%s); its arguments are not checked"
        _log.warning(what, target.ref.server, target.ref.tool, str(error).partition("\n")[0])
        return None
