"""Who may use an office, and which of its Computers and tools. Without configured authentication: everybody.

To MCP clients this is an OAuth 2.1 resource server: they send API keys, or JWTs of the issuer, as to a gateway
(`smcp_auth`). The metadata by which they find the issuer are of RFC 9728.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

import anyio
from mcp.server import Server
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from smcp_agent.llm import NamedTool
from smcp_agent.mcp.resources import Context
from smcp_agent.tool_calls import on_behalf_of
from smcp_auth.authenticator import HEADER, LOOK_S, bearer_token, open_authenticator, quoted
from smcp_auth.client_addresses import source_of
from smcp_auth.grants import Principal, Quota, decide
from smcp_auth.quotas import CountedIn, Quotas
from smcp_bus.callers import ANY, NOTHING, Rights, is_read_only
from smcp_mcp.settings import McpSettings
from smcp_proto.errors import NotAllowed, NotAuthenticated, RateLimited, SmcpError
from smcp_proto.schemas.tools import OnBehalf

METADATA: Final = "/.well-known/oauth-protected-resource"
"""The path of a resource's metadata is this one, and then the path of the resource (RFC 9728, 3.1)."""
READS: Final = (
    *("resources/list", "resources/templates/list", "resources/read", "resources/subscribe"),
    *("prompts/list", "prompts/get", "completion/complete"),
)
"""Each asks MCP servers of Computers."""
DEFAULT_MAX_WATCHES: Final = 100
"""Resources that a key or token without a quota of its own may watch. A Computer keeps 1,000 subscriptions for one
Agent, and all MCP clients of an office share one Agent."""
DEFAULT_MAX_SESSIONS: Final = 250
"""Sessions that the clients of such a key or token may have here. An office has 1,000 (`smcp_mcp.offices`)."""
_sender: Final[ContextVar[Principal | None]] = ContextVar("sender", default=None)
"""The sender of the HTTP request that this task answers; in the task of a session, the client that opened it."""


class _User(AuthenticatedUser):
    """The holder of a request's token. The MCP SDK lets nobody but the one who opened a session use it."""

    def __init__(self, principal: Principal) -> None:
        super().__init__(AccessToken(token="", client_id=principal.identity, scopes=[]))
        self.principal = principal


@dataclass(slots=True)
class RequestHolder:
    tenants: tuple[str | None, str | None, Quota | None]
    """Its office, and the identity and quota of its caller."""
    membership: object = None
    counted_in: CountedIn | None = field(default=None, repr=False)


