"""`client:resources/subscribe` and `client:resources/unsubscribe`."""

import asyncio

from smcp_bus.dispatch import Call, RawJson
from smcp_computer.mcp.errors import NotTold, ServerError, ServerNotRunning, ServerTimedOut
from smcp_computer.reply_limits import Budget
from smcp_computer.resources.directory import Directory
from smcp_computer.resources.index import ResourceIndex
from smcp_computer.resources.replies import Envelopes, is_not_found
from smcp_computer.resources.subscriptions import AgentSubscriptions
from smcp_proto.schemas.resources import SubscribeResourceReq, UnsubscribeResourceReq
from smcp_proto.uris import without_query


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
        payload, budget = request.payload, Budget.of(call)
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
        """Why the Agent could not be subscribed; None: it is."""
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
