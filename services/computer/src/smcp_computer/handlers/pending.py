"""`pending`: asked by who waits for calls of this Computer, to notice one that got lost."""

from smcp_bus.dispatch_types import Call
from smcp_bus.internal_rows import PendingAnswer, PendingQuestion
from smcp_computer.in_flight import InFlight


async def pending(question: PendingQuestion, call: Call, *, in_flight: InFlight) -> PendingAnswer:
    """Which of these calls neither run here nor ended here."""
    office = call.caller.office or ""
    return PendingAnswer(
        unknown=[(agent, req_id) for agent, req_id in question.calls if not in_flight.knows((office, agent, req_id))]
    )
