"""The HTTP endpoint: checks a request, and has it answered by this process or by a peer (docs/adr/0048)."""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Final, cast
from urllib.parse import unquote_to_bytes

import h11
import uvicorn
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from mcp_types import INVALID_REQUEST
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from smcp_agent.connecting.link import FIRST_DELAY_S, MAX_DELAY_S, Addresses, delay
from smcp_agent.connecting.options import ConnectionOptions
from smcp_agent.errors import Malformed, NotAllowed, NotAuthenticated, RateLimited, SmcpError, TooLarge
from smcp_auth.client_addresses import counted_as
from smcp_auth.quotas import BodyBudget, Quotas
from smcp_bus.callers import DELEGATES
from smcp_bus.limits import ByteBudget
from smcp_mcp.auth import Authorization, RequestHolder
from smcp_mcp.buffered_request import BODY_S, GATE, BufferedRequest
from smcp_mcp.offices import LAST_CALLS_S, Offices, SeatTaken, client_options
from smcp_mcp.peers import Peers, open_peers
from smcp_mcp.settings import McpSettings
from smcp_proto.backoff import Backoff, jittered
from smcp_proto.member_names import check_name
from smcp_proto.validation import refused
from smcp_service import http_limits
from smcp_service.health import Readiness
from smcp_service.lifecycle import background, cannot_listen
from smcp_service.logging import bind_call
from smcp_service.metrics import Metrics
from smcp_service.settings import listed

HANDOVER_S: Final = 12.0
"""How long a request waits for the seat of a replica that has died: a gateway notices a dead client within 10 s."""
FIRST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 0.5
"""Between two looks at such a seat. A gateway frees the seat of a process that was killed within milliseconds."""
CHECK_S: Final = 30.0
"""Between two checks of the gateway while all is well."""
BEGINNING: Final = 4
"""Requests that may be beginning; of one key or token half of them, so that others need not wait for it."""
BEGINS_S: Final = 0.003
"""So long a request begins, if it is not answered before; then it waits for a Computer. It computes for some 3 ms."""
NOT_HELD: Final = "this replica does not hold the seat of the office"
_PATH: Final = "/mcp/"

_log: Final = logging.getLogger(__name__)


def office_of(scope: Scope) -> str:
    """The name of the office in a request's URL, in NFC. Raises Malformed: it is not UTF-8, or no name."""
    if scope["path"] in (_PATH, _PATH.rstrip("/")):
        raise refused("the office in the URL", "missing; the URL has to end in its name, as in /mcp/home")
    try:
        raw_name = scope["raw_path"][len(_PATH) :].removesuffix(b"/")  # a name that ends in a slash has it as %2F
        return check_name(unquote_to_bytes(raw_name).decode())
    except ValueError as error:
        why = "is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
        raise refused("the office in the URL", why) from None


