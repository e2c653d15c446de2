"""Requests that are answered with one of the protocol's structures: built, traced, sent, and read."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from uuid import uuid4

from smcp_agent.errors import McpError
from smcp_agent.models import Model, checked, replier, reply_of
from smcp_agent.requests import Requests
from smcp_agent.tracing import request_span
from smcp_proto.schemas import AgentCallData, RequestEnvelope, ResourceRet

QUERY_S: Final = 30.0
"""The server side has so long for a question to a Computer."""


class Answered(NamedTuple):
    """The answer to an MCP request."""

    result: dict[str, Any]
    computer: str | None
    """Whose it is, as far as that was said."""
    server: str | None
    """The MCP server, as far as that was said, here or in the question."""

    def what(self, name: str, asked: str | None) -> str:
        """What it is to be, for people: `name`, and who sent it. `asked`: the Computer that was asked."""
        return f"{name} that {replier(self.computer or asked, self.server)} sent"


class Asker:
    """Asks in the name of an Agent.

    Args:
        office, agent: who asks, and where.
        requests: carries what is asked.
    """

    def __init__(self, office: str, agent: str, requests: Requests) -> None:
        self.office = office
        self._agent = agent
        self._requests = requests

    def question(self, model: type[Model], computer: str, **fields: Any) -> Model:
        """A question to a Computer, with those of the fields that are not None.

        Raises:
            Malformed: the server would refuse it.
        """
        asked = {name: value for name, value in fields.items() if value is not None}
        return checked(model, agent=self._agent, req_id=uuid4().hex, computer=computer, **asked)

    async def ask(
        self,
        event: str,
        request: AgentCallData | RequestEnvelope,
        reply: type[Model],
        expected: str,
        timeout: float,
        computer: str | None = None,
    ) -> Model:
        """The reply to a request; it has the field `expected`, so that it cannot be taken for an error.

        Raises:
            SmcpError: as `Requests.ask`.
        """
        attributes = {} if computer is None else {"smcp.computer": computer}
        with request_span(event, self.office, self._agent, request.req_id or "", attributes) as traced:
            data = {**request.model_dump(exclude_unset=True), **traced.fields}
            answer = await self._requests.ask(event, data, timeout=timeout, expected=(expected,))
            who = "the gateway" if event.startswith("server:") else replier(computer)
            return reply_of(reply, answer, f"the answer of {who} to {event}")

    async def ask_mcp(
        self,
        event: str,
        model: type[RequestEnvelope],
        params: Mapping[str, Any],
        *,
        computer: str | None,
        server: str | None,
    ) -> Answered:
        """The result of an MCP request in the envelope of computer.txt (resources chapter, 5).

        Args:
            event: `client:<MCP's method>`.
            params: of the MCP request.
            computer: None: all of the office, where the event allows it.
            server: an MCP server; None: the Computer finds out.

        Raises:
            McpError: the answer is a JSON-RPC error.
            SmcpError: as `ask`.
        """
        payload = {"jsonrpc": "2.0", "id": 1, "method": event.removeprefix("client:"), "params": dict(params)}
        fields = {"computerId": computer, "serverId": server}
        request = checked(
            model,
            roomId=self.office,
            agent=self._agent,
            req_id=uuid4().hex,
            payload=payload,
            **{name: value for name, value in fields.items() if value is not None},
        )
        reply = await self.ask(event, request, ResourceRet, "payload", QUERY_S, computer)
        error, result = reply.payload.error, reply.payload.result
        if error is not None:
            raise McpError(error.message, rpc_code=error.code, data=error.data)
        assert result is not None
        return Answered(result, reply.computerId, reply.serverId or server)
