"""Reads what a Computer on Socket.IO answers. Most of it goes on as it came, and the Agent's gateway parses it."""

from collections.abc import Collection
from functools import cache
from typing import Any, Final

from smcp_bus import exact_json
from smcp_gateway.sockets.packet import READ_BY_PUBLISHED, TOOL_CALL
from smcp_proto import errors
from smcp_proto.catalog import Row
from smcp_proto.errors import SmcpError
from smcp_proto.tool_results import with_meta

RESULT_FIELDS: Final = frozenset({"content", "isError"})
"""A tool's result has one of them, and an error none."""


def of_acknowledgement(argument: bytes | None, limit: int) -> bytes | SmcpError:
    """A JSON object, possibly a flat error, as it came."""
    if argument == b"":
        return errors.Internal("the Computer answered nothing, no JSON object: it may not know this request")
    text = (argument or b"").strip()
    if argument is None or text[:1] != b"{" or text[-1:] != b"}":
        return errors.Internal("the Computer's answer is not a JSON object")
    if len(argument) > limit:
        return errors.TooLarge(errors.ANSWER_TOO_LARGE, details={"size": len(argument), "limit": limit})
    return argument


def result_of(answer: bytes) -> bytes | SmcpError:
    outcome = read_error(answer, RESULT_FIELDS)
    return _rename_meta(outcome) if isinstance(outcome, bytes) else outcome


async def large_result(answer: bytes, most: int) -> bytes:
    """The result of a tool in an answer above 64 KiB; an error is found by the Agent's gateway. Raises TooLarge."""
    await exact_json.check_cost(answer, most, "the answer")
    return _rename_meta(answer) if len(answer) <= exact_json.LARGEST_READ else answer


@cache
def expected_fields(row: Row) -> frozenset[str]:
    """The fields of which a reply to that event has one, and an error none; empty where nobody knows."""
    if row.event == TOOL_CALL:
        return RESULT_FIELDS
    return frozenset() if row.reply is None else frozenset(row.reply.model_fields) - {"req_id"}


def read_error(answer: bytes, expected: Collection[str]) -> bytes | SmcpError:
    """The answer, or the error that it is: then it has none of the fields that are `expected`, if some are."""
    is_plain = b"\\u00" not in answer  # else a name may be written with escapes
    if not expected or (is_plain and (b'"code"' not in answer or b'"message"' not in answer)):
        return answer
    try:
        return error_in(exact_json.read(answer), expected, len(answer)) or answer
    except ValueError:
        return answer  # the Agent's gateway refuses it


def error_in(result: Any, expected: Collection[str], size: int) -> SmcpError | None:
    """The error that a parsed answer of `size` bytes is, without details nested too deeply; None: it is a reply.
    An error that published Agents read passes as it is where it has fields of its own (`mcp_server` beside 4014)."""
    error = errors.flat_error(result, expected) if expected else None
    if error is None:
        return None
    has_more = not result.keys() <= errors.ErrorBody.model_fields.keys()
    if size <= errors.LONGEST_ERROR and error.code in READ_BY_PUBLISHED and has_more:
        return None
    details = error.details
    try:
        exact_json.check_depth(details)
    except errors.Malformed:
        details = {}
    return errors.error_of_computer(error.code, error.message, details, size)


def _rename_meta(answer: bytes) -> bytes:
    """The answer with MCP's `_meta` moved into `meta`: a Computer may pass on an MCP result as it is."""
    if b'"_meta"' not in answer:
        return answer
    try:
        result = exact_json.read(answer)
        return exact_json.written(with_meta(result, ours=True)) if "_meta" in result else answer
    except ValueError:
        return answer  # the Agent's gateway refuses it
