"""What a client gets back: the one argument of an acknowledgement, as JSON."""

from typing import Final

import orjson

from smcp_bus.door.dispatch import failed
from smcp_bus.door.types import Answer
from smcp_gateway.sockets.packet import ENVELOPE_BYTES
from smcp_proto.catalog_row import Ack, Row
from smcp_proto.errors import ErrorBody, TooLarge, refusal

NULL: Final = b"null"
DONE: Final = b"[true,null]"


def largest_reply(max_message: int) -> int:
    """Bytes that a reply may have to a client that takes so many in one message."""
    return max(0, max_message - ENVELOPE_BYTES - 1)


def ack_argument(row: Row | None, answer: Answer, max_message: int) -> bytes:
    """The argument for `answer`, in the shape of the row's events; 413 where the client could not take it.

    Args:
        row: None where no event of that name exists: then it is a flat error.
        max_message: bytes that one message to this client may have.
    """
    shape = Ack.REPLY if row is None else row.ack
    if shape is Ack.DONE:
        return DONE if answer.error is None else orjson.dumps([False, refusal(_error(answer.body))])
    if answer.error is None and shape is not Ack.REPLY:
        return NULL
    body = answer.body or NULL
    if len(body) <= largest_reply(max_message):
        return body
    error = TooLarge(
        "the reply is larger than this client takes in one message",
        details={"limit": max_message, "size": len(body)},
    )
    return failed(error.body()).body


def _error(body: bytes) -> ErrorBody:
    return ErrorBody.model_validate(orjson.loads(body))
