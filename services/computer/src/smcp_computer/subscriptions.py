"""What a Computer is subscribed to while it runs."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import orjson

from smcp_bus import registry_contract, subjects
from smcp_bus.bus import Bus, Incoming, NoticeHandler, Reply, RequestHandler, Subscription
from smcp_bus.dispatch import Dispatcher, computer_route, host_route, request_handler, serve_requests
from smcp_bus.headers import ERROR
from smcp_bus.owner import OwnerGate
from smcp_computer.handlers.cancelled import cancelled
from smcp_computer.handlers.told import told
from smcp_computer.in_flight import InFlight

MAX_REQUESTS: Final = 8192
"""Requests at a time; more wait. High, since `pending` comes on the same subject as calls that last for an hour."""
DRAIN_S: Final = 5.0


@asynccontextmanager
async def subscribed(
    bus: Bus,
    dispatcher: Dispatcher,
    gate: OwnerGate,
    in_flight: InFlight,
    *,
    office: str,
    name: str,
    credential: str,
    process: str,
    on_told: Callable[[int], None],
    on_notified: NoticeHandler,
) -> AsyncIterator[None]:
    """Serve this Computer's subjects while the body runs; on leaving, what runs is waited for (bounded).

    Args:
        on_told: given the revision of every enter and leave under this Computer's name that the office is told of.
        on_notified: given every notification of the office.

    Raises:
        BusError: nats-server does not permit it, or is not there.
    """

    async def notified(incoming: Incoming) -> None:
        await cancelled(incoming, office=office, in_flight=in_flight)
        await told(incoming, name=name, tell=on_told)
        await on_notified(incoming)

    async with _left(
        await serve_requests(
            bus, dispatcher, subjects.hosts(credential, process, registry_contract.ALIVE.verb), host_route
        ),
        await bus.serve(
            subjects.client_all(office, name),
            _guarded(request_handler(dispatcher, computer_route), gate),
            queue=subjects.OWNER_QUEUE,
            limit=MAX_REQUESTS,
        ),
        await bus.listen(subjects.notify_all(office), notified),
    ):
        yield


def _guarded(handler: RequestHandler, gate: OwnerGate) -> RequestHandler:
    """`handler` behind the gate, but for the question after calls that run here: they go on while it is closed."""
    behind = gate.guard(handler)

    async def guarded(incoming: Incoming) -> Reply:
        if not gate.is_open and subjects.verb_of(incoming.subject) == registry_contract.PENDING.verb:
            reply = await handler(incoming)
            # with the gate closed, a call that is not known here may be another owner's: that is not for us to say
            if ERROR not in reply.headers and not orjson.loads(reply.body)["unknown"]:
                return reply
        return await behind(incoming)

    return guarded


@asynccontextmanager
async def _left(*subscriptions: Subscription) -> AsyncIterator[None]:
    try:
        yield
    finally:
        drains = [asyncio.ensure_future(subscription.drain()) for subscription in subscriptions]
        _, late = await asyncio.wait(drains, timeout=DRAIN_S)
        for drain in late:
            drain.cancel()
