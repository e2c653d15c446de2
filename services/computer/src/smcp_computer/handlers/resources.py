"""The handlers of `client:resources/*` and `client:completion/complete`.

Over the MCP servers of this Computer, or of the one that `serverId` names (computer.txt, resources chapter, 4.3).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import mcp_types as types

from smcp_bus.dispatch import Call, RawJson
from smcp_computer.finder.metadata import ResponseChecks
from smcp_computer.mcp.errors import (
    RESOURCE_NOT_FOUND,
    BadAnswer,
    NotTold,
    RequestRefused,
    ServerError,
    ServerNotRunning,
    ServerTimedOut,
)
from smcp_computer.reply_limits import Budget
from smcp_computer.resources.directory import Directory
from smcp_computer.resources.index import ResourceIndex
from smcp_computer.resources.pages import Kind, named_apart, page_of, read_cursor, write_cursor
from smcp_computer.resources.replies import Envelopes, is_not_found
from smcp_computer.resources.routing import NOTHING_CHOSEN
from smcp_computer.resources.subscriptions import AgentSubscriptions
from smcp_proto.errors import Malformed
from smcp_proto.schemas.resources import (
    CompleteReq,
    ListResourcesReq,
    ListResourceTemplatesReq,
    ReadResourceReq,
    SubscribeResourceReq,
    UnsubscribeResourceReq,
)
from smcp_proto.tool_results import with_meta
from smcp_proto.uris import without_query

_log = logging.getLogger("smcp_computer.resources")

RESULT_KEY: Final[Mapping[Kind, str]] = {"resources": "resources", "templates": "resourceTemplates"}
LEFT_OUT: Final = "a2c_skipped_servers"
"""In `meta` of a list or a completion over several servers: whose items are missing, of a list from this page on. Not
`a2c_skipped`: those are Computers that a list over the whole office lacks, and both may stand in one page."""


class ResourceQueries:
    """Each method is a handler."""

    def __init__(self, directory: Directory, index: ResourceIndex, envelopes: Envelopes, odd: ResponseChecks) -> None:
        self._directory = directory
        self._index = index
        self._envelopes = envelopes
        self._odd = odd

    async def list(self, request: ListResourcesReq, call: Call) -> RawJson:
        """One page of resources.

        Raises:
            Malformed: the cursor cannot be read, or stands at another server than `serverId`, or that has no resources.
            SmcpError: `serverId` cannot be asked; see `Directory.check`.
        """
        return await self._page("resources", request, call)

    async def templates(self, request: ListResourceTemplatesReq, call: Call) -> RawJson:
        return await self._page("templates", request, call)

    async def read(self, request: ReadResourceReq, call: Call) -> RawJson:
        """The contents of a resource, as its server sent them. Of several servers the next one is asked only where the
        one before has no such resource, or is not running any more.

        Raises:
            Malformed: the URI is none, see `checked_uri`.
            NotFound: no server has it.
            TooLarge: it is larger than the bus takes.
            SmcpError: `serverId` cannot be asked; no answer came.
        """
        payload, budget = request.payload, Budget(call)
        uri = self._directory.checked(payload.params.uri, request.serverId)
        servers = await self._directory.candidates(uri, request.serverId, timeout=budget.left)
        failed: ServerError | None = None
        for server in servers:
            try:
                result = await self._index.connection(server).read(
                    self._directory.listed(uri, server), timeout=budget.left
                )
            except ServerError as error:
                failed = error
                if not (isinstance(error, ServerNotRunning) or is_not_found(error)):
                    break
            else:
                self._odd.look(server, uri, result)
                return self._envelopes.result(request, payload, result, server)
        assert failed is not None  # there is at least one candidate
        return self._envelopes.error(request, payload, failed)

    async def complete(self, request: CompleteReq, call: Call) -> RawJson:
        """Values for an argument of a template, or, of the server that `serverId` names, of a prompt. Where several
        servers may be meant, all are asked, and what they offer is one answer without `serverId`.

        Raises:
            Malformed: neither a template nor a server is named.
            NotFound: no server has such a template.
            SmcpError: `serverId` cannot be asked; no answer came.
        """
        payload, budget = request.payload, Budget(call)
        template = payload.params.ref.uri if payload.params.ref.type == "ref/resource" else None
        if template is None and request.serverId is None:
            raise _missing("payload.params.ref.uri" if payload.params.ref.type == "ref/resource" else "serverId")
        context = payload.params.context
        chosen = (context.arguments if context is not None else None) or NOTHING_CHOSEN
        servers = await self._directory.template_candidates(
            template or "", request.serverId, timeout=budget.left, chosen=chosen
        )
        params = payload.params.model_dump(mode="json", by_alias=True, exclude_unset=True)

        async def ask(server: str, timeout: float) -> Mapping[str, Any]:
            return await self._index.connection(server).complete(params, timeout=timeout)

        try:
            completed = await complete(servers, ask, timeout=budget.left)
        except ServerError as error:
            return self._envelopes.error(request, payload, error)
        result = dict(completed.result)
        if completed.left_out:
            said = result.get("meta")
            result["meta"] = {**(said if isinstance(said, Mapping) else {}), LEFT_OUT: completed.left_out}
        return self._envelopes.result(request, payload, result, completed.server)

    async def _page(self, kind: Kind, request: ListResourcesReq | ListResourceTemplatesReq, call: Call) -> RawJson:
        payload = request.payload
        cursor = payload.params.cursor if payload.params is not None else None
        after = None if cursor is None else read_cursor(cursor, kind, request.serverId)
        try:
            items, left_out = await self._directory.lists(
                kind, request.serverId, timeout=Budget(call).left, begin="" if after is None else after.server
            )
        except ServerError as error:
            return self._envelopes.error(request, payload, error)
        if kind == "templates" and request.serverId is None:
            items = {**named_apart(items)}
        page = page_of(kind, items, after)
        for server, uri in page.left_out:
            _log.warning("MCP server %r: %.256r is too large to be listed; it is left out", server, uri)
        result: dict[str, Any] = {RESULT_KEY[kind]: page.items}
        if page.next is not None:
            result["nextCursor"] = write_cursor(page.next)
        if left_out:
            result["meta"] = {LEFT_OUT: left_out}
        return self._envelopes.result(request, payload, result, request.serverId)


def _missing(field: str) -> Malformed:
    return Malformed(f"{field}: is missing", details={"field": field, "reason": "is missing"})


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


class SubscriptionRequests:
    """Each method is a handler."""

    def __init__(
        self, directory: Directory, index: ResourceIndex, agents: AgentSubscriptions, envelopes: Envelopes
    ) -> None:
        self._directory = directory
        self._index = index
        self._agents = agents
        self._envelopes = envelopes

    async def subscribe(self, request: SubscribeResourceReq, call: Call) -> RawJson:
        """Have the Agent told of changes of a resource for as long as it is in the office.

        However a document is to be shown (`?format=markdown`), it is the document that changes, and is told of.
        Of several servers that may have it the first one that tells of it counts; its name is in the reply.

        Raises:
            Malformed: the URI is none, or no server tells of it (`SMCP_SUBSCRIPTION_NOT_SUPPORTED`).
            NotFound: no server has it.
            RateLimited: the Agent has too many subscriptions.
            SmcpError: `serverId` cannot be asked; no answer came.
        """
        payload, budget = request.payload, Budget(call)
        uri = self._directory.checked(payload.params.uri, request.serverId)
        servers = await self._directory.candidates(uri, request.serverId, timeout=budget.left)
        failed: ServerError | None = None
        for server in servers:
            told_of = self._directory.told_of(uri, server)
            failed = await self._failed(request.agent, server, told_of, budget)
            if failed is None:
                return self._envelopes.result(request, payload, {}, server)
            if not (isinstance(failed, NotTold | ServerNotRunning) or is_not_found(failed)):
                break
        assert failed is not None  # there is at least one candidate
        return self._envelopes.error(request, payload, failed)

    async def unsubscribe(self, request: UnsubscribeResourceReq, call: Call) -> RawJson:
        """End it, at the server that `serverId` names, or at all. Where there is no subscription, nothing is done.

        Raises:
            NotFound: there is no server `serverId`.
        """
        payload = request.payload
        if request.serverId is not None:
            self._directory.check_known(request.serverId)
        uri = payload.params.uri
        if not self._agents.has(request.agent, uri):
            uri = without_query(self._directory.checked(uri, request.serverId))
        self._agents.unsubscribe(request.agent, request.serverId, uri)
        return self._envelopes.result(request, payload, {}, request.serverId)

    async def _failed(self, agent: str | None, server: str, uri: str, budget: Budget) -> ServerError | None:
        features = self._index.features(server)
        if features is not None and not features.subscribe:
            return NotTold(server, "does not tell when its resources change")
        try:
            async with asyncio.timeout_at(budget.until):
                await self._agents.subscribe(agent, server, uri)
        except TimeoutError:
            return ServerTimedOut(server, "did not answer in time")
        except ServerError as error:
            return error
        return None
