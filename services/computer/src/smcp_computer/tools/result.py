"""Results of tools, as they go over our wire. Pure.

A `CallToolResult` is passed on as the MCP server sent it; only its result-level `_meta` is called `meta` here. Keys in
it that begin with `a2c_` are the Computer's word: a server's own are dropped.
"""

from collections.abc import Mapping
from typing import Any, Final

OUR_PREFIX: Final = "a2c_"
TIMED_OUT: Final = "a2c_timeout"
CANCELLED: Final = "a2c_cancelled"
EXPIRED: Final = "a2c_result_expired"


def to_wire(result: Mapping[str, Any]) -> dict[str, Any]:
    """The result for the Agent."""
    wire = {key: value for key, value in result.items() if key != "_meta"}
    meta = result.get("_meta")
    if isinstance(meta, Mapping):
        wire["meta"] = {key: value for key, value in meta.items() if not key.startswith(OUR_PREFIX)}
    return wire


def failed(text: str, **meta: bool) -> dict[str, Any]:
    """A tool that failed: not an error of the protocol.

    Args:
        text: for the Agent's model; it names the server, and holds no text of an exception.
        meta: why, for programs (`a2c_timeout`, `a2c_cancelled`, `a2c_result_expired`).
    """
    result: dict[str, Any] = {"content": [{"type": "text", "text": text}], "isError": True}
    if meta:
        result["meta"] = meta
    return result


def why_broken_off(result: Mapping[str, Any]) -> str:
    """In one word, for traces: why a call has this result while its tool still runs."""
    meta = result.get("meta") or {}
    return "timeout" if TIMED_OUT in meta else "cancelled" if CANCELLED in meta else "aborted"


def timed_out(tool: str, seconds: float) -> dict[str, Any]:
    return failed(f"the tool {tool!r} did not end within {seconds:g} s", **{TIMED_OUT: True})


def cancelled(tool: str | None = None) -> dict[str, Any]:
    return failed(f"the call of {tool!r} was cancelled" if tool else "the call was cancelled", **{CANCELLED: True})


def expired() -> dict[str, Any]:
    return failed("this call ran already, and its result is not kept any more; it was not run again", **{EXPIRED: True})
