"""What the Computers on Socket.IO of one gateway share."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from smcp_bus.call_records import CallRecords
from smcp_bus.dispatch import Observe, Tracing
from smcp_gateway.computers.questions import Room, Send
from smcp_gateway.computers.subscriptions import Later

CallKey = tuple[str, str, str, str]
"""(office, computer, agent, req_id)"""
CancelKey = tuple[str, str, str]
"""(office, agent, req_id): a cancel names no Computer."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """One for all of them."""

    send: Send
    room: Room
    records: CallRecords[CallKey, CancelKey]
    max_body: int
    """Bytes that an answer may have on the bus."""
    tracing: Tracing | None
    observe: Observe | None
    later: Later
    tell: Callable[[str, str, str, bytes], Awaitable[object]]
    """Tells an office as a Computer, with a verb and JSON."""
    is_open: Callable[[int], bool]
    """Whether the gate is open for a Computer that the registry confirmed in that generation of it."""
