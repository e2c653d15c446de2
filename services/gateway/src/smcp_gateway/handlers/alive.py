"""`alive`: a registry asks whether a session still lives here (`registry_contract`)."""

from smcp_bus.door.types import Call
from smcp_bus.registry_contract import AliveAnswer, AliveQuestion
from smcp_gateway.sockets.session import Sessions


async def alive(request: AliveQuestion, call: Call, *, sessions: Sessions) -> AliveAnswer:
    """Whether that session is connected, and a member or about to be one; by that very claim, or in that
    very place, where one is named."""
    if request.session is not None and request.incarnation is not None:
        return AliveAnswer(session=sessions.means(request.session, request.incarnation))
    if request.office is None or request.role is None or request.name is None:
        return AliveAnswer(session=sessions.holds(request.session))
    return AliveAnswer(session=sessions.holds(request.session, (request.office, request.role, request.name)))
