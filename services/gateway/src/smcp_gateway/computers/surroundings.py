"""What the Computers on Socket.IO of one gateway share."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from smcp_bus.dispatch import Observe, Tracing
from smcp_bus.owner import Owner
from smcp_gateway.computers.pending_acks import Room, Send
from smcp_gateway.computers.subscriptions import Later


@dataclass(frozen=True, slots=True)
class Surroundings:
    """One for all of them."""

    send: Send
    room: Room
    owner: Owner
    max_body: int
    """Bytes that an answer may have on the bus."""
    tracing: Tracing | None
    observe: Observe | None
    later: Later
    tell: Callable[[str, str, str, bytes], Awaitable[object]]
    """Tells an office as a Computer, with a verb and JSON."""
    is_open: Callable[[int], bool]
    """Whether calls may run of a Computer that the registry confirmed in that generation of the ownership."""
