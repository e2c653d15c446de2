"""Results of tools that no MCP server gave: what the Computer's side says itself. Pure.

A native Computer and a gateway that speaks for one on Socket.IO say them in the same words.
"""

import math
from typing import Any, Final

TIMED_OUT: Final = "a2c_timeout"
CANCELLED: Final = "a2c_cancelled"
EXPIRED: Final = "a2c_result_expired"


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


def timed_out(tool: str, seconds: float) -> dict[str, Any]:
    """A tool that was stopped when its time was over: `meta.a2c_timeout`. `seconds` is how long it had."""
    return failed(f"the tool {tool!r} did not end within {asked_for(seconds)}", **{TIMED_OUT: True})


def asked_for(seconds: float) -> str:
    """The time-out that the Agent gave, in its words: whole seconds, of which the Computer's side has a little less."""
    return f"{max(1, math.ceil(seconds))} s"


def cancelled(tool: str | None = None) -> dict[str, Any]:
    """A call that its Agent cancelled: `meta.a2c_cancelled`. Without `tool`: of one that is not known by name."""
    return failed(f"the call of {tool!r} was cancelled" if tool else "the call was cancelled", **{CANCELLED: True})


def expired() -> dict[str, Any]:
    """A call that is asked for again and whose result is not kept any more: `meta.a2c_result_expired`."""
    return failed("this call ran already, and its result is not kept any more; it was not run again", **{EXPIRED: True})
