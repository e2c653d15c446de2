"""The list of tools (`client:get_tools`): names, `SMCPTool.meta`, and the server of each tool."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import mcp_types as types

from smcp_computer.mcp.supervisor import Supervisor
from smcp_computer.tools.naming import Names, Offer, ToolRef, name_tools
from smcp_proto.schemas.base import Attributes, AttributeValue
from smcp_proto.schemas.config import MCPServerConfig
from smcp_proto.schemas.tools import SMCPTool, ToolMeta

_log = logging.getLogger("smcp_computer.tools")


@dataclass(frozen=True, slots=True)
class Target:
    """Where a call goes."""

    ref: ToolRef
    supervisor: Supervisor
    configured: ToolMeta | None


class Catalogue:
    """Built from what the servers offer; `refresh` after each change.

    Names are given over the tools of all servers, also of those that are being started again, so that a
    restart renames nothing; listed are the tools of servers that are ready.
    """

    def __init__(self, supervisors: Mapping[str, Supervisor]) -> None:
        self._supervisors = supervisors
        self._names = name_tools(())
        self._listing: tuple[SMCPTool, ...] = ()

    @property
    def listing(self) -> tuple[SMCPTool, ...]:
        """What `client:get_tools` answers, sorted by name."""
        return self._listing

    def find(self, name: str) -> Target | None:
        """The tool that is called `name`; also of a server that is not ready now."""
        ref = self._names.listed.get(name)
        if ref is None:
            return None
        supervisor = self._supervisors[ref.server]
        return Target(ref, supervisor, tool_meta_of(supervisor.config, ref.tool))

    def is_forbidden(self, name: str) -> bool:
        """Whether the configuration forbids what a caller means by `name`: original, alias or qualified."""
        return name in self._names.forbidden

    def candidates(self, name: str) -> list[str]:
        """Names under which a tool whose own name is `name` is listed."""
        return [listed for listed, ref in self._names.listed.items() if ref.tool == name]

    def refresh(self) -> bool:
        """Look at the servers again. Returns whether the listing changed."""
        names = name_tools(_offer(supervisor) for supervisor in self._supervisors.values())
        for ref, name in names.renamed.items():
            if self._names.renamed.get(ref) != name:
                _log.info("the tool %r of MCP server %r is listed as %r", ref.tool, ref.server, name)
        listing = self._listed(names)
        changed = listing != self._listing
        self._names, self._listing = names, listing
        return changed

    def _listed(self, names: Names) -> tuple[SMCPTool, ...]:
        tools = {
            ToolRef(server, tool.name): tool
            for server, supervisor in self._supervisors.items()
            if supervisor.ready
            for tool in reversed(supervisor.tools)  # of two with one name the first counts
        }
        return tuple(
            describe_tool(name, tools[ref], tool_meta_of(self._supervisors[ref.server].config, ref.tool))
            for name, ref in names.listed.items()
            if ref in tools
        )


def _offer(supervisor: Supervisor) -> Offer:
    config: MCPServerConfig = supervisor.config
    return Offer(
        server=config.name,
        tools=[tool.name for tool in supervisor.tools],
        aliases={tool: meta.alias for tool, meta in config.tool_meta.items() if meta.alias},
        forbidden=frozenset(config.forbidden_tools),
    )


TOOL_META: Final = "a2c_tool_meta"
ANNOTATION: Final = "MCP_TOOL_ANNOTATION"
_OURS: Final = frozenset({TOOL_META, ANNOTATION})


def tool_meta_of(server: MCPServerConfig, tool: str) -> ToolMeta | None:
    """What is configured about a tool, by its original name: its own entry, else the server's default as a whole."""
    return server.tool_meta.get(tool, server.default_tool_meta)


def describe_tool(listed_as: str, tool: types.Tool, configured: ToolMeta | None) -> SMCPTool:
    """The tool as `client:get_tools` lists it."""
    return SMCPTool(
        name=listed_as,
        description=tool.description or "",
        params_schema=tool.input_schema,
        return_schema=tool.output_schema,
        meta=attributes(tool.meta or {}, tool.annotations, configured),
    )


def attributes(
    sent: Mapping[str, Any], annotations: types.ToolAnnotations | None, configured: ToolMeta | None
) -> Attributes:
    """The `meta` of a tool.

    Args:
        sent: what the server put into the tool's `_meta`.
    """
    meta: Attributes = {key: _simple(value) for key, value in sent.items() if key not in _OURS}
    if annotations is not None:
        given = annotations.model_dump(mode="json", by_alias=True, exclude_none=True)
        if given:
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
