"""Values for an argument of a template, of one MCP server or of several as one answer (finder.txt, 自动补全)."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import mcp_types as types

from smcp_computer.mcp.errors import RESOURCE_NOT_FOUND, BadAnswer, RequestRefused, ServerError
from smcp_proto.tool_results import with_meta

MOST: Final = 100
"""Values of one answer (MCP, completion/complete)."""
ASIDE_S: Final = 5.0
"""How long a server may take where several are asked: a silent one must not keep what the others offer."""
NOTHING_TO_OFFER: Final = (types.METHOD_NOT_FOUND, types.INVALID_PARAMS, RESOURCE_NOT_FOUND)
"""A server that answers so completes nothing, or does not know the template: its share of the answer is empty."""

Json = Mapping[str, Any]
Ask = Callable[[str, float], Awaitable[Json]]
"""Asks a server for its `completion/complete`, within so many seconds. Raises ServerError."""


@dataclass(frozen=True, slots=True)
class Completed:
    """Attributes:
    result: of `completion/complete`; what a server put into `_meta` is `meta`, and says nothing in the Computer's name.
    server: whose it is; None: of several.
    left_out: servers that failed or did not answer, by name: what they offer is missing.
    """

    result: Json
    server: str | None
    left_out: Sequence[str] = ()


async def complete(servers: Sequence[str], ask: Ask, *, timeout: float) -> Completed:
    """Ask servers that may complete an argument, side by side.

    Args:
        servers: one or more. What the first ones offer stands first.
        timeout: seconds.

    Raises:
        ServerError: the only one failed, or all did: the error of the first that tells more than that it has nothing.
    """
    if len(servers) == 1:
        return Completed(with_meta(await ask(servers[0], timeout)), servers[0])
    within = min(timeout, ASIDE_S)
    answers = await asyncio.gather(*(_share(server, ask, within) for server in servers))
    found = {server: each for server, each in zip(servers, answers, strict=True) if not isinstance(each, ServerError)}
    failed = [each for each in answers if isinstance(each, ServerError)]
    broken = [error for error in failed if not _has_nothing(error)]
    if not found:
        raise (broken or failed)[0]
    left_out = sorted(error.server for error in broken)
    if len(found) == 1:
        [(server, result)] = found.items()
        return Completed(with_meta(result), server, left_out)
    return Completed({"completion": merged([result["completion"] for result in found.values()])}, None, left_out)


def merged(completions: Sequence[Json]) -> dict[str, Any]:
    """Several completions as one: each value once, at most `MOST`, in the order of the completions. Pure.

    `total` is there where it is known, so where every one of them sent all that it has.

    Args:
        completions: checked, see `_checked`.
    """
    values = list(dict.fromkeys(value for each in completions for value in each["values"]))
    more = any(_has_more(each) for each in completions)
    said: dict[str, Any] = {"values": values[:MOST], "hasMore": more or len(values) > MOST}
    return said if more else {**said, "total": len(values)}


async def _share(server: str, ask: Ask, timeout: float) -> Json | ServerError:
    try:
        return _checked(server, await ask(server, timeout))
    except ServerError as error:
        return error


def _checked(server: str, result: Json) -> Json:
    """Raises BadAnswer where it is no completion: what is put together has to have the types that MCP says."""
    completion = result.get("completion")
    values = completion.get("values") if isinstance(completion, Mapping) else None
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise BadAnswer(server, "sent a completion without a list of values")
    return result


def _has_more(completion: Json) -> bool:
    total = completion.get("total")
    known = total if isinstance(total, int) and not isinstance(total, bool) else 0
    return completion.get("hasMore") is True or known > len(completion["values"])


def _has_nothing(error: ServerError) -> bool:
    return isinstance(error, RequestRefused) and error.code in NOTHING_TO_OFFER