class Authorization:
    """Decides for each request. Raises UnusableFile: a file cannot be read."""

    def __init__(self, settings: McpSettings) -> None:
        self._authenticator = open_authenticator(settings)
        self._proxies = settings.proxies
        self._quotas = settings.quotas
        self._public_url = settings.mcp_public_url
        self._issuer = settings.auth_issuer if settings.auth_with_tokens and settings.mcp_public_url else None
        self._open: dict[anyio.CancelScope, tuple[Principal, bool]] = {}
        metadata = Route(f"{METADATA}/mcp/{{office:path}}", self._metadata)
        self.routes: list[BaseRoute] = [] if self._issuer is None else [metadata]

    async def run(self) -> None:
        """End the answers whose token is no longer valid, until cancelled."""
        while self._authenticator is not None:
            await asyncio.sleep(LOOK_S)
            await self._authenticator.refresh()
            for scope, (principal, streams) in self._open.items():
                ended = self._authenticator.ended(principal) is not None
                if ended and (streams or not self._authenticator.may_return(principal)):
                    scope.cancel()

    async def check(self, request: Request, office: str) -> None:
        """Set `request.scope["user"]`, for the MCP SDK and `may`. Raises SmcpError: the caller may not use it."""
        if self._authenticator is None:
            return
        token, source = bearer_token(request.headers.get(HEADER, "")), self._source(request)
        principal = await self._authenticator.authenticate(token, source, audience=self._resource(request))
        if (refused := decide(principal.grants, office=office, role="agent", name=None)) is not None:
            raise refused
        request.scope["user"] = _User(principal)
        _sender.set(principal)

    def subject(self, request: Request) -> str:
        principal = _principal_of(request)
        return self._source(request) if principal is None else principal.identity

    def holder(self, request: Request, office: str) -> RequestHolder:
        principal = _principal_of(request)
        known = (None, None) if principal is None else (principal.identity, principal.grants.quota)
        return RequestHolder((office, *known))

    def session_holder(self, request: Request) -> RequestHolder:
        principal = _principal_of(request)
        quota = self._own_quota(principal, "sockets", DEFAULT_MAX_SESSIONS)
        return RequestHolder((None, None if principal is None else f"sessions of {principal.identity}", quota))

    async def while_valid(self, request: Request, answer: Awaitable[str], *, streams: bool) -> str | None:
        """The outcome of an answer; None: it was cancelled, as the request's token was revoked, or expired where the
        answer `streams` notifications: a call was allowed when it began."""
        if (principal := _principal_of(request)) is None:
            return await answer
        scope = anyio.CancelScope()
        self._open[scope] = principal, streams
        try:
            with scope:
                return await answer
        finally:
            del self._open[scope]
        return None

    def may(self, context: Context | None, tool: NamedTool) -> bool:
        rights = self._rights(_sender.get() if context is None else _principal_of(context.request))
        return rights is None or (
            rights.may_ask(tool.computer)
            and rights.may_name(tool.tool.name)
            and (not rights.read_only or is_read_only({"meta": tool.tool.meta}))
        )

    def may_ask(self, context: Context, computer: str) -> bool:
        rights = self._rights(_principal_of(context.request))
        return rights is None or rights.may_ask(computer)

    def guard(self, server: Server[Any], quotas: Quotas, office: str) -> None:
        """Have the server count reads as gateways do, and tell the gateway for which user it calls a tool."""
        for method in ("tools/call", *READS):
            if (entry := server.get_request_handler(method)) is not None:
                handle = self._guarded(entry.handler, quotas, office, is_read=method in READS)
                server.add_request_handler(method, entry.params_type, handle)

    def _guarded(self, handler: Any, quotas: Quotas, office: str, *, is_read: bool) -> Any:
        async def handle(context: Context, params: Any) -> Any:
            if is_read and context.request is not None:
                try:
                    quotas.read(self.holder(context.request, office))
                except RateLimited as error:
                    raise MCPError(INTERNAL_ERROR, f"error 429: {error.message}", error.details) from None
            principal = _principal_of(context.request)
            with nullcontext() if principal is None else on_behalf_of(_on_behalf(principal)):
                return await handler(context, params)

        return handle

    def watch_counter(self, quotas: Quotas, office: str) -> Callable[[Context], Callable[[int], None]]:
        """All clients of one key or token are counted together; without authentication, each connection by itself."""

        def counter(context: Context) -> Callable[[int], None]:
            principal = _principal_of(context.request)
            identity = f"connection {uuid4()}" if principal is None else principal.identity
            quota = self._own_quota(principal, "subscriptions", DEFAULT_MAX_WATCHES)
            return quotas.subscriptions(RequestHolder((office, identity, quota)), office)

        return counter

    def _own_quota(self, principal: Principal | None, name: str, default: int) -> Quota:
        own = None if principal is None or principal.grants.quota is None else getattr(principal.grants.quota, name)
        return Quota(**{name: min(default, self._quotas[name] or default) if own is None else own})

    def _rights(self, principal: Principal | None) -> Rights | None:
        if self._authenticator is None:
            return None
        return NOTHING if principal is None else principal.rights

    def _source(self, request: Request) -> str:
        address = "" if request.client is None else request.client.host
        return source_of(address, request.headers.getlist("X-Forwarded-For"), self._proxies)

    def _resource(self, request: Request) -> str | None:
        return None if self._public_url is None else f"{self._public_url}{_path(request)}"

    async def _metadata(self, request: Request) -> Response:
        resource = f"{self._public_url}{_path(request).removeprefix(METADATA)}"
        office = request.path_params["office"]
        return JSONResponse(
            {
                "resource": resource,
                "resource_name": f"Office {office}",
                "authorization_servers": [self._issuer],
                "bearer_methods_supported": ["header"],
            }
        )

    def headers_of(self, request: Request, error: SmcpError) -> dict[str, str]:
        """Headers of the answer for a caller whom `check` refused."""
        if not isinstance(error, NotAuthenticated | NotAllowed):
            return {"retry-after": str(error.details.get("retry_after_s", 1))}
        parameters = {}
        if self._issuer is not None:
            parameters["resource_metadata"] = f"{self._public_url}{METADATA}{_path(request)}"
        if bearer_token(request.headers.get(HEADER, "")) is not None:
            kind = "invalid_token" if isinstance(error, NotAuthenticated) else "insufficient_scope"
            parameters |= {"error": kind, "error_description": quoted(error.message)}
        said = ", ".join(f'{name}="{value}"' for name, value in parameters.items())
        return {"www-authenticate": f"Bearer {said}".rstrip()}


def _principal_of(request: Request | None) -> Principal | None:
    user = None if request is None else request.scope.get("user")
    return user.principal if isinstance(user, _User) else None


def _on_behalf(principal: Principal) -> OnBehalf:
    rights = principal.rights
    fields: dict[str, Any] = {"identity": principal.identity, "subject": principal.subject}
    for name, patterns in (("computers", rights.computers), ("tools", rights.tools)):
        fields |= {} if patterns == ANY else {name: list(patterns)}
    return OnBehalf.model_validate(fields | ({"read_only": True} if rights.read_only else {}))


def _path(request: Request) -> str:
    """The path as the client wrote it: two ways to write it are two URLs, and a token is for one."""
    return bytes(request.scope["raw_path"]).decode("ascii")
