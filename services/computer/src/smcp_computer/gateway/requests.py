"""The door on Socket.IO: an event's name says the row, its argument is the request."""

from smcp_bus.door.dispatch import Door, failed
from smcp_bus.door.types import Caller
from smcp_proto import catalog
from smcp_proto.errors import Malformed, SmcpError, Unavailable


class Requests:
    """Between `begin` and `end` what the gateway asks is answered by the door.

    The gateway vouches for who asks: an Agent of this Computer's office.
    """

    def __init__(self, office: str) -> None:
        self._caller = Caller("agent", office)
        self._door: Door | None = None

    def begin(self, door: Door) -> None:
        """From now on answer by `door`."""
        self._door = door

    def end(self) -> None:
        """Begin nothing any more; what runs goes on, and is answered."""
        self._door = None

    async def answer(self, event: str, body: object) -> bytes:
        """The JSON of the acknowledgement: the reply, or a flat error. See `smcp_agent.connecting.answering.Answer`."""
        door = self._door
        if door is None:
            return _refused(Unavailable("the Computer is stopping", details={"may_have_run": False}))
        row = catalog.lookup(event)
        if row is None:
            return _refused(Malformed("there is no such event", details={"field": ""}))
        answer = await door.dispatch(row, self._caller, body)
        return answer.body or b"null"


def _refused(error: SmcpError) -> bytes:
    return failed(error.body()).body
