"""What runs for as long as a Computer is open, each with how it ends."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from smcp_computer.announcing import Announcer
from smcp_computer.confirmation import Confirmation
from smcp_computer.context import Context
from smcp_computer.in_flight import InFlight
from smcp_computer.mcp.fleet import Fleet
from smcp_computer.place import Place
from smcp_computer.resource_services import ResourceServices
from smcp_service.lifecycle import Background
from smcp_service.wording import counted, waiting_for_calls

_log = logging.getLogger("smcp_computer")

HEAD_START_S: Final = 5.0
"""How long the MCP servers may take before the office is joined without them: an Agent that sees this Computer come
asks for its tools at once. Those that come later are announced."""


@asynccontextmanager
async def running(tasks: Background, fleet: Fleet, context: Context) -> AsyncIterator[None]:
    """The MCP servers, and what follows them; on leaving they are ended."""
    following = tasks.start(context.run(), name="context")
    servers = tasks.start(fleet.run(), name="mcp servers")
    try:
        yield
    finally:
        following.cancel()
        fleet.stop()
        await asyncio.wait([servers, following])


@asynccontextmanager
async def member(
    tasks: Background, membership: Place, announcer: Announcer, resources: ResourceServices, fleet: Fleet
) -> AsyncIterator[None]:
    """Join, and stay; on leaving give the place up. From then on nothing new is run."""

    async def join() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(HEAD_START_S):
                await fleet.wait_settled()
        await membership.run()

    running = [
        tasks.start(join(), name="membership"),
        tasks.start(announcer.run(), name="announcer"),
        tasks.start(resources.run(), name="resource notices"),
    ]
    try:
        yield
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)
        await membership.leave()


@asynccontextmanager
async def calls_ended(in_flight: InFlight, confirmation: Confirmation, drain_s: float) -> AsyncIterator[None]:
    """On leaving, wait for the calls that run; those that take longer than `drain_s` are broken off.

    Those that wait for the user's word do not run, and end at once.
    """
    try:
        yield
    finally:
        confirmation.ask_no_more()
        if in_flight.running:
            _log.info(waiting_for_calls(in_flight.running, drain_s))
        try:
            async with asyncio.timeout(drain_s):
                await in_flight.wait_idle()
        except TimeoutError:
            _log.warning("%s broken off: not ended within %g s", counted(in_flight.running, "call"), drain_s)
        await in_flight.aclose()
