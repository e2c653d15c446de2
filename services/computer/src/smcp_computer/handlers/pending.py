"""`pending`: asked by who waits for calls of this Computer, to notice one that got lost."""

from smcp_bus.dispatch import Call
from smcp_bus.registry_contract import PendingAnswer, PendingQuestion
from smcp_computer.in_flight import InFlight


async def pending(question: PendingQuestion, call: Call, *, in_flight: InFlight) -> PendingAnswer:
    """Which of these calls are not known here, and which have ended.

    In neither list: calls that run, and calls that ended just now, whose answer is on its way.
    """
    office = call.caller.office or ""
    return PendingAnswer(
        unknown=[(agent, req_id) for agent, req_id in question.calls if not in_flight.knows((office, agent, req_id))],
        ended=[(agent, req_id) for agent, req_id in question.calls if in_flight.answered((office, agent, req_id))],
    )
