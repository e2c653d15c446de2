"""Serves the NATS subjects of a native Computer, and follows the notifications of its office."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from pydantic import ValidationError

from smcp_bus import registry_contract, subjects
from smcp_bus.bus import Bus, Incoming, Subscription
from smcp_bus.dispatch import Call, Dispatcher
from smcp_bus.headers import EPOCH
from smcp_bus.owner import Owner
from smcp_bus.ownership import Ownership, Seat, owned
from smcp_bus.registry_contract import AliveAnswer, AliveQuestion
from smcp_bus.subjects import computer_route, host_route, request_handler, serve_requests
from smcp_proto.schemas import EnterOfficeNotification, LeaveOfficeNotification
from smcp_proto.schemas.base import AgentCallData
from smcp_proto.trace_ids import trace_id
from smcp_service.logging import bind_call

_log = logging.getLogger("smcp_computer.serving")

MAX_REQUESTS: Final = 8192
"""Requests at a time; more wait. High, since `pending` comes on the same subject as calls that last for an hour."""
DRAIN_S: Final = 5.0
"""How long requests that run may hold up the end."""
CANCEL_VERB: Final = "tool_call_cancel"


async def alive(question: AliveQuestion, call: Call, *, session: str) -> AliveAnswer:
    """Asked by the registry before it lets a member go. A Computer has one session, its process."""
    return AliveAnswer(session=question.session in (None, session))


def cancel(notice: AgentCallData, owner: Owner, seat: Seat) -> None:
    """Cancel the call that an Agent does not want any more, if it runs here."""
    if owner.cancel((seat,), seat.office, notice.agent, notice.req_id):
        ids = trace_id(seat.office, notice.agent, notice.req_id)
        with bind_call(req_id=notice.req_id, office=seat.office, trace_id=ids):
            _log.info("a call was cancelled")


class OfficeNotifications:
    """Notifications that concern calls, Agents that leave, and this Computer's own membership.

    Args:
        on_presence_changed: given the revision of every enter and leave under this Computer's name.
        on_left: given the name of each Agent that leaves.
    """

    def __init__(
        self,
        owner: Owner,
        seat: Seat,
        ownership: Ownership,
        on_presence_changed: Callable[[int], None],
        on_left: Callable[[str], None],
    ) -> None:
        self._owner = owner
        self._seat = seat
        self._ownership = ownership
        self._on_presence_changed = on_presence_changed
        self._on_left = on_left
        self._entered = ("", 0)
        """The Agent that entered last, and the epoch of that."""

    async def heard(self, incoming: Incoming) -> None:
        """One notification of the office, of any kind."""
        try:
            match subjects.verb_of(incoming.subject):
                case "tool_call_cancel":
                    cancel(AgentCallData.model_validate_json(incoming.body), self._owner, self._seat)
                case "enter_office":
                    who = EnterOfficeNotification.model_validate_json(incoming.body)
                    self._moved(who.agent, who.computer, int(incoming.headers.get(EPOCH, "")), left=False)
                case "leave_office":
                    whose = LeaveOfficeNotification.model_validate_json(incoming.body)
                    self._moved(whose.agent, whose.computer, int(incoming.headers.get(EPOCH, "")), left=True)
        except (ValidationError, ValueError):
            _log.warning("a notification that cannot be read was ignored")

    def _moved(self, agent: str | None, computer: str | None, epoch: int, *, left: bool) -> None:
        if computer == self._seat.computer:
            self._on_presence_changed(epoch // 2)
        if agent is not None and not left and epoch > self._entered[1]:
            self._entered = (agent, epoch)
        elif agent is not None and left:

            def is_back() -> bool:
                return self._entered[0] == agent and self._entered[1] > epoch

            self._owner.agent_left(self._seat.office, agent, self._ownership, is_back)
            self._on_left(agent)


@asynccontextmanager
async def serving(
    bus: Bus,
    dispatcher: Dispatcher,
    ownership: Ownership,
    notifications: OfficeNotifications,
    seat: Seat,
    *,
    credential: str,
    process: str,
) -> AsyncIterator[None]:
    """Serve this Computer's subjects while the body runs; on leaving, what runs is waited for (bounded).

    Raises:
        BusError: nats-server does not permit it, or is not there.
    """
    handler = owned(request_handler(dispatcher, computer_route), ownership.refusal)
    host = subjects.hosts(credential, process, registry_contract.ALIVE.verb)
    calls = subjects.client_all(seat.office, seat.computer)
    subscriptions: list[Subscription] = [
        await serve_requests(bus, dispatcher, host, host_route),
        await bus.serve(calls, handler, queue=subjects.OWNER_QUEUE, limit=MAX_REQUESTS),
        await bus.listen(subjects.notify_all(seat.office), notifications.heard),
    ]
    try:
        yield
    finally:
        drains = [asyncio.ensure_future(subscription.drain()) for subscription in subscriptions]
        _, late = await asyncio.wait(drains, timeout=DRAIN_S)
        for drain in late:
            drain.cancel()
