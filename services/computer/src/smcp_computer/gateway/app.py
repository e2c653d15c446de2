"""The Computer on Socket.IO as one thing to enter: `async with open_gateway_computer(settings)`."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from smcp_agent.connecting.addresses import Addresses
from smcp_agent.connecting.options import ConnectionOptions, Token
from smcp_bus.tracing import client_spans
from smcp_computer.announcing import Announcer
from smcp_computer.config.file import ComputerConfig
from smcp_computer.confirmation import Asker
from smcp_computer.context import Context
from smcp_computer.core import calls_ended, member, open_inside
from smcp_computer.gateway.membership import GatewayMembership
from smcp_computer.gateway.office import GatewayOffice, Notified, Requests
from smcp_computer.in_flight import InFlight
from smcp_computer.mcp.supervisor import Fleet
from smcp_computer.resource_services import ResourceServices
from smcp_computer.settings import ComputerSettings
from smcp_computer.tools.catalogue import Catalogue
from smcp_proto.schemas import EnterOfficeReq
from smcp_service.health import Readiness
from smcp_service.metrics import Metrics

ROUND_A_BODY: Final = 4 * 1024 * 1024
"""Bytes that a message may have beside the request in it."""


@dataclass(frozen=True, slots=True)
class GatewayComputer:
    """A Computer that serves over Socket.IO."""

    readiness: Readiness
    membership: GatewayMembership
    fleet: Fleet
    catalogue: Catalogue
    in_flight: InFlight
    announcer: Announcer
    context: Context
    resources: ResourceServices

    async def wait_ready(self) -> None:
        """Return once it is in its office and each enabled MCP server is ready or has failed its first start."""
        await self.membership.joined.wait()
        await self.fleet.wait_settled()


@asynccontextmanager
async def open_gateway_computer(
    settings: ComputerSettings,
    *,
    token: Token | None = None,
    config: ComputerConfig | None = None,
    readiness: Readiness | None = None,
    asker: Asker | None = None,
    environ: Mapping[str, str] | None = None,
    metrics: Metrics | None = None,
) -> AsyncIterator[GatewayComputer]:
    """Run the MCP servers of this host and answer for them in the settings' office, by the gateways at `gateway_url`.

    It is entered at once; connecting and joining go on in the background, for as long as they take. Leaving it begins
    no new calls, waits for those that run (at most `drain_s`), gives the place up, and ends the servers. In this order:
    the gateway takes a Computer that has left for gone, and would answer its calls so.

    Args:
        token: for the gateway; a function is asked before each connection.
        config, asker, environ: as of `open_computer`.

    Raises:
        ConfigError: the file cannot be used.
        Malformed: `gateway_url` is none.
    """
    readiness = Readiness() if readiness is None else readiness
    addresses = Addresses(url.strip() for url in (settings.gateway_url or "").split(","))
    requests = Requests(settings.office)
    notified = Notified(settings.office)
    options = ConnectionOptions(
        max_message=settings.max_payload + ROUND_A_BODY,
        max_request=settings.max_payload,
        token=token,
        answer=requests.answer,
    )
    membership = GatewayMembership(
        addresses,
        options,
        EnterOfficeReq(role="computer", name=settings.name, office_id=settings.office),
        on_notice=notified.heard,
    )
    readiness.add("office", lambda: membership.problem)
    async with open_inside(
        settings,
        GatewayOffice(membership.link),
        max_body=settings.max_payload,
        may_tell=lambda: membership.problem is None,
        tracing=client_spans(),
        readiness=readiness,
        config=config,
        asker=asker,
        environ=environ,
        metrics=metrics,
    ) as inside:
        requests.begin(inside.dispatcher)
        notified.begin(inside.in_flight, inside.resources.room)
        membership.begin(
            inside.announcer, inside.resources, lambda: inside.context.capabilities.now, inside.in_flight.placed
        )
        async with (
            member(inside.tasks, membership, inside.announcer, inside.resources, inside.fleet),
            calls_ended(inside.in_flight, inside.confirmation, settings.drain_s),
        ):
            try:
                yield GatewayComputer(
                    readiness,
                    membership,
                    inside.fleet,
                    inside.catalogue,
                    inside.in_flight,
                    inside.announcer,
                    inside.context,
                    inside.resources,
                )
            finally:
                readiness.drain()
                requests.end()
