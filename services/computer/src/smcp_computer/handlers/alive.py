"""`alive`: asked by the registry before it lets a member go."""

from smcp_bus.dispatch import Call
from smcp_bus.registry_contract import AliveAnswer, AliveQuestion


async def alive(question: AliveQuestion, call: Call, *, session: str) -> AliveAnswer:
    """A Computer has one session, its process."""
    return AliveAnswer(session=question.session in (None, session))
