"""What a Computer on Socket.IO acknowledged, as it goes back to who asked. Pure."""

from typing import Final

import orjson

from smcp_bus import exact_json
from smcp_gateway.sockets.session import Fate, Outcome
from smcp_proto.errors import Internal, TooLarge, Unavailable
from smcp_proto.tool_results import with_meta

_MCP_META: Final = b'"_meta"'
_TRIES: Final = 32
"""Underscores that are looked at one by one. To find one byte costs a tenth of what it costs to find several, and most
answers have few of it."""


def answered(outcome: Outcome, limit: int) -> bytes:
    """The JSON of an acknowledgement, if it can be an object: the gateway of the Agent reads all of it, and refuses
    there what is not JSON. An error of the Computer is an object like any other and goes on unchanged.

    Args:
        limit: bytes that an answer may have.

    Raises:
        Unavailable: the Computer went meanwhile.
        Internal: it is no object.
        TooLarge: it is above the limit.
    """
    match outcome:
        case Fate.GONE:
            raise Unavailable("the Computer is gone", details={"may_have_run": True})
        case bytes() if _is_braced(outcome):
            if len(outcome) > limit:
                raise TooLarge("the result is too large", details={"size": len(outcome), "limit": limit})
            return outcome
        case b"":
            raise Internal("the Computer answered nothing, no JSON object: it may not know this request")
        case _:
            raise Internal("the Computer's answer is not a JSON object")


def tool_result(answer: bytes) -> bytes:
    """An answer to a call of a tool, with its result-level metadata under the name that they have on our wire: a
    Computer may pass on what an MCP server gave as it is. All else stays as it stands there."""
    if not _names_mcp_meta(answer):
        return answer
    try:
        result = exact_json.read(answer)
        return exact_json.written(with_meta(result, ours=True)) if "_meta" in result else answer
    except (orjson.JSONDecodeError, RecursionError):
        return answer  # the gateway of the Agent refuses it, or mends it


def _names_mcp_meta(answer: bytes) -> bool:
    """Whether `_meta` stands there in quotes, at any level."""
    at = 0
    for _ in range(_TRIES):
        at = answer.find(b"_", at) + 1
        if at == 0:
            return False
        if answer.startswith(_MCP_META, max(at - 2, 0)):
            return True
    return _MCP_META in answer


def _is_braced(text: bytes) -> bool:
    if text[:1] == b"{" and text[-1:] == b"}":
        return True
    text = text.strip()
    return text[:1] == b"{" and text[-1:] == b"}"
