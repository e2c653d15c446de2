"""Results of tools, as they go over our wire. Pure.

A `CallToolResult` is passed on as the MCP server sent it; only its result-level `_meta` is called `meta` here. Keys in
it that begin with `a2c_` are the Computer's word: a server's own are dropped, also where it says `meta` itself.
"""

from collections.abc import Mapping
from typing import Any, Final

from smcp_proto.tool_results import CANCELLED as CANCELLED
from smcp_proto.tool_results import EXPIRED as EXPIRED
from smcp_proto.tool_results import TIMED_OUT as TIMED_OUT
from smcp_proto.tool_results import asked_for, with_meta
from smcp_proto.tool_results import cancelled as cancelled
from smcp_proto.tool_results import expired as expired
from smcp_proto.tool_results import failed as failed
from smcp_proto.tool_results import timed_out as timed_out

NOT_CONFIRMED: Final = "a2c_not_confirmed"
FORBIDDEN: Final = "a2c_forbidden"


def to_wire(result: Mapping[str, Any]) -> dict[str, Any]:
    """The result for the Agent."""
    return with_meta(result)


def why_broken_off(result: Mapping[str, Any]) -> str:
    """In one word, for traces: why a call has this result while its tool still runs."""
    meta = result.get("meta") or {}
    return "timeout" if TIMED_OUT in meta else "cancelled" if CANCELLED in meta else "aborted"


def forbidden(tool: str) -> dict[str, Any]:
    """Its server's configuration forbids it."""
    return failed(f"the tool {tool!r} is forbidden on this Computer", **{FORBIDDEN: True})


def not_confirmed(tool: str, seconds: float) -> dict[str, Any]:
    """Its time ran out while the user was asked."""
    text = f"the tool {tool!r} was not run: the user of this Computer did not confirm it within {asked_for(seconds)}"
    return failed(text, **{TIMED_OUT: True, NOT_CONFIRMED: True})
