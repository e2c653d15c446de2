"""What a Computer on Socket.IO acknowledged, as it goes back to who asked. Pure."""

from smcp_gateway.asks import Fate, Outcome
from smcp_proto.errors import Internal, TooLarge, Unavailable


def answered(outcome: Outcome, limit: int) -> bytes:
    """The JSON of an acknowledgement, if it can be an object: the gateway of the Agent reads all of it, and refuses
    there what is not JSON. An error of the Computer is an object like any other and goes on unchanged.

    Args:
        limit: bytes that an answer may have.

    Raises:
        Unavailable: the Computer went meanwhile.
        Internal: it is no object.
        TooLarge: it is above the limit.
    """
    match outcome:
        case Fate.GONE:
            raise Unavailable("the Computer is gone", details={"may_have_run": True})
        case bytes() if _is_braced(outcome):
            if len(outcome) > limit:
                raise TooLarge("the result is too large", details={"size": len(outcome), "limit": limit})
            return outcome
        case _:
            raise Internal("the Computer's answer is not a JSON object")


def _is_braced(text: bytes) -> bool:
    if text[:1] == b"{" and text[-1:] == b"}":
        return True
    text = text.strip()
    return text[:1] == b"{" and text[-1:] == b"}"
