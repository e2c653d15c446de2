"""The tools of all MCP servers as one list (`client:get_tools`): `SMCPTool.meta`, and the server of each tool.

`tool_names` has the rules of their names.
"""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import mcp_types as types

from smcp_computer.json_schema import Schema
from smcp_computer.pins import Pins, not_approved
from smcp_computer.settings import HostSettings
from smcp_computer.tool_names import NO_NAMES, Names, Offer, ToolRef, name_tools
from smcp_proto.schemas.base import Attributes, AttributeValue
from smcp_proto.schemas.config import MCPServerConfig
from smcp_proto.schemas.tools import MCP_TOOL, PIN, SMCPTool, ToolMeta
from smcp_proto.validation import refused

if TYPE_CHECKING:  # with it comes the MCP SDK, a second that every command of `smcp-computer` would take longer
    from smcp_computer.mcp.supervisor import Supervisor

_log = logging.getLogger("smcp_computer.tools")

TOOL_META: Final = "a2c_tool_meta"
ANNOTATION: Final = "MCP_TOOL_ANNOTATION"


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
    keep their names, so that a restart renames nothing. `seen` are names to keep, from the process before this one."""

    def __init__(
        self, supervisors: Mapping[str, "Supervisor"], pins: Pins | None = None, seen: Names = NO_NAMES
    ) -> None:
        self._supervisors = supervisors
        self._pins = pins or Pins()
        self._changes: Mapping[ToolRef, str] = {}
        """The tools that differ from their pins, and why."""
        self.seen = self._names = seen
        """The names that somebody was shown last, and may rely on: they are kept."""
        self._listed_names: Mapping[ToolRef, str] = {}
        self._tools: Mapping[ToolRef, types.Tool] = {}
        self._shown: object = ({}, {})
        """What the listing is made of."""
        self._listing: tuple[SMCPTool, ...] | None = ()
        """None: not made yet; nobody asks for most of what a server that changes its tools all the time lists."""
        self._checks: dict[ToolRef, tuple[types.Tool, Schema | None]] = {}
        self._refreshed = asyncio.Event()
        """Set, and replaced by another one, at each `refresh`."""

    @property
    def listing(self) -> tuple[SMCPTool, ...]:
        """What `client:get_tools` answers, sorted by name. Who reads it relies on the names: they stay from then on."""
        self.seen = self._names
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
        ref = self._named(name)
        if ref is None or ref not in self._tools or (supervisor := self._supervisors.get(ref.server)) is None:
            return None
        self.seen = self._names
        configured = tool_meta_of(supervisor.config, ref.tool)
        return Target(ref, supervisor, self._tools[ref], configured, supervisor.host)

    async def awaited(self, name: str, seconds: float) -> Target | None:
        """The same; a tool that is not there may come with a server that has its first start, for so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while (target := self.find(name)) is None and self._may_come(name):
                    await self._refreshed.wait()
                return target
        return None

    def _named(self, name: str) -> ToolRef | None:
        return self._names.listed.get(name) or self._names.qualified.get(name)

    def _may_come(self, name: str) -> bool:
        starting = {server for server, each in self._supervisors.items() if not each.settled.is_set()}
        if (ref := self._named(name)) is not None:
            return ref.server in starting
        return bool(starting) and not (self.is_forbidden(name) or self.candidates(name))

    @property
    def away(self) -> dict[str, str]:
        """The state of each server that is not ready."""
        return {name: each.state for name, each in self._supervisors.items() if not each.ready}

    def listed_name(self, ref: ToolRef) -> str:
        """The name under which a tool is listed; its own where it is not."""
        return self._listed_names.get(ref, ref.tool)

    def is_forbidden(self, name: str, hidden: Collection[str] = ()) -> bool:
        """Whether `name` (original, alias or qualified) is a forbidden tool of a server that is not `hidden`."""
        return any(ref.server not in hidden for ref in self._names.forbidden.get(name, ()))

    def candidates(self, name: str) -> list[str]:
        """The listed names of the tools that are called `name` by their servers, or by their alias."""
        self.seen, wanted = self._names, self._names.wanted
        return [listed for ref, listed in self._listed_names.items() if name in (ref.tool, wanted[ref])]

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

    def _offered(self, server: str, supervisor: "Supervisor") -> list[str]:
        if supervisor.earlier_starts + supervisor.starts:
            return [tool.name for tool in supervisor.tools]
        # not ready yet: its names of the earlier process are reserved for it
        return [ref.tool for ref in self.seen.wanted if ref.server == server]

    def refresh(self) -> bool:
        """Look at the servers again. Returns whether the listing changed."""
        names = name_tools(
            (
                Offer(
                    server=name,
                    tools=self._offered(name, supervisor),
                    aliases={tool: meta.alias for tool, meta in supervisor.config.tool_meta.items() if meta.alias},
                    forbidden=frozenset(supervisor.config.forbidden_tools),
                )
                for name, supervisor in self._supervisors.items()
            ),
            self.seen,
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
        self._listed_names = {ref: name for name, ref in names.listed.items() if ref in self._tools}
        if changed:
            self._listing = None
        self._refreshed.set()
        self._refreshed = asyncio.Event()
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


def _schema(target: Target) -> Schema | None:
    try:
        return Schema(target.tool.input_schema)
    except ValueError as error:
        what = "MCP server %r: the schema of the tool %r cannot be used (%s); its arguments are not checked"
        _log.warning(what, target.ref.server, target.ref.tool, str(error).partition("\n")[0])
        return None
