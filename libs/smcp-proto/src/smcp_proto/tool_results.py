"""Results of tools that no MCP server gave: what a native Computer, or the gateway of one on Socket.IO, says itself."""

import math
from collections.abc import Mapping
from typing import Any, Final

TIMED_OUT: Final = "a2c_timeout"
CANCELLED: Final = "a2c_cancelled"
EXPIRED: Final = "a2c_result_expired"
INPUT_REQUIRED: Final = "a2c_input_required"
"""The call elicits input of its Agent: `{"requests": MCP's elicitation/create by key, "state": …}`."""
FAILURE_FIELDS: Final = frozenset({"isError", "meta", TIMED_OUT, CANCELLED, INPUT_REQUIRED})
"""The names that `failure` looks for."""
OUR_PREFIX: Final = "a2c_"
"""The prefix of metadata keys that only the Computer sets in a result."""


def with_meta(result: Mapping[str, Any], *, ours: bool = False) -> dict[str, Any]:
    """A result with what an MCP server calls `_meta` under `meta`, as on our wire; of two values `_meta` has the last
    word. A server's keys that begin with `a2c_` are dropped; `ours`: `meta` is the Computer's own, and keeps them."""
    wire = {key: value for key, value in result.items() if key != "_meta"}
    said = [(result.get("meta"), ours), (result.get("_meta"), False)]
    metas = [(meta, whole) for meta, whole in said if isinstance(meta, Mapping)]
    if metas:
        wire["meta"] = {
            key: value
            for meta, whole in metas
            for key, value in meta.items()
            if whole or not key.startswith(OUR_PREFIX)
        }
    return wire


def failed(text: str, **meta: bool) -> dict[str, Any]:
    """A tool that failed: not an error of the protocol. `text` is for the Agent's model, and holds no text of an
    exception; `meta` says why, for programs (`a2c_timeout`, `a2c_cancelled`, `a2c_result_expired`)."""
    result: dict[str, Any] = {"content": [{"type": "text", "text": text}], "isError": True}
    if meta:
        result["meta"] = meta
    return result


def failure(result: object) -> str:
    """`timeout`, `cancelled` or `tool_error` for a tool's result that says so, else empty: also for a call that elicits
    input, which has `isError` for models alone."""
    if not isinstance(result, dict):
        return ""
    if isinstance(meta := result.get("meta"), dict):
        if meta.get(TIMED_OUT):
            return "timeout"
        if meta.get(CANCELLED):
            return "cancelled"
        if meta.get(INPUT_REQUIRED):
            return ""
    return "tool_error" if result.get("isError") is True else ""


def timed_out(tool: str, seconds: float) -> dict[str, Any]:
    """A tool that was stopped when its time was over: `meta.a2c_timeout`. `seconds` is how long it had."""
    return failed(f"the tool {tool!r} did not end within {asked_for(seconds)}", **{TIMED_OUT: True})


def asked_for(seconds: float) -> str:
    """The time-out that the Agent gave, in its words: whole seconds, of which the Computer's side has a little less."""
    return f"{max(1, math.ceil(seconds))} s"


def time_limit(timeout: float, left: float) -> float:
    """How long a tool may run here, in seconds: a little less than its caller waits. `timeout` is that of the whole
    request, and `left` what remains of it."""
    return max(min(timeout, left) - min(0.5, timeout / 10), 0.0)


def cancelled(tool: str | None = None) -> dict[str, Any]:
    """A call that its Agent cancelled: `meta.a2c_cancelled`. Without `tool`: of one that is not known by name."""
    return failed(f"the call of {tool!r} was cancelled" if tool else "the call was cancelled", **{CANCELLED: True})


def expired() -> dict[str, Any]:
    """A call that is asked for again and whose result is not kept any more: `meta.a2c_result_expired`."""
    return failed("this call ran already, and its result is not kept any more; it was not run again", **{EXPIRED: True})