class McpEndpoint(BaseRoute):
    """The route `/mcp/{office}`, and `/mcp`, where the office is missing. A pattern of Starlette's would not match a
    name with a line break."""

    def __init__(
        self, settings: McpSettings, access: Authorization, offices: Offices, peers: Peers, quotas: Quotas
    ) -> None:
        self._settings = settings
        self._hosts = settings.hosts_at(settings.mcp_host)
        self._access = access
        self._offices = offices
        self._peers = peers
        self._quotas = quotas
        self._beginning = ByteBudget(BEGINNING)
        self.bodies, self.answers = BodyBudget(settings.max_request), BodyBudget(settings.max_payload)
        self.requests: Counter[str] = Counter(dict.fromkeys(("here", "peer", "refused", "failed"), 0))
        """By who answered: this process as an MCP server, a peer, or this process with an error."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return (Match.FULL if f"{scope['path']}/".startswith(_PATH) else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests[await self._answer(BufferedRequest(scope, receive, send))] += 1

    async def _answer(self, exchange: BufferedRequest) -> str:
        request = exchange.request
        if (refusal := http_limits.forbidden_header(request.headers, self._hosts, self._settings.origins)) is not None:
            return await exchange.refuse(403, refusal[1], code=INVALID_REQUEST, data={"field": refusal[0]})
        try:
            office = office_of(request.scope)
            client_options(request)
            with bind_call(office=office):
                return await self._answer_for(exchange, office)
        except (Malformed, TooLarge, RateLimited) as error:
            data = {name: value for name, value in error.details.items() if name != "reason"}  # that is in the message
            return await exchange.refuse(int(error.code), error.message, code=INVALID_REQUEST, data=data)
        except MCPError as error:
            said = error.error
            await exchange.refuse(ERROR_CODE_HTTP_STATUS[said.code], said.message, code=said.code, data=said.data)
        except (SeatTaken, SmcpError) as error:
            status = 409 if isinstance(error, SeatTaken) else 403 if isinstance(error, NotAllowed) else 503
            await exchange.refuse(status, str(error))
        return "failed"

    async def _answer_for(self, exchange: BufferedRequest, office: str) -> str:
        request = exchange.request
        try:
            await self._access.check(request, office)
        except SmcpError as error:
            code, headers = int(error.code), self._access.headers_of(request, error)
            return await exchange.refuse(code, f"error {code}: {error.message}", code=INVALID_REQUEST, headers=headers)
        holder = self._access.holder(request, office)
        request.scope["state"][GATE].begin(member=True)
        if exchange.passed_on and self._offices.held.get(office) is None:
            return await exchange.refuse(421, NOT_HELD)  # without counting it or reading its body
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            return await exchange.refuse(415, "Content-Encoding: send bodies as they are", code=INVALID_REQUEST)
        return await self._answer_counted(exchange, office, holder)

    async def _answer_counted(self, exchange: BufferedRequest, office: str, holder: RequestHolder) -> str:
        """Counts a request as in flight, and a stream of notifications as a connection. Raises RateLimited."""
        settings, quotas, subject = self._settings, self._quotas, self._access.subject(exchange.request)
        with exchange.in_use() as counted:
            hold = counted.enter_context(self.bodies.of(subject))
            call = counted.enter_context(ExitStack())
            call.callback(quotas.end, quotas.begin(holder, 0), 0)
            exchange.count_bytes, exchange.unread = partial(quotas.arrived, holder), partial(self.answers.of, subject)
            try:
                await exchange.read(settings.max_request, settings.max_values, hold)
            except TimeoutError:
                return await exchange.refuse(408, f"the body did not come within {BODY_S:g} s", code=INVALID_REQUEST)
            if exchange.streams:
                quotas.connected(holder)
                call.close()
                counted.callback(quotas.disconnected, holder)
            turn = asyncio.Event()
            begins = self._beginning.ask(1, turn.set, subject)
            counted.callback(begins.release)
            await turn.wait()
            asyncio.get_running_loop().call_later(BEGINS_S, begins.release)
            served = self._served(exchange, office)
            if (outcome := await self._access.while_valid(exchange.request, served, streams=exchange.streams)) is None:
                await exchange.break_off("the token was revoked, or has expired")
            return outcome or "failed"

    async def _served(self, exchange: BufferedRequest, office: str) -> str:
        """Answer the request here or at a peer, whichever holds the seat. Joins the office if nobody does. Raises
        SeatTaken, SmcpError, MCPError."""
        loop = asyncio.get_running_loop()
        backoff, deadline = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S), loop.time() + HANDOVER_S
        while True:
            if (held := self._offices.held.get(office)) is None:
                if exchange.passed_on:
                    return await exchange.refuse(421, NOT_HELD)
                known = self._peers.known.get(office)
                if known is not None and await self._peers.pass_on(exchange, office, known):
                    return "peer"
                if exchange.has_session:  # only the replica that holds the seat knows it: do not join
                    found = await self._pass_on_to_holder(exchange, office)
                    return "peer" if found else await exchange.refuse(404, "Session not found", code=INVALID_REQUEST)
                exchange.check_first_request()
                try:
                    held = await self._offices.join(office, self._access.holder(exchange.request, office))
                except SeatTaken as taken:
                    if not taken.by_replica:
                        raise
                    if await self._pass_on_to_holder(exchange, office):
                        return "peer"
                    if loop.time() > deadline:
                        raise
                    await asyncio.sleep(backoff.next())
                    continue
            await held.answer(exchange, self._access.session_holder(exchange.request))
            return "here"

    async def _pass_on_to_holder(self, exchange: BufferedRequest, office: str) -> bool:
        for peer in await self._peers.addresses():
            if await self._peers.pass_on(exchange, office, peer):
                return True
        return False


class GatewayCheck:
    """Whether a gateway accepts this service's token: known before the first office is joined, and checked again, since
    the token may be renewed. It connects, joins nothing, and closes."""

    def __init__(self, settings: McpSettings) -> None:
        self._settings = settings
        self.problem: str | None = "not connected to a gateway yet"
        """Why the service is not ready; None if its token was accepted at the last check, even if over a quota."""

    async def run(self) -> None:
        addresses, backoff = Addresses(listed(self._settings.url)), Backoff(FIRST_DELAY_S, MAX_DELAY_S)
        auth = {DELEGATES: True} if self._settings.auth_configured else {}
        options = ConnectionOptions(auth=auth, token=self._settings.gateway_token)
        while True:
            try:
                await (await addresses.connect(options, lambda event, data: None)).close()
            except SmcpError as error:
                why, pause = _problem(error), max(delay(error), backoff.next())
            else:
                why, pause = None, jittered(CHECK_S)
                backoff.reset()
            before, self.problem = self.problem, why
            if why is None and before is not None:
                _log.info("ready")
            elif why != before:
                _log.error("not ready", extra={"why": why})
            await asyncio.sleep(pause)


def _problem(error: SmcpError) -> str | None:
    if isinstance(error, RateLimited) and "quota" in error.details:
        return None  # the token is accepted: the connections of this service's offices have used up its quota
    if isinstance(error, NotAuthenticated | NotAllowed):
        return f"the gateway refuses SMCP_TOKEN: {error.message}"
    return error.message


class _Protocol(H11Protocol):
    """uvicorn has no deadline for headers and no limit per address: a `Gate` before it has both. The scope of a request
    has it under `state`."""

    def on_response_complete(self) -> None:
        self.app_state[GATE].idle()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(None)  # uvicorn would keep one that was reset, and its request, for `IDLE_S`

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state is h11.IDLE:
            super().send_400_response(msg)
        else:  # its body is malformed: the application has answered, or would answer, too
            self.transport.abort()


def _gated(unauthenticated: http_limits.UnauthenticatedConnections, **given: Any) -> http_limits.Gate:
    state = dict(given.pop("app_state"))
    state[GATE] = gate = http_limits.Gate(lambda: _Protocol(app_state=state, **given), unauthenticated)
    return gate


class _Server(uvicorn.Server):
    """uvicorn, which leaves the signals to the process that it runs in."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def open_mcp(
    settings: McpSettings, readiness: Readiness, metrics: Metrics, *, choose: str = "--port / SMCP_MCP_PORT"
) -> AsyncIterator[str]:
    """Serve MCP clients while the body runs; it is given the URL. Raises Failure: see `cannot_listen`."""
    host, port = settings.mcp_host, settings.mcp_port
    access = Authorization(settings)
    async with background() as tasks, open_peers(listed(settings.mcp_peers)) as peers:
        quotas = Quotas(settings.quotas, burst_s=settings.quota_burst_s, clock=asyncio.get_running_loop().time)
        offices = Offices(settings, access, quotas, tasks)
        tasks.start(access.run(), name="access")
        check = GatewayCheck(settings)
        tasks.start(check.run(), name="gateway check")
        readiness.add("mcp_gateway_connection", lambda: check.problem)
        endpoint = McpEndpoint(settings, access, offices, peers, quotas)
        counter, budgets = metrics.counter, {"bodies": endpoint.bodies, "answers": endpoint.answers}
        metrics.gauge("smcp_mcp_offices", "Offices whose seat this process holds", lambda: len(offices.held))
        counter("smcp_mcp_requests", "Requests, by who answered", lambda: endpoint.requests, label="by")
        counter(
            "smcp_mcp_quota_refusals",
            "Requests, streams, sessions and offices above a quota, and bodies and unread answers above their budget",
            lambda: quotas.refused | {name: each.refused for name, each in budgets.items()},
            label="quota",
        )
        outcomes = "Attempts to pass a request on to a peer, by outcome"
        counter("smcp_mcp_passed_on", outcomes, lambda: peers.passed_on, label="outcome")
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = socket.create_server((host, port), family=family, backlog=1024)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # each connection inherits it
        except OSError as error:
            raise cannot_listen(error, host, port, choose=choose) from error
        pages = Middleware(
            CORSMiddleware,
            allow_origins=settings.origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["Mcp-Session-Id", "WWW-Authenticate"],
        )
        routes = [endpoint, *access.routes]
        by_address = partial(counted_as, trusted=settings.proxies)
        unauthenticated = http_limits.UnauthenticatedConnections(
            http_limits.EdgeRules(per_address=settings.unauthenticated_per_address, counted_as=by_address)
        )
        server = _Server(
            uvicorn.Config(
                Starlette(routes=routes, middleware=[pages] if settings.origins else []),
                h11_max_incomplete_event_size=http_limits.CONNECTION_BYTES,
                http=cast("type[asyncio.Protocol]", partial(_gated, unauthenticated)),
                ws="none",
                lifespan="off",
                log_config=None,
                log_level=logging.ERROR,  # anybody can provoke warnings: of malformed requests, and upgrades
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=int(http_limits.IDLE_S),
                timeout_graceful_shutdown=int(LAST_CALLS_S),
            )
        )
        serving = tasks.start(server.serve(sockets=[listener]), name="http")
        address, bound, *_ = listener.getsockname()
        readiness.add("mcp_listener", lambda: None if server.started else "not listening yet")
        try:
            yield f"http://{f'[{address}]' if ':' in address else address}:{bound}"
        finally:
            readiness.draining = True
            await offices.close()
            server.should_exit = True
            await serving
            unauthenticated.close()
