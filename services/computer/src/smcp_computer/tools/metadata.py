"""`SMCPTool.meta` (data-structures.txt): simple values only, everything else is a JSON string. Pure.

`a2c_tool_meta` and `MCP_TOOL_ANNOTATION` are the Computer's: what a server sends under these keys is dropped, so
that no server can grant itself `auto_apply`.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import mcp_types as types

from smcp_proto.schemas.base import Attributes, AttributeValue
from smcp_proto.schemas.config import MCPServerConfig
from smcp_proto.schemas.tools import SMCPTool, ToolMeta

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
