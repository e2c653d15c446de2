"""This Computer's place in its office, by a gateway: connected, joined, and again after every loss."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from smcp_agent.connecting.addresses import Addresses, respite
from smcp_agent.connecting.connection import Connection, Notice
from smcp_agent.connecting.link import Link
from smcp_agent.connecting.options import ConnectionOptions
from smcp_agent.errors import NotAuthenticated, SmcpError
from smcp_bus.backoff import Backoff
from smcp_computer.announcing import Announcer
from smcp_computer.resource_services import ResourceServices
from smcp_proto.schemas import EnterOfficeReq

_log = logging.getLogger("smcp_computer.membership")


class GatewayMembership:
    """`begin` comes before `run`, which must be running while it lasts.

    Args:
        place: what to join as.
        on_notice: given every notification.
    """

    def __init__(
        self, addresses: Addresses, options: ConnectionOptions, place: EnterOfficeReq, *, on_notice: Notice
    ) -> None:
        self.link = Link(addresses, place, options, _Listener(self), on_notice)
        self.joined = asyncio.Event()
        """Set once the place was had for the first time."""
        self._place = place
        self._problem: str | None = "not joined yet"
        self._announcer: Announcer | None = None
        self._resources: ResourceServices | None = None
        self._capabilities: Callable[[], Mapping[str, Any]] = dict
        self._placed: Callable[[bool], None] = lambda new: None

    def begin(
        self,
        announcer: Announcer,
        resources: ResourceServices,
        capabilities: Callable[[], Mapping[str, Any]],
        placed: Callable[[bool], None],
    ) -> None:
        """Args:
        announcer, resources, placed: told whenever the place is had (again).
        capabilities: what this Computer can do now; said when it joins.
        """
        self._announcer, self._resources, self._capabilities = announcer, resources, capabilities
        self._placed = placed

    @property
    def problem(self) -> str | None:
        """Why this Computer is not in its office now; None while it is."""
        connection = self.link.connection
        if self._problem is None and (connection is None or connection.lost.is_set()):
            return "the connection with the gateway is lost"
        return self._problem

    async def run(self) -> None:
        """Have the place, and have it again whenever it was lost, until cancelled.

        A token that is not accepted is no end either: it may be renewed, or its key be added yet. It is said in the log
        and in `problem`, and tried again after 1, 4, 16 and then every 60 s.
        """
        await self._first()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.link.run(), name="link")
            tasks.create_task(self.link.watch(), name="link watch")

    async def leave(self) -> None:
        """Give the place up and close the connection; `run` must have ended. Takes some seconds at most."""
        was_in, self._problem = self.problem is None, "left"
        await self.link.close()
        if was_in:
            _log.info("left the office %r", self._place.office_id)

    def describe(self) -> None:
        """What the next join says: this Computer as it is now."""
        said = {**self._place.model_dump(exclude_unset=True), "capabilities": self._capabilities()}
        self.link.describe(EnterOfficeReq.model_validate(said))

    def is_in(self) -> None:
        """It is in its office (again)."""
        assert self._announcer is not None
        assert self._resources is not None
        connection = self.link.connection
        self._problem = None
        self.joined.set()
        # nobody says whether the office was told that it came: what was subscribed to stays, where its Agent does
        self._resources.in_office(entered=False)
        self._placed(True)
        self._announcer.resume()
        by = "" if connection is None else connection.url
        _log.info("in the office %r as %r, by %s", self._place.office_id, self._place.name, by)

    def lost(self, reason: str) -> None:
        """The connection has ended, and comes back."""
        self._problem = f"the connection with the gateway is lost: {reason}"
        _log.info("not in the office %r: %s; coming back", self._place.office_id, self._problem)

    def trouble(self, problem: str) -> None:
        """It is not in its office, and why; said once."""
        if problem != self._problem:
            _log.warning("not in the office %r: %s; trying on", self._place.office_id, problem)
        self._problem = problem

    async def _first(self) -> None:
        backoff, unknown = Backoff(first_s=0.25, longest_s=5.0), 0
        while True:
            try:
                await self.link.open()
            except SmcpError as error:
                unknown = unknown + 1 if isinstance(error, NotAuthenticated) else 0
                self.trouble(error.message)
                await asyncio.sleep(max(backoff.next(), respite(error, unknown)))
            else:
                self.is_in()
                return


class _Listener:
    """See `smcp_agent.connecting.link.Listener`."""

    def __init__(self, membership: GatewayMembership) -> None:
        self._membership = membership

    def joining(self) -> None:
        self._membership.describe()

    async def joined(self, connection: Connection) -> None:
        self._membership.is_in()

    def on_lost(self, reason: str, *, moving: bool) -> None:
        self._membership.lost(reason)

    def on_refused(self, why: str) -> None:
        self._membership.trouble(f"refused: {why}")
