"""`client:resources/list`, `client:resources/templates/list`, `client:resources/read`, `client:completion/complete`.

Over the MCP servers of this Computer, or of the one that `serverId` names (computer.txt, resources chapter, 4.3).
"""

import logging
from collections.abc import Mapping
from typing import Any, Final

from smcp_bus.dispatch import Call, RawJson
from smcp_computer.finder.odd_answers import OddAnswers
from smcp_computer.handlers.budget import Budget
from smcp_computer.handlers.envelope import Envelopes
from smcp_computer.mcp.errors import ServerError, ServerNotRunning
from smcp_computer.resources.completions import complete
from smcp_computer.resources.cursor import Kind, read_cursor, write_cursor
from smcp_computer.resources.directory import Directory
from smcp_computer.resources.errors import is_not_found
from smcp_computer.resources.index import ResourceIndex
from smcp_computer.resources.listing import named_apart, page_of
from smcp_computer.resources.routing import NOTHING_CHOSEN
from smcp_proto.errors import Malformed
from smcp_proto.schemas.resources import (
    CompleteReq,
    ListResourcesReq,
    ListResourceTemplatesReq,
    ReadResourceReq,
)

_log = logging.getLogger("smcp_computer.resources")

RESULT_KEY: Final[Mapping[Kind, str]] = {"resources": "resources", "templates": "resourceTemplates"}
LEFT_OUT: Final = "a2c_skipped_servers"
"""In `meta` of a list or a completion over several servers: whose items are missing, of a list from this page on. Not
`a2c_skipped`: those are Computers that a list over the whole office lacks, and both may stand in one page."""


class ResourceQueries:
    """Each method is a handler."""

    def __init__(self, directory: Directory, index: ResourceIndex, envelopes: Envelopes, odd: OddAnswers) -> None:
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
        """One page of templates. Over several servers a name that they share is prefixed by the server's."""
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
        payload, budget = request.payload, Budget.of(call)
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
        payload, budget = request.payload, Budget.of(call)
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
            lists = await self._directory.lists(kind, request.serverId, timeout=Budget.of(call).left, after=after)
        except ServerError as error:
            return self._envelopes.error(request, payload, error)
        items = lists.items
        if kind == "templates" and request.serverId is None:
            items = named_apart(items)
        page = page_of(kind, items, after)
        for server, uri in page.left_out:
            _log.warning("MCP server %r: %.256r is too large to be listed; it is left out", server, uri)
        result: dict[str, Any] = {RESULT_KEY[kind]: page.items}
        if page.next is not None:
            result["nextCursor"] = write_cursor(page.next)
        if lists.left_out:
            result["meta"] = {LEFT_OUT: lists.left_out}
        return self._envelopes.result(request, payload, result, request.serverId)


def _missing(field: str) -> Malformed:
    return Malformed(f"{field}: is missing", details={"field": field, "reason": "is missing"})
