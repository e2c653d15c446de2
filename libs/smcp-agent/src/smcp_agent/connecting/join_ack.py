"""What the ack of `server:join_office` says (events.txt, room events)."""

from typing import Any

from smcp_agent.errors import BadReply, ErrorCode, JoinRefused, NotAllowed, SmcpError, received_error
from smcp_proto.errors import ERRORS, read_refusal


def refusal_in(ack: Any, office: str, agent: str) -> SmcpError | None:
    """What the ack of join_office says: None for `[true, null]`, the error for `[false, why]`.

    That is JoinRefused where the place is another's, and where the "why" has no code; else the code's own class:
    Unavailable where the gateway could not find out.

    Raises:
        BadReply: it is neither.
    """
    match ack:
        case [True, *_]:
            return None
        case [False, *rest]:
            code, why = read_refusal(str(rest[0]) if rest and rest[0] else "no reason given")
            kind = ERRORS.get(code or ErrorCode.NOT_ALLOWED, NotAllowed)
            if kind is NotAllowed:
                return JoinRefused(f"{office} refused {agent}: {why}", details={"why": why})
            return kind(f"{office} cannot be joined by {agent} now: {why}", details={"why": why})
    error = received_error(ack)
    if error is not None:
        raise error
    raise BadReply("join_office was acknowledged with neither [true, null] nor [false, why]")
